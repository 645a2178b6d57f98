"""Times every form of every op: `python -m launch.bench_ops --suite=cpu --output=FILE.json`.

Forms take turns in one run, so their ratios hold where absolute times do not. Prints a table and,
with --output, writes its rows as JSON. On a GPU, `--suite=gpu --peers=fla` also times the kernels
of flash-linear-attention on the same inputs (`pip install -e '.[peers]'`).
"""

import json
import os
import sys
from pathlib import Path

from absl import app, flags, logging

from bayesmem.evaluate.peers import PEERS
from bayesmem.evaluate.speed import bench_ops
from bayesmem.evaluate.speed_options import Options
from bayesmem.evaluate.speed_table import format_rows
from kernels_pallas.shapes import SUITES
from launch.errors import short_errors

_SUITE = flags.DEFINE_enum("suite", "cpu", sorted(SUITES), "Shapes of kernels_pallas/shapes.py.")
_REPEATS = flags.DEFINE_integer("repeats", 20, "Timed calls of each form.", lower_bound=1)
_CHUNK_SIZE = flags.DEFINE_integer(
    "chunk_size", None, "Tokens in a chunk; left out: what suits form and suite.", lower_bound=1
)
_OPS = flags.DEFINE_list("ops", [], "Only these ops, separated by commas.")
_FORMS = flags.DEFINE_list("forms", [], "Only these forms.")
_DIMS = flags.DEFINE_multi_integer("dims", [], "Only shapes with this D; may be given repeatedly.")
_MODES = flags.DEFINE_list("modes", [], "Only these: fwd, fwd+bwd, step.")
_DTYPE = flags.DEFINE_enum(
    "dtype", None, ["bfloat16", "float32"], "Of q, k and v; left out: what the suite has."
)
_PEERS = flags.DEFINE_list("peers", [], f"Other libraries to time too: {', '.join(PEERS)}.")
_GRADIENT_ERRORS = flags.DEFINE_bool(
    "gradient_errors", False, "Compare gradients with float64 too; takes time and memory."
)
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write; must not exist.")


def main(argv: list[str]) -> None:
    """Measures, prints and stores."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    logging.set_verbosity(logging.WARNING)  # JAX reports every backend it does not find
    output = Path(_OUTPUT.value) if _OUTPUT.value else None
    if output is not None and output.exists():
        raise FileExistsError(f"--output: {output} exists already and is left as it is")
    if _PEERS.value:  # JAX would take three quarters of the memory, and torch needs some
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    options = Options(
        repeats=_REPEATS.value,
        chunk_size=_CHUNK_SIZE.value,
        ops=_OPS.value,
        forms=_FORMS.value,
        dims=_DIMS.value,
        modes=_MODES.value,
        dtype=_DTYPE.value,
        peers=_PEERS.value,
        gradient_errors=_GRADIENT_ERRORS.value,
    )
    if output is not None:  # what cannot be written is known before hours of timing
        output.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in bench_ops(_SUITE.value, options):
        rows.append(row)
        print(f"{row['op']} {row['implementation']} {row['mode']}", file=sys.stderr)
        if output is not None:  # each time, for what comes later may fail
            output.write_text(json.dumps(rows, indent=1) + "\n")
    if not rows:
        raise ValueError("--ops, --forms, --dims, --modes: no form of these ops can be timed here")
    print(format_rows(rows))


if __name__ == "__main__":
    with short_errors():
        app.run(main)
