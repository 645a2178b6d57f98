"""Files a run writes besides checkpoints: whole JSON files and the rows of metrics.jsonl."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesmem.files import write_json as write_json
from bayesmem.files import write_text as write_text

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
SUPERSEDED = "metrics_superseded.jsonl"


def free_name(folder: Path, pattern: str) -> Path:
    """First path in the folder, of `pattern` with 0, 1, ... for its {}, that does not exist."""
    number = 0
    while (path := folder / pattern.format(number)).exists():
        number += 1
    return path


def start_metrics(workdir: Path, step: int) -> Path:
    """Makes metrics.jsonl end at the step a run starts or continues from.

    Rows after that step (they will be written again) and a row torn by a kill are moved to
    metrics_superseded.jsonl, so no step is there twice and nothing is lost.

    Args:
      workdir: the run's directory.
      step: the restored step; 0 for a fresh start.

    Returns:
      The path of metrics.jsonl.
    """
    path = workdir / METRICS
    if not path.exists():
        return path
    lines = path.read_text(errors="replace").splitlines()
    # A fresh start keeps no row, not even that of an evaluation before the first step.
    last = step if step > 0 else -1
    kept = [line for line in lines if _row_step(line) <= last]
    dropped = [line for line in lines if _row_step(line) > last]
    if dropped:
        with (workdir / SUPERSEDED).open("a") as stream:
            stream.write("\n".join(dropped) + "\n")
        write_text(path, "".join(line + "\n" for line in kept))
        logger.warning("%d rows after step %d moved to %s", len(dropped), step, SUPERSEDED)
    return path


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends one row; a value that is not finite becomes null, which every JSON reader takes."""
    finite = {
        key: None if isinstance(value, float) and value - value != 0 else value
        for key, value in row.items()
    }
    with path.open("a") as stream:
        stream.write(json.dumps(finite, allow_nan=False) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Reads the rows of a metrics file, a torn last one left out."""
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines if _row_step(line) != float("inf")]


def _row_step(line: str) -> float:
    """The step of a row; infinity if the line is not a whole row."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return float("inf")
