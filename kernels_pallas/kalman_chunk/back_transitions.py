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
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import tiles, warpgroups
from kernels_pallas.kalman_chunk.chunks import COARSE, ENTRY, NOISE, TO_END, Tokens
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


class Band(NamedTuple):
    """In shared memory, what a warpgroup needs for a band of value channels."""

    reads_ct: Any  # [L, 64] bfloat16, later other cotangents on their way out
    mean: list[Any]  # parts [D, 64], later of F
    sent: list[Any]  # two [L, 64] float32 in its place, for the other warpgroup
    first: list[Any]  # parts [L, 64] of what is an operand for a while
    second: list[Any]


def _band(held: Any, member: Any) -> Band:
    """One warpgroup's of the arrays that all have in shared memory, see `run_before`."""
    reads_ct, (means, *sent), first, second = held
    mean, first, second = ([x.at[member] for x in each] for each in (means, first, second))
    return Band(reads_ct.at[member], mean, [x.at[member] for x in sum(sent, ())], first, second)


class Chunk(NamedTuple):
    """In shared memory, what all bands read."""

    keys: Any  # [L, D]
    rows: Any  # [4, L] float32
    inverse: list[Any]  # parts of T^T [L, L]
    writes: list[Any]  # parts [L, D], none where keys are the writes
    met: list[Any]  # barriers of all warpgroups
    plain: bool  # without inlined code


SQUARE = (LENGTH, LENGTH)


def _gain_of_keys(chunk: Chunk, held: list[Band], here: Band, part: Any) -> tuple[Any, Any]:
    """Makes parts of a G by bands of D where U = K; returns them and a band of K."""
    entry, to_end = chunk.rows.at[ENTRY], chunk.rows.at[TO_END]
    left = (
        tiles.load(chunk.inverse, chunk.plain)
        * tiles.across(to_end, SQUARE)
        * tiles.down(entry, SQUARE)
    )
    key = chunk.keys.at[:, part]
    found = tiles.register_product(left, len(chunk.inverse), [key], False, chunk.plain)
    tiles.store(here.second, found, chunk.plain)
    warpgroups.meet(chunk.met)
    return [each.second for each in held], [key]


def _gain_of_writes(
    chunk: Chunk, aged: list[Any], member: Any, part: Any, out: Any
) -> tuple[Any, Any]:
    """Stores G = T^T (e U), once U is no operand; returns G by bands of D and a band of a K."""
    parts = tiles.bands(chunk.keys.shape[1])
    own = tiles.columns(chunk.writes, part)
    plgpu.commit_smem()
    tiles.store(
        own, tiles.down(chunk.rows.at[TO_END], SQUARE) * tiles.load(own, chunk.plain), chunk.plain
    )
    key = tiles.load([chunk.keys.at[:, part]], chunk.plain)
    tiles.store(aged, tiles.down(chunk.rows.at[ENTRY], SQUARE) * key, chunk.plain)
    plgpu.commit_smem()
    gain = tiles.product(SQUARE, (chunk.inverse, own))
    plgpu.commit_smem()
    tiles.store(own, gain, chunk.plain)
    warpgroups.meet(chunk.met)
    for i, x in enumerate(chunk.writes):
        copy = functools.partial(plgpu.copy_smem_to_gmem, x, out.at[i])
        pl.when(member == i % len(parts))(copy)
    return [tiles.columns(chunk.writes, part) for part in parts], aged


def _transition(chunk: Chunk, mean: list[Any], member: Any, gain: Any, aged: Any, out: Any) -> None:
    """F = a_L I - G^T (a K), of which a warpgroup has a band of columns."""
    parts = tiles.bands(chunk.keys.shape[1])
    (row, column), zero = tiles.places(), jnp.float32(0.0)
    for i, (part, band_gain) in enumerate(zip(parts, gain, strict=True)):
        f = -tiles.product(SQUARE, (tiles.flipped(band_gain), aged))
        total = jnp.where(jnp.int32(i) == member, chunk.rows[ENTRY, LENGTH - 1], zero)
        tiles.store(
            tiles.height(mean, part), f + jnp.where(row == column, total, zero), chunk.plain
        )
    plgpu.commit_smem()
    for i, x in enumerate(mean):
        plgpu.copy_smem_to_gmem(x, out.at[i, :, pl.ds(member * BAND, BAND)])


def _nothing(bands: int) -> tuple[Any, list[Any]]:
    return None, [None] * bands


