"""Figures of a training run, from its metrics.jsonl and evaluation.json only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesmem.plots.style import save_figure, style
from bayesmem.train.records import METRICS, read_rows

FOLDER = "figures"
_COLORS = {"train": "#0072B2", "valid": "#D55E00", "test": "#000000"}  # Okabe-Ito


def plot_training(workdir: Path) -> list[Path]:
    """Draws what a run's files hold.

    `loss` and `accuracy` over the steps always; `bits_by_position` if evaluation.json holds
    perplexity by position. The accuracy of an associative recall run is its recall, with that on
    the test split as a point at the end.

    Args:
      workdir: directory of a training run; figures go to its folder `figures` as PNG and SVG, and
        replace those of an earlier call.

    Returns:
      The paths written.

    Raises:
      FileNotFoundError: there is no metrics.jsonl.
      ValueError: it has no rows.
    """
    path = workdir / METRICS
    if not path.is_file():
        raise FileNotFoundError(f"workdir: found no {METRICS} in {workdir}; wanted a training run")
    rows = read_rows(path)
    if not rows:
        raise ValueError(f"{path}: found no rows; wanted at least one")
    evaluation_path = workdir / "evaluation.json"
    evaluation = json.loads(evaluation_path.read_text()) if evaluation_path.is_file() else {}
    with matplotlib.rc_context(style("training")):
        figures = {"loss": _over_steps(rows, "loss", "loss (nats a target)", evaluation)}
        label = "recall" if evaluation.get("task") == "mqar" else "accuracy"
        figures["accuracy"] = _over_steps(rows, "accuracy", label, evaluation)
        if evaluation.get("by_position"):
            figures["bits_by_position"] = _bits_by_position(evaluation)
        return [
            path for name in figures for path in save_figure(figures[name], workdir / FOLDER, name)
        ]


def _over_steps(
    rows: list[dict[str, Any]], key: str, label: str, evaluation: dict[str, Any]
) -> Figure:
    """A curve for each split over the steps; a gap where a value was not finite."""
    figure = Figure(figsize=(5.5, 3.5), layout="constrained")
    axes = figure.subplots()
    for split in ("train", "valid"):
        points = [(row["step"], row[key]) for row in rows if row["split"] == split]
        values = [float("nan") if value is None else value for _, value in points]
        marker = "o" if split == "valid" else None
        axes.plot(
            [step for step, _ in points], values, color=_COLORS[split], marker=marker,
            markersize=3, linewidth=1.3, label=split,
        )  # fmt: skip
    if key in evaluation:
        axes.plot(
            [evaluation["step"]], [evaluation[key]], color=_COLORS["test"], marker="x",
            linestyle="none", label=f"test: {evaluation[key]:.4g}",
        )  # fmt: skip
    _finish(axes, "step", label)
    axes.legend(frameon=False)
    return figure


def _bits_by_position(evaluation: dict[str, Any]) -> Figure:
    """Bits per byte in each bucket of positions, and the mean over all tokens."""
    figure = Figure(figsize=(5.5, 3.5), layout="constrained")
    axes = figure.subplots()
    buckets = evaluation["by_position"]
    bits = [bucket["bits_per_byte"] for bucket in buckets]
    names = [f"{bucket['start']}-{bucket['end'] - 1}" for bucket in buckets]
    axes.plot(names, bits, color=_COLORS["train"], marker="o", markersize=4)
    mean = evaluation["bits_per_byte"]
    axes.axhline(mean, color="0.6", linewidth=0.8, label=f"all tokens: {mean:.3f}")
    _finish(axes, "position in the document (tokens)", "bits per byte, test split")
    axes.legend(frameon=False)
    return figure


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
