"""The figure of the collision experiment: retrieval, directional variance and gains."""

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesmem.plots.style import save_figure, style


class Line(NamedTuple):
    """How a curve looks; the colours are Okabe-Ito, which colour-blind readers tell apart."""

    label: str  # at its right end; "" for none
    color: str
    style: str = "-"


_RETRIEVAL = {
    "bayesian": Line("Bayesian", "#0072B2"),
    "diagonal_covariance": Line("diagonal P", "#56B4E9", "--"),
    "reset": Line("reset / DeltaNet", "#D55E00"),
    "gla": Line("GLA-style", "#E69F00", "--"),
    "linear_attention": Line("linear attention", "#000000", ":"),
}
_VARIANCE = {
    "B_perp": Line("⊥ $k_B$", "#CC79A7", "--"),
    "A_perp": Line("⊥ $k_A$", "#E69F00", ":"),
    "A": Line(r"$k_A$", "#D55E00"),
    "B": Line(r"$k_B$", "#0072B2"),
}
_GAIN = {
    "A_norm": Line("", "#D55E00", "--"),
    "A": Line("A write (dashed: norm)", "#D55E00"),
    "B": Line("B write", "#0072B2"),
    "reset": Line("reset, any write", "#000000", ":"),
}


def plot_collision(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draws the figure from the contents of `results.json`.

    Args:
      results: what `bayesmem.evaluate.collision_results.run_collision` returns, or its JSON.
      folder: where `collision.png` and `collision.svg` go; files of these names are replaced.

    Returns:
      The paths written.
    """
    with matplotlib.rc_context(style("collision")):
        return save_figure(_draw(results), folder, "collision")


def _draw(results: dict[str, Any]) -> Figure:
    """Returns the figure with its three panels."""
    curves, limits = results["curves"], results["limits"]
    figure = Figure(figsize=(12.5, 3.7), layout="constrained")
    retrieval, variance, gain = figure.subplots(1, 3)

    retrieval.set_title("a  Retrieval of B, asked after every write")
    retrieval.set_ylabel(r"$p_{AB}$ = sigmoid$(y_B - y_A)$")
    retrieval.set_ylim(-0.03, 1.13)
    retrieval.set_yticks(np.linspace(0, 1, 6))
    _curves(retrieval, curves["retrieval"], _RETRIEVAL, results)
    for name in ("bayesian_flood", "reset_flood"):
        retrieval.axhline(limits[name], color="0.6", linewidth=0.7, zorder=0)

    variance.set_title("b  Variance of four directions (Bayesian)")
    variance.set_ylabel(r"variance $q^\top P_t\, q$")
    variance.set_yscale("log")
    variance.set_ylim(0.02, 8)
    _curves(variance, curves["variance"], _VARIANCE, results)

    gain.set_title("c  Gain that a write has, or would have")
    gain.set_ylabel("gain")
    gain.set_ylim(0, 2.6)
    _curves(gain, curves["gain"], _GAIN, results)
    gain.axhline(limits["gain_floor"], color="0.6", linewidth=0.7, zorder=0)
    return figure


def _curves(
    axes: Axes, values: dict[str, list[float]], lines: dict[str, Line], results: dict[str, Any]
) -> None:
    """Draws curves over the three phases and names each at its right end."""
    config = results["config"]
    steps = np.arange(1, len(results["curves"]["written"]) + 1)
    seed_end = config["seed_passes"] * config["identities"]
    boost_end = seed_end + config["boost"]
    axes.axvspan(seed_end + 0.5, boost_end + 0.5, color="0.94", zorder=-1)
    bounds = (0.5, seed_end + 0.5, boost_end + 0.5, steps[-1] + 0.5)
    for name, start, stop in zip(("seed", "write B", "write A"), bounds, bounds[1:], strict=False):
        axes.text(
            (start + stop) / 2,
            0.995,
            name,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            color="0.35",
            fontsize=8,
        )
    for name, line in lines.items():
        axes.plot(steps, values[name], line.style, color=line.color, linewidth=1.6)
    axes.set_xlim(bounds[0], bounds[-1])
    axes.set_xlabel("step")
    ends = {name: values[name][-1] for name, line in lines.items() if line.label}
    _end_labels(axes, ends, lines)


def _end_labels(axes: Axes, ends: dict[str, float], lines: dict[str, Line]) -> None:
    """Writes the labels beside the right ends of the curves, moved apart where they would touch."""
    to_fraction = (axes.transData + axes.transAxes.inverted()).transform
    height = {name: float(to_fraction((1, end))[1]) for name, end in ends.items()}
    ordered = sorted(height, key=lambda name: height[name])
    for low, high in list(zip(ordered, ordered[1:], strict=False)) * 8:
        overlap = 0.065 - (height[high] - height[low])
        height[low] -= max(overlap, 0) / 2
        height[high] += max(overlap, 0) / 2
    for name in ordered:
        axes.text(
            1.02,
            height[name],
            lines[name].label,
            transform=axes.transAxes,
            color=lines[name].color,
            va="center",
            fontsize=8.5,
        )
