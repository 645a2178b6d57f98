"""Trains, or continues a run: `python -m launch.train --config=configs/NAME.py --workdir=DIR`.

`--config=configs/NAME.py:VARIANT` picks a variant, `--config.train.steps=100` changes any key.
SIGTERM and SIGINT save a checkpoint and exit with status 0; the same command then continues, as it
does after a kill. Several processes or hosts, with one workdir that all of them see: the same
command on each, with `--distributed`; where JAX knows the scheduler (Slurm, Kubernetes, TPU pods,
Open MPI) that is all, elsewhere add `--coordinator=HOST:PORT --num_processes=N --process_id=I`.
"""

import json
import logging

import jax
from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from bayesmem.train.loop import train
from launch.errors import short_errors

_CONFIG = config_flags.DEFINE_config_file("config", help_string="Config file, with :VARIANT.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Call jax.distributed.initialize first.")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Processes of the run.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Number of this one, from 0.")
flags.mark_flag_as_required("config")


def main(argv: list[str]) -> None:
    """Trains and prints the result."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    if _DISTRIBUTED.value:
        jax.distributed.initialize(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    # Orbax reports every file it touches; its warnings and our own lines stay.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("bayesmem").setLevel(logging.INFO)
    result = train(_CONFIG.value, _WORKDIR.value)
    if jax.process_index() == 0:
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    with short_errors():
        app.run(main)
