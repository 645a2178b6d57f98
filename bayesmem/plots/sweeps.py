"""Figures of sweeps: accuracy, margin and cross-entropy on tests, over widths, states and steps.

A sweep here is what `bayesmem.evaluate.sweep_summary.summarise` returns: means over seeds, drawn
with bars or bands of one standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bayesmem.plots.style import save_figure, style


class Look(NamedTuple):
    """How a mixer is drawn: colours are Okabe-Ito, shape and line tell it apart in grey too."""

    color: str
    line: Literal["-", "--", "-.", ":"]
    marker: str
    label: str

    @property
    def fill(self) -> str:
        """Of the marker: variants with a dashed line have hollow ones."""
        return "white" if self.line == "--" else self.color


_LOOKS = {
    "bayesian": Look("#0072B2", "-", "o", "Bayesian"),
    "bayesian/conv": Look("#0072B2", "--", "o", "Bayesian, convolution"),
    "bayesian/rotation": Look("#0072B2", ":", "s", "Bayesian, rotation"),
    "deltanet": Look("#D55E00", "-", "s", "DeltaNet"),
    "deltanet/reset": Look("#D55E00", "--", "D", "covariance-reset"),
    "gated_deltanet": Look("#E69F00", "-", "^", "Gated DeltaNet"),
    "gated_deltanet/plain": Look("#E69F00", "--", "^", "Gated DeltaNet, no convolution"),
    "kda": Look("#E69F00", "-.", "v", "KDA"),
    "gla": Look("#009E73", "-", "P", "GLA"),
    "gsa": Look("#009E73", "-.", "<", "GSA"),
    "retnet": Look("#009E73", ":", "p", "RetNet"),
    "mamba2": Look("#56B4E9", "-", "X", "Mamba-2"),
    "ramnet": Look("#CC79A7", "-", "*", "RAM-Net"),
    "linear_attention": Look("#000000", ":", "h", "linear attention"),
    "attention": Look("#777777", "-.", "d", "softmax attention"),
}
_MEASURES = {"accuracy": "accuracy", "margin": "margin p(B) - p(A)", "loss": "cross-entropy (nats)"}


def plot_tests(sweep: Any, folder: Path, name: str) -> list[Path]:
    """Draws the tests of an address task: a column an axis, a row a measure.

    Rows are accuracy and, for the collision, margin (arXiv 2605.31163, Figure 3 c, d), for random
    keys query cross-entropy (Figure 7). Grey is the range that was trained on.

    Args:
      sweep: of the task "collision" or "random_keys".
      folder: where `name`.png and .svg go; files of these names are replaced.
      name: of the files.

    Returns:
      The paths written.
    """
    measures = ("accuracy", "margin" if sweep.task == "collision" else "loss")
    columns = len(sweep.axes)
    with matplotlib.rc_context(style("sweeps")):
        figure = Figure(figsize=(4.2 * columns + 1.8, 5.6), layout="constrained")
        panels = figure.subplots(2, columns, squeeze=False, sharex="col", sharey="row")
        for column, axis in enumerate(sweep.axes):
            for row, measure in enumerate(measures):
                _tested(panels[row, column], sweep, axis, measure)
            panels[-1, column].set_xlabel(axis.label)
        for row, measure in enumerate(measures):
            panels[row, 0].set_ylabel(_MEASURES[measure])
        _legend(figure, [cell.mixer for cell in sweep.cells])
        return save_figure(figure, folder, name)


def plot_curves(sweep: Any, folder: Path, name: str) -> list[Path]:
    """Draws training accuracy against steps, a panel a width; arguments as of `plot_tests`."""
    widths = sweep.widths
    with matplotlib.rc_context(style("sweeps")):
        figure, panels = _grid(len(widths))
        for panel, width in zip(panels, widths, strict=True):
            panel.set_title(f"W = {width}")
            for cell in (cell for cell in sweep.cells if cell.width == width):
                _band(panel, cell.steps, cell.curve, _look(cell.mixer))
            panel.set_xlabel("step")
            panel.set_ylim(-0.02, 1.02)
        panels[0].set_ylabel("training accuracy, mean of seeds")
        _legend(figure, [cell.mixer for cell in sweep.cells])
        return save_figure(figure, folder, name)


def plot_recall(sweeps: Sequence[Any], folder: Path) -> list[Path]:
    """Draws MQAR, a panel for each sweep: against width (Figure 4), and against the state's size.

    Args:
      sweeps: of the task "mqar".
      folder: where `mqar_width` and `mqar_state` are written as PNG and SVG.

    Returns:
      The paths written, PNG and SVG of the first and of the second.
    """
    paths = []
    axes = {"width": "width W", "state": "state (float32 numbers a sequence)"}
    with matplotlib.rc_context(style("sweeps")):
        for key, label in axes.items():
            figure, panels = _grid(len(sweeps))
            for number, (panel, sweep) in enumerate(zip(panels, sweeps, strict=True)):
                _against(panel, sweep, key)
                panel.set_xlabel(label)
                if number % 4 == 0:
                    panel.set_ylabel("recall, test split")
            _legend(figure, [cell.mixer for sweep in sweeps for cell in sweep.cells])
            paths += save_figure(figure, folder, f"mqar_{key}")
    return paths


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, at most four in a row."""
    columns = min(count, 4)
    rows = -(-count // columns)
    figure = Figure(figsize=(2.9 * columns + 2.2, 0.5 + 2.7 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True).ravel())
    for unused in panels[count:]:
        unused.set_visible(False)
    return figure, panels[:count]


def _tested(panel: Axes, sweep: Any, axis: Any, measure: str) -> None:
    """One measure of the tests of an axis, a line a mixer."""
    places = axis.places
    for cell in sweep.cells:
        stats = [cell.tests[place.test].get(measure) for place in places]
        _bars(panel, [place.at for place in places], stats, _look(cell.mixer))
    if axis.trained is not None:
        panel.set_xscale("log", base=2)
        panel.axvspan(*axis.trained, color="0.93", zorder=-1, linewidth=0)
    else:
        panel.set_xlim(-0.4, len(places) - 0.6)
    panel.set_xticks([place.at for place in places], [place.label for place in places])
    panel.minorticks_off()
    if measure == "accuracy":
        panel.set_ylim(-0.02, 1.02)
    if measure == "margin":
        panel.axhline(0, color="0.6", linewidth=0.7, zorder=0)


def _against(panel: Axes, sweep: Any, key: str) -> None:
    """Recall of each mixer over its widths, in the order of `key`: "width" or "state"."""
    data = sweep.config["data"]
    panel.set_title(f"{sweep.variant}, {data['seq_len']} tokens, {data['num_pairs']} pairs")
    for mixer in dict.fromkeys(cell.mixer for cell in sweep.cells):
        cells = sorted((c for c in sweep.cells if c.mixer == mixer), key=lambda c: c.width)
        stats = [cell.tests["test"]["accuracy"] for cell in cells]
        _bars(panel, [getattr(cell, key) for cell in cells], stats, _look(mixer))
    if key == "width":
        panel.set_xscale("log", base=2)
        panel.set_xticks(sweep.widths, [str(width) for width in sweep.widths])
        panel.minorticks_off()
    else:
        states = [cell.state for cell in sweep.cells]
        first, last = math.floor(math.log2(min(states))), math.ceil(math.log2(max(states)))
        powers = [2**power for power in range(first, last + 1)]
        panel.set_xscale("log", base=2)
        panel.set_xlim(powers[0] / 1.3, powers[-1] * 1.3)
        panel.set_xticks(powers, [_count(x) for x in powers])
        panel.minorticks_off()
    panel.set_ylim(-0.02, 1.02)


def _count(power: int) -> str:
    """A power of two in short: 512, 16K, 2M."""
    for size, letter in ((2**20, "M"), (2**10, "K")):
        if power >= size:
            return f"{power // size}{letter}"
    return str(power)


def _bars(panel: Axes, at: Sequence[float], stats: Sequence[Any], look: Look) -> None:
    """Means with bars of a standard deviation; values that failed are left out."""
    rows = [
        (x, stat.mean, stat.std or 0.0)
        for x, stat in zip(at, stats, strict=True)
        if stat is not None and stat.mean is not None
    ]
    if rows:
        places, means, spread = zip(*rows, strict=True)
        panel.errorbar(
            places,
            means,
            spread,
            color=look.color,
            linestyle=look.line,
            marker=look.marker,
            markerfacecolor=look.fill,
            markersize=4.5,
            linewidth=1.3,
            elinewidth=0.8,
            capsize=2,
        )


def _band(panel: Axes, steps: Sequence[int], curve: Sequence[Any], look: Look) -> None:
    """A line with a band of a standard deviation; gaps where all seeds failed."""
    nan = float("nan")
    means = [nan if stat.mean is None else stat.mean for stat in curve]
    low = [mean - (stat.std or 0.0) for mean, stat in zip(means, curve, strict=True)]
    high = [mean + (stat.std or 0.0) for mean, stat in zip(means, curve, strict=True)]
    panel.fill_between(steps, low, high, color=look.color, alpha=0.15, linewidth=0)
    panel.plot(
        steps,
        means,
        look.line,
        color=look.color,
        linewidth=1.3,
        marker=look.marker,
        markerfacecolor=look.fill,
        markersize=4,
        markevery=max(1, len(steps) // 6),
    )


def _legend(figure: Figure, mixers: Sequence[str]) -> None:
    """One legend for all panels, at the right."""
    handles = [
        Line2D(
            [],
            [],
            color=x.color,
            linestyle=x.line,
            marker=x.marker,
            markerfacecolor=x.fill,
            markersize=4.5,
            label=x.label,
        )
        for x in map(_look, dict.fromkeys(mixers))
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)


def _look(mixer: str) -> Look:
    """That of a mixer; one with a label that has none of its own is its kind's, dotted."""
    if mixer in _LOOKS:
        return _LOOKS[mixer]
    kind = _LOOKS.get(mixer.partition("/")[0], Look("#777777", "-", ".", mixer))
    return kind._replace(line=":", label=mixer)
