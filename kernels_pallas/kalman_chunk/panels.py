"""One panel of the factorization, a row of the matrix a thread, in registers.

Written in Mosaic GPU's own dialect: eight pivots depend on each other one after the other, and what
counts is their latency. Every thread repeats the 8 x 8 Cholesky of the panel's diagonal block, so
that no pivot has to travel between threads, and then solves its own row.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir

from kernels_pallas.kalman_chunk import tiles
from kernels_pallas.kalman_chunk.registers import (
    arith,
    asm,
    below,
    bf16_parts,
    distance,
    equal,
    f32,
    i32,
    llvm,
    load_vector,
    multiply_subtract,
    store_vector,
    store_wide,
    tf32_parts,
    this_thread,
)

WIDTH = 8
"""Pivots of a panel."""

SIZE = 64
"""Rows and columns of S."""

PITCH = 24
"""Numbers between two rows of the panel in shared memory: 16-byte reads without bank conflicts."""

PIVOT_FLOOR = 1e-6
"""No squared pivot is below a reading's own noise, so none is below the floor of r^2."""

PANEL = (plgpu.TilingTransform((8, WIDTH)), plgpu.SwizzleTransform(4 * WIDTH))
"""How shared memory holds a finished panel, [64, 8] float32, for wgmma."""


def _row_of_panel(
    panel: ir.Value, block: ir.Value, row: ir.Value, start: ir.Value
) -> list[ir.Value]:
    """Factors the block and solves a row of the panel: row (chol(block)^T)^{-1}.

    A row of the block itself has been eliminated with this panel: it is one of the identity.
    """
    d: list[list[Any]] = [[None] * WIDTH for _ in range(WIDTH)]
    for i in range(WIDTH):
        for quarter in range(i // 4 + 1):
            loaded = load_vector(block, i * PITCH + 4 * quarter)
            for j in range(4):
                if 4 * quarter + j <= i:
                    d[i][4 * quarter + j] = loaded[j]
    own = arith.muli(row, i32(PITCH))
    inside = below(arith.subi(row, start), i32(WIDTH))  # unsigned: rows before it are not
    x: list[ir.Value] = []
    for quarter in range(WIDTH // 4):
        x += load_vector(panel, arith.addi(own, i32(4 * quarter)))
    for a in range(WIDTH):
        here = equal(row, arith.addi(start, i32(a)))
        x[a] = arith.select(inside, arith.select(here, f32(1.0), f32(0.0)), x[a])
    floor = f32(PIVOT_FLOOR)
    for a in range(WIDTH):
        scale = asm("rsqrt.approx.ftz.f32", asm("max.f32", d[a][a], floor))
        column = {b: asm("mul.rn.f32", d[b][a], scale) for b in range(a + 1, WIDTH)}
        minus = {b: asm("neg.f32", column[b]) for b in column}
        for b in column:
            for c in range(b, WIDTH):
                d[c][b] = multiply_subtract(d[c][b], minus[b], column[c])
        x[a] = asm("mul.rn.f32", x[a], scale)
        for b in column:
            x[b] = multiply_subtract(x[b], minus[b], x[a])
    return x


def _panel_places(number: ir.Value, row: ir.Value) -> list[ir.Value]:
    """Where the halves of a row of a finished panel lie: bit 2 of the row swaps them."""
    swap = arith.andi(arith.shrui(row, i32(2)), i32(1))
    first = arith.muli(arith.addi(arith.muli(number, i32(SIZE)), row), i32(WIDTH))
    return [arith.addi(first, arith.muli(arith.xori(swap, i32(half)), i32(4))) for half in range(2)]


def _store_panel(panel: ir.Value, number: ir.Value, row: ir.Value, values: list[ir.Value]) -> None:
    """Stores a row of a finished panel as `PANEL` has it."""
    for half, place in enumerate(_panel_places(number, row)):
        store_vector(panel, place, values[4 * half : 4 * half + 4])


def _load_panel(panel: ir.Value, number: ir.Value, row: ir.Value) -> list[ir.Value]:
    """Loads what `_store_panel` has stored."""
    return [x for place in _panel_places(number, row) for x in load_vector(panel, place)]


def _clear_block(finished: list[ir.Value], number: ir.Value, thread: ir.Value) -> None:
    """Clears the rows of this panel's block in all panels before it, a row a thread.

    There they were rows of chol(S). From now on they stand for the identity's, which those panels
    have no part in.
    """
    earlier, local = arith.shrui(thread, i32(3)), arith.andi(thread, i32(7))
    row = arith.addi(arith.muli(number, i32(WIDTH)), local)
    with mgpu_utils.when(below(earlier, number)):
        for panel in finished:
            _store_panel(panel, earlier, row, [f32(0.0)] * WIDTH)


def _aged(values: list[ir.Value], logs: list[ir.Value], thread: ir.Value, number: ir.Value):
    """Multiplies T_jl for the panel's 8 j by the decay from after l to after j, l the own row.

    Args:
      values: T_jl for each j.
      logs: pointers to `Vectors.coarse` and `fine`, [L] float32.
      thread: l, counted from 0.
      number: the panel's.
    """
    dtype, first = ir.F32Type.get(), arith.muli(number, i32(WIDTH))
    differences = []
    for sums in logs:
        own = llvm.load(dtype, mgpu_utils.getelementptr(sums, [thread], dtype))
        ends = [x for i in (0, 4) for x in load_vector(sums, arith.addi(first, i32(i)))]
        differences.append([asm("sub.rn.f32", end, own) for end in ends])
    spans = [asm("add.rn.f32", *both) for both in zip(*differences, strict=True)]
    zero = f32(0.0)
    aged = []
    for value, span in zip(values, spans, strict=True):
        # T is 0 where j < l, and there the sum would be positive.
        span = asm("min.f32", span, zero)
        aged.append(asm("mul.rn.f32", value, asm("ex2.approx.ftz.f32", span)))
    return aged


def factor_panel(panel: Any, block: Any, finished: list[Any]) -> None:
    """Factors one panel and solves its rows; the elimination is in place, as `chain` tells.

    Args:
      panel: [64, PITCH] float32 in shared memory, the panel's 8 columns less what earlier panels
        take from them: of S from the panel's block down, of I above. This warpgroup has just
        stored it.
      block: the panel's rows of its own 8 x 8 diagonal block, a slice [8, PITCH] of `panel`; tells
        which panel it is.
      finished: two [8, 64, 8] float32 as `PANEL`: what tf32 keeps of the solved rows, and the rest,
        of every panel. Rows below the block become the panel's columns of chol(S), the others
        those of T^T = chol(S)^{-T}; and the block's rows of earlier panels become 0, so that after
        the last panel their sum is T^T.
    """
    panels = (plgpu.RefType(PANEL),) * len(finished)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType(), panels))
    def run(_, panel, block, finished):
        panel, block, *finished = map(mgpu_utils.memref_ptr, (panel, block, *finished))
        thread = this_thread()
        number = distance(panel, block, 4 * PITCH * WIDTH)
        # What has been stored is loaded as it was stored: no fence for copies and products.
        mgpu_utils.warpgroup_barrier()
        with mgpu_utils.when(below(thread, i32(SIZE))):
            values = _row_of_panel(panel, block, thread, arith.muli(number, i32(WIDTH)))
            parts = zip(*map(tf32_parts, values), strict=True)
            for target, part in zip(finished, parts, strict=True):
                _store_panel(target, number, thread, list(part))
        with mgpu_utils.when(below(i32(SIZE - 1), thread)):
            _clear_block(finished, number, arith.subi(thread, i32(SIZE)))

    run(panel, block, tuple(finished))


