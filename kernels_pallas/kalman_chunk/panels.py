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
from jaxlib.mlir.dialects import arith as _arith
from jaxlib.mlir.dialects import llvm as _llvm
from jaxlib.mlir.dialects import nvvm as _nvvm
from jaxlib.mlir.dialects import vector

# Their stubs name the generated functions and not those that take their place.
arith: Any = _arith
llvm: Any = _llvm
nvvm: Any = _nvvm

WIDTH = 8
"""Pivots of a panel."""

PITCH = 24
"""Numbers between two rows of the panel in shared memory: 16-byte reads without bank conflicts."""

PIVOT_FLOOR = 1e-6
"""No squared pivot is below a reading's own noise, so none is below the floor of r^2."""

PANEL = (plgpu.TilingTransform((8, WIDTH)), plgpu.SwizzleTransform(4 * WIDTH))
"""How shared memory holds a finished panel, [128, 8] float32, for wgmma."""

WIDE = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
"""How shared memory holds a bfloat16 matrix for wgmma."""


def _i32(value: int) -> ir.Value:
    return arith.constant(ir.IntegerType.get_signless(32), value)


def _asm(instruction: str, *operands: ir.Value) -> ir.Value:
    """One float32 instruction of PTX, which no pass may contract or reorder into another."""
    arguments = ", ".join(f"${i + 1}" for i in range(len(operands)))
    return llvm.inline_asm(
        ir.F32Type.get(),
        list(operands),
        f"{instruction} $0, {arguments};",
        "=f," + ",".join("f" for _ in operands),
        has_side_effects=False,
        asm_dialect=0,
    )


def _multiply_subtract(x: ir.Value, minus_y: ir.Value, z: ir.Value) -> ir.Value:
    return _asm("fma.rn.f32", minus_y, z, x)


def _load4(pointer: ir.Value, offset: Any) -> list[ir.Value]:
    """Loads four float32 at `offset`, a multiple of four numbers."""
    four = ir.VectorType.get((4,), ir.F32Type.get())
    address = mgpu_utils.getelementptr(pointer, [offset], ir.F32Type.get())
    loaded = llvm.load(four, address, alignment=16)
    return [vector.extract(loaded, [], [i]) for i in range(4)]


def _store16(pointer: ir.Value, offset: ir.Value, values: list[ir.Value]) -> None:
    """Stores 16 bytes at `offset`, counted in numbers of the dtype of `values`."""
    dtype = values[0].type
    packed = vector.from_elements(ir.VectorType.get((len(values),), dtype), values)
    address = mgpu_utils.getelementptr(pointer, [offset], dtype)
    llvm.store(packed, address, alignment=16)


def _thread() -> ir.Value:
    """This thread's index in its warpgroup."""
    try:
        index = nvvm.read_ptx_sreg_tid_x()
    except TypeError:  # other versions of jaxlib want the type
        index = nvvm.read_ptx_sreg_tid_x(ir.IntegerType.get_signless(32))
    return arith.andi(index, _i32(127))


