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
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import tiles, warpgroups
from kernels_pallas.kalman_chunk.back_transitions import Before
from kernels_pallas.kalman_chunk.chunks import COARSE, ENTRY, TO_END, Tokens
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


class Band(NamedTuple):
    """In shared memory, what a warpgroup needs for a band of value channels."""

    mean: list[Any]  # parts [D, 64]
    at_exit: list[Any]  # parts [D, 64], of the mean's cotangent there
    sent: list[Any]  # for the other warpgroup: [L, 64] twice in the place of `at_exit`, and once
    # in that of `mean`, with numbers a token [3, L]
    surprise: list[Any]  # parts [L, 64], R
    errors_ct: list[Any]  # parts [L, 64], Eb


class Made(NamedTuple):
    """What all bands of value channels add to."""

    inverse_ct: jax.Array | None
    writes_ct: list[Any]  # by bands of D
    through: list[Any]  # likewise, Rb M^T
    to_end_ct: jax.Array | None
    total_ct: jax.Array | None


def _band(held: Any, member: Any) -> Band:
    """One warpgroup's of the arrays that all have in shared memory, see `run_means`."""
    (means, *of_mean), (exits, *of_exits), surprise, errors_ct = held
    means, exits, surprise, errors_ct, sent = (
        [x.at[member] for x in each]
        for each in (means, exits, surprise, errors_ct, sum([*of_exits, *of_mean], ()))
    )
    return Band(means, exits, sent, surprise, errors_ct or tiles.height(exits, slice(0, LENGTH)))


