"""The mean chain and the reads as a Mosaic GPU kernel, from what the covariance chain leaves.

One program a batch row, head, noise group and band of 64 value channels. Products only: a delta
rule whose write vectors are given. Parts and precision are those of `fwd`.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import panels, tiles
from kernels_pallas.kalman_chunk.algebra import Terms
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.fwd import Parts
from kernels_pallas.kalman_chunk.tiles import LAYOUT, LENGTH

BAND = 64
"""Value channels of a program."""

ENTRY, TO_END, LOGS, LAST = range(4)
"""Rows of the vectors of a chunk: a_i, e_i, c_i / log 2, and (a_L, 0, ...)."""


def _reads_body(
    queries_gm, keys_gm, values_gm, rows_gm, inverse_gm, writes_gm, first_gm, reads_gm, mean_gm,
    queries, keys, values, rows, inverse, writes, mean, surprise, errors, out, loaded, first_loaded,
    *, groups: int, chunks: int, stages: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_reads` for the arrays in global memory (`_gm`).

    In shared memory, the first six with an axis of `stages` chunks in front: queries and keys
    [L, D], values [L, 64], rows [4, L] float32, parts of T^T [L, L] and of the writes [L, D]; then
    parts of the mean [D, 64], of the surprise and of the errors [L, 64], and reads [L, 64] float32.
    """
    program, band = lax.axis_index("program"), lax.axis_index("band")
    count, dim = len(mean), mean[0].shape[0]
    channels = pl.ds(band * BAND, BAND)
    tall, square = (LENGTH, BAND), (LENGTH, LENGTH)

    def fetch(chunk):
        slot, given = lax.rem(chunk, stages), lax.min(chunk, chunks - 1)
        head, barrier = program // groups, loaded.at[slot]
        for source, place in (
            (queries_gm.at[head, given], queries),
            (keys_gm.at[head, given], keys),
            (values_gm.at[program, given, :, channels], values),
            (rows_gm.at[head, given], rows),
            *((inverse_gm.at[program, given, i], x) for i, x in enumerate(inverse)),
            *((writes_gm.at[program, given, i], x) for i, x in enumerate(writes)),
        ):
            plgpu.copy_gmem_to_smem(source, place.at[slot], barrier)

    def by_row(vectors, index, shape):
        x = tiles.read(vectors.at[index], LAYOUT.reduce(1))
        return lax.broadcast_in_dim(x, shape, (0,))

    def weights(vectors, slot):
        """W_ij = q_i . U_j, times the decay from j to i, for j <= i."""
        u = [tiles.transposed(part.at[slot]) for part in writes]
        overlap = tiles.product(square, ([queries.at[slot]], u))
        logs = tiles.read(vectors.at[LOGS], LAYOUT.reduce(0))
        span = by_row(vectors, LOGS, square) - lax.broadcast_in_dim(logs, square, (1,))
        row = plgpu.broadcasted_iota(jnp.int32, square, 0, layout=LAYOUT)
        column = plgpu.broadcasted_iota(jnp.int32, square, 1, layout=LAYOUT)
        decay = jnp.exp2(jnp.minimum(span, jnp.float32(0.0)))
        return jnp.where(row >= column, overlap * decay, jnp.float32(0.0))

    def step(chunk, _):
        slot = lax.rem(chunk, stages)
        plgpu.barrier_wait(loaded.at[slot])
        for i, part in enumerate(mean):
            plgpu.copy_smem_to_gmem(part, mean_gm.at[program, chunk, i, :, channels])
        vectors = rows.at[slot]
        entry = by_row(vectors, ENTRY, tall)
        known = tiles.product(tall, ([keys.at[slot]], mean))
        value = tiles.read(values.at[slot]).astype(jnp.float32)
        tiles.store(surprise, value - entry * known)
        plgpu.commit_smem()
        left = [tiles.transposed(part.at[slot]) for part in inverse]
        error = tiles.product(tall, (left, surprise))
        tiles.store(errors, error)
        plgpu.commit_smem()  # ends the reading of `surprise` too
        tiles.store(surprise, by_row(vectors, TO_END, tall) * error)
        total = vectors[LAST, 0]
        recalled = entry * tiles.product(tall, ([queries.at[slot]], mean))
        w = weights(vectors, slot)
        recalled = recalled + tiles.register_product(w, count, errors, False, plain)
        plgpu.wait_smem_to_gmem(0)
        out[...] = recalled
        plgpu.commit_smem()
        left = [tiles.transposed(part.at[slot]) for part in writes]
        change = tiles.product((dim, BAND), (left, surprise))
        tiles.store(mean, tiles.load(mean) * total + change)
        plgpu.commit_smem()
        fetch(chunk + stages)
        plgpu.copy_smem_to_gmem(out, reads_gm.at[program, chunk, :, channels])
        return 0

    for stage in range(stages):
        fetch(jnp.int32(stage))
    for i, part in enumerate(mean):
        plgpu.copy_gmem_to_smem(first_gm.at[program, i, :, channels], part, first_loaded)
    plgpu.barrier_wait(first_loaded)
    lax.fori_loop(0, chunks, step, 0)
    for stage in range(stages):  # of the last fetches, which nobody reads
        plgpu.barrier_wait(loaded.at[lax.rem(jnp.int32(chunks + stage), stages)])
    for i, part in enumerate(mean):
        plgpu.copy_smem_to_gmem(part, mean_gm.at[program, chunks, i, :, channels])
    plgpu.wait_smem_to_gmem(0)


