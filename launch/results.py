"""Writes docs/RESULTS.md from the benchmark files of docs/results: `python -m launch.results`."""

import json
from pathlib import Path
from typing import Any

from absl import app, flags

from bayesmem.evaluate.speed_table import results_page
from launch.errors import short_errors

_RESULTS = flags.DEFINE_string("results", "docs/results", "Folder of the benchmark files.")
_OUTPUT = flags.DEFINE_string("output", "docs/RESULTS.md", "The page; written anew.")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Reads one file.

    Raises:
      ValueError: it does not hold rows of the benchmark.
    """
    try:
        rows = json.loads(path.read_text())
        results_page({path.name: rows})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path}: found no rows of launch.bench_ops ({type(error).__name__}: {error})"
        ) from error
    if not rows:
        raise ValueError(f"{path}: found no rows, wanted those of launch.bench_ops")
    return rows


def main(argv: list[str]) -> None:
    """Reads every file whose name contains bench_ops, and writes the page."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    paths = sorted(Path(_RESULTS.value).glob("*bench_ops*.json"))
    if not paths:
        raise FileNotFoundError(f"--results: {_RESULTS.value} holds no *bench_ops*.json")
    page = results_page({path.name: read_rows(path) for path in paths})
    Path(_OUTPUT.value).write_text(page)
    print(f"{_OUTPUT.value}: {', '.join(path.name for path in paths)}")


if __name__ == "__main__":
    with short_errors():
        app.run(main)
