"""The reverse after its chains, as a Mosaic GPU kernel: one program a chunk.

From the cotangent of the covariance at a chunk's exit, and those of S and of Cov(S_j) k_j, to those
of keys and of the numbers of each token. Symbols, and the numbers of formulas, are README.md's; a
bar is `_ct`. Parts and precision as in `tiles`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import algebra, tiles, warpgroups
from kernels_pallas.kalman_chunk.back_joints import Joints, key_cov
from kernels_pallas.kalman_chunk.back_means import Means
from kernels_pallas.kalman_chunk.back_transitions import LN2
from kernels_pallas.kalman_chunk.chunks import ENTRY, NOISE, TO_END
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

ENTRY_CT, TO_END_CT, NOISE_CT, LOG_CT, OBS_VAR_CT, PASSED, TRACE = range(7)
"""Rows of `Covs.vectors_ct`: of a_i, e_i, n_i, c_i and r_i^2; then numbers whose sums are the
product of P with the cotangent of P at the exit, and the latter's trace."""

GRAM, OF_TOKENS = 4, 7
"""Of numbers a token that warpgroups leave in shared memory: where those of `reverse_gram` are, and
how many there are."""


class Covs(NamedTuple):
    """What the kernel leaves."""

    keys_ct: jax.Array  # [B, N, L, H G, D]
    vectors_ct: jax.Array  # [B H G, N, 7, L] float32


