"""Figures of several language models side by side, from the files of their runs only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesmem.plots.style import save_figure, style
from bayesmem.train.records import METRICS, read_rows

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#777777")
_LINES = ("-", "--", ":")


def plot_losses(workdirs: Mapping[str, Path], folder: Path) -> list[Path]:
    """Draws validation loss over the tokens trained on, and over the seconds that took.

    Seconds are those of training steps alone: compilation, evaluation and checkpoints are left out,
    and the first steps of a process, of unknown speed, count as fast as those after them.

    Args:
      workdirs: label to the directory of a training run.
      folder: where `losses.png` and `losses.svg` go; made if missing.

    Returns:
      The paths written.

    Raises:
      FileNotFoundError: a run has no metrics.jsonl or config.json.
      ValueError: a run has no row of the validation split.
    """
    curves = {label: _curve(workdir) for label, workdir in workdirs.items()}
    with matplotlib.rc_context(style("losses")):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        panels = list(figure.subplots(1, 2, sharey=True))
        for number, (label, (tokens, seconds, losses)) in enumerate(curves.items()):
            look: dict[str, Any] = {
                "color": _COLORS[number % len(_COLORS)],
                "linestyle": _LINES[number // len(_COLORS) % len(_LINES)],
                "linewidth": 1.3,
                "marker": "o",
                "markersize": 3,
            }
            panels[0].plot(tokens, losses, label=label, **look)
            panels[1].plot(seconds, losses, **look)
        panels[0].set_xlabel("tokens trained on")
        panels[1].set_xlabel("seconds of training")
        panels[0].set_ylabel("validation loss (nats a token)")
        figure.legend(loc="outside right upper", frameon=False)
        return save_figure(figure, folder, "losses")


def plot_needles(workdirs: Mapping[str, Path], task: str, folder: Path) -> list[Path]:
    """Draws how often a needle is found, by the length of the prompt and the needle's depth.

    Args:
      workdirs: label to the directory of a run with `evaluations/TASK@LENGTH.json`.
      task: a needle task, such as "niah_single_1".
      folder: where `TASK.png` and `TASK.svg` go; made if missing.

    Returns:
      The paths written.

    Raises:
      FileNotFoundError: a run has no result of the task.
    """
    found = {label: _by_length(workdir, task) for label, workdir in workdirs.items()}
    with matplotlib.rc_context(style(task)):
        figure = Figure(figsize=(2.6 * len(found) + 1.2, 3.0), layout="constrained")
        panels = list(figure.subplots(1, len(found), squeeze=False, sharey=True)[0])
        for panel, (label, by_length) in zip(panels, found.items(), strict=True):
            image = _heat(panel, by_length)
            panel.set_title(label)
        panels[0].set_ylabel("depth of the needle, %")
        figure.colorbar(image, ax=panels, label="share found")
        return save_figure(figure, folder, task)


def _curve(workdir: Path) -> tuple[list[float], list[float], list[float]]:
    """Tokens, seconds and loss at every evaluation; a gap where the loss was not finite."""
    path, config_path = workdir / METRICS, workdir / "config.json"
    for wanted in (path, config_path):
        if not wanted.is_file():
            raise FileNotFoundError(f"workdir: found no {wanted.name} in {workdir}; wanted a run")
    config = json.loads(config_path.read_text())
    a_step = config["train"]["batch_size"] * config["data"]["seq_len"]
    tokens, seconds, losses = list[float](), list[float](), list[float]()
    rows, clock, step = read_rows(path), 0.0, 0
    for number, row in enumerate(rows):
        if row["split"] == "train":
            speed = next((r["tokens_per_second"] for r in rows[number:] if _has_speed(r)), math.inf)
            clock += (row["step"] - step) * a_step / speed
            step = row["step"]
        else:
            tokens.append(row["step"] * a_step)
            seconds.append(clock)
            losses.append(float("nan") if row["loss"] is None else row["loss"])
    if not losses:
        raise ValueError(f"{path}: found no row of the validation split, wanted one at least")
    return tokens, seconds, losses


def _has_speed(row: Mapping[str, Any]) -> bool:
    """Whether a row has a speed: the first step of a process is left out of it."""
    return row["split"] == "train" and row["tokens_per_second"] > 0


def _by_length(workdir: Path, task: str) -> dict[int, Sequence[tuple[float, float]]]:
    """Prompt length to (depth, mean score) in order."""
    paths = sorted((workdir / "evaluations").glob(f"{task}@*.json"))
    read = [json.loads(path.read_text()) for path in paths]
    found = {
        result["options"]["length"]: [
            (depth, score) for depth, score in result["result"]["by_depth"]
        ]
        for result in read
    }
    if not found:
        raise FileNotFoundError(
            f"workdir: found no evaluations/{task}@LENGTH.json in {workdir}; wanted one at least"
        )
    return dict(sorted(found.items()))


def _heat(panel: Axes, by_length: Mapping[int, Sequence[tuple[float, float]]]) -> Any:
    """A column a length, a row a depth: all lengths have the same depths, or blanks."""
    depths = sorted({depth for pairs in by_length.values() for depth, _ in pairs})
    scores = [
        [dict(pairs).get(depth, float("nan")) for pairs in by_length.values()] for depth in depths
    ]
    image = panel.imshow(scores, vmin=0, vmax=1, cmap="cividis", aspect="auto", origin="upper")
    panel.set_xticks(range(len(by_length)), [f"{length:,}" for length in by_length])
    every = max(1, len(depths) // 6)
    panel.set_yticks(range(0, len(depths), every), [f"{100 * d:.0f}" for d in depths[::every]])
    panel.set_xlabel("tokens of the prompt")
    return image
