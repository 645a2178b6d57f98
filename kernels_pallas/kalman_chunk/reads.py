"""The mean chain and the reads as a Mosaic GPU kernel, from what the covariance chain leaves.

One program a batch row, head, noise group and band of 64 value channels. Products only: a delta
rule whose write vectors are given. Two warpgroups share a program: one carries the mean from chunk
to chunk, the other reads it, a chunk behind. At D = 256 shared memory has room for one that does
both (`follow`). Parts and precision are those of `chain`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import follow, mean, tiles, warpgroups
from kernels_pallas.kalman_chunk.chunks import DIMS, NOISE, Tokens, Vectors, stack
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.fwd import Parts
from kernels_pallas.kalman_chunk.mean import TALL, Arrays, Program
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH


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
    chunks = gm.keys.shape[1]

    def step(chunk, _):
        slot, other = lax.rem(chunk, 2), lax.rem(chunk + 1, 2)
        entry, vectors = [part.at[slot] for part in held.mean], held.rows.at[slot]
        keys = held.keys if held.writes else held.keys.at[slot]
        plgpu.barrier_wait(held.loaded)
        plgpu.barrier_wait(held.both_loaded.at[slot])
        with jax.named_scope("surprise"):
            found = mean.surprise(keys, held.values, entry, vectors, at.plain)
            tiles.store(held.surprise, found, at.plain)
            plgpu.commit_smem()
        with jax.named_scope("errors"):
            left = [tiles.transposed(part) for part in held.inverse]
            error = tiles.product(TALL, (left, held.surprise))
            plgpu.commit_smem()  # all warps are done with what is loaded anew
        _fetch(gm, held, at, chunk + 1)
        plgpu.barrier_wait(held.read)  # of the chunk before
        _fetch_both(gm, held, at, chunk + 1)
        with jax.named_scope("errors store"):
            tiles.store(held.surprise, mean.aged(error, vectors), at.plain)
            tiles.store(held.errors, error, at.plain)
            plgpu.commit_smem()
            plgpu.barrier_arrive(held.made)
        with jax.named_scope("mean"):
            written = _written(held, slot)
            following = mean.following(entry, written, held.surprise, vectors, at.plain)
            tiles.store([part.at[other] for part in held.mean], following, at.plain)
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
    chunks = gm.keys.shape[1]

    def send_mean(chunk):
        for i, part in enumerate(held.mean):
            out = gm.means.at[at.program, chunk, i, :, at.channels]
            plgpu.copy_smem_to_gmem(part.at[lax.rem(chunk, 2)], out)

    def step(chunk, _):
        slot = lax.rem(chunk, 2)
        vectors = held.rows.at[slot]
        plgpu.barrier_wait(held.queries_loaded)
        plgpu.barrier_wait(held.both_loaded.at[slot])
        with jax.named_scope("weights"):
            w = mean.weights(held.queries, _written(held, slot), vectors)
        plgpu.barrier_wait(held.made)
        send_mean(chunk)
        with jax.named_scope("recall"):
            entry = [part.at[slot] for part in held.mean]
            recalled = mean.recall(held.queries, entry, w, held.errors, vectors, at.plain)
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
    at = mean.locate(gm, groups, lax.axis_index("band"), plain)
    for index, work in enumerate((_carry, _read)):

        @pl.when(lax.axis_index("work") == index)
        def _(work=work):
            work(gm, held, at)


def _follow_body(*refs, groups: int, plain: bool):
    """The same by one warpgroup, which needs less shared memory."""
    count = len(Arrays._fields)
    gm, held = Arrays(*refs[:count]), follow.Held._make(refs[count:])
    at = mean.locate(gm, groups, lax.axis_index("band"), plain)
    follow.run(gm, held, at)


def _scratch(dim: int, parts: int, stored: int) -> list[Any]:
    """Shared memory and barriers of `Held`; `stored` parts of writes."""
    bf16, f32 = jnp.bfloat16, jnp.float32

    def wide(*shape):
        return plgpu.SMEM(shape, bf16, transforms=tiles.WIDE)

    return [
        wide(LENGTH, dim),
        wide(LENGTH, dim) if stored else wide(2, LENGTH, dim),
        wide(*TALL),
        plgpu.SMEM((2, NOISE, LENGTH), f32),
        [wide(LENGTH, LENGTH)] * parts,
        [wide(2, LENGTH, dim)] * stored,
        [wide(2, dim, BAND)] * parts,
        [wide(*TALL)] * parts,
        [wide(*TALL)] * parts,
        wide(*TALL),
        plgpu.Barrier(num_arrivals=parts),
        plgpu.Barrier(num_arrivals=1 + parts + (1 if stored else 0)),
        plgpu.Barrier(num_arrivals=1 + (stored or 1), num_barriers=2),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=1),
    ]


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

    Raises:
      ValueError: keys as writes at a D that this is not there for.
    """
    batch, chunks, _, places, width = tokens.values.shape
    heads = tokens.keys.shape[3]
    programs, parts, dim = first.shape[:3]
    if writes is None and dim > DIMS[-1]:
        raise ValueError(f"writes: found none at D={dim}, wanted them above D={DIMS[-1]}")
    options: dict[str, Any] = {"groups": places // heads, "plain": interpret}
    if dim <= DIMS[-1]:
        body = functools.partial(_reads_body, **options)
        scratch = _scratch(dim, parts, 0 if writes is None else parts)
        threads: dict[str, Any] = {"num_threads": 2, "thread_name": "work"}
    else:
        body, scratch = functools.partial(_follow_body, **options), follow.scratch(dim, parts)
        threads = {}
    out = [
        jax.ShapeDtypeStruct((batch, chunks, LENGTH, places, width), jnp.bfloat16),
        jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, width), jnp.bfloat16),
    ]
    grid = (programs, width // BAND)
    read, means = warpgroups.mosaic_kernel(
        body, out, scratch, grid=grid, grid_names=("program", "band"), **threads
    )(*tokens, rows, inverse, tokens.keys if writes is None else writes, first)
    return read, means


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
