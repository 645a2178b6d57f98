"""The reverse before its chains, as a Mosaic GPU kernel: one program a chunk.

What needs no cotangent from a later chunk: what a chunk adds to the cotangent of the mean, its
transition F, and all that reaches queries. Symbols, and the numbers of formulas, are README.md's;
a bar is `_ct`. Parts and precision as in `tiles`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import panels, tiles
from kernels_pallas.kalman_chunk.chunks import ENTRY, TO_END, Tokens
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

LN2 = 0.6931471805599453

ENTRY_CT, LATER_CT, EARLIER_CT = range(3)
"""Rows of `Before.vectors_ct`: of a_i, and of c_i as the later and the earlier of two tokens."""


class Before(NamedTuple):
    """What the kernel leaves."""

    own: jax.Array  # [B H G, N, D, m] float32, what a chunk adds to the cotangent of the mean
    transition: jax.Array  # [B H G, N, parts, D, D] bfloat16, F
    gain: Any  # [B H G, N, parts, L, D] bfloat16, G; None where keys are the writes
    queries_ct: jax.Array  # [B, N, L, H G, D]
    weighted: jax.Array  # [B H G, N, L, m] float32, W^T Yb
    writes_ct: jax.Array  # [B H G, N, L, D] float32, the reads' share of Ub
    vectors_ct: jax.Array  # [B H G, N, 3, L] float32


def _before_body(
    queries_gm, keys_gm, values_gm, reads_ct_gm, rows_gm, inverse_gm, writes_gm, mean_gm,
    own_gm, transition_gm, gain_gm, queries_ct_gm, weighted_gm, writes_ct_gm, vectors_ct_gm,
    queries, keys, reads_ct, rows, inverse, writes, mean, first, second, loaded, band_loaded,
    *, groups: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_before` for the arrays in global memory (`_gm`).

    In shared memory: queries and keys [L, D], cotangents of reads [L, 64], rows [5, L] float32,
    parts of T^T [L, L], of the writes (later e U, then G) [L, D], of the mean (later F) [D, 64];
    and `first` and `second`, parts [L, 64] of what is an operand for a while. Without parts of the
    writes, keys are the writes.
    """
    program, chunk = lax.axis_index("program"), lax.axis_index("chunk")
    count, dim, width = len(inverse), keys.shape[1], values_gm.shape[-1]
    groups_of_row = values_gm.shape[3]
    batch, place = program // groups_of_row, lax.rem(program, groups_of_row)
    square = (LENGTH, LENGTH)
    written = writes or [keys]

    def fetch(band):
        plgpu.copy_gmem_to_smem(values_gm.at[batch, chunk, :, place, band], first[0], band_loaded)
        plgpu.copy_gmem_to_smem(reads_ct_gm.at[batch, chunk, :, place, band], reads_ct, band_loaded)
        for i, part in enumerate(mean):
            plgpu.copy_gmem_to_smem(mean_gm.at[program, chunk, i, :, band], part, band_loaded)

    def vector(index):
        return tiles.down(rows.at[index], square)

    def take_band(band, weights, weights_ct, through):
        """Adds the shares of a band of value channels to Wb^T and, by bands of D, to Yb M^T."""
        plgpu.barrier_wait(band_loaded)
        entry = vector(ENTRY)
        value = tiles.read(first[0]).astype(jnp.float32)
        tiles.store(first, value - entry * tiles.product(square, ([keys], mean)))
        plgpu.commit_smem()
        tiles.store(second, tiles.product(square, (tiles.flipped(inverse), first)))
        plgpu.commit_smem()
        share = tiles.product(square, (second, [tiles.transposed(reads_ct)]))
        weights_ct = tiles.plus(weights_ct, share)
        for i, part in enumerate(tiles.bands(dim)):
            share = tiles.product(square, ([reads_ct], tiles.flipped(tiles.height(mean, part))))
            through[i] = tiles.plus(through[i], share)
        weighted = tiles.register_product(weights, count, [reads_ct], False, plain)
        weighted_gm.at[program, chunk, :, band][...] = weighted
        tiles.store(first, weighted)
        plgpu.commit_smem()
        surprise_ct = tiles.product(square, (inverse, first))
        plgpu.commit_smem()
        tiles.store(second, -entry * surprise_ct)
        tiles.store(first, entry * tiles.read(reads_ct).astype(jnp.float32))
        plgpu.commit_smem()
        for part in tiles.bands(dim):
            left = [tiles.transposed(x.at[:, part]) for x in (queries, keys)]
            own = tiles.product(square, ([left[0]], first), ([left[1]], second))
            own_gm.at[program, chunk, part, band][...] = own
        plgpu.commit_smem()
        return weights_ct

    def make_gain():
        """Makes parts of a G by bands of D where U = K; returns them and K by bands."""
        left = tiles.load(inverse) * tiles.across(rows.at[TO_END], square) * vector(ENTRY)
        gain = [first, second][: len(tiles.bands(dim))]
        for part, band_gain in zip(tiles.bands(dim), gain, strict=True):
            found = tiles.register_product(left, count, [keys.at[:, part]], False, plain)
            tiles.store(band_gain, found)
        plgpu.commit_smem()
        return gain, [[keys.at[:, part]] for part in tiles.bands(dim)]

    def store_gain():
        """Stores G = T^T (e U), once U is no operand any more; returns G and a K by bands of D."""
        parts = tiles.bands(dim)
        to_end, entry = vector(TO_END), vector(ENTRY)
        for part in parts:
            own = tiles.columns(writes, part)
            tiles.store(own, to_end * tiles.load(own))
        plgpu.commit_smem()
        gain = [tiles.product(square, (inverse, tiles.columns(writes, part))) for part in parts]
        plgpu.commit_smem()
        for part, band_gain in zip(parts, gain, strict=True):
            tiles.store(tiles.columns(writes, part), band_gain)
        aged = [first, second][: len(parts)]
        for part, band_aged in zip(parts, aged, strict=True):
            tiles.store(band_aged, entry * tiles.read(keys.at[:, part]).astype(jnp.float32))
        plgpu.commit_smem()
        for i, own in enumerate(writes):
            plgpu.copy_smem_to_gmem(own, gain_gm.at[program, chunk, i])
        return [tiles.columns(writes, part) for part in parts], aged

    def make_transition():
        """F = a_L I - G^T (a K)."""
        parts = tiles.bands(dim)
        gain, aged = store_gain() if writes else make_gain()
        row, column = tiles.places()
        total = rows[ENTRY, LENGTH - 1]
        for right, band_aged in zip(parts, aged, strict=True):
            for left, band_gain in zip(parts, gain, strict=True):
                f = -tiles.product(square, (tiles.flipped(band_gain), band_aged))
                if left == right:
                    f = f + jnp.where(row == column, total, jnp.float32(0.0))
                tiles.store(tiles.height(mean, left), f)
            plgpu.commit_smem()
            for i, part in enumerate(mean):
                plgpu.copy_smem_to_gmem(part, transition_gm.at[program, chunk, i, :, right])
            plgpu.wait_smem_to_gmem(0)
            plgpu.commit_smem()

    bands = tiles.bands(width)
    head = place // groups
    for source, target in (
        (queries_gm.at[batch, chunk, :, head], queries),
        (keys_gm.at[batch, chunk, :, head], keys),
        (rows_gm.at[batch, chunk, head], rows),
        *((inverse_gm.at[program, chunk, i], x) for i, x in enumerate(inverse)),
        *((writes_gm.at[program, chunk, i], x) for i, x in enumerate(writes)),
    ):
        plgpu.copy_gmem_to_smem(source, target, loaded)
    fetch(bands[0])
    plgpu.barrier_wait(loaded)
    row, column = tiles.places()
    decay = jnp.where(row <= column, tiles.decays(rows), jnp.float32(0.0))
    weights = decay * tiles.product(square, (written, [tiles.transposed(queries)]))
    through: list[Any] = [None] * len(tiles.bands(dim))
    weights_ct = take_band(bands[0], weights, None, through)
    for band in bands[1:]:
        fetch(band)
        weights_ct = take_band(band, weights, weights_ct, through)
    pairs = jnp.float32(LN2) * weights_ct * weights
    vectors_ct_gm.at[program, chunk, EARLIER_CT][...] = tiles.row_sums(pairs)
    vectors_ct_gm.at[program, chunk, LATER_CT][...] = jnp.sum(pairs, axis=0)
    tiles.store(first, decay * weights_ct)
    plgpu.commit_smem()
    entry_ct = []
    for part, band_through, staged in zip(tiles.bands(dim), through, second, strict=False):
        query = queries.at[:, part]
        entry_ct.append(tiles.row_sums(band_through * tiles.read(query).astype(jnp.float32)))
        found = tiles.product(square, (tiles.flipped(first), tiles.columns(written, part)))
        found = found + vector(ENTRY) * band_through
        tiles.emit(queries_ct_gm.at[batch, chunk, :, place, part], staged, found)
        writes_ct_gm.at[program, chunk, :, part][...] = tiles.product(square, (first, [query]))
    vectors_ct_gm.at[program, chunk, ENTRY_CT][...] = functools.reduce(jnp.add, entry_ct)
    plgpu.wait_smem_to_gmem(0)
    plgpu.commit_smem()
    make_transition()