def run_reads(
    tokens: tuple[jax.Array, jax.Array, jax.Array],
    rows: jax.Array,
    inverse: jax.Array,
    writes: jax.Array,
    first: jax.Array,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Launches the kernel.

    Args:
      tokens: queries and keys [B H, N, L, D], values [B H G, N, L, m], bfloat16, 64 dividing m.
      rows: [B H, N, 4, L] float32, see `ENTRY`.
      inverse: [B H G, N, parts, L, L] bfloat16, parts of T^T.
      writes: [B H G, N, parts, L, D] bfloat16.
      first: [B H G, parts, D, m] bfloat16, parts of the first mean.
      interpret: run without what the interpreter does not have.

    Returns:
      Reads [B H G, N, L, m] float32, and parts of the means at chunk entries and at the end
      [B H G, N + 1, parts, D, m] bfloat16.
    """
    queries, keys, values = tokens
    programs, chunks, _, width = values.shape
    parts, dim = first.shape[1:3]
    bf16, f32 = jnp.bfloat16, jnp.float32
    stages = 2 if dim * parts == 128 else 1  # as shared memory allows

    def staged(height, width):
        return plgpu.SMEM((stages, height, width), bf16, transforms=panels.WIDE)

    def wide(height):
        return plgpu.SMEM((height, BAND), bf16, transforms=panels.WIDE)

    scratch = [
        staged(LENGTH, dim),
        staged(LENGTH, dim),
        staged(LENGTH, BAND),
        plgpu.SMEM((stages, 4, LENGTH), f32),
        [staged(LENGTH, LENGTH)] * parts,
        [staged(LENGTH, dim)] * parts,
        [wide(dim)] * parts,
        [wide(LENGTH)] * parts,
        [wide(LENGTH)] * parts,
        plgpu.SMEM((LENGTH, BAND), f32, transforms=tiles.WIDE_FLOAT32),
        plgpu.Barrier(num_arrivals=4 + 2 * parts, num_barriers=stages),
        plgpu.Barrier(num_arrivals=parts),
    ]
    body = functools.partial(
        _reads_body,
        groups=programs // keys.shape[0],
        chunks=chunks,
        stages=stages,
        plain=interpret,
    )
    out = [
        jax.ShapeDtypeStruct((programs, chunks, LENGTH, width), f32),
        jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, width), bf16),
    ]
    return tiles.mosaic_kernel(
        body, out, scratch, grid=(programs, width // BAND), grid_names=("program", "band")
    )(queries, keys, values, rows, inverse, writes, first)


def read_chunks(
    terms: Terms, factors: Parts, mean: jax.Array, config: Config
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`algebra.mean_chain` and `algebra.reads` by the kernel.

    Args:
      terms: of all chunks, L = 64; queries, keys and values that bfloat16 holds.
      factors: of all chunks, as the covariance kernel stores them.
      mean: [B, H, G, D, m], before the first chunk; 64 divides m.
      config: tuning values.

    Returns:
      Reads [N, B, H, G, L, m], the last mean, and the means [N, B, H, G, D, m] at chunk entries.
    """
    batch, heads, groups, dim, width = mean.shape

    def by_head(x: jax.Array) -> jax.Array:
        """[N, B, H, ...] -> [B H, N, ...]."""
        return jnp.moveaxis(x, 0, 2).reshape(batch * heads, -1, *x.shape[3:])

    def by_program(x: jax.Array) -> jax.Array:
        """[N, B, H, G, ...] -> [B H G, N, ...]."""
        return jnp.moveaxis(x, 0, 3).reshape(batch * heads * groups, -1, *x.shape[4:])

    def by_chunk(x: jax.Array) -> jax.Array:
        """[B H G, N, ...] -> [N, B, H, G, ...]."""
        return jnp.moveaxis(x.reshape(batch, heads, groups, *x.shape[1:]), 3, 0)

    total = jnp.pad(terms.total[..., None], [(0, 0)] * 3 + [(0, LENGTH - 1)])
    logs = tiles.log_sums(terms.ratio)
    rows = jnp.stack([terms.entry, terms.to_end, logs, total], axis=-2)
    bf16 = jnp.bfloat16
    reads, means = run_reads(
        (
            by_head(terms.queries).astype(bf16),
            by_head(terms.keys).astype(bf16),
            by_program(terms.values).astype(bf16),
        ),
        by_head(rows),
        factors.inverse,
        factors.writes,
        jnp.stack(tiles.split_in_xla(mean.reshape(-1, dim, width), config.parts), axis=1),
        interpret=config.interpret,
    )
    means = by_chunk(jnp.sum(means.astype(jnp.float32), axis=2))
    return by_chunk(reads), means[-1], means[:-1]