def _before_body(
    queries_gm, keys_gm, values_gm, reads_ct_gm, rows_gm, inverse_gm, writes_gm, mean_gm,
    own_gm, transition_gm, gain_gm, queries_ct_gm, weighted_gm, writes_ct_gm, vectors_ct_gm,
    queries, keys, rows, inverse, writes, held, loaded, bands_loaded, met,
    *, groups: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_before` for the arrays in global memory (`_gm`).

    In shared memory: queries and keys [L, D], the first rows of the tokens' numbers [4, L] float32,
    parts of T^T [L, L] and of the writes (later e U, then G) [L, D]. A warpgroup takes some bands
    of value channels, and then one of key channels, for which the other sends what its values add.
    Without parts of the writes, keys are the writes.
    """
    program, chunk = lax.axis_index("program"), lax.axis_index("chunk")
    count, dim, width = len(inverse), keys.shape[1], values_gm.shape[-1]
    groups_of_row = values_gm.shape[3]
    batch, place = program // groups_of_row, lax.rem(program, groups_of_row)
    square, parts, written = SQUARE, tiles.bands(dim), writes or [keys]
    team = len(parts)
    shared, head = Chunk(keys, rows, inverse, writes, met, plain), place // groups
    shares = warpgroups.Shares(width // BAND, team)

    def vector(index):
        return tiles.down(rows.at[index], square)

    def fetch(band, here, loaded):
        first, target = here.first[0], here.reads_ct
        plgpu.copy_gmem_to_smem(values_gm.at[batch, chunk, :, place, band], first, loaded)
        plgpu.copy_gmem_to_smem(reads_ct_gm.at[batch, chunk, :, place, band], target, loaded)
        for i, part in enumerate(here.mean):
            plgpu.copy_gmem_to_smem(mean_gm.at[program, chunk, i, :, band], part, loaded)

    def fetch_all():
        for source, target in (
            (queries_gm.at[batch, chunk, :, head], queries),
            (keys_gm.at[batch, chunk, :, head], keys),
            (rows_gm.at[batch, chunk, head, :NOISE], rows.at[:NOISE]),
            *((inverse_gm.at[program, chunk, i], x) for i, x in enumerate(inverse)),
            *((writes_gm.at[program, chunk, i], x) for i, x in enumerate(writes)),
        ):
            plgpu.copy_gmem_to_smem(source, target, loaded)

    def take_band(band, here, weights, so_far):
        """Adds the shares of a band of value channels to Wb^T and, by bands of D, to Yb M^T."""
        reads_ct, mean, _, first, second = here
        weights_ct, through = so_far or _nothing(len(parts))
        value = tiles.load([first[0]], plain)
        tiles.store(first, value - vector(ENTRY) * tiles.product(square, ([keys], mean)), plain)
        plgpu.commit_smem()
        tiles.store(second, tiles.product(square, (tiles.flipped(inverse), first)), plain)
        plgpu.commit_smem()
        share = tiles.product(square, (second, [tiles.transposed(reads_ct)]))
        weights_ct = tiles.plus(weights_ct, share)
        weighted = tiles.register_product(weights, count, [reads_ct], False, plain)
        tiles.store(first, weighted, plain)
        plgpu.commit_smem()
        weighted_gm.at[program, chunk, :, band][...] = weighted
        surprise_ct = tiles.product(square, (inverse, first))
        plgpu.commit_smem()
        tiles.store(second, -vector(ENTRY) * surprise_ct, plain)
        tiles.store(first, vector(ENTRY) * tiles.load([reads_ct], plain), plain)
        plgpu.commit_smem()
        for part in parts:
            left = [tiles.transposed(x.at[:, part]) for x in (queries, keys)]
            own = tiles.product(square, ([left[0]], first), ([left[1]], second))
            own_gm.at[program, chunk, part, band][...] = own
        for i, part in enumerate(parts):
            share = tiles.product(square, ([reads_ct], tiles.flipped(tiles.height(mean, part))))
            through[i] = tiles.plus(through[i], share)
        plgpu.commit_smem()
        return weights_ct, through

    def take_bands(member, here, weights):
        loaded, made = bands_loaded.at[member], None
        for i, band in enumerate(shares.of(member)):
            if i > 0:
                fetch(band, here, loaded)
            plgpu.barrier_wait(loaded)
            made = take_band(band, here, weights, made)
        return made

    def exchange(member, here, made):
        """Adds up what both warpgroups have: a band of Yb M^T, and for the first one Wb^T."""
        if team == 1:
            return made[0], made[1][0]
        weights_ct, through = made or _nothing(team)
        shares.meet(met)  # what is sent takes the place of a band
        if made is not None:
            to_band, to_weights = here.sent
            to_band[...] = warpgroups.chosen(through, 1 - member)

            @pl.when(member != 0)
            def _():
                to_weights[...] = weights_ct

        warpgroups.meet(met)
        through = warpgroups.chosen(through, member)
        if shares.any(1 - member):
            of_band = _band(held, 1 - member).sent[0]
            through = tiles.plus(through, tiles.read(of_band))
        return weights_ct, through

    def reverse_weights(weights, weights_ct, decay):
        """Leaves ratio * Wb in `first` of the first warpgroup; numbers a token."""
        if team > 1 and shares.any(1):
            weights_ct = weights_ct + tiles.read(_band(held, 1).sent[1])
        tiles.store(both, decay * weights_ct, plain)
        pairs = jnp.float32(LN2) * weights_ct * weights
        vectors_ct_gm.at[program, chunk, EARLIER_CT][...] = tiles.row_sums(pairs)
        vectors_ct_gm.at[program, chunk, LATER_CT][...] = jnp.sum(pairs, axis=0)

    def leave(entry_ct):
        rows[COARSE] = entry_ct  # whose place is free

    def write_entry(entry_ct):
        if team > 1:
            entry_ct = entry_ct + tiles.read(rows.at[COARSE], tiles.LAYOUT.reduce(1))
        vectors_ct_gm.at[program, chunk, ENTRY_CT][...] = entry_ct

    def run(member):
        part, here = pl.ds(member * BAND, BAND), _band(held, member)
        pl.when(member == 0)(fetch_all)
        for band in shares.of(member)[:1]:
            fetch(band, here, bands_loaded.at[member])
        row, column = tiles.places()
        plgpu.barrier_wait(loaded)
        decay = jnp.where(row <= column, tiles.decays(rows), jnp.float32(0.0))
        weights = decay * tiles.product(square, (written, [tiles.transposed(queries)]))
        weights_ct, through = exchange(member, here, take_bands(member, here, weights))
        query = queries.at[:, part]
        entry_ct = tiles.row_sums(through * tiles.load([query], plain))
        pl.when(member == 0)(functools.partial(reverse_weights, weights, weights_ct, decay))
        pl.when(member != 0)(functools.partial(leave, entry_ct))
        warpgroups.meet(met)
        pl.when(member == 0)(functools.partial(write_entry, entry_ct))
        found = tiles.product(square, (tiles.flipped(both), tiles.columns(written, part)))
        found = found + vector(ENTRY) * through
        tiles.emit(queries_ct_gm.at[batch, chunk, :, place, part], here.reads_ct, found)
        writes_ct_gm.at[program, chunk, :, part][...] = tiles.product(square, (both, [query]))
        if writes:
            out = gain_gm.at[program, chunk]
            gain = _gain_of_writes(shared, here.second, member, part, out)
        else:
            bands = [_band(held, i) for i in range(team)]
            gain = _gain_of_keys(shared, bands, here, part)
        _transition(shared, here.mean, member, *gain, transition_gm.at[program, chunk])
        plgpu.wait_smem_to_gmem(0)

    both = _band(held, 0).first
    warpgroups.split_up(team, run, shares.alike)


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

    def wide(*shape):
        return plgpu.SMEM(shape, bf16, transforms=tiles.WIDE)

    team = dim // BAND
    # What one warpgroup has of each array here is as large, so they share its own places only.
    sent = [(tiles.wide_float32(team),) * 2] if team > 1 else []
    low, means_place = [wide(team, LENGTH, BAND)] * parts, [wide(team, dim, BAND)] * parts
    scratch: list[Any] = [
        wide(LENGTH, dim),
        wide(LENGTH, dim),
        plgpu.SMEM((NOISE, LENGTH), f32),
        [wide(LENGTH, LENGTH)] * parts,
        [wide(LENGTH, dim)] * stored,
        (wide(team, LENGTH, BAND), plgpu.RefUnion(means_place, *sent), low, low),
        plgpu.Barrier(num_arrivals=3 + parts + stored),
        plgpu.Barrier(num_arrivals=2 + parts, num_barriers=team),
        warpgroups.meeting(team),
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
    options = {"sum_bytes": 2048 // team, **warpgroups.members(team)}  # two leave little room
    kernel = warpgroups.mosaic_kernel(
        body, out, scratch, grid=lead, grid_names=("program", "chunk"), **options
    )
    given = tokens.keys if writes is None else writes
    return Before(*kernel(*tokens, reads_ct, rows, inverse, given, means))
