"""Distils: `python -m launch.distill --config=configs/distill.py:VARIANT --workdir=DIR`.

`--config.teacher=DIR` names the workdir of the teacher. The config's phases are run one after the
other, each in a folder of the workdir that is a workdir like that of `launch.train`:
`launch.evaluate`, `launch.generate` and `launch.plot` take it. SIGTERM and SIGINT save a checkpoint
and exit with status 0; the same command then continues, as it does after a kill. Several processes:
as `launch.train`, with `--distributed` where JAX knows the scheduler.
"""

import json
import logging

import jax
from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from bayesmem.distill.phases import distill
from launch.errors import short_errors

_CONFIG = config_flags.DEFINE_config_file("config", help_string="Config file, with :VARIANT.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of all phases.", required=True)
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Call jax.distributed.initialize first.")
flags.mark_flag_as_required("config")


def main(argv: list[str]) -> None:
    """Distils and prints the result."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    if _DISTRIBUTED.value:
        jax.distributed.initialize()
    # Orbax reports every file it touches; its warnings and our own lines stay.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("bayesmem").setLevel(logging.INFO)
    result = distill(_CONFIG.value, _WORKDIR.value)
    if jax.process_index() == 0:
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    with short_errors():
        app.run(main)
