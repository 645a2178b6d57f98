"""Evaluates a run on its test split: `python -m launch.evaluate --workdir=DIR`.

Restores DIR/config.json and the newest usable checkpoint, and writes DIR/evaluation.json: recall
for associative recall, bits per byte and perplexity by position for text.
"""

import json
import logging
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging

from bayesmem.evaluate.workdir import evaluate_workdir, write_evaluation
from launch.errors import short_errors

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_MAX_BATCHES = flags.DEFINE_integer(
    "max_batches", None, "First batches of the split to use; all if not given.", lower_bound=1
)


def main(argv: list[str]) -> None:
    """Evaluates, stores and prints the result."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    # Orbax reports every file it touches; its warnings and our own lines stay.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("bayesmem").setLevel(logging.INFO)
    workdir = Path(_WORKDIR.value)
    result = evaluate_workdir(workdir, _MAX_BATCHES.value)
    path = write_evaluation(workdir, result)
    print(json.dumps(result, indent=1))
    print(f"\nWritten: {path}")


if __name__ == "__main__":
    with short_errors():
        app.run(main)
