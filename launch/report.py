"""Makes docs/RESULTS.md and its figures from result files alone: `python -m launch.report`.

Reads of docs/results: collision.json (results.json of `launch.collision`), sweep*.json (sweep.json
of `launch.sweep`, with what is to be said of it in a .md file of the same name),
comparison_*.json (of `launch.compare`, likewise) and *bench_ops*.json (of `launch.bench_ops`).
Takes seconds on a CPU.
"""

import functools
import importlib
import os
from pathlib import Path
from typing import Any

from absl import app, flags

from bayesmem.evaluate.results_page import COLLISION, Files, read_files, results_page
from bayesmem.plots.collision import plot_collision
from bayesmem.plots.comparison import plot_depths
from bayesmem.plots.sweeps import plot_curves, plot_recall, plot_tests
from launch.errors import short_errors

_RESULTS = flags.DEFINE_string("results", "docs/results", "Folder of the result files.")
_OUTPUT = flags.DEFINE_string("output", "docs/RESULTS.md", "The page; written anew.")
_FIGURES = flags.DEFINE_string(
    "figures", "docs/figures", "Folder of the figures; those drawn are written anew."
)


@functools.cache
def shipped(file: str, variant: str) -> dict[str, Any]:
    """The config that a file of `configs/sweeps` makes of a variant."""
    make = importlib.import_module(f"configs.sweeps.{file}").get_config
    return (make(variant) if variant else make()).to_dict()


def draw(files: Files, folder: Path) -> dict[str, list[Path]]:
    """Draws every figure; returns the SVG files of each result file, and those of "mqar"."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, list[Path]] = {}
    if files.collision is not None:
        drawn[COLLISION] = plot_collision(dict(files.collision), folder)
    for name, sweep in files.sweeps.items():
        stem = Path(name).stem
        tests = [] if sweep.task == "mqar" else plot_tests(sweep, folder, stem)
        drawn[name] = tests + plot_curves(sweep, folder, f"{stem}_curves")
    for name, found in files.comparisons.items():
        compared = found["baseline"] is not None
        drawn[name] = plot_depths(found, folder, Path(name).stem) if compared else []
    recall = [sweep for sweep in files.sweeps.values() if sweep.task == "mqar"]
    drawn["mqar"] = plot_recall(recall, folder) if recall else []
    return {name: [p for p in paths if p.suffix == ".svg"] for name, paths in drawn.items()}


def main(argv: list[str]) -> None:
    """Reads every file before anything is written."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    files, output = read_files(Path(_RESULTS.value)), Path(_OUTPUT.value)

    def link(path: Path) -> str:
        return Path(os.path.relpath(path, output.parent)).as_posix()

    figures = draw(files, Path(_FIGURES.value))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(results_page(files, link, figures, shipped))
    kinds = (files.sweeps, files.benches, files.comparisons)
    count = sum(map(len, kinds)) + (files.collision is not None)
    print(f"{output}: {count} result files, {sum(map(len, figures.values()))} figures")


if __name__ == "__main__":
    with short_errors():
        app.run(main)
