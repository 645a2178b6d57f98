"""The covariance chain in steps of 16 tokens by one warpgroup, with P in registers.

It is `chain` with shorter chunks. (1) to (6) of README.md hold for any length, and U_j, all that
reads and variances take from the chain besides T, does not depend on it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import algebra, elimination, tiles
from kernels_pallas.kalman_chunk.chain_chunk import EPS
from kernels_pallas.kalman_chunk.chunks import COARSE, ENTRY, FINE, NOISE, TO_END
from kernels_pallas.kalman_chunk.elimination import STEP
from kernels_pallas.kalman_chunk.step_tiles import (
    SQUARE,
    STEPS,
    TALL,
    THIN,
    Arrays,
    Held,
    Program,
    decays,
    factor_of,
    places,
    products,
    store_turned,
    times,
    turned,
)


def _fetch(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    """Loads keys and numbers of a chunk; past the last one it loads that again."""
    given, slot = lax.min(chunk, gm.keys.shape[1] - 1), lax.rem(chunk, 2)
    for source, target in (
        (gm.keys.at[at.batch, given, :, at.head], held.keys),
        (gm.rows.at[at.batch, given, at.head], held.rows),
        (gm.obs_var.at[at.batch, given, at.place], held.obs_var),
    ):
        plgpu.copy_gmem_to_smem(source, target.at[slot], held.keys_loaded)


def _send_cov(gm: Arrays, held: Held, at: Program, chunk: Any, cov: jax.Array) -> None:
    """Writes P to global memory."""
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    tiles.store(held.cov, cov, at.plain)
    plgpu.commit_smem()
    for i, part in enumerate(held.cov):
        plgpu.copy_smem_to_gmem(part, gm.covs.at[at.program, chunk, i])


def _joint(held: Held, at: Program, number: Any, slot: Any, cov: jax.Array) -> jax.Array:
    """Leaves S in the step's rows of `joint`; returns Cov(S_j) k_j, [D, 16]."""
    keys, vectors = held.keys.at[slot], held.rows.at[slot]
    here = pl.ds(number * STEP, STEP)
    own = [vectors.at[row, here] for row in range(5)]
    own_keys, all_keys = tiles.transposed(keys.at[here]), tiles.read(keys)
    with jax.named_scope("step kp"):
        parts = tiles.split(cov, len(held.cov), at.plain)
        sums = tiles.part_pairs(parts, [own_keys]), [(all_keys, own_keys)]
        key_cov, gram = products((THIN, TALL), sums, at.plain)
        entry, noise = tiles.across(own[ENTRY], THIN), tiles.across(own[NOISE], THIN)
        carried = key_cov * entry * entry + noise * turned(keys.at[here], at.plain)
        tiles.store(held.key_cov, key_cov, at.plain)
        plgpu.commit_smem()
    with jax.named_scope("step s"):
        (s,) = products((TALL,), (tiles.part_pairs([all_keys], held.key_cov),), at.plain)
        row, column = places(number)
        noise, entry = vectors.at[NOISE], vectors.at[ENTRY]
        earlier = jnp.where(
            row >= column, tiles.across(noise.at[here], TALL), tiles.down(noise, TALL)
        )
        s = s * tiles.down(entry, TALL) * tiles.across(entry.at[here], TALL)
        s = s + gram * earlier * decays(vectors, number)
        # A reading's own noise is raised to the floor of what its variance then is.
        own_noise = tiles.down(held.obs_var.at[slot], TALL)
        floor = jnp.float32(algebra.NOISE_FLOOR * 2.0**-23) * (s + own_noise)
        own_noise = jnp.maximum(own_noise, floor)
        held.joint[:, :STEP] = s + jnp.where(row == column, own_noise, jnp.float32(0.0))
    return carried