def _means_body(
    keys_gm, values_gm, rows_gm, inverse_gm, writes_gm, mean_gm, exit_gm, weighted_gm,
    given_gm, values_ct_gm, keys_ct_gm, inverse_ct_gm, writes_ct_gm, vectors_ct_gm,
    keys, rows, inverse, writes, held, loaded, bands_loaded, met,
    *, groups: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_means` for the arrays in global memory (`_gm`).

    In shared memory: keys [L, D], the first rows of the tokens' numbers [2, L] float32, parts of
    T^T [L, L] and of the writes [L, D]. A warpgroup takes some bands of value channels, and then
    one of key channels, for which the other sends what its values add.
    """
    program, chunk = lax.axis_index("program"), lax.axis_index("chunk")
    count, dim, width = len(inverse), keys.shape[1], values_gm.shape[-1]
    places = values_gm.shape[3]
    batch, place = program // places, lax.rem(program, places)
    square, parts, head = (LENGTH, LENGTH), tiles.bands(dim), place // groups
    team = len(parts)
    shares = warpgroups.Shares(width // BAND, team)

    def fetch(band, here, loaded):
        source = values_gm.at[batch, chunk, :, place, band]
        plgpu.copy_gmem_to_smem(source, here.surprise[0], loaded)
        for i in range(count):
            plgpu.copy_gmem_to_smem(mean_gm.at[program, chunk, i, :, band], here.mean[i], loaded)
            source = exit_gm.at[program, chunk + 1, i, :, band]
            plgpu.copy_gmem_to_smem(source, here.at_exit[i], loaded)

    def fetch_all():
        for source, target in (
            (keys_gm.at[batch, chunk, :, head], keys),
            (rows_gm.at[batch, chunk, head, :COARSE], rows),
            *((inverse_gm.at[program, chunk, i], x) for i, x in enumerate(inverse)),
            *((writes_gm.at[program, chunk, i], x) for i, x in enumerate(writes)),
        ):
            plgpu.copy_gmem_to_smem(source, target, loaded)

    def vector(index):
        return tiles.down(rows.at[index], square)

    def take_band(band, member, here, made, last):
        """Adds a band's shares to what all bands of value channels add to."""
        inverse_ct, writes_ct, through, to_end_ct, total_ct = made
        mean, at_exit, _, surprise, errors_ct = here
        weighted = tiles.straight(weighted_gm.at[program, chunk, :, band])
        plgpu.barrier_wait(bands_loaded.at[member])
        value = tiles.load([surprise[0]], plain)
        tiles.store(surprise, value - vector(ENTRY) * tiles.product(square, ([keys], mean)), plain)
        plgpu.commit_smem()
        for part in parts:
            known, known_ct = tiles.height(mean, part), tiles.height(at_exit, part)
            share = tiles.row_sums(tiles.load(known, plain) * tiles.load(known_ct, plain))
            total_ct = tiles.plus(total_ct, share)
        errors = tiles.product(square, (tiles.flipped(inverse), surprise))
        carried_on = tiles.product(square, (writes, at_exit))
        to_end_ct = tiles.plus(to_end_ct, tiles.row_sums(errors * carried_on))
        weighted = weighted + vector(TO_END) * carried_on
        errors = vector(TO_END) * errors
        if team == 1:
            tiles.store(errors_ct, weighted, plain)
        for i, part in enumerate(parts):
            right = tiles.height(at_exit, part)
            share = tiles.register_product(errors, count, right, True, plain)
            writes_ct[i] = tiles.plus(writes_ct[i], share)
        if team > 1:
            plgpu.commit_smem()
            tiles.store(errors_ct, weighted, plain)  # in the place of `at_exit`
        plgpu.commit_smem()
        share = tiles.product(square, (surprise, tiles.flipped(errors_ct)))
        inverse_ct = tiles.plus(inverse_ct, share)
        surprise_ct = tiles.product(square, (inverse, errors_ct))
        plgpu.commit_smem()
        tiles.emit(values_ct_gm.at[batch, chunk, :, place, band], surprise[0], surprise_ct)
        if last and team > 1:
            shares.meet(met)  # what is sent takes the place of `at_exit`
            of_writes, of_inverse = here.sent[:2]
            of_writes[...] = warpgroups.chosen(writes_ct, 1 - member)

            @pl.when(member != 0)
            def _():
                of_inverse[...] = inverse_ct

        for i, part in enumerate(parts):
            known = tiles.height(mean, part)
            share = tiles.register_product(surprise_ct, count, known, True, plain)
            through[i] = tiles.plus(through[i], share)
        return Made(inverse_ct, writes_ct, through, to_end_ct, total_ct)

    def take_bands(member, here):
        made = Made(None, [None] * len(parts), [None] * len(parts), None, None)
        mine = shares.of(member)
        for i, band in enumerate(mine):
            if i > 0:
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                plgpu.commit_smem()
                fetch(band, here, bands_loaded.at[member])
            made = take_band(band, member, here, made, i + 1 == len(mine))
        return made

    def entry_cotangent(made):
        """Of a_i: the rows' sums of -K * Rb M^T."""
        wide = [tiles.load([keys.at[:, part]], plain) for part in parts]
        shares = [tiles.row_sums(x * y) for x, y in zip(wide, made.through, strict=True)]
        return -functools.reduce(jnp.add, shares)

    def exchange(member, here, made):
        """Adds up what both warpgroups have: a band of Ub, and of Rb M^T.

        Returns these and, of its own alone, the rest: Tb^T and the numbers a token.
        """
        rest: list[Any] = []
        if shares.any(member):
            rest = [made.inverse_ct, entry_cotangent(made), made.to_end_ct, made.total_ct]
        if team == 1:
            return made.writes_ct[0], made.through[0], rest
        writes_ct, through = (
            warpgroups.chosen(x, member) if rest else None for x in (made.writes_ct, made.through)
        )
        shares.meet(met)  # and that of `mean`
        if rest:
            here.sent[2][...] = warpgroups.chosen(made.through, 1 - member)
            pl.when(member != 0)(functools.partial(tiles.store_rows, here.sent[3], rest[1:]))
        warpgroups.meet(met)
        if shares.any(1 - member):
            of_writes, _, of_through, _ = _band(held, 1 - member).sent
            writes_ct = tiles.plus(writes_ct, tiles.read(of_writes))
            through = tiles.plus(through, tiles.read(of_through))
        return writes_ct, through, rest

    def write_rest(inverse_ct, *numbers):
        """Writes the sums of what both warpgroups have of the rest."""
        if team > 1 and shares.any(1):
            _, of_inverse, _, given = _band(held, 1).sent
            inverse_ct = inverse_ct + tiles.read(of_inverse)
            read = tiles.load_rows(given, 0, len(numbers))
            numbers = tuple(mine + other for mine, other in zip(numbers, read, strict=True))
        inverse_ct_gm.at[program, chunk][...] = inverse_ct
        for index, number in zip((ENTRY_CT, TO_END_CT, TOTAL_CT), numbers, strict=True):
            vectors_ct_gm.at[program, chunk, index][...] = number

    def run(member):
        part, here = pl.ds(member * BAND, BAND), _band(held, member)
        pl.when(member == 0)(fetch_all)
        for band in shares.of(member)[:1]:
            fetch(band, here, bands_loaded.at[member])
        plgpu.barrier_wait(loaded)
        made = take_bands(member, here)
        given = tiles.straight(given_gm.at[program, chunk, :, part])
        writes_ct, through, rest = exchange(member, here, made)
        writes_ct_gm.at[program, chunk, :, part][...] = given + writes_ct
        keys_ct_gm.at[program, chunk, :, part][...] = -vector(ENTRY) * through
        pl.when(member == 0)(functools.partial(write_rest, *rest))
        plgpu.wait_smem_to_gmem(0)

    warpgroups.split_up(team, run, shares.alike)


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

    def wide(*shape):
        return plgpu.SMEM(shape, bf16, transforms=tiles.WIDE)

    def of_bands():
        """For the warpgroups; where there are two, little room is left."""
        tall, low = [wide(team, dim, BAND)] * parts, [wide(team, LENGTH, BAND)] * parts
        if team == 1:
            return plgpu.RefUnion(tall), plgpu.RefUnion(tall), low, low
        numbers, sent = plgpu.SMEM((team, LENGTH, BAND), f32), tiles.wide_float32(team)
        return plgpu.RefUnion(tall, (sent, numbers)), plgpu.RefUnion(tall, (sent, sent)), low, []

    team = dim // BAND
    scratch: list[Any] = [
        wide(LENGTH, dim),
        plgpu.SMEM((COARSE, LENGTH), f32),
        [wide(LENGTH, LENGTH)] * parts,
        [wide(LENGTH, dim)] * parts,
        of_bands(),
        plgpu.Barrier(num_arrivals=2 + 2 * parts),
        plgpu.Barrier(num_arrivals=1 + 2 * parts, num_barriers=team),
        warpgroups.meeting(team),
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
    kernel = warpgroups.mosaic_kernel(
        body,
        out,
        scratch,
        grid=lead,
        grid_names=("program", "chunk"),
        sum_bytes=2048 // team,
        **warpgroups.members(team),
    )
    given = before.weighted, before.writes_ct
    return Means(
        *kernel(tokens.keys, tokens.values, rows, inverse, writes, means, means_ct, *given)
    )
