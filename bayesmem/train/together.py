"""Several runs of one model trained at once on one device.

Small models leave most of a GPU idle. All arrays of a
state have a first axis R, one entry a run; runs differ in their seed and their learning rate. Many
steps are one call of a program, so that the host is not waited for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from bayesmem.train.losses import IGNORED, sum_losses
from bayesmem.train.step import TrainState, update_if

PyTree = Any
Test = Callable[[PyTree, PyTree], "Tally"]
Batch = Mapping[str, jax.Array]


class Task(Protocol):
    """What runs are trained on; its functions are traced.

    Attributes:
      arrays: arrays that `batch` reads, passed to programs as arguments.
      tests: name to arrays [K, ...], one entry for each batch that runs are tested on.
    """

    arrays: PyTree
    tests: Mapping[str, PyTree]

    def init(self, key: jax.Array) -> PyTree:
        """Returns the initial parameters."""

    def picks(self, seeds: Sequence[int], start: int, stop: int) -> np.ndarray:
        """Returns int32 [stop - start, R, ...]: what `batch` makes each batch of steps from."""

    def batch(self, arrays: PyTree, pick: jax.Array) -> Batch:
        """Returns the batch of one run and step."""

    def test_batch(self, name: str, entry: PyTree) -> Batch:
        """Returns the batch of one entry of a test."""

    def logits(self, params: PyTree, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns logits [B, Q, V] of the batch's targets [B, Q], and the penalty of layers []."""


class StepMetrics(NamedTuple):
    """Of each step and run; float32 [S, R]."""

    loss: jax.Array  # nats a counted target
    accuracy: jax.Array
    grad_norm: jax.Array  # before clipping


class Tally(NamedTuple):
    """Sums over the counted targets of a test, float32 [R]."""

    loss: jax.Array
    correct: jax.Array
    margin: jax.Array  # p(target) - p(rival), over targets that have a rival
    counted: jax.Array
    rivals: jax.Array  # targets that have one


def create_runs(
    task: Task, optimizer: optax.GradientTransformation, seeds: Sequence[int]
) -> TrainState:
    """Initialises R runs.

    Args:
      task: what they are trained on.
      optimizer: of a peak learning rate of 1.
      seeds: R of them. Runs of the same seed start alike.
    """

    def one(seed: jax.Array) -> tuple[PyTree, PyTree]:
        params = nn.meta.unbox(task.init(jax.random.key(seed)))
        return params, optimizer.init(params)

    params, opt_state = jax.jit(jax.vmap(one))(jnp.asarray(seeds, jnp.uint32))
    skipped = jnp.zeros(len(seeds), jnp.int32)
    return TrainState(jnp.zeros((), jnp.int32), params, opt_state, jax.random.key(0), skipped)


def make_train_steps(
    task: Task, optimizer: optax.GradientTransformation, rates: Sequence[float]
) -> Callable[[TrainState, PyTree, jax.Array], tuple[TrainState, StepMetrics]]:
    """Builds the jitted program of several steps; it donates the state it is given.

    A step is `bayesmem.train.step`'s: the loss is the mean over the counted targets, and a run
    whose loss or gradient norm is not finite stays as it was for that step, and counts it.

    Args:
      task: what runs are trained on.
      optimizer: of a peak learning rate of 1: AdamW's updates, weight decay included, are in
        proportion to it.
      rates: peak learning rate of each run.

    Returns:
      `steps(state, task.arrays, picks) -> (state, metrics)`, picks as of `Task.picks`.
    """

    def one(params, opt_state, skipped, rate, arrays, pick):
        batch = task.batch(arrays, pick)

        def objective(params):
            logits, penalty = task.logits(params, batch)
            sums = sum_losses(logits, batch["targets"])
            return sums.loss + sums.counted * penalty, sums

        grads, sums = jax.grad(objective, has_aux=True)(params)
        count = jnp.maximum(sums.counted, 1.0)
        grads = jax.tree.map(lambda g: g / count, grads)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        params, opt_state = update_if(finite, optimizer, grads, (params, opt_state), rate)
        metrics = StepMetrics(sums.loss / count, sums.correct / count, norm)
        return params, opt_state, skipped + (1 - finite.astype(jnp.int32)), metrics

    every = jax.vmap(one, in_axes=(0, 0, 0, 0, None, 0))
    peaks = np.asarray(rates, np.float32)

    def steps(state: TrainState, arrays: PyTree, picks: jax.Array):
        def step(state: TrainState, pick: jax.Array):
            given = state.params, state.opt_state, state.skipped
            *after, metrics = every(*given, peaks, arrays, pick)
            params, opt_state, skipped = after
            return TrainState(state.step + 1, params, opt_state, state.rng, skipped), metrics

        return jax.lax.scan(step, state, picks)

    return jax.jit(steps, donate_argnums=0)


def make_test(task: Task, name: str) -> Any:
    """Builds the jitted `(params [R, ...], task.tests[name]) -> Tally [R]` of one test."""

    def one(params: PyTree, batch: Batch) -> Tally:
        logits, targets = task.logits(params, batch)[0], batch["targets"]
        sums, counted = sum_losses(logits, targets), targets != IGNORED
        rivals = batch.get("rivals", jnp.full_like(targets, IGNORED))
        rivalled = counted & (rivals >= 0)
        probs = jax.nn.softmax(logits, axis=-1)

        def chance(of: jax.Array) -> jax.Array:
            return jnp.take_along_axis(probs, jnp.maximum(of, 0)[..., None], axis=-1)[..., 0]

        margin = jnp.where(rivalled, chance(targets) - chance(rivals), 0.0)
        return Tally(
            sums.loss,
            sums.correct,
            jnp.sum(margin),
            sums.counted,
            jnp.sum(rivalled, dtype=jnp.float32),
        )

    def test(params: PyTree, entries: PyTree) -> Tally:
        def add(sums: Tally, entry: PyTree):
            batch = task.test_batch(name, entry)
            # One run after the other: a long test of all at once needs more memory than training.
            found = jax.lax.map(lambda params: one(params, batch), params)
            return jax.tree.map(jnp.add, sums, found), None

        runs = jax.tree.leaves(params)[0].shape[0]
        zero = Tally(*[jnp.zeros(runs, jnp.float32)] * len(Tally._fields))
        return jax.lax.scan(add, zero, entries)[0]

    return jax.jit(test)


@contextlib.contextmanager
def compiled_tests(task: Task, params: PyTree) -> Iterator[dict[str, Future[Test]]]:
    """Compiles all tests on other threads: long before they are wanted, while runs are trained.

    Args:
      task: whose tests.
      params: [R, ...], as of those to be tested.

    Yields:
      For each test its program to come: `(params, entries)` to Tally, as of `make_test`. What is
      not begun when the context is left is not compiled.
    """
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2), "compile")
    try:
        # Traced here: settings of JAX that a caller has made for its thread are this thread's.
        lowered = {n: make_test(task, n).lower(shapes, x) for n, x in task.tests.items()}
        yield {name: pool.submit(program.compile) for name, program in lowered.items()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def means_of_runs(sums: Tally) -> list[dict[str, float | int | None]]:
    """Returns for each run `accuracy`, `loss` (nats), `queries`, and `margin` or None."""
    rows = zip(*(np.asarray(x, np.float64) for x in jax.device_get(sums)), strict=True)
    return [
        {
            "accuracy": correct / max(counted, 1.0),
            "loss": loss / max(counted, 1.0),
            "queries": int(counted),
            "margin": margin / rivals if rivals else None,
        }
        for loss, correct, margin, counted, rivals in rows
    ]
