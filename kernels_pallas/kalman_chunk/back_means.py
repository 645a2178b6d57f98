"""The reverse between its chains, first part, as a Mosaic GPU kernel: one program a chunk.

From the cotangent of the mean at a chunk's exit to those of values, of T and U, and of keys as far
as the mean chain reads them. Symbols, and the numbers of formulas, are README.md's; a bar is `_ct`.
Parts and precision as in `tiles`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import panels, tiles
from kernels_pallas.kalman_chunk.back_transitions import Before
from kernels_pallas.kalman_chunk.chunks import ENTRY, TO_END, Tokens
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

ENTRY_CT, TO_END_CT, TOTAL_CT = range(3)
"""Rows of `Means.vectors_ct`: of a_i, of e_i, and numbers whose sum is the cotangent of a_L."""


class Means(NamedTuple):
    """What the kernel leaves."""

    values_ct: jax.Array  # [B, N, L, H G, m] bfloat16
    keys_ct: jax.Array  # [B H G, N, L, D] float32, the mean chain's share
    inverse_ct: jax.Array  # [B H G, N, L, L] float32, Tb^T as of (13)
    writes_ct: jax.Array  # [B H G, N, L, D] float32, Ub
    vectors_ct: jax.Array  # [B H G, N, 3, L] float32


def _nothing(bands: int) -> tuple[Any, ...]:
    return None, [None] * bands, [None] * bands, None, None


def _means_body(
    keys_gm, values_gm, rows_gm, inverse_gm, writes_gm, mean_gm, exit_gm, weighted_gm,
    given_gm, values_ct_gm, keys_ct_gm, inverse_ct_gm, writes_ct_gm, vectors_ct_gm,
    keys, rows, inverse, writes, mean, at_exit, surprise, errors_ct, loaded, band_loaded,
    *, groups: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_means` for the arrays in global memory (`_gm`).

    In shared memory: keys [L, D], rows [5, L] float32, parts of T^T [L, L], of the writes [L, D],
    of a band of the mean and of its cotangent at the exit [D, 64], of R and Eb [L, 64].
    """
    program, chunk = lax.axis_index("program"), lax.axis_index("chunk")
    count, dim, width = len(inverse), keys.shape[1], values_gm.shape[-1]
    places = values_gm.shape[3]
    batch, place = program // places, lax.rem(program, places)
    square, parts = (LENGTH, LENGTH), tiles.bands(dim)

    def fetch(band):
        source = values_gm.at[batch, chunk, :, place, band]
        plgpu.copy_gmem_to_smem(source, surprise[0], band_loaded)
        for i in range(count):
            plgpu.copy_gmem_to_smem(mean_gm.at[program, chunk, i, :, band], mean[i], band_loaded)
            source = exit_gm.at[program, chunk + 1, i, :, band]
            plgpu.copy_gmem_to_smem(source, at_exit[i], band_loaded)

    def vector(index):
        return tiles.down(rows.at[index], square)

    def take_band(band, made):
        """Adds a band's shares to what all bands of value channels add to; `made` may be None."""
        inverse_ct, writes_ct, through, to_end_ct, total_ct = made or _nothing(len(parts))
        weighted = tiles.straight(weighted_gm.at[program, chunk, :, band])
        plgpu.barrier_wait(band_loaded)
        value = tiles.read(surprise[0]).astype(jnp.float32)
        tiles.store(surprise, value - vector(ENTRY) * tiles.product(square, ([keys], mean)))
        plgpu.commit_smem()
        errors = tiles.product(square, (tiles.flipped(inverse), surprise))
        carried_on = tiles.product(square, (writes, at_exit))
        to_end_ct = tiles.plus(to_end_ct, tiles.row_sums(errors * carried_on))
        tiles.store(errors_ct, weighted + vector(TO_END) * carried_on)
        errors = vector(TO_END) * errors
        for i, part in enumerate(parts):
            right = tiles.height(at_exit, part)
            share = tiles.register_product(errors, count, right, True, plain)
            writes_ct[i] = tiles.plus(writes_ct[i], share)
        plgpu.commit_smem()
        share = tiles.product(square, (surprise, tiles.flipped(errors_ct)))
        inverse_ct = tiles.plus(inverse_ct, share)
        surprise_ct = tiles.product(square, (inverse, errors_ct))
        for i, part in enumerate(parts):
            known, known_ct = tiles.height(mean, part), tiles.height(at_exit, part)
            share = tiles.register_product(surprise_ct, count, known, True, plain)
            through[i] = tiles.plus(through[i], share)
            share = tiles.row_sums(tiles.load(known) * tiles.load(known_ct))
            total_ct = tiles.plus(total_ct, share)
        plgpu.commit_smem()
        target = values_ct_gm.at[batch, chunk, :, place, band]
        tiles.emit(target, surprise[0], surprise_ct)
        plgpu.wait_smem_to_gmem(0)
        plgpu.commit_smem()
        return inverse_ct, writes_ct, through, to_end_ct, total_ct

    bands = tiles.bands(width)
    head = place // groups
    for source, target in (
        (keys_gm.at[batch, chunk, :, head], keys),
        (rows_gm.at[batch, chunk, head], rows),
        *((inverse_gm.at[program, chunk, i], x) for i, x in enumerate(inverse)),
        *((writes_gm.at[program, chunk, i], x) for i, x in enumerate(writes)),
    ):
        plgpu.copy_gmem_to_smem(source, target, loaded)
    fetch(bands[0])
    plgpu.barrier_wait(loaded)
    made = take_band(bands[0], None)
    for band in bands[1:]:
        fetch(band)
        made = take_band(band, made)
    inverse_ct, writes_ct, through, to_end_ct, total_ct = made
    inverse_ct_gm.at[program, chunk][...] = inverse_ct
    vectors_ct_gm.at[program, chunk, TO_END_CT][...] = to_end_ct
    vectors_ct_gm.at[program, chunk, TOTAL_CT][...] = total_ct
    entry_ct = []
    for part, band_ct, band_through in zip(parts, writes_ct, through, strict=True):
        key = tiles.read(keys.at[:, part]).astype(jnp.float32)
        entry_ct.append(tiles.row_sums(-band_through * key))
        keys_ct_gm.at[program, chunk, :, part][...] = -vector(ENTRY) * band_through
        given = tiles.straight(given_gm.at[program, chunk, :, part])
        writes_ct_gm.at[program, chunk, :, part][...] = given + band_ct
    vectors_ct_gm.at[program, chunk, ENTRY_CT][...] = functools.reduce(jnp.add, entry_ct)


