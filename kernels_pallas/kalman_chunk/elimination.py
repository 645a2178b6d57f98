"""The factor of one step of 16 tokens, by shuffles of one warp, in Mosaic GPU's own dialect.

The warp eliminates on [S | I]^T: lane i has row i of S, lane 16 + i row i of I. A pivot's column
goes to all lanes by shuffles, is taken into the columns right of it, and is dropped. What is left
of the lower lanes is T^T = chol(S)^{-T}. The code is short on purpose: that of a step has to stay
in the instruction cache, about 32 KB, or it runs at half the speed.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir

from kernels_pallas.kalman_chunk.panels import PIVOT_FLOOR
from kernels_pallas.kalman_chunk.registers import (
    arith,
    asm,
    below,
    bf16_parts,
    equal,
    f32,
    i32,
    llvm,
    load_vector,
    multiply_subtract,
    shuffle,
    store_vector,
    this_thread,
)

STEP = 16
"""Tokens of a step: the columns of the narrowest product that pays."""

PITCH = 24
"""Numbers between two rows of S in shared memory: stores without bank conflicts."""

FOUND_PITCH = 18
"""The same of what elimination finds, of which a warp stores a column at a time."""

NARROW = (plgpu.TilingTransform((8, STEP)), plgpu.SwizzleTransform(2 * STEP))
"""How shared memory holds a bfloat16 matrix that is sliced by 16 columns."""


class Factor(NamedTuple):
    """What a step's factorization leaves, [16, 16]; parts, bfloat16, in shared memory."""

    inverse: list[Any]  # T^T
    aged: list[Any]  # T^T times decays
    s: list[Any]  # S


def _pivot(found: ir.Value, number: int, out: ir.Value, row: list[ir.Value]) -> list[ir.Value]:
    """Takes the first column of [S | I]^T into the others, and drops it.

    Args:
      found: where columns of the lower lanes' rows go, [32, FOUND_PITCH] float32.
      number: of the pivot.
      out: offset of this lane's row of `found`. Lanes of S have rows too, which nobody reads: a
        store of half of the lanes would be a branch.
      row: of this lane.
    """
    first, *rest = row
    squared = asm("max.f32", shuffle(first, i32(number)), f32(PIVOT_FLOOR))
    others = [shuffle(first, i32(lane)) for lane in range(number + 1, STEP)]
    share = asm("mul.rn.f32", first, asm("rcp.approx.ftz.f32", squared))
    minus = asm("neg.f32", share)
    solved = asm("mul.rn.f32", first, asm("rsqrt.approx.ftz.f32", squared))
    place = mgpu_utils.getelementptr(found, [arith.addi(out, i32(number))], ir.F32Type.get())
    llvm.store(solved, place)
    return [multiply_subtract(x, minus, other) for x, other in zip(rest, others, strict=True)]


def _eliminate(joint: ir.Value, found: ir.Value, lane: ir.Value) -> None:
    """Leaves T^T in rows 16.. of `found`; one warp.

    Args:
      joint: S, [16, PITCH] float32.
      found: [32, FOUND_PITCH] float32.
      lane: of the warp.
    """
    index = arith.andi(lane, i32(STEP - 1))
    own, of_s = arith.muli(index, i32(PITCH)), below(lane, i32(STEP))
    row = [x for i in range(0, STEP, 4) for x in load_vector(joint, arith.addi(own, i32(i)))]
    for i in range(STEP):
        one = arith.select(equal(index, i32(i)), f32(1.0), f32(0.0))
        row[i] = arith.select(of_s, row[i], one)
    out = arith.muli(lane, i32(FOUND_PITCH))
    for number in range(STEP):
        row = _pivot(found, number, out, row)


