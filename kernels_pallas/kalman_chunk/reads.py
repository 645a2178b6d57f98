"""The mean chain and the reads as a Mosaic GPU kernel, from what the covariance chain leaves.

One program a batch row, head, noise group and band of 64 value channels. Products only: a delta
rule whose write vectors are given. Two warpgroups share a program: one carries the mean from chunk
to chunk, the other reads it, a chunk behind. Parts and precision are those of `chain`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import tiles, warpgroups
from kernels_pallas.kalman_chunk.chunks import ENTRY, NOISE, TO_END, Tokens, Vectors, stack
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.fwd import Parts
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

TALL, SQUARE = (LENGTH, BAND), (LENGTH, LENGTH)


class Arrays(NamedTuple):
    """In global memory; see `run_reads`."""

    queries: Any
    keys: Any
    values: Any
    rows: Any
    inverse: Any
    writes: Any
    first: Any
    reads: Any
    means: Any


class Held(NamedTuple):
    """In shared memory. Lists are parts, bfloat16; what both warpgroups read, of two chunks."""

    queries: Any  # [L, D]
    keys: Any  # [L, D], or [2, L, D] where keys are the writes
    values: Any  # [L, 64]
    rows: Any  # [2, 4, L] float32, all but the noise
    inverse: list[Any]  # [L, L] T^T
    writes: list[Any]  # [2, L, D], none where keys are the writes
    mean: list[Any]  # [2, D, 64]
    surprise: list[Any]  # [L, 64]
    errors: list[Any]  # [L, 64]
    out: Any  # [L, 64]
    first_loaded: Any  # barriers: of the first mean,
    loaded: Any  # of what the first warpgroup alone reads,
    both_loaded: Any  # of what both read, two of them,
    queries_loaded: Any  # of what the second reads;
    made: Any  # errors are there, for the second warpgroup,
    read: Any  # and it has read all it needs of a chunk


class Program(NamedTuple):
    """Where a program is."""

    program: Any
    batch: Any
    place: Any  # head and noise group
    head: Any
    channels: Any
    plain: bool


def _fetch_both(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    """Loads what both warpgroups read; past the last chunk it loads that again."""
    given, slot = lax.min(chunk, gm.keys.shape[1] - 1), lax.rem(chunk, 2)
    barrier = held.both_loaded.at[slot]
    rows = gm.rows.at[at.batch, given, at.head, pl.ds(0, NOISE)]  # the noise is the last one
    plgpu.copy_gmem_to_smem(rows, held.rows.at[slot], barrier)
    for i, part in enumerate(held.writes):
        plgpu.copy_gmem_to_smem(gm.writes.at[at.program, given, i], part.at[slot], barrier)
    if not held.writes:
        source = gm.keys.at[at.batch, given, :, at.head]
        plgpu.copy_gmem_to_smem(source, held.keys.at[slot], barrier)


def _fetch(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    """Loads what the first warpgroup alone reads."""
    given = lax.min(chunk, gm.keys.shape[1] - 1)
    values = gm.values.at[at.batch, given, :, at.place, at.channels]
    plgpu.copy_gmem_to_smem(values, held.values, held.loaded)
    for i, part in enumerate(held.inverse):
        plgpu.copy_gmem_to_smem(gm.inverse.at[at.program, given, i], part, held.loaded)
    if held.writes:
        source = gm.keys.at[at.batch, given, :, at.head]
        plgpu.copy_gmem_to_smem(source, held.keys, held.loaded)


def _fetch_queries(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    given = lax.min(chunk, gm.keys.shape[1] - 1)
    source = gm.queries.at[at.batch, given, :, at.head]
    plgpu.copy_gmem_to_smem(source, held.queries, held.queries_loaded)


def _written(held: Held, slot: Any) -> list[Any]:
    """Parts of the writes of a chunk, transposed."""
    return [tiles.transposed(part.at[slot]) for part in held.writes or [held.keys]]


def _carry(gm: Arrays, held: Held, at: Program) -> None:
    """Carries the mean through all chunks: E = T (V - a (K M)), M' = a_L M + (e U)^T E."""
    dim, chunks = held.mean[0].shape[1], gm.keys.shape[1]

    def step(chunk, _):
        slot, other = lax.rem(chunk, 2), lax.rem(chunk + 1, 2)
        mean, vectors = [part.at[slot] for part in held.mean], held.rows.at[slot]
        keys = held.keys if held.writes else held.keys.at[slot]
        plgpu.barrier_wait(held.loaded)
        plgpu.barrier_wait(held.both_loaded.at[slot])
        with jax.named_scope("surprise"):
            known = tiles.down(vectors.at[ENTRY], TALL) * tiles.product(TALL, ([keys], mean))
            value = tiles.read(held.values).astype(jnp.float32)
            tiles.store(held.surprise, value - known)
            plgpu.commit_smem()
        with jax.named_scope("errors"):
            left = [tiles.transposed(part) for part in held.inverse]
            error = tiles.product(TALL, (left, held.surprise))
            plgpu.commit_smem()  # all warps are done with what is loaded anew
        _fetch(gm, held, at, chunk + 1)
        plgpu.barrier_wait(held.read)  # of the chunk before
        _fetch_both(gm, held, at, chunk + 1)
        with jax.named_scope("errors store"):
            tiles.store(held.surprise, tiles.down(vectors.at[TO_END], TALL) * error)
            tiles.store(held.errors, error)
            plgpu.commit_smem()
            plgpu.barrier_arrive(held.made)
        with jax.named_scope("mean"):
            change = tiles.product((dim, BAND), (_written(held, slot), held.surprise))
            kept = tiles.load(mean) * vectors[ENTRY, LENGTH - 1]
            tiles.store([part.at[other] for part in held.mean], kept + change)
            plgpu.commit_smem()
        return 0

    _fetch(gm, held, at, jnp.int32(0))
    _fetch_both(gm, held, at, jnp.int32(0))
    for i, part in enumerate(held.mean):
        source = gm.first.at[at.program, i, :, at.channels]
        plgpu.copy_gmem_to_smem(source, part.at[0], held.first_loaded)
    plgpu.barrier_wait(held.first_loaded)
    lax.fori_loop(0, chunks, step, 0)
    plgpu.barrier_wait(held.read)
    plgpu.barrier_arrive(held.made)
    plgpu.barrier_wait(held.loaded)  # of the last fetches, which nobody reads
    plgpu.barrier_wait(held.both_loaded.at[lax.rem(jnp.int32(chunks), 2)])