def _covs_body(
    keys_gm, rows_gm, obs_var_gm, gain_gm, cov_gm, exit_gm, joint_ct_gm, rows_ct_gm, given_gm,
    keys_ct_gm, vectors_ct_gm,
    keys, rows, obs_var, gain, cov, at_exit, held, numbers, loaded, cov_loaded, met,
    *, groups: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_covs` for the arrays in global memory (`_gm`).

    In shared memory: keys [L, D], rows [5, L] and own noise [L] float32, parts of the gain (later
    of X of (18)) [L, D], of the covariance and of its cotangent at the exit [D, D]. A warpgroup has
    a band of D; `held` [team, L, 64] is where it puts, for the other, its share of Sb, float32, and
    then what goes out; `numbers` [7, L] float32 are numbers a token: what the first one has of
    four, and three of the last one's own.
    """
    program, chunk = lax.axis_index("program"), lax.axis_index("chunk")
    count, dim, places = len(gain), keys.shape[1], keys_ct_gm.shape[3]
    batch, place = program // places, lax.rem(program, places)
    square, parts, zero = (LENGTH, LENGTH), tiles.bands(dim), jnp.float32(0.0)
    (staged,), *sent = held
    team = len(parts)

    def vector(index):
        return tiles.down(rows.at[index], square)

    def write(index, value):
        vectors_ct_gm.at[program, chunk, index][...] = value

    def total(values):
        return functools.reduce(jnp.add, values)

    def wide(part):
        return tiles.load([keys.at[:, part]], plain)

    def symmetric_product(left, right, part):
        both = tiles.columns(right, part), tiles.flipped(tiles.height(right, part))
        return 0.5 * tiles.product(square, *((left, x) for x in both))

    def add_up(member, joint_ct):
        """The sum of both warpgroups' shares of Sb."""
        for (shares,) in sent:
            shares.at[member][...] = joint_ct
        warpgroups.meet(met)
        for (shares,) in sent:
            joint_ct = joint_ct + tiles.read(shares.at[1 - member])
        return joint_ct

    def finish_exit():
        """Writes the numbers of the exit."""
        row, column = tiles.places()
        passed, trace = [], []
        for up in parts:
            for across in parts:
                band = tiles.load([x.at[up, across] for x in at_exit], plain)
                passed.append(
                    tiles.row_sums(tiles.load([x.at[up, across] for x in cov], plain) * band)
                )
                if up == across:
                    trace.append(tiles.row_sums(jnp.where(row == column, band, zero)))
        write(PASSED, total(passed))
        write(TRACE, total(trace))

    def take_band(part, joint_ct, gain_ct, rows_ct):
        """Leaves a band of X of (18) in `gain`; returns numbers a token, and n Cb."""
        entry, noise, key = vector(ENTRY), vector(NOISE), wide(part)
        rows_ct = rows_ct - 2.0 * vector(TO_END) * gain_ct
        known = key_cov([keys], cov, part)
        to_end_ct = -2.0 * gain_ct * (entry * entry * known + noise * key)
        spread = joint_ct * tiles.across(rows.at[ENTRY], square)
        spread = tiles.register_product(spread, count, [keys.at[:, part]], False, plain)
        entry_ct = 2.0 * known * (spread + entry * rows_ct)
        tiles.store(
            tiles.columns(gain, part), 2.0 * entry * spread + entry * entry * rows_ct, plain
        )
        numbers = entry_ct, to_end_ct, rows_ct * key, known * key
        return [tiles.row_sums(x) for x in numbers], noise * rows_ct

    def gram_weights(joint_ct):
        """Of keys, in what they make of the cotangent of Gram matrices."""
        row, column = tiles.places()
        noise = rows.at[NOISE]
        noise = jnp.where(row >= column, tiles.across(noise, square), tiles.down(noise, square))
        return 2.0 * joint_ct * tiles.decays(rows) * noise

    def reverse_gram(joint_ct, weights):
        """What reaches tokens by the covariance that noise makes."""
        row, column = tiles.places()
        overlap = tiles.product(square, ([keys], [tiles.transposed(keys)]))
        pairs = jnp.float32(LN2) * weights * overlap
        signed = jnp.where(row > column, pairs, jnp.where(row < column, -pairs, zero))
        write(LOG_CT, tiles.row_sums(signed))
        gathered = joint_ct * tiles.decays(rows) * overlap
        twice = jnp.where(row < column, gathered + gathered, zero)
        gathered = tiles.row_sums(jnp.where(row == column, gathered, twice))
        length = tiles.row_sums(jnp.where(row == column, overlap, zero))
        diagonal = tiles.row_sums(jnp.where(row == column, joint_ct, zero))
        tiles.store_rows(numbers, (gathered, length, diagonal), GRAM)

    def reverse_obs_var(spread, length, diagonal):
        """r_i^2 has no part in S where it was raised to the floor."""
        entry, noise, own = (
            tiles.read(x, tiles.LAYOUT.reduce(1)) for x in (rows.at[ENTRY], rows.at[NOISE], obs_var)
        )
        variance = entry * entry * spread + noise * length + own
        floor = jnp.float32(algebra.NOISE_FLOOR * 2.0**-23) * variance
        write(OBS_VAR_CT, jnp.where(floor > own, jnp.zeros_like(own), diagonal))

    def fetch_all():
        for source, target, barrier in (
            (keys_gm.at[batch, chunk, :, place // groups], keys, loaded),
            (rows_gm.at[batch, chunk, place // groups], rows, loaded),
            (obs_var_gm.at[batch, chunk, place], obs_var, loaded),
            *((gain_gm.at[program, chunk, i], x, loaded) for i, x in enumerate(gain)),
            *((exit_gm.at[program, chunk + 1, i], x, loaded) for i, x in enumerate(at_exit)),
            *((cov_gm.at[program, chunk, i], x, cov_loaded) for i, x in enumerate(cov)),
        ):
            plgpu.copy_gmem_to_smem(source, target, barrier)

    def finish(found):
        """Writes what the last warpgroup has of numbers a token, and the sums with the first's."""
        if team > 1:
            found = list(map(jnp.add, found, tiles.load_rows(numbers, 0, GRAM)))
        gathered, *own = tiles.load_rows(numbers, GRAM, OF_TOKENS)
        entry_ct, to_end_ct, noise_ct, spread = found
        write(ENTRY_CT, entry_ct)
        write(TO_END_CT, to_end_ct)
        write(NOISE_CT, noise_ct + gathered)
        reverse_obs_var(spread, *own)

    def run(member):
        part = pl.ds(member * BAND, BAND)
        pl.when(member == 0)(fetch_all)
        joint_ct = tiles.straight(joint_ct_gm.at[program, chunk])
        joint_ct = joint_ct * jnp.float32(1.0 / team)  # they add up all that each has
        rows_ct = tiles.straight(rows_ct_gm.at[program, chunk, :, part])
        plgpu.barrier_wait(loaded)
        gain_ct = symmetric_product(gain, at_exit, part)
        right = tiles.columns(gain, part)
        share = tiles.register_product(gain_ct, count, right, True, plain)
        joint_ct = add_up(member, joint_ct + share)
        plgpu.barrier_wait(cov_loaded)
        found, own = take_band(part, joint_ct, gain_ct, rows_ct)
        weights = gram_weights(joint_ct)
        pl.when(member == 0)(finish_exit)
        pl.when(member == team - 1)(functools.partial(reverse_gram, joint_ct, weights))
        pl.when(member != team - 1)(functools.partial(tiles.store_rows, numbers, found))
        warpgroups.meet(met)
        pl.when(member == team - 1)(functools.partial(finish, found))
        own = own + tiles.straight(given_gm.at[program, chunk, :, part])
        own = own + symmetric_product(gain, cov, part)
        own = own + tiles.register_product(weights, count, [keys.at[:, part]], False, plain)
        tiles.emit(keys_ct_gm.at[batch, chunk, :, place, part], staged.at[member], own)
        plgpu.wait_smem_to_gmem(0)

    warpgroups.split_up(team, run)


def run_covs(
    keys: jax.Array,
    rows: jax.Array,
    obs_var: jax.Array,
    gain: jax.Array,
    covs: jax.Array,
    covs_ct: jax.Array,
    given: tuple[Means, Joints],
    *,
    interpret: bool = False,
) -> Covs:
    """Launches the kernel.

    Args:
      keys: [B, N, L, H, D] bfloat16; L = 64, 64 divides D.
      rows: [B, N, H, 5, L] float32, see `chunks.stack`.
      obs_var: [B, N, H G, L] float32, r_i^2.
      gain: [B H G, N, parts, L, D] bfloat16, parts of G.
      covs: [B H G, N + 1, parts, D, D] bfloat16, parts of P at chunk entries and at the end.
      covs_ct: of the same form, their cotangents, as `reverse.run_reverse` leaves them.
      given: from between the chains.
      interpret: run without what the interpreter does not have.
    """
    batch, chunks, _, heads, dim = keys.shape
    programs, _, parts = gain.shape[:3]
    places = obs_var.shape[2]
    f32 = jnp.float32

    def wide(*shape):
        return plgpu.SMEM(shape, jnp.bfloat16, transforms=tiles.WIDE)

    team = dim // BAND
    sent = [[tiles.wide_float32(team)]] if team > 1 else []
    scratch: list[Any] = [
        wide(LENGTH, dim),
        plgpu.SMEM((5, LENGTH), f32),
        plgpu.SMEM((LENGTH,), f32),
        [wide(LENGTH, dim)] * parts,
        [wide(dim, dim)] * parts,
        [wide(dim, dim)] * parts,
        plgpu.RefUnion([wide(team, LENGTH, BAND)], *sent),
        plgpu.SMEM((OF_TOKENS, LENGTH), f32),
        plgpu.Barrier(num_arrivals=3 + 2 * parts),
        plgpu.Barrier(num_arrivals=parts),
        warpgroups.meeting(team),
    ]
    shape, lead = jax.ShapeDtypeStruct, (programs, chunks)
    out = [
        shape((batch, chunks, LENGTH, places, dim), jnp.bfloat16 if places == heads else f32),
        shape((*lead, 7, LENGTH), f32),
    ]
    body = functools.partial(_covs_body, groups=places // heads, plain=interpret)
    kernel = warpgroups.mosaic_kernel(
        body, out, scratch, grid=lead, grid_names=("program", "chunk"), **warpgroups.members(team)
    )
    means, joints = given
    return Covs(
        *kernel(
            keys, rows, obs_var, gain, covs, covs_ct,
            joints.joint_ct, joints.rows_ct, means.keys_ct,
        )
    )  # fmt: skip