def run_before(
    tokens: Tokens,
    reads_ct: jax.Array,
    rows: jax.Array,
    inverse: jax.Array,
    writes: jax.Array | None,
    means: jax.Array,
    *,
    interpret: bool = False,
) -> Before:
    """Launches the kernel.

    Args:
      tokens: queries, keys and values, bfloat16; L = 64, 64 divides D and m.
      reads_ct: [B, N, L, H G, m] bfloat16, of the reads.
      rows: [B, N, H, 5, L] float32, see `chunks.stack`.
      inverse: [B H G, N, parts, L, L] bfloat16, parts of T^T.
      writes: [B H G, N, parts, L, D] bfloat16, or None where keys are the writes.
      means: [B H G, N + 1, parts, D, m] bfloat16, parts of M at chunk entries and at the end.
      interpret: run without what the interpreter does not have.
    """
    batch, chunks, _, places, width = tokens.values.shape
    heads = tokens.keys.shape[3]
    programs, _, parts, dim, _ = means.shape
    stored = 0 if writes is None else parts
    bf16, f32 = jnp.bfloat16, jnp.float32

    def wide(height, width):
        return plgpu.SMEM((height, width), bf16, transforms=panels.WIDE)

    scratch: list[Any] = [
        wide(LENGTH, dim),
        wide(LENGTH, dim),
        wide(LENGTH, BAND),
        plgpu.SMEM((5, LENGTH), f32),
        [wide(LENGTH, LENGTH)] * parts,
        [wide(LENGTH, dim)] * stored,
        [wide(dim, BAND)] * parts,
        [wide(LENGTH, BAND)] * parts,
        [wide(LENGTH, BAND)] * parts,
        plgpu.Barrier(num_arrivals=3 + parts + stored),
        plgpu.Barrier(num_arrivals=2 + parts),
    ]
    shape = jax.ShapeDtypeStruct
    lead = programs, chunks
    out = [
        shape((*lead, dim, width), f32),
        shape((*lead, parts, dim, dim), bf16),
        shape((*lead, parts, LENGTH, dim), bf16) if stored else None,
        shape((batch, chunks, LENGTH, places, dim), bf16 if places == heads else f32),
        shape((*lead, LENGTH, width), f32),
        shape((*lead, LENGTH, dim), f32),
        shape((*lead, 3, LENGTH), f32),
    ]
    body = functools.partial(_before_body, groups=places // heads, plain=interpret)
    kernel = tiles.mosaic_kernel(body, out, scratch, grid=lead, grid_names=("program", "chunk"))
    given = tokens.keys if writes is None else writes
    return Before(*kernel(*tokens, reads_ct, rows, inverse, given, means))
