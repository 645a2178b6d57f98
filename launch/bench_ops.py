"""Times every form of every op: `python -m launch.bench_ops --suite=cpu --output=FILE.json`.

Forms of an op take turns in one run, so their ratios hold where absolute times do not. Prints a
table and, with --output, writes its rows as JSON.
"""

import json
import sys
from pathlib import Path

from absl import app, flags, logging

from bayesmem.evaluate.speed import bench_ops, format_rows
from kernels_pallas.shapes import SUITES
from launch.errors import short_errors

_SUITE = flags.DEFINE_enum("suite", "cpu", sorted(SUITES), "Shapes of kernels_pallas/shapes.py.")
_REPEATS = flags.DEFINE_integer("repeats", 20, "Timed calls of each form.", lower_bound=1)
_CHUNK_SIZE = flags.DEFINE_integer(
    "chunk_size", None, "Tokens in a chunk; left out: what suits form and suite.", lower_bound=1
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
    rows = []
    for row in bench_ops(_SUITE.value, _REPEATS.value, _CHUNK_SIZE.value):
        rows.append(row)
        print(f"{row['op']} {row['implementation']} {row['mode']}", file=sys.stderr)
    print(format_rows(rows))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    with short_errors():
        app.run(main)
