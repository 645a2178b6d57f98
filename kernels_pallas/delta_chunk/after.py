"""The reverse after its walk, as a Mosaic GPU kernel: one program a chunk of a head.

From the cotangent of the memory at a chunk's exit to those of keys, values and the numbers of each
token. Symbols, and the numbers of formulas, are README.md's; a bar is `_ct`. Parts and precision as
in `tiles`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.delta_chunk.algebra import BETA
from kernels_pallas.kalman_chunk import tiles, warpgroups
from kernels_pallas.kalman_chunk.back_transitions import LN2, Before
from kernels_pallas.kalman_chunk.chunks import ENTRY, TO_END, Tokens
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

ENTRY_CT, TOTAL_CT = range(2)
"""Rows of `After.states_ct`: of a_i, and numbers whose sum over tokens is the cotangent of a_L."""

TO_END_CT, BETA_CT = range(2)
"""Rows of `After.bands_ct`: of e_i and beta_i."""

LATER_CT, EARLIER_CT = range(2)
"""Rows of `After.pairs_ct`: of c_i as the later and the earlier of two tokens."""


class After(NamedTuple):
    """What the kernel leaves."""

    keys_ct: jax.Array  # [B, N, L, H, D] bfloat16
    values_ct: jax.Array  # [B, N, L, H, M] bfloat16
    states_ct: jax.Array  # [B H, N, shares, 2, L] float32, to be summed over shares
    bands_ct: jax.Array  # [B H, N, shares, 2, L] float32, to be summed over shares
    pairs_ct: jax.Array  # [B H, N, 2, L] float32


def _after_body(
    keys_gm, values_gm, rows_gm, inverse_gm, memory_gm, exit_gm, weighted_gm, given_gm,
    keys_ct_gm, values_ct_gm, states_ct_gm, bands_ct_gm, pairs_ct_gm,
    keys, rows, inverse, slots, work, loaded, landed,
    *, heads: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_after` for the arrays in global memory (`_gm`).

    In shared memory: keys [L, D], rows [5, L] float32, parts of T^T [L, L], of what is an operand
    for a while [L, 64], and two `slots`, or three where D = 128, each parts [64, 64] of the memory
    M at the entry or of its cotangent Mb' at the exit. Numbers of each token are written as soon as
    they are there, a share at a time: else matrices that they are sums of stay in registers.
    """
    program, chunk = lax.axis_index("program"), lax.axis_index("chunk")
    batch, head = program // heads, lax.rem(program, heads)
    count, width = len(inverse), values_gm.shape[-1]
    square, parts = (LENGTH, LENGTH), tiles.bands(keys.shape[1])
    halved = len(parts) == 2

    def fetch(slot, source, place, part, band):
        for i, target in enumerate(slots[slot]):
            here = source.at[program, place, i, part, band]
            plgpu.copy_gmem_to_smem(here, target, landed.at[slot])

    def fetch_memory(slot, part, band):
        fetch(slot, memory_gm, chunk, part, band)

    def fetch_exit(slot, part, band):
        fetch(slot, exit_gm, chunk + 1, part, band)

    def wait(*which):
        for slot in which:
            plgpu.barrier_wait(landed.at[slot])

    def vector(index):
        return tiles.down(rows.at[index], square)

    def by_keys(*held):
        """The product of keys and of what slots hold."""
        pairs = zip(parts, held, strict=True)
        return tiles.product(square, *(([keys.at[:, part]], slots[slot]) for part, slot in pairs))

    def from_errors(band, index):
        """Returns E, and leaves Eb in `work`."""
        value = tiles.straight(values_gm.at[batch, chunk, :, head, band]).astype(jnp.float32)
        wait(*range(len(parts)))
        tiles.store(work, value - vector(ENTRY) * by_keys(*range(len(parts))), plain)
        plgpu.commit_smem()  # all warps are done with M too
        if halved:
            fetch_exit(0, parts[1], band)
        errors = tiles.product(square, (tiles.flipped(inverse), work))
        wait(*((2, 0) if halved else (1,)))
        carried_on = by_keys(*((2, 0) if halved else (1,)))
        bands_ct_gm.at[program, chunk, index, TO_END_CT][...] = tiles.row_sums(errors * carried_on)
        weighted = tiles.straight(weighted_gm.at[program, chunk, :, band])
        plgpu.commit_smem()
        tiles.store(work, weighted + vector(TO_END) * carried_on, plain)
        plgpu.commit_smem()
        return errors

    def through_states(so_far, errors, part, share, memory, at_exit):
        """Adds to a band of D of the keys' cotangent."""
        numbers_gm = states_ct_gm.at[program, chunk, share]
        through = tiles.product(square, (work, tiles.flipped(slots[memory])))
        key = tiles.load([keys.at[:, part]], plain)
        numbers_gm.at[ENTRY_CT][...] = -tiles.row_sums(through * key)
        so_far = tiles.plus(so_far, -vector(ENTRY) * through)
        left = vector(TO_END) * errors
        so_far = tiles.register_product(left, count, slots[at_exit], True, plain, so_far)
        both = tiles.load(slots[memory], plain) * tiles.load(slots[at_exit], plain)
        numbers_gm.at[TOTAL_CT][...] = tiles.row_sums(both)
        return so_far

    def take_band(index, mixed_ct, keys_ct):
        """Adds the shares of a band of value channels, and fetches for the band that follows."""
        band, following = bands[index], bands[index + 1 : index + 2]
        errors = from_errors(band, index)
        surprise_ct = tiles.product(square, (inverse, work))
        # Both are beta times something of size 1, row by row and to full accuracy.
        upside = 1.0 / vector(BETA)
        beta_ct = tiles.row_sums((surprise_ct * upside) * (errors * upside))
        bands_ct_gm.at[program, chunk, index, BETA_CT][...] = beta_ct
        plgpu.commit_smem()
        tiles.store(work, surprise_ct, plain)
        plgpu.commit_smem()
        # The first part is what bfloat16 holds of it.
        plgpu.copy_smem_to_gmem(work[0], values_ct_gm.at[batch, chunk, :, head, band])
        mixed_ct = tiles.register_product(errors, count, work, True, plain, mixed_ct)
        share = index * len(parts)
        if halved:
            keys_ct[1] = through_states(keys_ct[1], errors, parts[1], share + 1, 1, 0)
            plgpu.commit_smem()
            fetch_memory(1, parts[0], band)
            for other in following:
                fetch_memory(0, parts[0], other)
            wait(1)
        states = (1, 2) if halved else (0, 1)
        keys_ct[0] = through_states(keys_ct[0], errors, parts[0], share, *states)
        plgpu.wait_smem_to_gmem(0)
        plgpu.commit_smem()
        for other in following:
            fetch_memory(*((1, parts[1]) if halved else (0, parts[0])), other)
            fetch_exit(2 if halved else 1, parts[0], other)
        return mixed_ct

    def reverse_overlaps(mixed_ct):
        """Leaves what (ratio * Ab)^T has above the diagonal in `work`."""
        row, column = tiles.places()
        overlap_ct = jnp.where(row < column, -mixed_ct * tiles.decays(rows), jnp.float32(0.0))
        tiles.store(work, overlap_ct, plain)
        plgpu.commit_smem()
        overlap = tiles.product(square, ([keys], [tiles.transposed(keys)]))
        pairs = jnp.float32(LN2) * overlap_ct * overlap
        pairs_ct_gm.at[program, chunk, EARLIER_CT][...] = tiles.row_sums(pairs)
        pairs_ct_gm.at[program, chunk, LATER_CT][...] = jnp.sum(pairs, axis=0)

    bands = tiles.bands(width)
    for source, target in (
        (keys_gm.at[batch, chunk, :, head], keys),
        (rows_gm.at[batch, chunk, head], rows),
        *((inverse_gm.at[program, chunk, i], x) for i, x in enumerate(inverse)),
    ):
        plgpu.copy_gmem_to_smem(source, target, loaded)
    for slot, part in enumerate(parts):
        fetch_memory(slot, part, bands[0])
    fetch_exit(len(parts), parts[0], bands[0])
    plgpu.barrier_wait(loaded)
    mixed_ct: Any = None
    keys_ct: list[Any] = [None] * len(parts)
    for index in range(len(bands)):
        mixed_ct = take_band(index, mixed_ct, keys_ct)
    reverse_overlaps(mixed_ct)
    for i, part in enumerate(parts):
        right = [keys.at[:, part]]
        both = (work, right), (tiles.flipped(work), right)
        found = tiles.add_product(keys_ct[i], plain, *both)
        keys_ct[i] = found + tiles.straight(given_gm.at[program, chunk, :, part])
    plgpu.commit_smem()
    for part, band_ct, staged in zip(parts, keys_ct, work, strict=False):
        tiles.emit(keys_ct_gm.at[batch, chunk, :, head, part], staged, band_ct)
    plgpu.wait_smem_to_gmem(0)


