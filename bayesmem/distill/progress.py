"""What of a distillation its workdir holds, and whether a config may go on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax

from bayesmem.distill.settings import PHASES
from bayesmem.train.records import write_json
from bayesmem.train.workdir import CHECKPOINTS, RESULT

TEACHER = "teacher.json"
SAVED = tuple(f"{name}/{CHECKPOINTS}" for name in PHASES)
"""Folders that show that something was saved, if there is anything in them."""


def finished(phase: Path) -> dict[str, Any] | None:
    """What a phase ended with, from its workdir; None while it has not."""
    path = phase / RESULT
    return dict(json.loads(path.read_text())) if path.exists() else None


def check_order(workdir: Path, phases: tuple[str, ...]) -> None:
    """Checks that phase B starts, or has started, from the student that the config says.

    Args:
      workdir: of all phases.
      phases: those that are to be run.

    Raises:
      ValueError: phase A is to be run after phase B began without it, or phase B while phase A is
        not finished.
    """
    if finished(workdir / "phase_a") is not None:
        return
    if "phase_a" in phases and _begun(workdir, "phase_b"):
        raise ValueError(
            f"config phases: found phase_a, wanted phases without it: phase_b of {workdir} began "
            f"without a phase_a; or use another --workdir"
        )
    if "phase_a" not in phases and "phase_b" in phases and _begun(workdir, "phase_a"):
        raise ValueError(
            f"config phases: found phase_b without phase_a, wanted both: phase_a of {workdir} has "
            f"begun and is not finished"
        )


def check_teacher(workdir: Path, teacher: str, step: int, digest: str) -> None:
    """Notes the teacher, or checks that it is the one that something was saved with.

    Args:
      workdir: of all phases.
      teacher: its workdir.
      step: of its checkpoint.
      digest: of its parameters.

    Raises:
      ValueError: it is another than at first.
    """
    if jax.process_index() != 0:
        return
    path = workdir / TEACHER
    if not path.exists() or not any(_begun(workdir, name) for name in PHASES):
        write_json(path, {"workdir": teacher, "step": step, "parameters": digest})
        return
    earlier = json.loads(path.read_text())
    if earlier["parameters"] != digest:
        raise ValueError(
            f"config teacher: found step {step} of {teacher}, wanted step {earlier['step']}, which "
            f"{workdir} was started with; use another --workdir"
        )


def noted_step(workdir: Path) -> int | None:
    """The step of the teacher that something was saved with, None for none: it may train on."""
    path = workdir / TEACHER
    if not path.exists() or not any(_begun(workdir, name) for name in PHASES):
        return None
    return int(json.loads(path.read_text())["step"])


def _begun(workdir: Path, name: str) -> bool:
    """Whether a phase has saved anything."""
    return any((workdir / name / CHECKPOINTS).glob("*"))
