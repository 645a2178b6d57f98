"""Draws the figures of a run from its files: `python -m launch.plot --workdir=DIR`.

Reads DIR/metrics.jsonl and, if there, DIR/evaluation.json; writes DIR/figures/*.png and *.svg.
With several --workdir, the curves of all in one figure (labels are the folders' names), and with
--needles=niah_single_1 where each finds its needles, by length and depth; both go to --output.
"""

from pathlib import Path

from absl import app, flags

from bayesmem.plots.language import plot_losses, plot_needles
from bayesmem.plots.training import plot_training
from launch.errors import short_errors

_WORKDIR = flags.DEFINE_multi_string("workdir", None, "Folder of a run.", required=True)
_NEEDLES = flags.DEFINE_list("needles", [], "Needle tasks that were evaluated.")
_OUTPUT = flags.DEFINE_string("output", None, "Folder of figures of several runs.")


def main(argv: list[str]) -> None:
    """Draws the figures and prints where they are."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    runs = {Path(name).name: Path(name) for name in _WORKDIR.value}
    if len(runs) < len(_WORKDIR.value):
        raise ValueError(f"--workdir: found {_WORKDIR.value}, wanted folders of different names")
    if _OUTPUT.value is None:
        if len(runs) > 1 or _NEEDLES.value:
            raise ValueError("--output: found none, wanted the folder of the figures")
        paths = plot_training(*runs.values())
    else:
        folder = Path(_OUTPUT.value)
        paths = [] if _NEEDLES.value else plot_losses(runs, folder)
        for task in _NEEDLES.value:
            paths += plot_needles(runs, task, folder)
    for path in paths:
        print(path)


if __name__ == "__main__":
    with short_errors():
        app.run(main)
