"""How all figures look, and how they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def style(name: str) -> dict[Any, Any]:
    """Settings for `matplotlib.rc_context`; `name` keeps an SVG the same for the same results."""
    return {
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.hashsalt": name,
    }


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes a figure as `name`.png and .svg into `folder` and returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    figure.savefig(paths[0], dpi=200)
    figure.savefig(paths[1], metadata={"Date": None})
    return paths
