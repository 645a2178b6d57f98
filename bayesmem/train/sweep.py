"""A sweep: one config over mixers, widths, learning rates and seeds, on one device.

Files of a sweep, in its workdir:
  config.json                   the config it was started with
  checkpoints/GROUP/step_N/     state of the runs that are trained together
  results/GROUP.json            what they have reached, written when they are done
  sweep.json                    all results of the grid in one small file: curves are thinned and
                                numbers rounded, see `sweep_file`

The same command continues it: what has a result is skipped, and what was stopped goes on from its
newest usable checkpoint. A grid that has grown since is trained where it has grown. Processes may
share a workdir, each with mixers or widths of its own; `collect` then puts their results together.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from bayesmem.train.checkpoint import abstract_state, prune, restore_newest, save_checkpoint
from bayesmem.train.grid import (
    Group,
    SweepSettings,
    begun_groups,
    done_runs,
    groups_left,
    mark_begun,
    read_results,
    within,
)
from bayesmem.train.optimizer import make_optimizer
from bayesmem.train.provenance import provenance
from bayesmem.train.records import write_json
from bayesmem.train.settings import Settings
from bayesmem.train.sole_use import sole_use
from bayesmem.train.step import TrainState
from bayesmem.train.stop_signal import StopSignal
from bayesmem.train.sweep_config import checked
from bayesmem.train.sweep_file import write_sweep
from bayesmem.train.tasks import build_task
from bayesmem.train.together import (
    StepMetrics,
    Test,
    compiled_tests,
    create_runs,
    make_train_steps,
    means_of_runs,
)
from bayesmem.train.workdir import CHECKPOINTS, RESULTS, as_json, claim_workdir, read_config

logger = logging.getLogger(__name__)

ALL_RESULTS = "sweep.json"

_TOO_LARGE = "its runs at once; go on with fewer (sweep.together) or with model.remat"


def sweep(config: Mapping[str, Any], workdir: str | Path) -> dict[str, Any]:
    """Trains and tests what is left of a grid.

    Args:
      config: see `sweep_config.checked`; `tests` maps a name to the keys of `data` that differ.
      workdir: the sweep's directory.

    Returns:
      `done`, how many runs have results; `left`; `failed`, groups for which memory was too small;
      `elsewhere`, groups that another process is training; and `stopped`, the name of a signal or
      None.

    Raises:
      ValueError: a bad config, or the workdir is another sweep's.
      NotADirectoryError: the workdir is a file.
    """
    workdir, (settings, grid) = Path(workdir), checked(config)
    claim_workdir(workdir, config)
    (workdir / RESULTS).mkdir(exist_ok=True)
    begun = begun_groups(workdir / CHECKPOINTS)
    left = groups_left(grid, done_runs(read_results(workdir)), begun)
    interval = 0.2 if sys.stderr.isatty() else 30.0
    total, failed, elsewhere = len(left) * settings.train.steps, list[str](), list[str]()
    with StopSignal() as stop, tqdm(total=total, unit="step", mininterval=interval) as bar:
        for group in left:
            if stop.received is not None:
                break
            path = workdir / RESULTS / f"{group.name}.json"
            bar.set_description(f"{group.mixer} W={group.width} x{len(group.runs)}")
            try:
                with sole_use(workdir, group.name):
                    if path.exists():
                        continue  # another process has trained it meanwhile
                    result = _train_group(config, settings, group, workdir, stop, bar)
                    if result is not None:
                        write_json(path, result)
            except BlockingIOError as error:
                logger.warning("%s is left out: %s", group.name, error)
                elsewhere.append(group.name)
                continue
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                logger.error("%s: memory is too small for %s", group.name, _TOO_LARGE)
                failed.append(group.name)
                continue
    stopped = stop.name if stop.received is not None else None
    ended = {"failed": failed, "elsewhere": elsewhere, "stopped": stopped}
    return _write_all(config, grid, workdir) | ended


def collect(config: Mapping[str, Any], workdir: str | Path) -> dict[str, int]:
    """Writes sweep.json of what is done, and trains nothing.

    Args:
      config: see `sweep`.
      workdir: the sweep's directory.

    Returns:
      `done` and `left`, as of `sweep`.

    Raises:
      ValueError: a bad config, or the workdir is another sweep's, or has no result of the grid.
      FileNotFoundError: there is no sweep.
    """
    workdir, (_, grid) = Path(workdir), checked(config)
    read_config(workdir)  # raises before the directory is made
    claim_workdir(workdir, config)
    found = _write_all(config, grid, workdir)
    if not found["done"]:
        raise ValueError(f"workdir {workdir}: found no result of the grid, wanted one at least")
    return found


def _write_all(config: Mapping[str, Any], grid: SweepSettings, workdir: Path) -> dict[str, int]:
    """Writes sweep.json where there are results of the grid; counts its runs."""
    results, wanted = read_results(workdir), set(grid.runs())
    done = len(wanted & set(done_runs(results)))
    if done:
        write_sweep(workdir / ALL_RESULTS, as_json(config), within(results, wanted))
    return {"done": done, "left": len(wanted) - done}


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
    optimizer = make_optimizer(settings.optimizer, options.steps)
    state = create_runs(task, optimizer, seeds)
    directory = workdir / CHECKPOINTS / group.name
    mark_begun(directory, group)
    restored = restore_newest(directory, abstract_state(state))
    curve, begin = list[dict[str, Any]](), time.monotonic()
    if restored is not None:
        logger.info("%s: continuing from step %d", group.name, restored.step)
        state, curve = restored.state, list(restored.loader_state["curve"])
        begin -= restored.loader_state["seconds"]
        bar.update(int(state.step))
    with compiled_tests(task, state.params) as programs:
        advance = make_train_steps(task, optimizer, [run.learning_rate for run in group.runs])
        written, step = list[int](), int(state.step)
        ends = _ends(step, options.steps, options.log_every)
        picks = task.picks(seeds, step, ends[0]) if ends else None
        for until, following in zip(ends, [*ends, None][1:], strict=True):
            state, metrics = advance(state, task.arrays, jax.numpy.asarray(picks))
            # While the device is at work.
            picks = None if following is None else task.picks(seeds, until, following)
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
        seconds, tested = time.monotonic() - begin, {}
        for name, program in programs.items():
            bar.set_postfix({"test": name})
            test = _waited_for(program, stop)
            if test is None:  # the last checkpoint is there: only tests are left
                return None
            tested[name] = means_of_runs(test(state.params, task.tests[name]))
    result = _result(config, group, tested, state, curve)
    return result | {"seconds": round(seconds, 1)}


def _waited_for(program: Future[Test], stop: StopSignal) -> Test | None:
    """Returns a program when it is compiled, or None when a signal has come."""
    while stop.received is None:
        if wait([program], timeout=0.2).done:
            return program.result()
    return None


def _result(
    config: Mapping[str, Any],
    group: Group,
    tested: Mapping[str, Sequence[Mapping[str, Any]]],
    state: TrainState,
    curve: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Returns what is stored of the runs."""
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


def _ends(step: int, steps: int, every: int) -> list[int]:
    """Where stretches of steps end: at multiples of `every` beyond `step`, and at the last."""
    return [*range((step // every + 1) * every, steps, every), steps] if step < steps else []


def _crosses(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` is in (before, after]."""
    return every > 0 and after // every > before // every


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with None for what is not finite: JSON has no NaN."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }
