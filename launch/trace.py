"""Slot accesses of a trained RAM-Net: `python -m launch.trace --workdir=DIR --text=...`.

Restores DIR/config.json and the newest usable checkpoint, lets the model read the text (or, with
`--text_file`, a file), and writes slot numbers and weights of every write and read to
DIR/accesses.npz, and slot against time for every head to DIR/figures/access_layer_*.png and .svg.
"""

import os
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging

from bayesmem.evaluate.access import save_traces, trace_workdir
from bayesmem.plots.access import plot_accesses
from bayesmem.plots.training import FOLDER
from launch.errors import short_errors

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_TEXT = flags.DEFINE_string("text", None, "What the model reads.")
_TEXT_FILE = flags.DEFINE_string("text_file", None, "File that the model reads instead.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace a trace that is there already.")
_MAX_BYTES = flags.DEFINE_integer("max_bytes", 2_048, "First bytes of it to read.", lower_bound=1)


def main(argv: list[str]) -> None:
    """Traces, stores, draws and prints where the results are."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    if (_TEXT.value is None) == (_TEXT_FILE.value is None):
        raise ValueError("--text, --text_file: wanted exactly one of the two")
    absl_logging.set_verbosity(absl_logging.WARNING)
    workdir = Path(_WORKDIR.value)
    text = (
        os.fsencode(_TEXT.value) if _TEXT.value is not None else Path(_TEXT_FILE.value).read_bytes()
    )
    path = workdir / "accesses.npz"
    earlier = [path, *sorted((workdir / FOLDER).glob("access_layer_*"))]
    for found in earlier if not _OVERWRITE.value else ():
        if found.exists():
            raise FileExistsError(f"{found} exists already; move it away, or pass --overwrite")
    traces = trace_workdir(workdir, text[: _MAX_BYTES.value])
    save_traces(traces, path)
    for written in (path, *plot_accesses(path, workdir / FOLDER)):
        print(written)


if __name__ == "__main__":
    with short_errors():
        app.run(main)
