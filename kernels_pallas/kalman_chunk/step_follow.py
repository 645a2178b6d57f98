"""Readers of a chain of chunks: its mean chain and its reads, in steps of 16 tokens.

A step's T is the block of the chunk's T on the diagonal, and its U are the chunk's, so what `chain`
leaves is all they need. Two warpgroups of a program have 64 value channels each, with M^T of them
in registers; they share what is loaded, a chunk at a time.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import step_reads, tiles, warpgroups
from kernels_pallas.kalman_chunk.elimination import NARROW, STEP
from kernels_pallas.kalman_chunk.mean import Arrays
from kernels_pallas.kalman_chunk.step_tiles import STEPS, TALL, store_turned, turned
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

TEAM = 2
"""Warpgroups of a program, so bands of 64 value channels."""


class Large(NamedTuple):
    """Shared memory, lists are parts, bfloat16; what both warpgroups read, and M on its way out."""

    queries: Any  # [L, D] bfloat16
    keys: Any  # [L, D] bfloat16
    writes: list[Any]  # [4, 16, D] U
    inverse: list[Any]  # [4, 16, 16] T^T, blocks on the diagonal
    mean: list[Any]  # [2, D, 64]


class Small(NamedTuple):
    """Shared memory; of each warpgroup, but for `rows`."""

    rows: Any  # [5, L] float32, see `steps.step_rows`
    values: Any  # [2, L, 64] bfloat16
    weights: list[Any]  # [2, L, 16] parts of W
    read: Any  # [2, 16, 64] bfloat16


class Barriers(NamedTuple):
    """What is waited for."""

    first_loaded: Any  # first means
    tokens_loaded: Any  # what depends on no belief
    factors_loaded: Any  # T^T and U
    met: Any  # both warpgroups


class Held(NamedTuple):
    """All that a program has."""

    large: Large
    small: Small
    barriers: Barriers


class Program(NamedTuple):
    """Where a warpgroup is."""

    program: Any
    batch: Any
    place: Any  # head and noise group
    head: Any
    band: Any
    plain: bool


def scratch(dim: int, parts: int) -> Held:
    """Shared memory and barriers of a program."""
    bf16 = jnp.bfloat16

    def wide(*shape: int) -> Any:
        return plgpu.SMEM(shape, bf16, transforms=tiles.WIDE)

    def narrow(*shape: int) -> list[Any]:
        return [plgpu.SMEM(shape, bf16, transforms=NARROW)] * parts

    large = Large(
        wide(LENGTH, dim),
        wide(LENGTH, dim),
        narrow(STEPS, STEP, dim),
        narrow(STEPS, STEP, STEP),
        [wide(TEAM, dim, BAND)] * parts,
    )
    rows = plgpu.SMEM((5, LENGTH), jnp.float32)
    small = Small(rows, wide(TEAM, LENGTH, BAND), narrow(TEAM, *TALL), wide(TEAM, STEP, BAND))
    counts = TEAM * parts, 3 + TEAM, parts * 2 * STEPS, TEAM
    return Held(large, small, Barriers(*[plgpu.Barrier(num_arrivals=n) for n in counts]))


def _channels(band: Any) -> Any:
    return pl.ds(band * BAND, BAND)


def _fetch_tokens(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    """Loads what of a chunk depends on no belief, for both warpgroups."""
    large, small = held.large, held.small
    copies = [
        (gm.queries.at[at.batch, chunk, :, at.head], large.queries),
        (gm.keys.at[at.batch, chunk, :, at.head], large.keys),
        (gm.rows.at[at.batch, chunk, at.head], small.rows),
    ]
    for band in range(TEAM):
        values = gm.values.at[at.batch, chunk, :, at.place, _channels(band)]
        copies.append((values, small.values.at[band]))
    for source, target in copies:
        plgpu.copy_gmem_to_smem(source, target, held.barriers.tokens_loaded)


def _fetch_factors(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    """Loads T^T and U of a chunk."""
    to = held.barriers.factors_loaded
    for number in range(STEPS):
        here = pl.ds(number * STEP, STEP)
        for i, (u, t) in enumerate(zip(held.large.writes, held.large.inverse, strict=True)):
            writes, inverse = (x.at[at.program, chunk, i] for x in (gm.writes, gm.inverse))
            plgpu.copy_gmem_to_smem(writes.at[here], u.at[number], to)
            plgpu.copy_gmem_to_smem(inverse.at[here, here], t.at[number], to)


def _send_mean(gm: Arrays, held: Held, at: Program, chunk: Any, mean: jax.Array) -> None:
    """Writes M of a band to global memory."""
    own = [part.at[at.band] for part in held.large.mean]
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    store_turned(own, mean, at.plain)
    plgpu.commit_smem()
    for i, part in enumerate(own):
        target = gm.means.at[at.program, chunk, i, :, _channels(at.band)]
        plgpu.copy_smem_to_gmem(part, target)


def _step(gm: Arrays, held: Held, at: Program, chunk: Any, number: Any, mean: jax.Array):
    """Reads a step's tokens and sends that out; returns M^T after it."""
    here, (large, small, _) = pl.ds(number * STEP, STEP), held
    sight = step_reads.Sight(
        queries=large.queries,
        keys=large.keys,
        values=small.values.at[at.band],
        rows=small.rows,
        weights=[part.at[at.band] for part in small.weights],
        inverse=[part.at[number] for part in large.inverse],
        writes=[part.at[number] for part in large.writes],
    )
    mean, recalled = step_reads.read_step(sight, number, mean, lambda: None, at.plain)
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    read = small.read.at[at.band]
    store_turned([read], recalled, at.plain)
    plgpu.commit_smem()
    target = gm.reads.at[at.batch, chunk, here, at.place, _channels(at.band)]
    plgpu.copy_smem_to_gmem(read, target)
    return mean