def _read(gm: Arrays, held: Held, at: Program) -> None:
    """Reads every chunk, Y = a (Q M) + W E, and sends the means out."""
    count, chunks = len(held.mean), gm.keys.shape[1]

    def send_mean(chunk):
        for i, part in enumerate(held.mean):
            out = gm.means.at[at.program, chunk, i, :, at.channels]
            plgpu.copy_smem_to_gmem(part.at[lax.rem(chunk, 2)], out)

    def weights(vectors, slot):
        """W_ij = q_i . U_j, times the decay from j to i, for j <= i."""
        overlap = tiles.product(SQUARE, ([held.queries], _written(held, slot)))
        row, column = tiles.places()
        return jnp.where(row >= column, overlap * tiles.decays(vectors), jnp.float32(0.0))

    def step(chunk, _):
        slot = lax.rem(chunk, 2)
        vectors = held.rows.at[slot]
        plgpu.barrier_wait(held.queries_loaded)
        plgpu.barrier_wait(held.both_loaded.at[slot])
        with jax.named_scope("weights"):
            w = weights(vectors, slot)
        plgpu.barrier_wait(held.made)
        send_mean(chunk)
        with jax.named_scope("recall"):
            mean = [part.at[slot] for part in held.mean]
            recalled = tiles.product(TALL, ([held.queries], mean))
            recalled = tiles.down(vectors.at[ENTRY], TALL) * recalled
            recalled = recalled + tiles.register_product(w, count, held.errors, False, at.plain)
        with jax.named_scope("recall store"):
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            held.out[...] = recalled.astype(held.out.dtype)
            plgpu.commit_smem()
        plgpu.barrier_arrive(held.read)
        _fetch_queries(gm, held, at, chunk + 1)
        target = gm.reads.at[at.batch, chunk, :, at.place, at.channels]
        plgpu.copy_smem_to_gmem(held.out, target)
        return 0

    _fetch_queries(gm, held, at, jnp.int32(0))
    plgpu.barrier_arrive(held.read)  # nothing is in the way of the first chunk
    lax.fori_loop(0, chunks, step, 0)
    plgpu.barrier_wait(held.made)
    send_mean(jnp.int32(chunks))
    plgpu.barrier_wait(held.queries_loaded)  # of the last fetches
    plgpu.barrier_wait(held.both_loaded.at[lax.rem(jnp.int32(chunks), 2)])
    plgpu.wait_smem_to_gmem(0)


