"""Results of an earlier sweep, taken into a workdir: what they hold is not trained again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesmem.train.grid import Group, done_runs, read_results, runs_of, within
from bayesmem.train.records import write_json
from bayesmem.train.sweep_config import checked
from bayesmem.train.sweep_file import read_sweep
from bayesmem.train.workdir import RESULTS, as_json, claim_workdir, differences


def adopt(config: Mapping[str, Any], workdir: str | Path, path: Path) -> int:
    """Takes the results of a file of `sweep` into a workdir, as far as the grid has their runs.

    Their curves and numbers are as short as the file's, see `sweep_file`. Runs that the workdir has
    results of stay as they are.

    Args:
      config: of the sweep that goes on, see `bayesmem.train.sweep.sweep`.
      workdir: its directory, made if missing.
      path: sweep.json of the earlier one.

    Returns:
      How many runs were taken.

    Raises:
      ValueError: it is no such file, it is of another config (names the keys), the config is bad,
        or the workdir is another sweep's.
      OSError: the file cannot be read.
    """
    workdir, (_, grid) = Path(workdir), checked(config)
    found = read_sweep(path)
    if differing := differences(found["config"], as_json(config)):
        raise ValueError("\n  ".join([f"{path}: found results of another config:", *differing]))
    claim_workdir(workdir, config)
    (workdir / RESULTS).mkdir(exist_ok=True)
    wanted = set(grid.runs()) - set(done_runs(read_results(workdir)))
    taken = 0
    for result in within(found["results"], wanted):
        runs = tuple(runs_of(result))
        name = Group(runs[0].mixer, runs[0].width, runs).name
        write_json(workdir / RESULTS / f"{name}.json", result)
        taken += len(runs)
    return taken
