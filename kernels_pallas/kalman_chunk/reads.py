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
from kernels_pallas.kalman_chunk.chunks import ENTRY, TO_END, Tokens, Vectors, stack
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.fwd import Parts
from kernels_pallas.kalman_chunk.tiles import LAYOUT, LENGTH

BAND = 64
"""Value channels of a program."""


def _reads_body(
    queries_gm, keys_gm, values_gm, rows_gm, inverse_gm, writes_gm, first_gm, reads_gm, mean_gm,
    queries, keys, values, rows, inverse, writes, mean, surprise, errors, out, loaded, first_loaded,
    *, groups: int, stages: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_reads` for the arrays in global memory (`_gm`).

    In shared memory, the first six with an axis of `stages` chunks in front: queries and keys
    [L, D], values [L, 64], rows [5, L] float32, parts of T^T [L, L] and of the writes [L, D]; then
    parts of the mean [D, 64], of the surprise and of the errors [L, 64], and reads [L, 64]. Without
    parts of the writes, keys are the writes.
    """
    program, band = lax.axis_index("program"), lax.axis_index("band")
    count, dim = len(mean), mean[0].shape[0]
    chunks, places = values_gm.shape[1], values_gm.shape[3]
    batch, place = program // places, lax.rem(program, places)
    channels = pl.ds(band * BAND, BAND)
    written = writes or [keys]
    tall, square = (LENGTH, BAND), (LENGTH, LENGTH)

    def fetch(chunk):
        slot, given = lax.rem(chunk, stages), lax.min(chunk, chunks - 1)
        head = place // groups
        for source, target in (
            (queries_gm.at[batch, given, :, head], queries),
            (keys_gm.at[batch, given, :, head], keys),
            (values_gm.at[batch, given, :, place, channels], values),
            (rows_gm.at[batch, given, head], rows),
            *((inverse_gm.at[program, given, i], x) for i, x in enumerate(inverse)),
            *((writes_gm.at[program, given, i], x) for i, x in enumerate(writes)),
        ):
            plgpu.copy_gmem_to_smem(source, target.at[slot], loaded.at[slot])

    def weights(vectors, slot):
        """W_ij = q_i . U_j, times the decay from j to i, for j <= i."""
        u = [tiles.transposed(part.at[slot]) for part in written]
        overlap = tiles.product(square, ([queries.at[slot]], u))
        row = plgpu.broadcasted_iota(jnp.int32, square, 0, layout=LAYOUT)
        column = plgpu.broadcasted_iota(jnp.int32, square, 1, layout=LAYOUT)
        decay = jnp.exp2(-jnp.abs(tiles.span(vectors, square)))
        return jnp.where(row >= column, overlap * decay, jnp.float32(0.0))

    def step(chunk, _):
        slot = lax.rem(chunk, stages)
        plgpu.barrier_wait(loaded.at[slot])
        for i, part in enumerate(mean):
            plgpu.copy_smem_to_gmem(part, mean_gm.at[program, chunk, i, :, channels])
        vectors = rows.at[slot]
        entry = tiles.down(vectors.at[ENTRY], tall)
        known = tiles.product(tall, ([keys.at[slot]], mean))
        value = tiles.read(values.at[slot]).astype(jnp.float32)
        tiles.store(surprise, value - entry * known)
        plgpu.commit_smem()
        left = [tiles.transposed(part.at[slot]) for part in inverse]
        error = tiles.product(tall, (left, surprise))
        tiles.store(errors, error)
        plgpu.commit_smem()  # ends the reading of `surprise` too
        tiles.store(surprise, tiles.down(vectors.at[TO_END], tall) * error)
        total = vectors[ENTRY, LENGTH - 1]
        recalled = entry * tiles.product(tall, ([queries.at[slot]], mean))
        w = weights(vectors, slot)
        recalled = recalled + tiles.register_product(w, count, errors, False, plain)
        plgpu.wait_smem_to_gmem(0)
        out[...] = recalled.astype(out.dtype)
        plgpu.commit_smem()
        left = [tiles.transposed(part.at[slot]) for part in written]
        change = tiles.product((dim, BAND), (left, surprise))
        tiles.store(mean, tiles.load(mean) * total + change)
        plgpu.commit_smem()
        fetch(chunk + stages)
        plgpu.copy_smem_to_gmem(out, reads_gm.at[batch, chunk, :, place, channels])
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
    # As shared memory allows.
    stages = 2 if dim * parts == 128 or (stored == 0 and dim * parts <= 256) else 1

    def staged(height, width):
        return plgpu.SMEM((stages, height, width), bf16, transforms=panels.WIDE)

    def wide(height):
        return plgpu.SMEM((height, BAND), bf16, transforms=panels.WIDE)

    scratch = [
        staged(LENGTH, dim),
        staged(LENGTH, dim),
        staged(LENGTH, BAND),
        plgpu.SMEM((stages, 5, LENGTH), f32),
        [staged(LENGTH, LENGTH)] * parts,
        [staged(LENGTH, dim)] * stored,
        [wide(dim)] * parts,
        [wide(LENGTH)] * parts,
        [wide(LENGTH)] * parts,
        wide(LENGTH),
        plgpu.Barrier(num_arrivals=4 + parts + stored, num_barriers=stages),
        plgpu.Barrier(num_arrivals=parts),
    ]
    body = functools.partial(_reads_body, groups=places // heads, stages=stages, plain=interpret)
    out = [
        jax.ShapeDtypeStruct((batch, chunks, LENGTH, places, width), bf16),
        jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, width), bf16),
    ]
    return tiles.mosaic_kernel(
        body, out, scratch, grid=(programs, width // BAND), grid_names=("program", "band")
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
    first = jnp.stack(tiles.split_in_xla(mean.reshape(-1, *mean.shape[-2:]), config.parts), axis=1)
    return run_reads(
        tokens, stack(vectors), factors.inverse, factors.writes, first, interpret=config.interpret
    )
