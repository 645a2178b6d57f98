"""lm-evaluation-harness on a run: `python -m launch.harness --workdir=DIR --tasks=TASK,...`.

Tasks are the harness's own (`lm_eval --tasks list`), or those of the files in --include_path.
Writes results to DIR/evaluations/harness.json. Wants `pip install -e '.[harness]'`.
"""

import json
from pathlib import Path

from absl import app, flags, logging

from bayesmem.evaluate.item_store import EVALUATIONS
from bayesmem.evaluate.language import load_subject
from bayesmem.train.provenance import provenance
from bayesmem.train.records import write_json
from launch.errors import short_errors

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_TASKS = flags.DEFINE_list("tasks", None, "Names of the harness's tasks.", required=True)
_INCLUDE_PATH = flags.DEFINE_string("include_path", None, "Folder of more tasks, .yaml files.")
_LIMIT = flags.DEFINE_integer("limit", None, "First items of each task; all if not given.")
_FEWSHOT = flags.DEFINE_integer("num_fewshot", None, "Examples in a prompt; left out: the task's.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Rows a batch.")
_CHUNK = flags.DEFINE_integer("chunk", 512, "Tokens a row read at once: 32, 64, 128, ...")


def main(argv: list[str]) -> None:
    """Evaluates, stores and prints the results."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    from bayesmem.evaluate.harness import evaluate_harness  # or says what to install

    logging.set_verbosity(logging.WARNING)
    workdir = Path(_WORKDIR.value)
    step, subject = load_subject(workdir, _BATCH_SIZE.value, _CHUNK.value)
    found = evaluate_harness(
        subject,
        _TASKS.value,
        include_path=_INCLUDE_PATH.value,
        limit=_LIMIT.value,
        num_fewshot=_FEWSHOT.value,
    )
    print(json.dumps(found["results"], indent=1))
    path = workdir / EVALUATIONS / "harness.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"step": step} | found | {"provenance": provenance()})
    print(f"Written: {path}")


if __name__ == "__main__":
    with short_errors():
        app.run(main)
