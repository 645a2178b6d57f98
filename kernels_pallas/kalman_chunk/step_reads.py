"""The mean chain and the reads in steps of 16 tokens by one warpgroup, with M^T in registers.

It follows `step_chain` in the same program, by a step: (7) and (8) of README.md, transposed. What a
step does is also what programs beside a chain of chunks do (`step_follow`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import tiles
from kernels_pallas.kalman_chunk.chunks import ENTRY, TO_END
from kernels_pallas.kalman_chunk.elimination import STEP
from kernels_pallas.kalman_chunk.step_tiles import (
    STEPS,
    TALL,
    THIN,
    Arrays,
    Held,
    Program,
    decays,
    places,
    products,
    store_turned,
    times,
    turned,
)


def _fetch(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    """Loads queries and values of a chunk; past the last one it loads that again."""
    given = lax.min(chunk, gm.keys.shape[1] - 1)
    for source, target in (
        (gm.queries.at[at.batch, given, :, at.head], held.queries),
        (gm.values.at[at.batch, given, :, at.place], held.values),
    ):
        plgpu.copy_gmem_to_smem(source, target, held.tokens_loaded)


def _send_mean(gm: Arrays, held: Held, at: Program, chunk: Any, mean: jax.Array) -> None:
    """Writes M to global memory."""
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    store_turned(held.mean, mean, at.plain)
    plgpu.commit_smem()
    for i, part in enumerate(held.mean):
        plgpu.copy_smem_to_gmem(part, gm.means.at[at.program, chunk, i])


class Sight(NamedTuple):
    """What a step of the reads looks at, in shared memory. Lists are parts, bfloat16."""

    queries: Any  # [L, D] bfloat16, of the chunk
    keys: Any  # [L, D] bfloat16
    values: Any  # [L, 64] bfloat16
    rows: Any  # [5, L] float32, see `steps.step_rows`
    weights: list[Any]  # [L, 16] W in the rows of the step, to be made
    inverse: list[Any]  # [16, 16] T^T of the step
    writes: list[Any]  # [16, D] U of the step


def _weights(sight: Sight, number: Any, plain: bool) -> list[Any]:
    """Leaves the step's W in its rows of `weights`; returns those, transposed."""
    pairs = tiles.part_pairs([tiles.read(sight.queries)], tiles.flipped(sight.writes))
    (w,) = products((TALL,), (pairs,), plain)
    row, column = places(number)
    w = jnp.where(row >= column, w * decays(sight.rows, number), jnp.float32(0.0))
    tiles.store(sight.weights, w, plain)
    plgpu.commit_smem()
    here = pl.ds(number * STEP, STEP)
    return tiles.flipped([part.at[here] for part in sight.weights])


def read_step(
    sight: Sight, number: Any, mean: jax.Array, made: Callable[[], None], plain: bool
) -> tuple[jax.Array, jax.Array]:
    """Reads a step's tokens and passes M^T through it.

    Args:
      sight: what it looks at.
      number: of the step in its chunk.
      mean: M^T at the step's entry, [64, D] float32 in registers.
      made: waits for T and U.
      plain: without inlined code.

    Returns:
      M^T after the step, and the reads' transpose [64, 16].
    """
    here, vectors, count = pl.ds(number * STEP, STEP), sight.rows, len(sight.weights)
    entry = tiles.across(vectors.at[ENTRY, here], THIN)
    with jax.named_scope("step known"):
        parts = tiles.split(mean, count, plain)
        key, query = (tiles.transposed(x.at[here]) for x in (sight.keys, sight.queries))
        sums = tiles.part_pairs(parts, [key]), tiles.part_pairs(parts, [query])
        known, recalled = products((THIN, THIN), sums, plain)
        surprise = turned(sight.values.at[here], plain) - entry * known
    made()
    with jax.named_scope("step read"):
        error = times(surprise, sight.inverse, plain)
        w = _weights(sight, number, plain)
        recalled = entry * recalled + times(error, w, plain)
    with jax.named_scope("step mean"):
        total = vectors[ENTRY, number * STEP + STEP - 1]
        aged = error * tiles.across(vectors.at[TO_END, here], THIN)
        return mean * total + times(aged, sight.writes, plain), recalled


def _step(gm: Arrays, held: Held, at: Program, chunk: Any, number: Any, mean: jax.Array):
    """Reads a step's tokens and sends that out; returns M^T after it."""
    slot, turn = lax.rem(chunk, 2), lax.rem(number, 2)
    inverse, writes = ([part.at[turn] for part in x] for x in (held.inverse, held.writes))
    sight = Sight(
        held.queries, held.keys.at[slot], held.values, held.rows.at[slot], held.weights, inverse,
        writes,
    )  # fmt: skip
    made = functools.partial(plgpu.barrier_wait, held.made.at[turn])
    mean, recalled = read_step(sight, number, mean, made, at.plain)
    plgpu.barrier_arrive(held.taken.at[turn])
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    store_turned([held.read], recalled, at.plain)
    plgpu.commit_smem()
    here = pl.ds(number * STEP, STEP)
    plgpu.copy_smem_to_gmem(held.read, gm.reads.at[at.batch, chunk, here, at.place])
    return mean


def run(gm: Arrays, held: Held, at: Program) -> None:
    """Carries and reads the mean through all chunks."""
    chunks = gm.keys.shape[1]

    def one(chunk, mean):
        plgpu.barrier_wait(held.tokens_loaded)
        _send_mean(gm, held, at, chunk, mean)
        mean = lax.fori_loop(0, STEPS, functools.partial(_step, gm, held, at, chunk), mean)
        plgpu.commit_smem()
        # The next keys are waited for before the chain may ask for those after them.
        plgpu.barrier_wait(held.keys_loaded)
        plgpu.barrier_arrive(held.freed)
        _fetch(gm, held, at, chunk + 1)
        return mean

    _fetch(gm, held, at, jnp.int32(0))
    for i, part in enumerate(held.mean):
        plgpu.copy_gmem_to_smem(gm.first_mean.at[at.program, i], part, held.mean_loaded)
    plgpu.barrier_wait(held.mean_loaded)
    first = functools.reduce(jnp.add, [turned(part, at.plain) for part in reversed(held.mean)])
    plgpu.commit_smem()  # all have loaded what M is stored over
    plgpu.barrier_wait(held.keys_loaded)
    plgpu.barrier_arrive(held.freed)
    mean = lax.fori_loop(0, chunks, one, first)
    _send_mean(gm, held, at, jnp.int32(chunks), mean)
    plgpu.barrier_wait(held.tokens_loaded)  # of the last fetch
    plgpu.wait_smem_to_gmem(0)