def _reads_body(*refs, groups: int, plain: bool):
    """Lets each warpgroup do its part of a program."""
    count = len(Arrays._fields)
    gm, held = Arrays(*refs[:count]), Held._make(refs[count:])
    program, band = lax.axis_index("program"), lax.axis_index("band")
    places = gm.values.shape[3]
    batch, place = program // places, lax.rem(program, places)
    at = Program(program, batch, place, place // groups, pl.ds(band * BAND, BAND), plain)
    for index, work in enumerate((_carry, _read)):

        @pl.when(lax.axis_index("work") == index)
        def _(work=work):
            work(gm, held, at)


def run_reads(
    tokens: Tokens,
    rows: jax.Array,
    inverse: jax.Array,
    writes: jax.Array | None,
    first: jax.Array,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Launches the kernel.

    Args:
      tokens: queries, keys and values, bfloat16; L = 64, 64 divides m.
      rows: [B, N, H, 5, L] float32, see `chunks.stack`.
      inverse: [B H G, N, parts, L, L] bfloat16, parts of T^T.
      writes: [B H G, N, parts, L, D] bfloat16, or None where keys are the writes.
      first: [B H G, parts, D, m] bfloat16, parts of the first mean.
      interpret: run without what the interpreter does not have.

    Returns:
      Reads [B, N, L, H G, m] bfloat16, and parts of the means at chunk entries and at the end
      [B H G, N + 1, parts, D, m] bfloat16.
    """
    batch, chunks, _, places, width = tokens.values.shape
    heads = tokens.keys.shape[3]
    programs, parts, dim = first.shape[:3]
    bf16, f32 = jnp.bfloat16, jnp.float32
    stored = 0 if writes is None else parts

    def wide(*shape):
        return plgpu.SMEM(shape, bf16, transforms=tiles.WIDE)

    scratch = [
        wide(LENGTH, dim),
        wide(LENGTH, dim) if stored else wide(2, LENGTH, dim),
        wide(LENGTH, BAND),
        plgpu.SMEM((2, NOISE, LENGTH), f32),
        [wide(LENGTH, LENGTH)] * parts,
        [wide(2, LENGTH, dim)] * stored,
        [wide(2, dim, BAND)] * parts,
        [wide(LENGTH, BAND)] * parts,
        [wide(LENGTH, BAND)] * parts,
        wide(LENGTH, BAND),
        plgpu.Barrier(num_arrivals=parts),
        plgpu.Barrier(num_arrivals=1 + parts + (1 if stored else 0)),
        plgpu.Barrier(num_arrivals=1 + (stored or 1), num_barriers=2),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=1),
    ]
    body = functools.partial(_reads_body, groups=places // heads, plain=interpret)
    out = [
        jax.ShapeDtypeStruct((batch, chunks, LENGTH, places, width), bf16),
        jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, width), bf16),
    ]
    grid = (programs, width // BAND)
    threads = {"num_threads": 2, "thread_name": "work"}
    return warpgroups.mosaic_kernel(
        body, out, scratch, grid=grid, grid_names=("program", "band"), **threads
    )(*tokens, rows, inverse, tokens.keys if writes is None else writes, first)


def read_chunks(
    tokens: Tokens, vectors: Vectors, factors: Parts, mean: jax.Array, config: Config
) -> tuple[jax.Array, jax.Array]:
    """`algebra.mean_chain` and `algebra.reads` by the kernel.

    Args:
      tokens: queries, keys and values, bfloat16; L = 64, 64 divides m.
      vectors: the numbers of each token.
      factors: of all chunks, as the covariance kernel stores them.
      mean: [B, H, G, D, m], before the first chunk.
      config: tuning values.

    Returns:
      Reads [B, N, L, H G, m] bfloat16, and parts of the means at chunk entries and at the end
      [B H G, N + 1, parts, D, m], as the kernel stores them.
    """
    first = tiles.parts_of(mean, config.parts)
    return run_reads(
        tokens, stack(vectors), factors.inverse, factors.writes, first, interpret=config.interpret
    )