def run(gm: Arrays, held: Held, at: Program, ready: Callable[[Any], None]) -> None:
    """Carries and reads the mean of a band through all chunks.

    Args:
      gm: global memory; `rows` are those of `steps.step_rows`.
      held: shared memory.
      at: where the warpgroup is.
      ready: waits until T^T and U of a chunk are there.
    """
    chunks, leads, barriers = gm.keys.shape[1], at.band == 0, held.barriers

    @pl.when(leads)
    def _():
        _fetch_tokens(gm, held, at, jnp.int32(0))
        for i, part in enumerate(held.large.mean):
            for band in range(TEAM):
                source = gm.first.at[at.program, i, :, _channels(band)]
                plgpu.copy_gmem_to_smem(source, part.at[band], barriers.first_loaded)

    def one(chunk, mean):
        _send_mean(gm, held, at, chunk, mean)

        @pl.when(leads)
        def _():
            ready(chunk)
            _fetch_factors(gm, held, at, chunk)

        plgpu.barrier_wait(barriers.tokens_loaded)
        plgpu.barrier_wait(barriers.factors_loaded)
        mean = lax.fori_loop(0, STEPS, functools.partial(_step, gm, held, at, chunk), mean)
        warpgroups.meet([barriers.met])  # both are done with what is loaded anew

        @pl.when(leads & (chunk + 1 < chunks))
        def _():
            _fetch_tokens(gm, held, at, chunk + 1)

        return mean

    plgpu.barrier_wait(barriers.first_loaded)
    own = [part.at[at.band] for part in held.large.mean]
    first = functools.reduce(jnp.add, [turned(part, at.plain) for part in reversed(own)])
    plgpu.commit_smem()  # all have loaded what M is stored over
    mean = lax.fori_loop(0, chunks, one, first)
    _send_mean(gm, held, at, jnp.int32(chunks), mean)
    plgpu.wait_smem_to_gmem(0)
