"""Evaluates a run: `python -m launch.evaluate --workdir=DIR [--tasks=TASK,...] [--data_dir=DIR]`.

Restores DIR/config.json and the newest usable checkpoint. The task "test", which is the default,
measures the run's own task on its test split into DIR/evaluation.json: recall for associative
recall, bits per byte and perplexity by position for text. Every other task is one of a language
model on text (see bayesmem/evaluate/task_names.py) and writes DIR/evaluations/TASK.json, item by
item: started again, it goes on where it was stopped.
"""

import json
import logging
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging

from bayesmem.evaluate.language import LanguageOptions, evaluate_language
from bayesmem.evaluate.task_names import TEST, parse_tasks
from bayesmem.evaluate.workdir import evaluate_workdir, write_evaluation
from launch.errors import short_errors

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_TASKS = flags.DEFINE_list(
    "tasks", [TEST], "Tasks or groups of them: NAME, NAME@LENGTH, NAME:FILE, NAME@LENGTH:FILE."
)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "Folder with the files of all tasks.")
_LIMIT = flags.DEFINE_integer("limit", None, "First items of each task; all if not given.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Rows a batch, of tasks but 'test'.")
_CHUNK = flags.DEFINE_integer("chunk", 512, "Tokens a row read at once: 32, 64, 128, ...")
_SEED = flags.DEFINE_integer("seed", 0, "Of the needles.")
_MAX_BATCHES = flags.DEFINE_integer(
    "max_batches", None, "First batches of the test split; all if not given.", lower_bound=1
)


def main(argv: list[str]) -> None:
    """Evaluates, stores and prints the results."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    # Orbax reports every file it touches; its warnings and our own lines stay.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("bayesmem").setLevel(logging.INFO)
    workdir, tasks = Path(_WORKDIR.value), parse_tasks(_TASKS.value)
    if not tasks:
        raise ValueError("--tasks: found none, wanted at least one")
    options = LanguageOptions(
        data_dir=_DATA_DIR.value,
        limit=_LIMIT.value,
        batch_size=_BATCH_SIZE.value,
        chunk=_CHUNK.value,
        seed=_SEED.value,
    )
    own = [name for name in tasks if name.task == TEST]
    if own:
        result = evaluate_workdir(workdir, _MAX_BATCHES.value)
        path = write_evaluation(workdir, result)
        print(json.dumps(result, indent=1))
        print(f"\nWritten: {path}")
    others = [name for name in tasks if name.task != TEST]
    for path, found in evaluate_language(workdir, others, options) if others else ():
        print(f"{found['task']}, {found['count']} items, step {found['step']}:")
        print(json.dumps(found["result"], indent=1))
        print(f"Written: {path}")


if __name__ == "__main__":
    with short_errors():
        app.run(main)