def take_inverse(
    finished: list[Any], logs: tuple[Any, Any], inverse: list[Any], aged: list[Any], columns: int,
    half: int,
) -> None:  # fmt: skip
    """Makes bfloat16 parts of T^T, and of T^T times decays, from half of the finished panels.

    Args:
      finished: as `factor_panel` leaves them.
      logs: two [L] float32, `Vectors.coarse` and `fine`.
      inverse: [64, 64] bfloat16 as `tiles.wide`, parts whose sum is T^T.
      aged: the same for the transpose of T with each entry times its decay.
      columns: of `tiles.wide`.
      half: 0 or 1.
    """
    panels = (plgpu.RefType(PANEL),) * len(finished)
    wides = (plgpu.RefType(tiles.wide(columns)),) * len(inverse)

    @plgpu.inline_mgpu(arg_types=((plgpu.RefType(),) * 2, panels, wides, wides))
    def run(_, logs, finished, inverse, aged):
        coarse, fine, *finished = map(mgpu_utils.memref_ptr, (*logs, *finished))
        inverse, aged = ([mgpu_utils.memref_ptr(x) for x in parts] for parts in (inverse, aged))
        thread, count = this_thread(), len(inverse)
        row, odd = (
            arith.andi(thread, i32(SIZE - 1)),
            arith.divui(thread, i32(SIZE)),
        )
        for pair in range(SIZE // WIDTH // 4):
            number = arith.addi(i32(SIZE // WIDTH // 2 * half + 2 * pair), odd)
            high, low = (_load_panel(part, number, row) for part in finished)
            values = [asm("add.rn.f32", *both) for both in zip(high, low, strict=True)]
            decayed = _aged(values, [coarse, fine], row, number)
            for given, matrices in ((values, inverse), (decayed, aged)):
                split = [bf16_parts(x, count) for x in given]
                for i, matrix in enumerate(matrices):
                    store_wide(matrix, row, number, [x[i] for x in split], columns)

    run(tuple(logs), tuple(finished), tuple(inverse), tuple(aged))


def factor_panel_plainly(panel: Any, start: jax.Array, finished: list[Any]) -> None:
    """`factor_panel` without inlined code, for the interpreter; `start` is the first column."""
    columns, number = pl.ds(start, WIDTH), start // WIDTH
    place = jnp.arange(SIZE)[:, None] - start
    inside = (place >= 0) & (place < WIDTH)
    given = panel[:, :WIDTH]
    given = jnp.where(inside, (place == jnp.arange(WIDTH)).astype(jnp.float32), given)
    lower = jnp.linalg.cholesky(panel[columns, :WIDTH])
    rows = jax.scipy.linalg.solve_triangular(lower, given.T, lower=True).T
    finished[0][number] = rows
    finished[1][number] = jnp.zeros_like(rows)
    for earlier in range(SIZE // WIDTH):

        @pl.when(earlier < number)
        def _(earlier=earlier):
            finished[0][earlier] = jnp.where(inside, 0.0, finished[0][earlier])


def take_inverse_plainly(
    finished: list[Any], logs: tuple[Any, Any], inverse: list[Any], aged: list[Any], half: int
) -> None:
    """`take_inverse` without inlined code."""
    count = SIZE // WIDTH // 2
    for number in range(count * half, count * (half + 1)):
        columns = slice(number * WIDTH, (number + 1) * WIDTH)
        values = finished[0][number] + finished[1][number]
        spans = [sums[columns][None, :] - sums[...][:, None] for sums in logs]
        decay = jnp.exp2(jnp.minimum(spans[0] + spans[1], 0.0))
        for rest, matrices in ((values, inverse), (values * decay, aged)):
            for matrix in matrices:
                part = rest.astype(jnp.bfloat16)
                matrix[:, columns] = part
                rest = rest - part.astype(jnp.float32)
