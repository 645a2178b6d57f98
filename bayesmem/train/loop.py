"""The training loop; `train` and `fit` read top to bottom.

Files of a run, in its workdir:
  config.json              the config it was started with
  checkpoints/step_N/      parameters, optimizer, step, random key, skipped count, loader state
  metrics.jsonl            a row for every logged step and evaluation
  tensorboard/             the same for TensorBoard
  train_result.json        written once, when the last step is done

A run that was stopped or killed continues from its newest usable checkpoint when the same command
is given again, and ends bit for bit where it would have ended.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bayesmem.train.checkpoint import abstract_state, prune, restore_newest, save_checkpoint
from bayesmem.train.losses import Batch
from bayesmem.train.objective import Objective, Scoring, next_token
from bayesmem.train.optimizer import make_optimizer, make_schedule
from bayesmem.train.parts import Loader, NumpyBatch, Parts, build_parts
from bayesmem.train.records import METRICS, read_rows, write_json
from bayesmem.train.report import Report
from bayesmem.train.settings import Settings
from bayesmem.train.sharding import Mesh, check_batch_size, make_mesh, put_batch
from bayesmem.train.sole_use import sole_use
from bayesmem.train.step import (
    Metrics,
    TrainState,
    create_state,
    make_eval_step,
    make_train_step,
)
from bayesmem.train.stop_signal import StopSignal
from bayesmem.train.workdir import CHECKPOINTS, RESULT, claim_workdir

logger = logging.getLogger(__name__)


def train(config: Mapping[str, Any], workdir: str | Path) -> dict[str, Any]:
    """Trains what a config describes, or continues the run in `workdir`.

    Args:
      config: sections `model`, `data`, `optimizer`, `train`, `mesh`, and `seed`.
      workdir: the run's directory.

    Returns:
      The content of train_result.json; or, stopped by SIGTERM or SIGINT, `step` and `stopped`
      (the signal's name).

    Raises:
      ValueError: a config key is unknown, missing or out of range, or the workdir belongs to
        another run.
      BlockingIOError: another process trains in the workdir.
      NotADirectoryError: the workdir is a file.
    """
    settings = Settings.from_config(config)
    # Before the directory is claimed: a mistake in the config should not leave one behind.
    options, mesh = settings.train, make_mesh(settings.mesh)
    check_batch_size(options.batch_size, options.grad_accumulation, mesh)
    parts = build_parts(config, settings)
    with sole_use(Path(workdir)):
        claim_workdir(Path(workdir), config)
        return fit(parts, settings, Path(workdir), config)


def fit(
    parts: Parts, settings: Settings, workdir: Path, config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Runs the steps that are left; see `train`, which builds the parts."""
    options, mesh = settings.train, make_mesh(settings.mesh)
    check_batch_size(options.batch_size, options.grad_accumulation, mesh)
    schedule = make_schedule(settings.optimizer, options.steps)
    optimizer = make_optimizer(settings.optimizer, options.steps)
    state, shardings = create_state(parts.model, optimizer, settings.seed, mesh)
    objective = next_token(parts.model, Scoring(options.loss_tokens, options.z_loss))
    step = make_train_step(
        objective, optimizer, schedule, shardings, grad_accumulation=options.grad_accumulation
    )
    measure = make_eval_step(objective)

    def evaluation(params: Any) -> dict[str, float]:
        return evaluate(objective, functools.partial(measure, params), parts.eval_batches, mesh)

    program = Program(state, step, evaluation)
    return run_steps(program, parts.loader, settings, workdir, config)


class Program(NamedTuple):
    """What the steps of a run are.

    Attributes:
      state: the state it starts with, on the mesh.
      step: (state, batch) -> (state, metrics), see `make_train_step`.
      evaluate: from parameters to the means on the validation split.
      evaluates_first: whether there is an evaluation before the first step.
    """

    state: TrainState
    step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
    evaluate: Callable[[Any], dict[str, float]]
    evaluates_first: bool = False


def run_steps(
    program: Program,
    loader: Loader,
    settings: Settings,
    workdir: Path,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Continues a program from its newest usable checkpoint to its last step.

    Args:
      program: what is run.
      loader: its batches; goes to the checkpoint's place.
      settings: how many steps, and when to log, to evaluate and to save.
      workdir: the run's directory, claimed.
      config: the config shown by the writers of the run.

    Returns:
      As `train`.
    """
    options, directory, state = settings.train, workdir / CHECKPOINTS, program.state
    mesh = make_mesh(settings.mesh)
    restored = restore_newest(directory, abstract_state(state))
    if restored is not None:
        logger.info("continuing from step %d of %s", restored.step, workdir)
        state = restored.state
        loader.set_state(restored.loader_state)
    start = int(state.step)
    project, written = options.wandb_project, list[int]()
    log = Report(workdir, start, options.steps, wandb_project=project, config=config)
    with StopSignal() as stop, log as report:
        if program.evaluates_first and start == 0:
            report.eval_row(0, program.evaluate(state.params))
        for step in range(start + 1, options.steps + 1):
            batch = next_batch(loader, step, options.steps)
            if step == start + 1:
                logger.info("compiling the step")
                begin = time.monotonic()
            state, metrics = program.step(state, put_batch(mesh, batch))
            if step == start + 1:  # it runs on while this goes on
                logger.info("compiled in %.1f s", time.monotonic() - begin)
            report.stepped(batch["inputs"].size * jax.process_count())
            last, stopping = step == options.steps, stop.requested(step)
            if last or _due(step, options.log_every):
                report.train_row(step, metrics)
            with report.off_the_clock():
                if last or _due(step, options.eval_every):
                    report.eval_row(step, program.evaluate(state.params))
                # After the rows of this step: a run continued from here never writes them again.
                if last or stopping or _due(step, options.checkpoint_every):
                    written.append(save_checkpoint(directory, state, loader.get_state()))
                    written = prune(directory, written, options.keep_checkpoints)
            if stopping and not last:
                return {"step": step, "stopped": stop.name}
    return finish(workdir, parameters=count_parameters(state.params))


def next_batch(loader: Loader, step: int, steps: int) -> NumpyBatch:
    """Takes the next batch; a loader that ends early raises ValueError with the step."""
    try:
        return next(loader)
    except StopIteration:
        raise ValueError(
            f"train loader: found its end before step {step}; wanted {steps} batches"
        ) from None


def evaluate(
    objective: Objective,
    measure: Callable[[Batch], Any],
    batches: Iterable[NumpyBatch],
    mesh: Mesh,
) -> dict[str, float]:
    """Means over the counted targets of all batches.

    Args:
      objective: whose means these are.
      measure: from a batch to the objective's sums.
      batches: batches of this process.
      mesh: from `make_mesh`.

    Returns:
      The objective's means, of which `tokens` is an int; and, where its loss is in nats,
      `bits_per_token`.

    Raises:
      ValueError: there is no batch.
    """
    totals = [measure(put_batch(mesh, batch)) for batch in batches]
    if not totals:
        raise ValueError("evaluation: found no batch in the split; wanted at least one")
    # In float64 on the host: a float32 count stops growing at 2**24 targets.
    found = jax.device_get(totals)
    sums = jax.tree.map(lambda *parts: np.asarray(parts, np.float64).sum(axis=0), *found)
    means = {name: float(value) for name, value in objective.means(sums).items()}
    means["tokens"] = int(means["tokens"])
    return means | ({"bits_per_token": means["loss"] / math.log(2)} if objective.in_nats else {})


def finish(workdir: Path, **extra: Any) -> dict[str, Any]:
    """Writes train_result.json from the last rows of metrics.jsonl, once, and returns it."""
    last = {row["split"]: dict(row) for row in read_rows(workdir / METRICS)}
    for row in last.values():
        del row["split"]
    result = {"step": last["train"]["step"], **last, **extra}
    if jax.process_index() == 0 and not (workdir / RESULT).exists():
        write_json(workdir / RESULT, result)
    return result


def count_parameters(params: Any) -> int:
    """Number of scalars in a parameter tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
