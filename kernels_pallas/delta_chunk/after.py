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
from kernels_pallas.kalman_chunk import panels, tiles
from kernels_pallas.kalman_chunk.back_transitions import LN2, Before
from kernels_pallas.kalman_chunk.chunks import ENTRY, TO_END, Tokens
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

ENTRY_CT, TO_END_CT, TOTAL_CT, BETA_CT, LATER_CT, EARLIER_CT = range(6)
"""Rows of `After.vectors_ct`: of a_i and e_i, numbers whose sum is the cotangent of a_L, of beta_i,
and of c_i as the later and the earlier of two tokens."""


class After(NamedTuple):
    """What the kernel leaves."""

    keys_ct: jax.Array  # [B, N, L, H, D] bfloat16
    values_ct: jax.Array  # [B, N, L, H, M] bfloat16
    vectors_ct: jax.Array  # [B H, N, 6, L] float32


class Made(NamedTuple):
    """What all bands of value channels add to."""

    mixed_ct: jax.Array | None  # [L, L], E Rb^T
    keys_ct: tuple[jax.Array | None, ...]  # [L, 64] a band of D, (e E) Mb'^T - a (Rb M^T)
    entry_ct: jax.Array | None  # [L], as the next three
    to_end_ct: jax.Array | None
    total_ct: jax.Array | None
    beta_ct: jax.Array | None


def _after_body(
    keys_gm, values_gm, rows_gm, inverse_gm, memory_gm, exit_gm, weighted_gm, given_gm,
    keys_ct_gm, values_ct_gm, vectors_ct_gm,
    keys, rows, inverse, slots, work, loaded, landed,
    *, heads: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_after` for the arrays in global memory (`_gm`).

    In shared memory: keys [L, D], rows [5, L] float32, parts of T^T [L, L], of what is an operand
    for a while [L, 64], and two `slots`, or three where D = 128, each parts [64, 64] of the memory
    M at the entry or of its cotangent Mb' at the exit.
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

    def write(index, value):
        vectors_ct_gm.at[program, chunk, index][...] = value

    def by_keys(*held):
        """The product of keys and of what slots hold."""
        pairs = zip(parts, held, strict=True)
        return tiles.product(square, *(([keys.at[:, part]], slots[slot]) for part, slot in pairs))

    def from_errors(band):
        """E, what keys find in M, and what the errors are asked for by the next chunk, in turn."""
        value = tiles.straight(values_gm.at[batch, chunk, :, head, band]).astype(jnp.float32)
        wait(*range(len(parts)))
        known = by_keys(*range(len(parts)))
        tiles.store(work, value - vector(ENTRY) * known)
        plgpu.commit_smem()  # all warps are done with `known` too
        if halved:
            fetch_exit(0, parts[1], band)
        errors = tiles.product(square, (tiles.flipped(inverse), work))
        weighted = tiles.straight(weighted_gm.at[program, chunk, :, band])
        wait(*((2, 0) if halved else (1,)))
        carried_on = by_keys(*((2, 0) if halved else (1,)))
        plgpu.commit_smem()
        tiles.store(work, weighted + vector(TO_END) * carried_on)
        plgpu.commit_smem()
        to_end_ct = tiles.row_sums(errors * carried_on)
        return errors, known, to_end_ct

    def through_states(so_far, errors, surprise_ct, memory, at_exit):
        """A band of D of the keys' cotangent, and of M * Mb'."""
        total_ct = tiles.row_sums(tiles.load(slots[memory]) * tiles.load(slots[at_exit]))
        shares = (errors, slots[at_exit]), (surprise_ct, slots[memory])
        for left, right in shares:
            so_far = tiles.register_product(left, count, right, True, plain, so_far)
        return so_far, total_ct

    def take_band(band, following, made):
        """Adds the shares of a band of value channels, and fetches for the band that follows."""
        errors, known, to_end_ct = from_errors(band)
        surprise_ct = tiles.product(square, (inverse, work))
        entry_ct = -tiles.row_sums(surprise_ct * known)
        # Both are beta times something of size 1, row by row and to full accuracy.
        upside = 1.0 / vector(BETA)
        beta_ct = tiles.row_sums((surprise_ct * upside) * (errors * upside))
        plgpu.commit_smem()
        tiles.store(work, surprise_ct)
        plgpu.commit_smem()
        # The first part is what bfloat16 holds of it.
        plgpu.copy_smem_to_gmem(work[0], values_ct_gm.at[batch, chunk, :, head, band])
        mixed_ct = tiles.register_product(errors, count, work, True, plain, made.mixed_ct)
        operands = vector(TO_END) * errors, -vector(ENTRY) * surprise_ct
        keys_ct = list(made.keys_ct)
        if halved:
            keys_ct[1], total_ct = through_states(keys_ct[1], *operands, 1, 0)
            plgpu.commit_smem()
            fetch_memory(1, parts[0], band)
            if following:
                fetch_memory(0, parts[0], following)
            wait(1)
            keys_ct[0], share = through_states(keys_ct[0], *operands, 1, 2)
            total_ct = total_ct + share
        else:
            keys_ct[0], total_ct = through_states(keys_ct[0], *operands, 0, 1)
        plgpu.wait_smem_to_gmem(0)
        plgpu.commit_smem()
        if following:
            fetch_memory(*((1, parts[1]) if halved else (0, parts[0])), following)
            fetch_exit(2 if halved else 1, parts[0], following)
        numbers = zip(made[2:], (entry_ct, to_end_ct, total_ct, beta_ct), strict=True)
        return Made(mixed_ct, tuple(keys_ct), *(tiles.plus(*pair) for pair in numbers))

    def reverse_overlaps(mixed_ct):
        """Leaves what (ratio * Ab)^T has above the diagonal in `work`."""
        row, column = tiles.places()
        overlap_ct = jnp.where(row < column, -mixed_ct * tiles.decays(rows), jnp.float32(0.0))
        tiles.store(work, overlap_ct)
        plgpu.commit_smem()
        overlap = tiles.product(square, ([keys], [tiles.transposed(keys)]))
        pairs = jnp.float32(LN2) * overlap_ct * overlap
        write(EARLIER_CT, tiles.row_sums(pairs))
        write(LATER_CT, jnp.sum(pairs, axis=0))

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
    made = Made(None, (None,) * len(parts), None, None, None, None)
    for band, following in zip(bands, (*bands[1:], None), strict=True):
        made = take_band(band, following, made)
    for index, value in enumerate(made[2:]):
        write(index, value)
    reverse_overlaps(made.mixed_ct)
    keys_ct = []
    for part, so_far in zip(parts, made.keys_ct, strict=True):
        right = [keys.at[:, part]]
        so_far = tiles.add_product(so_far, plain, (work, right), (tiles.flipped(work), right))
        keys_ct.append(so_far + tiles.straight(given_gm.at[program, chunk, :, part]))
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
    bf16, f32 = jnp.bfloat16, jnp.float32

    def wide(width):
        return plgpu.SMEM((LENGTH, width), bf16, transforms=panels.WIDE)

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
        shape((*lead, 6, LENGTH), f32),
    ]
    body = functools.partial(_after_body, heads=heads, plain=interpret)
    kernel = tiles.mosaic_kernel(body, out, scratch, grid=lead, grid_names=("program", "chunk"))
    given = before.weighted, before.writes_ct
    return After(*kernel(tokens.keys, tokens.values, rows, inverse, memory, memory_ct, *given))
