"""A sweep: one config over mixers, widths, learning rates and seeds, on one device.

Files of a sweep, in its workdir:
  config.json                   the config it was started with
  checkpoints/GROUP/step_N/     state of the runs that are trained together
  results/GROUP.json            what they have reached, written when they are done
  sweep.json                    all results in one small file, when the grid is done: curves are
                                thinned and numbers rounded, see `sweep_file`

The same command continues it: what has a result is skipped, and what was stopped goes on from its
newest usable checkpoint. A grid that has grown since is trained where it has grown.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from bayesmem.train.checkpoint import abstract_state, prune, restore_newest, save_checkpoint
from bayesmem.train.grid import (
    RESULTS,
    Group,
    SweepSettings,
    done_runs,
    groups_left,
    read_results,
)
from bayesmem.train.optimizer import make_optimizer
from bayesmem.train.provenance import provenance
from bayesmem.train.records import write_json
from bayesmem.train.settings import SECTIONS, Settings, TrainSettings
from bayesmem.train.step import TrainState
from bayesmem.train.stop_signal import StopSignal
from bayesmem.train.sweep_file import write_sweep
from bayesmem.train.tasks import build_task, check_model
from bayesmem.train.together import (
    StepMetrics,
    Task,
    create_runs,
    make_test,
    make_train_steps,
    means_of_runs,
)
from bayesmem.train.workdir import CHECKPOINTS, claim_workdir

logger = logging.getLogger(__name__)

ALL_RESULTS = "sweep.json"

NOT_READ = ("grad_accumulation", "eval_every", "eval_batches", "wandb_project")
"""Keys of `train` that a sweep does not have: its runs are tested once, at their end."""


def sweep(config: Mapping[str, Any], workdir: str | Path) -> dict[str, Any]:
    """Trains and tests what is left of a grid.

    Args:
      config: the sections of a training config, and `sweep` (see `grid.SweepSettings`) and `tests`
        (name to the keys of `data` that differ there). The runs' learning rates and seeds are
        those of `sweep`.
      workdir: the sweep's directory.

    Returns:
      `done`, how many runs have results, `left`, and `stopped`, the name of a signal or None.

    Raises:
      ValueError: a key is unknown, missing or out of range, or the workdir is another sweep's.
      NotADirectoryError: the workdir is a file.
    """
    workdir, grid = Path(workdir), SweepSettings.from_config(config["sweep"])
    settings = Settings.from_config({key: config[key] for key in ("seed", *SECTIONS)})
    _check(config, settings, grid)
    claim_workdir(workdir, config)
    (workdir / RESULTS).mkdir(exist_ok=True)
    left = groups_left(grid, done_runs(read_results(workdir)))
    interval = 0.2 if sys.stderr.isatty() else 30.0
    total = len(left) * settings.train.steps
    with StopSignal() as stop, tqdm(total=total, unit="step", mininterval=interval) as bar:
        for group in left:
            bar.set_description(f"{group.mixer} W={group.width} x{len(group.runs)}")
            result = _train_group(config, settings, group, workdir, stop, bar)
            if result is None:
                break
            write_json(workdir / RESULTS / f"{group.name}.json", result)
    results, wanted = read_results(workdir), set(grid.runs())
    done = len(wanted & set(done_runs(results)))
    if done == len(wanted):
        write_sweep(workdir / ALL_RESULTS, _plain(config), results)
    return {
        "done": done,
        "left": len(wanted) - done,
        "stopped": stop.name if stop.received is not None else None,
    }


def _check(config: Mapping[str, Any], settings: Settings, grid: SweepSettings) -> None:
    """Finds what cannot be trained, before anything is written."""
    known = ("seed", *SECTIONS, "sweep", "tests")
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise ValueError(f"config: found unknown keys {unknown}; wanted {', '.join(known)}")
    for name in NOT_READ:
        found, default = getattr(settings.train, name), getattr(TrainSettings, name)
        if found != default:
            raise ValueError(
                f"config train.{name}: found {found!r}; wanted {default!r}, for a sweep has none"
            )
    mesh = dataclasses.astuple(settings.mesh)
    if mesh not in ((-1, 1, 1, 1), (1, 1, 1, 1)):
        raise ValueError(f"config mesh: found {settings.mesh}; wanted one device in a sweep")
    rows, size = config["data"].get("train_examples", math.inf), settings.train.batch_size
    if size > rows:
        raise ValueError(
            f"config train.batch_size: found {size}; wanted at most the {rows} examples of the "
            "train split"
        )
    for mixer in grid.mixers:
        for width in grid.widths:
            check_model(config, mixer, width)


def _train_group(
    config: Mapping[str, Any],
    settings: Settings,
    group: Group,
    workdir: Path,
    stop: StopSignal,
    bar: Any,
) -> dict[str, Any] | None:
    """Trains the runs of a group; returns their result, or None where it was asked to stop."""
    options, seeds = settings.train, [run.seed for run in group.runs]
    task = build_task(config, group.mixer, group.width, options.batch_size)
    optimizer = make_optimizer(
        dataclasses.replace(settings.optimizer, learning_rate=1.0), options.steps
    )
    state = create_runs(task, optimizer, seeds)
    directory = workdir / CHECKPOINTS / group.name
    restored = restore_newest(directory, abstract_state(state))
    curve, begin = list[dict[str, Any]](), time.monotonic()
    if restored is not None:
        state, curve = restored.state, list(restored.loader_state["curve"])
        begin -= restored.loader_state["seconds"]
        bar.update(int(state.step))
    advance = make_train_steps(task, optimizer, [run.learning_rate for run in group.runs])
    written, step = list[int](), int(state.step)
    while step < options.steps:
        until = min(step + options.log_every - step % options.log_every, options.steps)
        picks = task.picks(seeds, step, until)
        state, metrics = advance(state, task.arrays, jax.numpy.asarray(picks))
        curve.append(_curve_row(until, metrics))
        bar.update(until - step)
        best = min(filter(None, curve[-1]["loss"]), default=math.nan)
        bar.set_postfix({"best loss": f"{best:.4f}"}, refresh=False)
        last, stopping = until == options.steps, stop.requested(until)
        if last or stopping or _crosses(step, until, options.checkpoint_every):
            place = {"curve": curve, "seconds": time.monotonic() - begin}
            written.append(save_checkpoint(directory, state, place))
            written = prune(directory, written, options.keep_checkpoints)
        step = until
        if stopping and not last:
            return None
    seconds = time.monotonic() - begin
    return _result(config, group, task, state, curve) | {"seconds": round(seconds, 1)}


def _result(
    config: Mapping[str, Any],
    group: Group,
    task: Task,
    state: TrainState,
    curve: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Tests the runs and returns what is stored of them."""
    tested = {name: means_of_runs(make_test(task, name)(state.params)) for name in task.tests}
    leaves = jax.tree.leaves(state.params)
    runs = []
    for number, run in enumerate(group.runs):
        own = {key: [row[key][number] for row in curve] for key in ("loss", "accuracy")}
        runs.append(
            {
                "learning_rate": run.learning_rate,
                "seed": run.seed,
                "skipped": int(state.skipped[number]),
                "tests": {name: _finite(rows[number]) for name, rows in tested.items()},
                "curve": {"step": [row["step"] for row in curve], **own},
            }
        )
    return {
        "task": config["data"]["task"],
        "mixer": group.mixer,
        "width": group.width,
        "steps": int(state.step),
        "batch_size": config["train"]["batch_size"],
        "parameters": sum(math.prod(leaf.shape[1:]) for leaf in leaves),
        "runs": runs,
        **provenance(),
    }


def _curve_row(step: int, metrics: StepMetrics) -> dict[str, Any]:
    """Means over the steps since the last row, for each run; None where they are not finite."""
    loss, accuracy, _ = (np.asarray(x, np.float64).mean(axis=0) for x in jax.device_get(metrics))
    rows = {"loss": loss, "accuracy": accuracy}
    return {"step": step} | {
        name: [float(x) if math.isfinite(x) else None for x in values]
        for name, values in rows.items()
    }


def _crosses(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` is in (before, after]."""
    return every > 0 and after // every > before // every


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with None for what is not finite: JSON has no NaN."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }


def _plain(value: Any) -> Any:
    """Mappings as dicts, tuples as lists."""
    if hasattr(value, "items"):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
