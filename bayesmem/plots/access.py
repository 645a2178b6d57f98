"""Figures of slot accesses: slot number against time, for every head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bayesmem.plots.style import save_figure

_COLORS = {"write": "#D55E00", "read": "#0072B2"}  # Okabe-Ito
_STYLE: dict[Any, Any] = {"font.size": 8, "svg.hashsalt": "access"}


def plot_accesses(path: Path, folder: Path) -> list[Path]:
    """Draws every layer of a file of accesses: a row for writes and one for reads, a column a head.

    Each point is one slot of a token's address, its opacity the weight relative to the largest of
    the head. Addresses of a CAPE head drift down one slot a token, so a fixed content address is a
    diagonal; in a NoPE head it is a horizontal line.

    Args:
      path: .npz of `bayesmem.evaluate.access.save_traces`.
      folder: where `access_layer_<index>` is written as PNG and SVG.

    Returns:
      The paths written.
    """
    paths = []
    with np.load(path) as arrays, matplotlib.rc_context(_STYLE):
        for layer in sorted({name.split("/")[0] for name in arrays}):
            trace = {name.split("/")[1]: arrays[name] for name in arrays if _of(name, layer)}
            paths += save_figure(_layer_figure(trace), folder, f"access_{layer}")
    return paths


def _of(name: str, layer: str) -> bool:
    return name.split("/")[0] == layer


def _layer_figure(trace: dict[str, np.ndarray]) -> Figure:
    """Draws one layer from its arrays; see `bayesmem.evaluate.access.AccessTrace`."""
    heads, slots = trace["write_ids"].shape[1], int(trace["num_slots"])
    figure = Figure(figsize=(1.2 + 2.2 * heads, 4.6), layout="constrained")
    axes = figure.subplots(2, heads, sharex=True, sharey=True, squeeze=False)
    for row, kind in enumerate(("write", "read")):
        ids, weights = trace[f"{kind}_ids"], trace[f"{kind}_weights"]
        for head in range(heads):
            panel = axes[row, head]
            strength = weights[:, head] / max(weights[:, head].max(), 1e-30)
            time = np.broadcast_to(np.arange(len(ids))[:, None], strength.shape)
            panel.scatter(
                time.ravel(),
                ids[:, head].ravel(),
                s=3,
                linewidths=0,
                color=_COLORS[kind],
                alpha=np.clip(strength.ravel(), 0.05, 1.0),
                rasterized=True,
            )
            panel.set_ylim(-0.02 * slots, 1.02 * slots)
            if row == 0:
                name = "CAPE" if head < int(trace["cape_heads"]) else "NoPE"
                panel.set_title(f"head {head}, {name}")
        axes[row, 0].set_ylabel(f"slot, {kind}")
    for panel in axes[1]:
        panel.set_xlabel("token")
    return figure
