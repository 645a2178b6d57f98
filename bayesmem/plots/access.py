"""Figures of slot accesses: slot number against time, for every head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bayesmem.evaluate.access import AccessTrace
from bayesmem.plots.training import save_figure

_COLORS = {"write": "#D55E00", "read": "#0072B2"}  # Okabe-Ito
_STYLE: dict[Any, Any] = {"font.size": 8, "svg.hashsalt": "access"}


def plot_accesses(trace: AccessTrace, folder: Path) -> list[Path]:
    """Draws one layer: a row for writes and one for reads, a column a head.

    Each point is one slot of a token's address, its opacity the weight relative to the largest of
    the head. Addresses of a CAPE head drift down one slot a token, so a fixed content address is a
    diagonal; in a NoPE head it is a horizontal line.

    Args:
      trace: accesses of a layer.
      folder: where `access_layer_<index>` is written as PNG and SVG.

    Returns:
      The paths written.
    """
    heads = trace.write_ids.shape[1]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(1.2 + 2.2 * heads, 4.6), layout="constrained")
        axes = figure.subplots(2, heads, sharex=True, sharey=True, squeeze=False)
        for row, kind in enumerate(("write", "read")):
            ids, weights = getattr(trace, f"{kind}_ids"), getattr(trace, f"{kind}_weights")
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
                panel.set_ylim(-0.02 * trace.num_slots, 1.02 * trace.num_slots)
                if row == 0:
                    name = "CAPE" if head < trace.cape_heads else "NoPE"
                    panel.set_title(f"head {head}, {name}")
            axes[row, 0].set_ylabel(f"slot, {kind}")
        for panel in axes[1]:
            panel.set_xlabel("token")
        return save_figure(figure, folder, f"access_layer_{trace.layer}")