def _store_parts(
    joint: ir.Value, found: ir.Value, logs: list[ir.Value], to: Factor, thread: ir.Value
) -> None:
    """Stores two entries of each matrix; all threads of a warpgroup."""
    row, first = arith.shrui(thread, i32(3)), arith.muli(arith.andi(thread, i32(7)), i32(2))
    solved = arith.muli(arith.addi(row, i32(STEP)), i32(FOUND_PITCH))
    values = load_vector(found, arith.addi(solved, first), 2)
    given = load_vector(joint, arith.addi(arith.muli(row, i32(PITCH)), first), 2)
    dtype, differences = ir.F32Type.get(), []
    for sums in logs:
        own = llvm.load(dtype, mgpu_utils.getelementptr(sums, [row], dtype))
        differences.append([asm("sub.rn.f32", end, own) for end in load_vector(sums, first, 2)])
    spans = [asm("add.rn.f32", *both) for both in zip(*differences, strict=True)]
    # T is 0 where the sum would be positive.
    decays = [asm("ex2.approx.ftz.f32", asm("min.f32", span, f32(0.0))) for span in spans]
    aged = [asm("mul.rn.f32", *both) for both in zip(values, decays, strict=True)]
    # As `NARROW` has it: bit 2 of the row swaps the halves of a row.
    local = arith.andi(row, i32(7))
    half = arith.xori(arith.shrui(first, i32(3)), arith.shrui(local, i32(2)))
    place = arith.addi(arith.muli(row, i32(STEP)), arith.muli(half, i32(8)))
    place = arith.addi(place, arith.andi(first, i32(7)))
    for pair, matrices in zip((values, aged, given), to, strict=True):
        split = [bf16_parts(x, len(matrices)) for x in pair]
        for i, matrix in enumerate(matrices):
            store_vector(matrix, place, [x[i] for x in split])


def factor(joint: Any, logs: tuple[Any, Any], found: Any, to: Factor, plain: bool) -> None:
    """Factors S of a step; a warpgroup does it, and has stored S just before.

    Args:
      joint: S, [16, PITCH] float32 in shared memory; its lower triangle is read, for `to.s` all.
      logs: two [16] float32, `Vectors.coarse` and `fine` of the step.
      found: [32, FOUND_PITCH] float32, working memory.
      to: what is made.
      plain: without inlined code, for the interpreter.
    """
    if plain:
        _factor_plainly(joint, logs, to)
        return
    narrow = (plgpu.RefType(NARROW),) * len(to.s)

    @plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(), plgpu.RefType(), (plgpu.RefType(),) * 2, (narrow,) * 3)
    )
    def run(_, joint, found, logs, to):
        joint, found, *logs = map(mgpu_utils.memref_ptr, (joint, found, *logs))
        to = Factor._make([mgpu_utils.memref_ptr(x) for x in parts] for parts in to)
        thread = this_thread()
        warp = arith.andi(mgpu_utils.warp_idx(), i32(3))
        # What has been stored is loaded as it was stored: no fence for copies and products.
        mgpu_utils.warpgroup_barrier()
        with mgpu_utils.when(equal(warp, i32(0))):
            _eliminate(joint, found, thread)
        mgpu_utils.warpgroup_barrier()
        _store_parts(joint, found, logs, to, thread)

    run(joint, found, tuple(logs), tuple(map(tuple, to)))


def _factor_plainly(joint: Any, logs: tuple[Any, Any], to: Factor) -> None:
    """`factor` without inlined code."""
    given = joint[:, :STEP]
    lower = jnp.linalg.cholesky(jnp.tril(given) + jnp.tril(given, -1).T)
    inverse = jax.scipy.linalg.solve_triangular(lower, jnp.eye(STEP), lower=True).T
    span = sum(sums[...][None, :] - sums[...][:, None] for sums in logs)
    aged = inverse * jnp.exp2(jnp.minimum(span, 0.0))
    for rest, matrices in zip((inverse, aged, given), to, strict=True):
        for matrix in matrices:
            part = rest.astype(jnp.bfloat16)
            matrix[...] = part
            rest = rest - part.astype(jnp.float32)