def _gain(
    gm: Arrays, held: Held, at: Program, place: tuple[Any, Any], carried: jax.Array
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Sends U out; returns parts of K of the step and of X's inner factor, [D, 16], stored too.

    Args:
      gm: global memory.
      held: shared memory.
      at: where the program is.
      place: chunk, and step in it.
      carried: Cov(S_j) k_j.
    """
    (chunk, number), here, count = place, pl.ds(place[1] * STEP, STEP), len(held.cov)
    turn = lax.rem(number, 2)
    to, writes = factor_of(held, turn), [part.at[turn] for part in held.writes]
    to_end = tiles.across(held.rows.at[lax.rem(chunk, 2)].at[TO_END, here], THIN)
    u = times(carried, to.aged, at.plain)
    plgpu.wait_smem_to_gmem(count, wait_read_only=True)  # the step before last's
    at_end = tiles.split(u * to_end, count, at.plain)
    (gain,) = products(
        (THIN,),
        (tiles.part_pairs(at_end, tiles.flipped(to.inverse)),),
        at.plain,
        meanwhile=functools.partial(store_turned, writes, u, at.plain),
    )
    gains = tiles.split(gain, count, at.plain)
    (doubled,) = products((THIN,), (tiles.part_pairs(gains, to.s),), at.plain)
    inner = tiles.split(0.5 * doubled - carried * to_end, count, at.plain)
    for refs, parts in ((held.gain, gains), (held.inner, inner)):
        for ref, part in zip(refs, parts, strict=True):
            ref[...] = part
    plgpu.commit_smem()
    plgpu.barrier_arrive(held.made.at[turn])
    for i, part in enumerate(writes):
        plgpu.copy_smem_to_gmem(part, gm.writes.at[at.program, chunk, i, here])
    return gains, inner


def _update(
    held: Held,
    at: Program,
    vectors: Any,
    cov: jax.Array,
    factors: tuple[list[jax.Array], list[jax.Array]],
) -> jax.Array:
    """Returns P' = P a_L^2 + n_L I + X + X^T; `vectors` are those of the step.

    X and X^T are summed in the same order, so that P' is symmetric to the last bit.
    """
    gain, inner = factors
    x = tiles.part_pairs(gain, tiles.flipped(held.inner))
    mirrored = [(a, b) for b, a in tiles.part_pairs(tiles.flipped(held.gain), inner)]
    change, other = products((SQUARE, SQUARE), (x, mirrored), at.plain)
    row, column = tiles.places(SQUARE)
    here, zero = row == column, jnp.float32(0.0)
    total, noise = vectors[ENTRY, STEP - 1], vectors[NOISE, STEP - 1]
    cov = cov * (total * total) + jnp.where(here, noise, zero)
    # What rounding may have taken from a diagonal entry is put back on it.
    cov = cov + jnp.where(here, jnp.float32(EPS[len(held.cov)]) * cov, zero)
    return cov + (change + other)


def _step(gm: Arrays, held: Held, at: Program, chunk: Any, number: Any, cov: jax.Array):
    """Passes P through a step."""
    slot, turn = lax.rem(chunk, 2), lax.rem(number, 2)
    here = pl.ds(number * STEP, STEP)
    vectors = held.rows.at[slot].at[:, here]
    carried = _joint(held, at, number, slot, cov)
    used = chunk * STEPS + number >= 2  # T and U take the place of those of the step before last
    pl.when(used)(functools.partial(plgpu.barrier_wait, held.taken.at[turn]))
    with jax.named_scope("step factor"):
        logs = vectors.at[COARSE], vectors.at[FINE]
        elimination.factor(held.joint.at[here], logs, held.found, factor_of(held, turn), at.plain)
        plgpu.commit_smem()
    with jax.named_scope("step gain"):
        factors = _gain(gm, held, at, (chunk, number), carried)
    with jax.named_scope("step update"):
        return _update(held, at, vectors, cov, factors)


def run(gm: Arrays, held: Held, at: Program) -> None:
    """Filters all chunks."""
    chunks = gm.keys.shape[1]

    def one(chunk, cov):
        plgpu.barrier_wait(held.keys_loaded)
        plgpu.barrier_wait(held.freed)
        plgpu.commit_smem()
        _fetch(gm, held, at, chunk + 1)
        _send_cov(gm, held, at, chunk, cov)
        return lax.fori_loop(0, STEPS, functools.partial(_step, gm, held, at, chunk), cov)

    _fetch(gm, held, at, jnp.int32(0))
    for i, part in enumerate(held.cov):
        plgpu.copy_gmem_to_smem(gm.first_cov.at[at.program, i], part, held.cov_loaded)
    plgpu.barrier_wait(held.cov_loaded)
    cov = lax.fori_loop(0, chunks, one, tiles.load(held.cov, at.plain))
    plgpu.barrier_wait(held.keys_loaded)  # of the last fetch
    plgpu.barrier_wait(held.freed)
    for turn in range(2):
        plgpu.barrier_wait(held.taken.at[turn])
    _send_cov(gm, held, at, jnp.int32(chunks), cov)
    plgpu.wait_smem_to_gmem(0)