def _row_of_panel(panel: ir.Value, block: ir.Value, thread: ir.Value) -> list[ir.Value]:
    """Factors the block and solves row `thread` of the panel: row (chol(block)^T)^{-1}."""
    d: list[list[Any]] = [[None] * WIDTH for _ in range(WIDTH)]
    for i in range(WIDTH):
        for quarter in range(i // 4 + 1):
            loaded = _load4(block, i * PITCH + 4 * quarter)
            for j in range(4):
                if 4 * quarter + j <= i:
                    d[i][4 * quarter + j] = loaded[j]
    own = arith.muli(thread, _i32(PITCH))
    row: list[ir.Value] = []
    for quarter in range(WIDTH // 4):
        row += _load4(panel, arith.addi(own, _i32(4 * quarter)))
    floor = arith.constant(ir.F32Type.get(), PIVOT_FLOOR)
    for a in range(WIDTH):
        scale = _asm("rsqrt.approx.ftz.f32", _asm("max.f32", d[a][a], floor))
        column = {b: _asm("mul.rn.f32", d[b][a], scale) for b in range(a + 1, WIDTH)}
        minus = {b: _asm("neg.f32", column[b]) for b in column}
        for b in column:
            for c in range(b, WIDTH):
                d[c][b] = _multiply_subtract(d[c][b], minus[b], column[c])
        row[a] = _asm("mul.rn.f32", row[a], scale)
        for b in column:
            row[b] = _multiply_subtract(row[b], minus[b], row[a])
    return row


def _store_panel(panel: ir.Value, thread: ir.Value, row: list[ir.Value]) -> None:
    """Stores row `thread` as `PANEL` has it: 32 bytes, halves swapped by bit 2 of the row."""
    swap = arith.andi(arith.shrui(thread, _i32(2)), _i32(1))
    for half in range(WIDTH // 4):
        place = arith.muli(arith.xori(swap, _i32(half)), _i32(4))
        offset = arith.addi(arith.muli(thread, _i32(WIDTH)), place)
        _store16(panel, offset, row[4 * half : 4 * half + 4])


def _store_wide(matrix: ir.Value, row: ir.Value, eighth: ir.Value, values: list[ir.Value]) -> None:
    """Stores columns 8 `eighth` .. +8 of a row of a [64, 64] bfloat16 matrix held as `WIDE`.

    Rows have 128 bytes; of their eight 16-byte parts, number p lies at place p xor (row mod 8).
    """
    place = arith.xori(eighth, arith.andi(row, _i32(7)))
    offset = arith.addi(arith.muli(row, _i32(64)), arith.muli(place, _i32(8)))
    _store16(matrix, offset, values)


def _tf32_parts(x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Splits float32 in what tf32 keeps of it and the rest."""
    i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
    high = llvm.bitcast(f32, arith.andi(llvm.bitcast(i32, x), _i32(-8192)))
    return high, _asm("sub.rn.f32", x, high)


def _bf16_parts(x: ir.Value, count: int) -> list[ir.Value]:
    """Splits float32 into a sum of `count` bfloat16."""
    bf16, f32 = ir.BF16Type.get(), ir.F32Type.get()
    parts = []
    for i in range(count):
        part = arith.truncf(bf16, x)
        parts.append(part)
        if i + 1 < count:
            x = _asm("sub.rn.f32", x, arith.extf(f32, part))
    return parts


def _distance(start: ir.Value, pointer: ir.Value, size: int) -> ir.Value:
    """How many times `size` bytes of shared memory lie between two pointers."""
    i32 = ir.IntegerType.get_signless(32)
    difference = arith.subi(llvm.ptrtoint(i32, pointer), llvm.ptrtoint(i32, start))
    return arith.divui(difference, _i32(size))


def _aged(values: list[ir.Value], logs: list[ir.Value], thread: ir.Value, number: ir.Value):
    """Multiplies T_jl for the panel's 8 j by the decay from after l to after j, l the own row.

    Args:
      values: T_jl for each j.
      logs: pointers to `Vectors.coarse` and `fine`, [L] float32.
      thread: l, counted from 0.
      number: the panel's.
    """
    f32, first = ir.F32Type.get(), arith.muli(number, _i32(WIDTH))
    differences = []
    for sums in logs:
        own = llvm.load(f32, mgpu_utils.getelementptr(sums, [thread], f32))
        ends = [x for i in (0, 4) for x in _load4(sums, arith.addi(first, _i32(i)))]
        differences.append([_asm("sub.rn.f32", end, own) for end in ends])
    spans = [_asm("add.rn.f32", *both) for both in zip(*differences, strict=True)]
    zero = arith.constant(ir.F32Type.get(), 0.0)
    aged = []
    for value, span in zip(values, spans, strict=True):
        # T is 0 where j < l, and there the sum would be positive.
        span = _asm("min.f32", span, zero)
        aged.append(_asm("mul.rn.f32", value, _asm("ex2.approx.ftz.f32", span)))
    return aged


def factor_panel(
    panel: Any, block: Any, logs: tuple[Any, Any], finished: list[Any], inverse: list[Any],
    aged: list[Any],
) -> None:  # fmt: skip
    """Factors one panel of [S | I]^T and solves its rows.

    Args:
      panel: [128, PITCH] float32 in shared memory, the panel's 8 columns less what earlier panels
        take from them: rows 0..63 of S, rows 64..127 of I.
      block: the panel's rows of its own 8 x 8 diagonal block, a slice [8, PITCH] of `panel`; tells
        which panel it is.
      logs: two [L] float32, `Vectors.coarse` and `fine`.
      finished: two [128, 8] float32 as `PANEL`: what tf32 keeps of the solved rows, and the rest.
        Rows 0..63 become the panel's columns of chol(S), rows 64..127 those of T^T = chol(S)^{-T}.
      inverse: [64, 64] bfloat16 as `WIDE`, parts whose sum is T^T; gets the panel's 8 columns.
      aged: the same for the transpose of T with each entry times its decay.
    """
    panels = (plgpu.RefType(PANEL),) * len(finished)
    wides = (plgpu.RefType(WIDE),) * len(inverse)

    @plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(), plgpu.RefType(), (plgpu.RefType(),) * 2, panels, wides, wides)
    )
    def run(_, panel, block, logs, finished, inverse, aged):
        pointers = map(mgpu_utils.memref_ptr, (panel, block, *logs, *finished, *inverse, *aged))
        panel, block, coarse, fine, high, low, *parts = pointers
        thread = _thread()
        row = _row_of_panel(panel, block, thread)
        highs, lows = zip(*map(_tf32_parts, row), strict=True)
        _store_panel(high, thread, list(highs))
        _store_panel(low, thread, list(lows))
        number = _distance(panel, block, 4 * PITCH * WIDTH)
        count = len(inverse)
        with mgpu_utils.when(arith.cmpi(arith.CmpIPredicate.uge, thread, _i32(64))):
            own = arith.subi(thread, _i32(64))
            for values, matrices in (
                (row, parts[:count]),
                (_aged(row, [coarse, fine], own, number), parts[count:]),
            ):
                split = [_bf16_parts(x, count) for x in values]
                for i, matrix in enumerate(matrices):
                    _store_wide(matrix, own, number, [x[i] for x in split])

    run(panel, block, tuple(logs), tuple(finished), tuple(inverse), tuple(aged))


def factor_panel_plainly(
    panel: Any,
    start: jax.Array,
    logs: tuple[Any, Any],
    finished: list[Any],
    inverse: list[Any],
    aged: list[Any],
) -> None:
    """`factor_panel` without inlined code, for the interpreter; `start` is the first column."""
    columns = pl.ds(start, WIDTH)
    lower = jnp.linalg.cholesky(panel[columns, :WIDTH])
    rows = jax.scipy.linalg.solve_triangular(lower, panel[:, :WIDTH].T, lower=True).T
    finished[0][...] = rows
    finished[1][...] = jnp.zeros_like(rows)
    spans = [sums[columns][None, :] - sums[...][:, None] for sums in logs]
    decay = jnp.exp2(jnp.minimum(spans[0] + spans[1], 0.0))
    for rest, matrices in ((rows[64:], inverse), (rows[64:] * decay, aged)):
        for matrix in matrices:
            part = rest.astype(jnp.bfloat16)
            matrix[:, columns] = part
            rest = rest - part.astype(jnp.float32)
