"""One warpgroup that carries a band of the mean and reads it, chunk after chunk.

For D = 256, where shared memory has no room for two that work at once (`reads`).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import mean, tiles
from kernels_pallas.kalman_chunk.chunks import NOISE
from kernels_pallas.kalman_chunk.mean import TALL, Arrays, Program
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH


class Held(NamedTuple):
    """In shared memory. Lists are parts, bfloat16."""

    tokens: Any  # [L, D] keys, then queries
    rows: Any  # [2, 4, L] float32, of two chunks, all but the noise
    inverse: list[Any]  # [L, L] T^T
    writes: list[Any]  # [L, D] U
    mean: list[Any]  # [D, 64]
    values: Any  # [L, 64]
    errors: list[Any]  # [L, 64]
    out: Any  # [L, 64]
    keys_loaded: Any  # barriers: of keys and rows,
    queries_loaded: Any  # of queries,
    factors_loaded: Any  # of T and U,
    values_loaded: Any  # of values,
    first_loaded: Any  # and of the first mean


def scratch(dim: int, parts: int) -> list[Any]:
    """Shared memory and barriers of `Held`."""

    def wide(*shape: int) -> Any:
        return plgpu.SMEM(shape, jnp.bfloat16, transforms=tiles.WIDE)

    return [
        wide(LENGTH, dim),
        plgpu.SMEM((2, NOISE, LENGTH), jnp.float32),
        [wide(LENGTH, LENGTH)] * parts,
        [wide(LENGTH, dim)] * parts,
        [wide(dim, BAND)] * parts,
        wide(*TALL),
        [wide(*TALL)] * parts,
        wide(*TALL),
        plgpu.Barrier(num_arrivals=2),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=2 * parts),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=parts),
    ]


def _fetch_keys(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    """Loads what is first needed of a chunk; past the last one it loads that again."""
    given = lax.min(chunk, gm.keys.shape[1] - 1)
    source = gm.keys.at[at.batch, given, :, at.head]
    plgpu.copy_gmem_to_smem(source, held.tokens, held.keys_loaded)
    rows = gm.rows.at[at.batch, given, at.head, pl.ds(0, NOISE)]  # the noise is the last one
    plgpu.copy_gmem_to_smem(rows, held.rows.at[lax.rem(chunk, 2)], held.keys_loaded)
    values = gm.values.at[at.batch, given, :, at.place, at.channels]
    plgpu.copy_gmem_to_smem(values, held.values, held.values_loaded)


def _fetch_queries(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    source = gm.queries.at[at.batch, chunk, :, at.head]
    plgpu.copy_gmem_to_smem(source, held.tokens, held.queries_loaded)


def _fetch_factors(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    for source, target in ((gm.inverse, held.inverse), (gm.writes, held.writes)):
        for i, part in enumerate(target):
            plgpu.copy_gmem_to_smem(source.at[at.program, chunk, i], part, held.factors_loaded)


def run(gm: Arrays, held: Held, at: Program) -> None:
    """Carries and reads one band through all chunks."""
    chunks, own_mean, errors = gm.keys.shape[1], held.mean, held.errors
    written = tiles.flipped(held.writes)

    def send_mean(chunk: Any) -> None:
        for i, part in enumerate(own_mean):
            target = gm.means.at[at.program, chunk, i, :, at.channels]
            plgpu.copy_smem_to_gmem(part, target)

    def next_mean(block, _, vectors):
        """64 rows of the next mean, in place."""
        rows = pl.ds(block * BAND, BAND)
        entry = [part.at[rows] for part in own_mean]
        writes = [part.at[:, rows] for part in held.writes]
        following = mean.following(entry, tiles.flipped(writes), errors, vectors, at.plain)
        tiles.store(entry, following, at.plain)
        return 0

    def step(chunk, _):
        vectors = held.rows.at[lax.rem(chunk, 2)]
        send_mean(chunk)
        _fetch_factors(gm, held, at, chunk)
        plgpu.barrier_wait(held.keys_loaded)
        plgpu.barrier_wait(held.values_loaded)
        with jax.named_scope("surprise"):
            found = mean.surprise(held.tokens, held.values, own_mean, vectors, at.plain)
            tiles.store(errors, found, at.plain)
        plgpu.commit_smem()  # all are done with the keys
        _fetch_queries(gm, held, at, chunk)
        plgpu.barrier_wait(held.factors_loaded)
        with jax.named_scope("errors"):
            error = tiles.product(TALL, (tiles.flipped(held.inverse), errors))
            plgpu.commit_smem()  # all warps are done with what they are stored over
            tiles.store(errors, error, at.plain)
            plgpu.commit_smem()
        plgpu.barrier_wait(held.queries_loaded)
        with jax.named_scope("recall"):
            w = mean.weights(held.tokens, written, vectors)
            recalled = mean.recall(held.tokens, own_mean, w, errors, vectors, at.plain)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        plgpu.commit_smem()  # all are done with the queries
        _fetch_keys(gm, held, at, chunk + 1)
        with jax.named_scope("mean"):
            tiles.store(errors, mean.aged(error, vectors), at.plain)
            held.out[...] = recalled.astype(held.out.dtype)
            plgpu.commit_smem()
            target = gm.reads.at[at.batch, chunk, :, at.place, at.channels]
            plgpu.copy_smem_to_gmem(held.out, target)
            lax.fori_loop(
                0, own_mean[0].shape[0] // BAND, functools.partial(next_mean, vectors=vectors), 0
            )
        plgpu.commit_smem()  # all are done with the factors
        return 0

    _fetch_keys(gm, held, at, jnp.int32(0))
    for i, part in enumerate(own_mean):
        plgpu.copy_gmem_to_smem(gm.first.at[at.program, i, :, at.channels], part, held.first_loaded)
    plgpu.barrier_wait(held.first_loaded)
    lax.fori_loop(0, chunks, step, 0)
    send_mean(jnp.int32(chunks))
    plgpu.barrier_wait(held.keys_loaded)  # of the last fetch, which nobody reads
    plgpu.barrier_wait(held.values_loaded)
    plgpu.wait_smem_to_gmem(0)
