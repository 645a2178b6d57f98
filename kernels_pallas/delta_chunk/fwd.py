"""What makes errors of surprises, as a Mosaic GPU kernel: one program a chunk of a head.

No chunk waits for another. A program inverts its two diagonal blocks of 32 tokens in registers and
joins them by two products.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.delta_chunk import solve
from kernels_pallas.delta_chunk.algebra import BETA
from kernels_pallas.delta_chunk.solve import HALF, PITCH
from kernels_pallas.kalman_chunk import tiles, warpgroups
from kernels_pallas.kalman_chunk.tiles import LENGTH


def _inverse_body(
    keys_gm, rows_gm, inverse_gm, early, late, rows, loaded, *, heads: int, plain: bool
):
    """Runs one program; see `run_inverse` for the arrays in global memory (`_gm`).

    In shared memory: in one place keys [L, D], later parts of the inverse [L, L]; in one place
    -(A beta)^T [L, PITCH] float32, later parts of the second factor [L, L]; and rows [5, L].
    """
    ((keys,), inverse), ((minus,), joint) = early, late
    program, chunk = lax.axis_index("program"), lax.axis_index("chunk")
    batch, head = program // heads, lax.rem(program, heads)
    plgpu.copy_gmem_to_smem(keys_gm.at[batch, chunk, :, head], keys, loaded)
    plgpu.copy_gmem_to_smem(rows_gm.at[batch, chunk, head], rows, loaded)
    plgpu.barrier_wait(loaded)
    square = (LENGTH, LENGTH)
    row, column = tiles.places()
    zero, one = jnp.float32(0.0), jnp.float32(1.0)
    overlap = tiles.product(square, ([keys], [tiles.transposed(keys)]))
    mixed = overlap * tiles.decays(rows) * tiles.down(rows.at[BETA], square)
    mixed = jnp.where(row < column, -mixed, zero)
    minus[:, :LENGTH] = mixed
    plgpu.commit_smem()  # ends the reading of keys too
    (solve.solve_halves_plainly if plain else solve.solve_halves)(minus, inverse)
    plgpu.commit_smem()
    # (I - mixed)^{-1} = S + S C S = S (I + C S), S the inverse of the diagonal blocks, C the rest.
    across = jnp.where((row < HALF) & (column >= HALF), mixed, zero)
    change = tiles.register_product(across, len(inverse), inverse, False, plain)
    tiles.store(joint, jnp.where(row == column, one, zero) + change, plain)
    plgpu.commit_smem()
    whole = tiles.product(square, (inverse, joint))
    whole = whole * tiles.across(rows.at[BETA], square)
    plgpu.commit_smem()  # all warps are done with `inverse`
    tiles.store(inverse, whole, plain)
    plgpu.commit_smem()
    for i, part in enumerate(inverse):
        plgpu.copy_smem_to_gmem(part, inverse_gm.at[program, chunk, i])
    plgpu.wait_smem_to_gmem(0)


def run_inverse(
    keys: jax.Array, rows: jax.Array, *, parts: int = 2, interpret: bool = False
) -> jax.Array:
    """Launches the kernel.

    Args:
      keys: [B, N, L, H, D] bfloat16, L = 64; 64 divides D.
      rows: [B, N, H, 5, L] float32, see `chunks.stack` and `algebra.BETA`.
      parts: bfloat16 numbers that stand for a float32 one.
      interpret: run without inlined code, for the interpreter.

    Returns:
      Parts [B H, N, parts, L, L] bfloat16 of the transpose of T = beta (I + A beta)^{-1}.
    """
    batch, chunks, _, heads, dim = keys.shape
    bf16, f32 = jnp.bfloat16, jnp.float32

    def wide(width):
        return plgpu.SMEM((LENGTH, width), bf16, transforms=tiles.WIDE)

    scratch = [
        plgpu.RefUnion([wide(dim)], [wide(LENGTH)] * parts),
        plgpu.RefUnion([plgpu.SMEM((LENGTH, PITCH), f32)], [wide(LENGTH)] * parts),
        plgpu.SMEM((5, LENGTH), f32),
        plgpu.Barrier(num_arrivals=2),
    ]
    body = functools.partial(_inverse_body, heads=heads, plain=interpret)
    out = jax.ShapeDtypeStruct((batch * heads, chunks, parts, LENGTH, LENGTH), bf16)
    grid = (batch * heads, chunks)
    return warpgroups.mosaic_kernel(body, out, scratch, grid=grid, grid_names=("program", "chunk"))(
        keys, rows
    )
