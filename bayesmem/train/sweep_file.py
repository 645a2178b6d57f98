"""The file of all results of a sweep: small enough to be kept with the sources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesmem.train.grid import runs_of
from bayesmem.train.records import write_text

CURVE_POINTS = 40
"""The most points of a training curve that are kept; the last one always is."""

DIGITS = 6
"""Significant digits of measures and curves that are kept."""


def write_sweep(
    path: Path, config: Mapping[str, Any], results: Sequence[Mapping[str, Any]]
) -> None:
    """Writes config and results, one result a line, with thinned curves and rounded numbers.

    The whole curves and all digits stay in the result files of the sweep's workdir.

    Args:
      path: the file; its directory must exist.
      config: of the sweep, JSON values.
      results: what `bayesmem.train.sweep` has stored of each set of runs trained together.

    Raises:
      OSError: the disk is full or not writable.
      ValueError: a value is NaN or an infinity.
    """
    lines = [json.dumps(_small(result), allow_nan=False) for result in results]
    head = json.dumps(config, allow_nan=False)
    write_text(path, f'{{"config": {head},\n"results": [\n' + ",\n".join(lines) + "\n]}\n")


def read_sweep(path: Path) -> dict[str, Any]:
    """Reads `config` and `results`.

    Raises:
      ValueError: it is no such file, or a run is in it twice; names it.
    """
    try:
        found = json.loads(path.read_text(), parse_constant=_refuse)
        runs = [run for result in found["results"] for run in runs_of(result)]
        sections = {name: found["config"][name] for name in ("data", "model", "sweep", "tests")}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path}: found no results of launch.sweep ({type(error).__name__}: {error})"
        ) from error
    if not runs or not all(isinstance(section, dict) for section in sections.values()):
        raise ValueError(f"{path}: found no runs, wanted those of launch.sweep")
    twice = sorted({run for run in runs if runs.count(run) > 1})
    if twice:
        raise ValueError(f"{path}: found {twice[0]} twice, wanted every run once")
    return found


def _refuse(constant: str) -> float:
    """JSON has no NaN and no infinities; a value that was not finite is null."""
    raise ValueError(f"found {constant}, wanted a number or null")


def _small(result: Mapping[str, Any]) -> dict[str, Any]:
    """The same result, with fewer points and digits."""
    runs = [
        dict(run)
        | {
            "tests": {name: _round(test) for name, test in run["tests"].items()},
            "curve": {name: _round(_thin(row)) for name, row in run["curve"].items()},
        }
        for run in result["runs"]
    ]
    return dict(result) | {"runs": runs}


def _thin(values: Sequence[Any]) -> list[Any]:
    """Evenly spaced values, counted from the last."""
    every = max(1, -(-len(values) // CURVE_POINTS))
    return list(values[(len(values) - 1) % every :: every])


def _round(value: Any) -> Any:
    """Floats with fewer digits, in mappings and lists too."""
    if isinstance(value, Mapping):
        return {key: _round(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_round(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
