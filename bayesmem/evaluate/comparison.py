"""Several runs of language models side by side: one file of what their workdirs hold.

Nothing is measured here: training rows are those of metrics.jsonl, task results those that
`launch.evaluate` has written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bayesmem.evaluate.item_store import EVALUATIONS
from bayesmem.models import LanguageModel, ModelConfig, parameter_counts
from bayesmem.train.records import METRICS, read_rows
from bayesmem.train.workdir import RESULT, read_run

DECILES = 10
"""Bins of the depth of a needle; the last has its end."""


def compare_runs(workdirs: Mapping[str, Path], baseline: str | None = None) -> dict[str, Any]:
    """Collects runs.

    Args:
      workdirs: label to the directory of a run.
      baseline: label of the run that others are compared with; None for none.

    Returns:
      `baseline`; `runs`, by label: `workdir`, `config`, `parameters` (None where the config is not
      that of a model), `valid` (rows of the validation split) and `tokens_per_second` (median of
      the rows that have a speed, None without); `tasks`, by the task's name and the label: `step`,
      `count`, `length`, `result` without items, `provenance`, and for needles `deciles`, ten pairs
      of a count of prompts and their mean score (None for none).

    Raises:
      FileNotFoundError: a directory holds no run.
      ValueError: the baseline is none of the runs, or a file of a run cannot be read.
    """
    if baseline is not None and baseline not in workdirs:
        raise ValueError(f"baseline: found {baseline!r}, wanted one of {', '.join(workdirs)}")
    runs = {label: _run(label, workdir) for label, workdir in workdirs.items()}
    tasks: dict[str, dict[str, Any]] = {}
    for label, workdir in workdirs.items():
        for path in sorted((workdir / EVALUATIONS).glob("*.json")):
            name, found = _task(path)
            if name is not None:
                tasks.setdefault(name, {})[label] = found
    return {"baseline": baseline, "runs": runs, "tasks": dict(sorted(tasks.items()))}


def deciles(items: Sequence[Mapping[str, Any]]) -> list[tuple[int, float | None]]:
    """Number and mean score of items by their depth, in ten bins of 0 to 1."""
    places = np.array([min(int(item["depth"] * DECILES + 1e-9), DECILES - 1) for item in items])
    scores = np.array([item["score"] for item in items], np.float64)
    found = []
    for bin_ in range(DECILES):
        chosen = scores[places == bin_]
        found.append((len(chosen), float(chosen.mean()) if len(chosen) else None))
    return found


def _run(label: str, workdir: Path) -> dict[str, Any]:
    """What a run says of its training; an imported model has no rows."""
    config = read_run(workdir, f"run {label}")
    metrics, result = workdir / METRICS, workdir / RESULT
    rows = read_rows(metrics) if metrics.is_file() else []
    speeds = [row["tokens_per_second"] for row in rows if row.get("tokens_per_second")]
    finished = json.loads(result.read_text()) if result.is_file() else {}
    return {
        "workdir": str(workdir),
        "config": config,
        "parameters": finished.get("parameters") or _parameters(config),
        "valid": [row for row in rows if row["split"] == "valid"],
        "tokens_per_second": float(np.median(speeds)) if speeds else None,
    }


def _parameters(config: Mapping[str, Any]) -> int | None:
    """Parameters of a run's model; no array is made."""
    try:
        model = LanguageModel(ModelConfig.from_dict(config["model"]))
    except (ValueError, KeyError):
        return None
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 2), np.int32))["params"]
    return parameter_counts(shapes)["total"]


def _task(path: Path) -> tuple[str | None, dict[str, Any]]:
    """A task's name and its result; no name for one that another result has taken the place of."""
    try:
        found = json.loads(path.read_text())
        name, items = found["task"], found["items"]
        if path.stem != name:  # an earlier step's, kept under another name
            return None, {}
        kept = {key: found[key] for key in ("step", "count", "result", "provenance")}
        kept["length"] = found["options"].get("length")
        kept["items_of"] = {key: found.get(key) for key in ("options", "tokenizer", "file")}
        if items and "depth" in items[0]:
            kept["deciles"] = deciles(items)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path}: found no result of launch.evaluate ({type(error).__name__}: {error})"
        ) from error
    return name, kept