def run_after(
    tokens: Tokens,
    rows: jax.Array,
    inverse: jax.Array,
    memory: jax.Array,
    memory_ct: jax.Array,
    before: Before,
    *,
    interpret: bool = False,
) -> After:
    """Launches the kernel.

    Args:
      tokens: queries, keys and values, bfloat16; L = 64, D is 64 or 128, 64 divides M.
      rows: [B, N, H, 5, L] float32, see `chunks.stack` and `algebra.BETA`.
      inverse: [B H, N, parts, L, L] bfloat16, parts of T^T.
      memory: [B H, N + 1, parts, D, M] bfloat16, parts of M at chunk entries and at the end.
      memory_ct: of the same form, their cotangents, as `reverse.run_reverse` leaves them.
      before: from before the walk.
      interpret: run without what the interpreter does not have.
    """
    batch, chunks, _, heads, dim = tokens.keys.shape
    programs, _, parts = inverse.shape[:3]
    width = tokens.values.shape[-1]
    bf16, f32 = jnp.bfloat16, jnp.float32

    def wide(width):
        return plgpu.SMEM((LENGTH, width), bf16, transforms=tiles.WIDE)

    slots = dim // BAND + 1
    scratch: list[Any] = [
        wide(dim),
        plgpu.SMEM((5, LENGTH), f32),
        [wide(LENGTH)] * parts,
        [[wide(BAND)] * parts] * slots,
        [wide(LENGTH)] * parts,
        plgpu.Barrier(num_arrivals=2 + parts),
        plgpu.Barrier(num_arrivals=parts, num_barriers=slots),
    ]
    shape, lead = jax.ShapeDtypeStruct, (programs, chunks)
    out = [
        shape(tokens.keys.shape, bf16),
        shape(tokens.values.shape, bf16),
        shape((*lead, width // BAND * (dim // BAND), 2, LENGTH), f32),
        shape((*lead, width // BAND, 2, LENGTH), f32),
        shape((*lead, 2, LENGTH), f32),
    ]
    body = functools.partial(_after_body, heads=heads, plain=interpret)
    kernel = warpgroups.mosaic_kernel(
        body, out, scratch, grid=lead, grid_names=("program", "chunk")
    )
    given = before.weighted, before.writes_ct
    return After(*kernel(tokens.keys, tokens.values, rows, inverse, memory, memory_ct, *given))
