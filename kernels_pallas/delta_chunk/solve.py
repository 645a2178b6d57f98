"""The inverses of a chunk's two diagonal blocks, a row of them a thread, in registers.

Written in Mosaic GPU's own dialect, as `kalman_chunk.panels` is: a thread keeps a row of the
inverse, and what it is multiplied with is the same for all threads of a warp.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir

from kernels_pallas.kalman_chunk import tiles
from kernels_pallas.kalman_chunk.registers import (
    arith,
    bf16_parts,
    i32,
    load_vector,
    multiply_subtract,
    store_wide,
    this_thread,
)

HALF = tiles.LENGTH // 2
"""Rows of a block: 32, the threads of a warp."""

PITCH = tiles.LENGTH + 8
"""Numbers between two rows in shared memory: stores without bank conflicts."""


def _solve_row(minus: ir.Value, thread: ir.Value) -> list[ir.Value]:
    """Returns row `thread` mod 32 of (I - minus)^{-1}, a block of `minus` for each 32 threads.

    Each entry, once it is known, is taken into all entries right of it, which do not depend on
    each other.
    """
    block, own = arith.shrui(thread, i32(5)), arith.andi(thread, i32(HALF - 1))
    start = arith.muli(block, i32(HALF * PITCH + HALF))
    zero, one = (arith.constant(ir.F32Type.get(), x) for x in (0.0, 1.0))
    row = []
    for j in range(HALF):
        mine = arith.cmpi(arith.CmpIPredicate.eq, own, i32(j))
        row.append(arith.select(mine, one, zero))
    for i in range(HALF - 1):
        for quarter in range((i + 1) // 4, HALF // 4):
            place = arith.addi(start, i32(i * PITCH + 4 * quarter))
            for j, factor in enumerate(load_vector(minus, place), 4 * quarter):
                if j > i:
                    row[j] = multiply_subtract(row[j], factor, row[i])
    return row


def solve_halves(minus: Any, inverse: list[Any]) -> None:
    """Inverts the two diagonal blocks of I - `minus`.

    Args:
      minus: [64, PITCH] float32 in shared memory, strictly upper triangular in columns 0..63.
      inverse: parts [64, 64] bfloat16 as `tiles.WIDE` whose sum gets the two inverses, and 0
        elsewhere.
    """
    wides = (plgpu.RefType(tiles.WIDE),) * len(inverse)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), wides))
    def run(_, minus, inverse):
        source, *parts = map(mgpu_utils.memref_ptr, (minus, *inverse))
        thread = this_thread()
        with mgpu_utils.when(arith.cmpi(arith.CmpIPredicate.ult, thread, i32(2 * HALF))):
            split = [bf16_parts(x, len(parts)) for x in _solve_row(source, thread)]
            here = arith.muli(arith.shrui(thread, i32(5)), i32(HALF // 8))
            beside = arith.subi(i32(HALF // 8), here)
            zeros = [arith.constant(ir.BF16Type.get(), 0.0)] * 8
            for i, matrix in enumerate(parts):
                for eighth in range(HALF // 8):
                    place = i32(eighth)
                    values = [x[i] for x in split[8 * eighth : 8 * eighth + 8]]
                    store_wide(matrix, thread, arith.addi(here, place), values)
                    store_wide(matrix, thread, arith.addi(beside, place), zeros)

    run(minus, tuple(inverse))


def solve_halves_plainly(minus: Any, inverse: list[Any]) -> None:
    """`solve_halves` without inlined code, for the interpreter."""
    length = tiles.LENGTH
    half = jnp.arange(length) // HALF
    eye = jnp.eye(length, dtype=jnp.float32)
    blocks = eye - jnp.where(half[:, None] == half, minus[:, :length], 0.0)
    solved = jax.scipy.linalg.solve_triangular(blocks, eye, lower=False, unit_diagonal=True)
    tiles.store(inverse, solved)