def run_means(
    tokens: Tokens,
    rows: jax.Array,
    inverse: jax.Array,
    writes: jax.Array,
    means: jax.Array,
    means_ct: jax.Array,
    before: Before,
    *,
    interpret: bool = False,
) -> Means:
    """Launches the kernel.

    Args:
      tokens: queries, keys and values, bfloat16; L = 64, 64 divides D and m.
      rows: [B, N, H, 5, L] float32, see `chunks.stack`.
      inverse: [B H G, N, parts, L, L] bfloat16, parts of T^T.
      writes: [B H G, N, parts, L, D] bfloat16.
      means: [B H G, N + 1, parts, D, m] bfloat16, parts of M at chunk entries and at the end.
      means_ct: of the same form, their cotangents, as `reverse.run_reverse` leaves them.
      before: from before the chains.
      interpret: run without what the interpreter does not have.
    """
    batch, chunks, _, places, width = tokens.values.shape
    heads = tokens.keys.shape[3]
    programs, _, parts, _, dim = writes.shape
    bf16, f32 = jnp.bfloat16, jnp.float32

    def wide(height, width):
        return plgpu.SMEM((height, width), bf16, transforms=panels.WIDE)

    scratch: list[Any] = [
        wide(LENGTH, dim),
        plgpu.SMEM((5, LENGTH), f32),
        [wide(LENGTH, LENGTH)] * parts,
        [wide(LENGTH, dim)] * parts,
        [wide(dim, BAND)] * parts,
        [wide(dim, BAND)] * parts,
        [wide(LENGTH, BAND)] * parts,
        [wide(LENGTH, BAND)] * parts,
        plgpu.Barrier(num_arrivals=2 + 2 * parts),
        plgpu.Barrier(num_arrivals=1 + 2 * parts),
    ]
    shape, lead = jax.ShapeDtypeStruct, (programs, chunks)
    out = [
        shape((batch, chunks, LENGTH, places, width), bf16),
        shape((*lead, LENGTH, dim), f32),
        shape((*lead, LENGTH, LENGTH), f32),
        shape((*lead, LENGTH, dim), f32),
        shape((*lead, 3, LENGTH), f32),
    ]
    body = functools.partial(_means_body, groups=places // heads, plain=interpret)
    kernel = tiles.mosaic_kernel(body, out, scratch, grid=lead, grid_names=("program", "chunk"))
    given = before.weighted, before.writes_ct
    return Means(
        *kernel(tokens.keys, tokens.values, rows, inverse, writes, means, means_ct, *given)
    )
