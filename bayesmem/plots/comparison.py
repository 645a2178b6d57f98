"""Where runs find needles that a baseline does not: differences by depth, from a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bayesmem.plots.style import save_figure, style

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#777777")


def plot_depths(found: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """Draws the difference in score from the baseline by tenths of the depth, a panel a length.

    Needle tasks of one length are averaged, each with the same weight; a tenth counts where all
    of them have prompts in both runs.

    Args:
      found: of `bayesmem.evaluate.comparison.compare_runs`, with a baseline.
      folder: where `NAME.png` and `NAME.svg` go; made if missing.
      name: of the files.

    Returns:
      The paths written; none where no needle task was run for the baseline and another.
    """
    lengths = differences(found)
    if not lengths:
        return []
    with matplotlib.rc_context(style(name)):
        figure = Figure(figsize=(2.7 * len(lengths) + 1.4, 2.8), layout="constrained")
        panels = list(figure.subplots(1, len(lengths), squeeze=False, sharey=True)[0])
        labels = [label for label in found["runs"] if label != found["baseline"]]
        for panel, (length, by_run) in zip(panels, lengths.items(), strict=True):
            panel.axhline(0.0, color="#777777", linewidth=0.8)
            for number, label in enumerate(labels):
                if label in by_run:
                    color = _COLORS[number % len(_COLORS)]
                    depth = (np.arange(len(by_run[label])) + 0.5) / len(by_run[label])
                    panel.plot(depth, by_run[label], "o-", color=color, label=label, markersize=3)
            panel.set_title(f"{length:,} tokens")
            panel.set_xlabel("depth of the needle")
        panels[0].set_ylabel(f"needles found - {found['baseline']}, % points")
        panels[-1].legend(frameon=False)
        return save_figure(figure, folder, name)


def differences(found: Mapping[str, Any]) -> dict[int, dict[str, np.ndarray]]:
    """Length to label to points of 100 above the baseline in each tenth [10]; NaN: not known."""
    baseline, gathered = found["baseline"], dict[int, dict[str, list[np.ndarray]]]()
    for by_run in found["tasks"].values():
        if baseline not in by_run or "deciles" not in by_run[baseline]:
            continue
        wanted = _scores(by_run[baseline])
        of_length = gathered.setdefault(by_run[baseline]["length"], {})
        for label, result in by_run.items():
            if label != baseline and "deciles" in result:
                of_length.setdefault(label, []).append(100 * (_scores(result) - wanted))
    return {
        length: {label: np.mean(rows, axis=0) for label, rows in by_run.items()}
        for length, by_run in sorted(gathered.items())
        if by_run
    }


def _scores(result: Mapping[str, Any]) -> np.ndarray:
    return np.array([np.nan if score is None else score for _, score in result["deciles"]])
