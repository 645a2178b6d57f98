"""Draws the figures of a run from its files: `python -m launch.plot --workdir=DIR`.

Reads DIR/metrics.jsonl and, if there, DIR/evaluation.json; writes DIR/figures/*.png and *.svg.
"""

from pathlib import Path

from absl import app, flags

from bayesmem.plots.training import plot_training
from launch.errors import short_errors

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)


def main(argv: list[str]) -> None:
    """Draws the figures and prints where they are."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    for path in plot_training(Path(_WORKDIR.value)):
        print(path)


if __name__ == "__main__":
    with short_errors():
        app.run(main)
