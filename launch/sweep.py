"""Trains a grid of runs: `python -m launch.sweep --config=configs/sweeps/NAME.py --workdir=DIR`.

Runs that differ only in seed and learning rate are trained together, on one device. The same
command continues a sweep that was stopped or killed, skips what is done, and trains what a larger
grid adds: `--config.sweep.seeds='(0, 1, 2, 3)'`. When all is done DIR/sweep.json has every result;
with `--adopt=FILE` what such a file of an earlier sweep holds counts as done.
"""

import json
import logging
import sys
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from bayesmem.train.sweep import collect, sweep
from bayesmem.train.sweep_adoption import adopt
from launch.errors import short_errors
from launch.repeatable import compile_repeatably

_CONFIG = config_flags.DEFINE_config_file("config", help_string="Config file, with :VARIANT.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the sweep.", required=True)
_COLLECT = flags.DEFINE_bool("collect", False, "Train nothing: write sweep.json of what is done.")
_ADOPT = flags.DEFINE_string("adopt", None, "sweep.json of an earlier sweep of this config.")
flags.mark_flag_as_required("config")


def main(argv: list[str]) -> None:
    """Trains and prints what is done."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    compile_repeatably()
    # Orbax reports every file it touches; its warnings and our own lines stay.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("bayesmem").setLevel(logging.INFO)
    if _ADOPT.value is not None:
        if not Path(_ADOPT.value).is_file():
            raise ValueError(f"--adopt: found no file at {_ADOPT.value!r}, wanted a sweep.json")
        taken = adopt(_CONFIG.value, _WORKDIR.value, Path(_ADOPT.value))
        print(f"{taken} runs taken from {_ADOPT.value}", file=sys.stderr)
    found = (collect if _COLLECT.value else sweep)(_CONFIG.value, _WORKDIR.value)
    print(json.dumps(found, indent=1))
    if found.get("failed"):
        sys.exit(1)


if __name__ == "__main__":
    with short_errors():
        app.run(main)
