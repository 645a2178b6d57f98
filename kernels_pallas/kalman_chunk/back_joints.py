"""The reverse between its chains, second part, as a Mosaic GPU kernel: one program a chunk.

From the cotangents of T and U to those of S and of Cov(S_j) k_j, and what the chunk adds to the
cotangent of the covariance. Symbols, and the numbers of formulas, are README.md's; a bar is `_ct`.
Parts and precision as in `tiles`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import tiles, warpgroups
from kernels_pallas.kalman_chunk.back_means import Means
from kernels_pallas.kalman_chunk.back_transitions import LN2
from kernels_pallas.kalman_chunk.chunks import ENTRY, NOISE
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

LATER_CT, EARLIER_CT = range(2)
"""Rows of `Joints.vectors_ct`: of c_i as the later and the earlier of two tokens."""


class Joints(NamedTuple):
    """What the kernel leaves."""

    own: jax.Array  # [B H G, N, D, D] float32, what a chunk adds to the cotangent of P
    joint_ct: jax.Array  # [B H G, N, L, L] float32, Sb as of (16)
    rows_ct: jax.Array  # [B H G, N, L, D] float32, Cb as of (15)
    vectors_ct: jax.Array  # [B H G, N, 2, L] float32


def key_cov(keys: Any, cov: Any, part: slice) -> jax.Array:
    """A band of columns of K (P + P^T) / 2: rounding makes P unsymmetric."""
    right = tiles.columns(cov, part), tiles.flipped(tiles.height(cov, part))
    return 0.5 * tiles.product((LENGTH, BAND), *((keys, x) for x in right))


def _joints_body(
    keys_gm, rows_gm, inverse_gm, cov_gm, inverse_ct_gm, writes_ct_gm,
    own_gm, joint_ct_gm, rows_ct_gm, vectors_ct_gm,
    keys, rows, inverse, held, loaded,
    *, heads: int, groups: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_joints` for the arrays in global memory (`_gm`).

    In shared memory: keys [L, D], rows [5, L] float32, parts of T^T [L, L], of the covariance
    [D, D], of Cov(S_j) k_j (later Hb) and Ub [L, D], and parts [L, L] of what is an operand for a
    while. At D = 128 the last three take the place of what is no operand any more, so that an SM
    has room for two programs.
    """
    program, chunk = lax.axis_index("program"), lax.axis_index("chunk")
    count, dim = len(inverse), keys.shape[1]
    batch, place = program // (heads * groups), lax.rem(program, heads * groups)
    square, parts, apart = (LENGTH, LENGTH), tiles.bands(dim), dim == BAND
    cov, (carried, writes_ct), (*_, work) = held

    def vector(index):
        return tiles.down(rows.at[index], square)

    def joint_cotangent(inverse_ct):
        """Sb = -T^T sym(half(Tb T^T)) T, from Tb^T."""
        row, column = tiles.places()
        tiles.store(work, jnp.where(row <= column, inverse_ct, jnp.float32(0.0)), plain)
        plgpu.commit_smem()
        whole = tiles.product(square, (tiles.flipped(inverse), work))
        kept = jnp.where(row == column, 0.5 * whole, whole)
        plgpu.commit_smem()
        tiles.store(work, jnp.where(row <= column, kept, jnp.float32(0.0)), plain)
        plgpu.commit_smem()
        right = tiles.flipped(inverse)
        both = 0.5 * tiles.product(square, (work, right), (tiles.flipped(work), right))
        plgpu.commit_smem()
        tiles.store(work, both, plain)
        plgpu.commit_smem()
        return -tiles.product(square, (inverse, work))

    def take_writes_ct():
        for part in parts:
            given = tiles.straight(writes_ct_gm.at[program, chunk, :, part])
            tiles.store(tiles.columns(writes_ct, part), given, plain)

    for source, target in (
        (keys_gm.at[batch, chunk, :, place // groups], keys),
        (rows_gm.at[batch, chunk, place // groups], rows),
        *((inverse_gm.at[program, chunk, i], x) for i, x in enumerate(inverse)),
        *((cov_gm.at[program, chunk, i], x) for i, x in enumerate(cov)),
    ):
        plgpu.copy_gmem_to_smem(source, target, loaded)
    inverse_ct = tiles.straight(inverse_ct_gm.at[program, chunk])
    if apart:
        take_writes_ct()
    plgpu.barrier_wait(loaded)
    entry, known = vector(ENTRY), []
    for part in parts:
        wide = tiles.load([keys.at[:, part]], plain)
        known.append(key_cov([keys], cov, part) * entry * entry + wide * vector(NOISE))
    if not apart:
        plgpu.commit_smem()
    for part, found in zip(parts, known, strict=True):
        tiles.store(tiles.columns(carried, part), found, plain)
    if not apart:
        take_writes_ct()
    plgpu.commit_smem()
    aged_ct = tiles.product(square, (carried, tiles.flipped(writes_ct)))
    decay = tiles.decays(rows)
    aged = tiles.load(inverse, plain) * decay
    pairs = jnp.float32(LN2) * aged_ct * aged
    vectors_ct_gm.at[program, chunk, EARLIER_CT][...] = tiles.row_sums(pairs)
    vectors_ct_gm.at[program, chunk, LATER_CT][...] = jnp.sum(pairs, axis=0)
    rows_ct = [
        tiles.register_product(aged, count, tiles.columns(writes_ct, part), False, plain)
        for part in parts
    ]
    if not apart:
        plgpu.commit_smem()
    joint_ct = joint_cotangent(inverse_ct + decay * aged_ct)
    joint_ct_gm.at[program, chunk][...] = joint_ct
    entry = vector(ENTRY)
    joint_ct = entry * tiles.across(rows.at[ENTRY], square) * joint_ct
    for part, band_ct in zip(parts, rows_ct, strict=True):
        rows_ct_gm.at[program, chunk, :, part][...] = band_ct
        spread = tiles.register_product(joint_ct, count, [keys.at[:, part]], False, plain)
        tiles.store(tiles.columns(carried, part), spread + entry * entry * band_ct, plain)
    plgpu.commit_smem()
    for left in parts:
        for right in parts:
            own = tiles.product(
                square,
                ([tiles.transposed(keys.at[:, left])], tiles.columns(carried, right)),
                (tiles.flipped(tiles.columns(carried, left)), [keys.at[:, right]]),
            )
            own_gm.at[program, chunk, left, right][...] = 0.5 * own


def run_joints(
    keys: jax.Array,
    rows: jax.Array,
    inverse: jax.Array,
    covs: jax.Array,
    means: Means,
    *,
    interpret: bool = False,
) -> Joints:
    """Launches the kernel.

    Args:
      keys: [B, N, L, H, D] bfloat16; L = 64, 64 divides D.
      rows: [B, N, H, 5, L] float32, see `chunks.stack`.
      inverse: [B H G, N, parts, L, L] bfloat16, parts of T^T.
      covs: [B H G, N + 1, parts, D, D] bfloat16, parts of P at chunk entries and at the end.
      means: from the mean chain.
      interpret: run without what the interpreter does not have.
    """
    batch, _, _, heads, dim = keys.shape
    programs, chunks, parts = inverse.shape[:3]
    f32 = jnp.float32

    def wide(height, width):
        return plgpu.SMEM((height, width), jnp.bfloat16, transforms=tiles.WIDE)

    held: Any
    tall, square = [wide(LENGTH, dim)] * parts, [wide(LENGTH, LENGTH)] * parts
    if dim == BAND:
        held = [wide(dim, dim)] * parts, (tall, tall), (square,)
    else:
        held = plgpu.RefUnion([wide(dim, dim)] * parts, (tall, tall), (tall, square))
    scratch: list[Any] = [
        wide(LENGTH, dim),
        plgpu.SMEM((5, LENGTH), f32),
        square,
        held,
        plgpu.Barrier(num_arrivals=2 + 2 * parts),
    ]
    shape, lead = jax.ShapeDtypeStruct, (programs, chunks)
    out = [
        shape((*lead, dim, dim), f32),
        shape((*lead, LENGTH, LENGTH), f32),
        shape((*lead, LENGTH, dim), f32),
        shape((*lead, 2, LENGTH), f32),
    ]
    groups = programs // (batch * heads)
    body = functools.partial(_joints_body, heads=heads, groups=groups, plain=interpret)
    kernel = warpgroups.mosaic_kernel(
        body, out, scratch, grid=lead, grid_names=("program", "chunk")
    )
    return Joints(*kernel(keys, rows, inverse, covs, means.inverse_ct, means.writes_ct))
