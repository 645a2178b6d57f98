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

SIZE = 64
"""Rows and columns of S."""

PITCH = 24
"""Numbers between two rows of the panel in shared memory: 16-byte reads without bank conflicts."""

PIVOT_FLOOR = 1e-6
"""No squared pivot is below a reading's own noise, so none is below the floor of r^2."""

PANEL = (plgpu.TilingTransform((8, WIDTH)), plgpu.SwizzleTransform(4 * WIDTH))
"""How shared memory holds a finished panel, [64, 8] float32, for wgmma."""


def wide(columns: int) -> tuple[Any, ...]:
    """How shared memory holds a bfloat16 matrix for wgmma that is sliced by `columns`, 32 or 64."""
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(2 * columns)


WIDE = wide(64)


def _i32(value: int) -> ir.Value:
    return arith.constant(ir.IntegerType.get_signless(32), value)


def _f32(value: float) -> ir.Value:
    return arith.constant(ir.F32Type.get(), value)


def _below(x: ir.Value, y: ir.Value) -> ir.Value:
    """Whether x < y, unsigned."""
    return arith.cmpi(arith.CmpIPredicate.ult, x, y)


def _equal(x: ir.Value, y: ir.Value) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.eq, x, y)


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


def _row_of_panel(
    panel: ir.Value, block: ir.Value, row: ir.Value, start: ir.Value
) -> list[ir.Value]:
    """Factors the block and solves a row of the panel: row (chol(block)^T)^{-1}.

    A row of the block itself has been eliminated with this panel: it is one of the identity.
    """
    d: list[list[Any]] = [[None] * WIDTH for _ in range(WIDTH)]
    for i in range(WIDTH):
        for quarter in range(i // 4 + 1):
            loaded = _load4(block, i * PITCH + 4 * quarter)
            for j in range(4):
                if 4 * quarter + j <= i:
                    d[i][4 * quarter + j] = loaded[j]
    own = arith.muli(row, _i32(PITCH))
    inside = _below(arith.subi(row, start), _i32(WIDTH))  # unsigned: rows before it are not
    x: list[ir.Value] = []
    for quarter in range(WIDTH // 4):
        x += _load4(panel, arith.addi(own, _i32(4 * quarter)))
    for a in range(WIDTH):
        here = _equal(row, arith.addi(start, _i32(a)))
        x[a] = arith.select(inside, arith.select(here, _f32(1.0), _f32(0.0)), x[a])
    floor = _f32(PIVOT_FLOOR)
    for a in range(WIDTH):
        scale = _asm("rsqrt.approx.ftz.f32", _asm("max.f32", d[a][a], floor))
        column = {b: _asm("mul.rn.f32", d[b][a], scale) for b in range(a + 1, WIDTH)}
        minus = {b: _asm("neg.f32", column[b]) for b in column}
        for b in column:
            for c in range(b, WIDTH):
                d[c][b] = _multiply_subtract(d[c][b], minus[b], column[c])
        x[a] = _asm("mul.rn.f32", x[a], scale)
        for b in column:
            x[b] = _multiply_subtract(x[b], minus[b], x[a])
    return x


def _panel_places(number: ir.Value, row: ir.Value) -> list[ir.Value]:
    """Where the halves of a row of a finished panel lie: bit 2 of the row swaps them."""
    swap = arith.andi(arith.shrui(row, _i32(2)), _i32(1))
    first = arith.muli(arith.addi(arith.muli(number, _i32(SIZE)), row), _i32(WIDTH))
    return [
        arith.addi(first, arith.muli(arith.xori(swap, _i32(half)), _i32(4))) for half in range(2)
    ]


def _store_panel(panel: ir.Value, number: ir.Value, row: ir.Value, values: list[ir.Value]) -> None:
    """Stores a row of a finished panel as `PANEL` has it."""
    for half, place in enumerate(_panel_places(number, row)):
        _store16(panel, place, values[4 * half : 4 * half + 4])


def _load_panel(panel: ir.Value, number: ir.Value, row: ir.Value) -> list[ir.Value]:
    """Loads what `_store_panel` has stored."""
    return [x for place in _panel_places(number, row) for x in _load4(panel, place)]


def _clear_block(finished: list[ir.Value], number: ir.Value, thread: ir.Value) -> None:
    """Clears the rows of this panel's block in all panels before it, a row a thread.

    There they were rows of chol(S). From now on they stand for the identity's, which those panels
    have no part in.
    """
    earlier, local = arith.shrui(thread, _i32(3)), arith.andi(thread, _i32(7))
    row = arith.addi(arith.muli(number, _i32(WIDTH)), local)
    with mgpu_utils.when(_below(earlier, number)):
        for panel in finished:
            _store_panel(panel, earlier, row, [_f32(0.0)] * WIDTH)


def _store_wide(
    matrix: ir.Value, row: ir.Value, eighth: ir.Value, values: list[ir.Value], columns: int = SIZE
) -> None:
    """Stores columns 8 `eighth` .. +8 of a row of a [64, 64] bfloat16 matrix, see `wide`.

    Tiles have 8 rows of 2 `columns` bytes, of whose 16-byte parts number p of row i lies at place
    p xor i (128 bytes) or p xor i/2 (64 bytes).
    """
    pieces = columns // WIDTH
    local = arith.andi(row, _i32(7))
    swap = local if columns == SIZE else arith.shrui(local, _i32(1))
    tile = arith.muli(arith.shrui(row, _i32(3)), _i32(SIZE // columns))
    tile = arith.addi(tile, arith.divui(eighth, _i32(pieces)))
    place = arith.xori(arith.remui(eighth, _i32(pieces)), swap)
    line = arith.addi(arith.muli(tile, _i32(8)), local)
    offset = arith.addi(arith.muli(line, _i32(columns)), arith.muli(place, _i32(WIDTH)))
    _store16(matrix, offset, values)


def _tf32_parts(x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Splits float32 in what tf32 keeps of it and the rest."""
    i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
    high = llvm.bitcast(f32, arith.andi(llvm.bitcast(i32, x), _i32(-8192)))
    return high, _asm("sub.rn.f32", x, high)


def _bf16_parts(x: ir.Value, count: int) -> list[ir.Value]:
    """Splits float32 into a sum of `count` bfloat16; all but the last rounded as `tiles` has it."""
    bf16, f32, i32 = ir.BF16Type.get(), ir.F32Type.get(), ir.IntegerType.get_signless(32)
    parts = []
    for _ in range(count - 1):
        bits = arith.addi(llvm.bitcast(i32, x), _i32(0x8000))
        part = llvm.bitcast(f32, arith.andi(bits, _i32(-0x10000)))
        parts.append(arith.truncf(bf16, part))
        x = _asm("sub.rn.f32", x, part)
    return [*parts, arith.truncf(bf16, x)]


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
    zero = _f32(0.0)
    aged = []
    for value, span in zip(values, spans, strict=True):
        # T is 0 where j < l, and there the sum would be positive.
        span = _asm("min.f32", span, zero)
        aged.append(_asm("mul.rn.f32", value, _asm("ex2.approx.ftz.f32", span)))
    return aged


def factor_panel(panel: Any, block: Any, finished: list[Any]) -> None:
    """Factors one panel and solves its rows; the elimination is in place, as `chain` tells.

    Args:
      panel: [64, PITCH] float32 in shared memory, the panel's 8 columns less what earlier panels
        take from them: of S from the panel's block down, of I above.
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
        thread = _thread()
        number = _distance(panel, block, 4 * PITCH * WIDTH)
        with mgpu_utils.when(_below(thread, _i32(SIZE))):
            values = _row_of_panel(panel, block, thread, arith.muli(number, _i32(WIDTH)))
            parts = zip(*map(_tf32_parts, values), strict=True)
            for target, part in zip(finished, parts, strict=True):
                _store_panel(target, number, thread, list(part))
        with mgpu_utils.when(_below(_i32(SIZE - 1), thread)):
            _clear_block(finished, number, arith.subi(thread, _i32(SIZE)))

    run(panel, block, tuple(finished))


def take_inverse(
    finished: list[Any], logs: tuple[Any, Any], inverse: list[Any], aged: list[Any], columns: int,
    half: int,
) -> None:  # fmt: skip
    """Makes bfloat16 parts of T^T, and of T^T times decays, from half of the finished panels.

    Args:
      finished: as `factor_panel` leaves them.
      logs: two [L] float32, `Vectors.coarse` and `fine`.
      inverse: [64, 64] bfloat16 as `wide`, parts whose sum is T^T.
      aged: the same for the transpose of T with each entry times its decay.
      columns: of `wide`.
      half: 0 or 1.
    """
    panels = (plgpu.RefType(PANEL),) * len(finished)
    wides = (plgpu.RefType(wide(columns)),) * len(inverse)

    @plgpu.inline_mgpu(arg_types=((plgpu.RefType(),) * 2, panels, wides, wides))
    def run(_, logs, finished, inverse, aged):
        coarse, fine, *finished = map(mgpu_utils.memref_ptr, (*logs, *finished))
        inverse, aged = ([mgpu_utils.memref_ptr(x) for x in parts] for parts in (inverse, aged))
        thread, count = _thread(), len(inverse)
        row, odd = arith.andi(thread, _i32(SIZE - 1)), arith.divui(thread, _i32(SIZE))
        for pair in range(SIZE // WIDTH // 4):
            number = arith.addi(_i32(SIZE // WIDTH // 2 * half + 2 * pair), odd)
            high, low = (_load_panel(part, number, row) for part in finished)
            values = [_asm("add.rn.f32", *both) for both in zip(high, low, strict=True)]
            decayed = _aged(values, [coarse, fine], row, number)
            for given, matrices in ((values, inverse), (decayed, aged)):
                split = [_bf16_parts(x, count) for x in given]
                for i, matrix in enumerate(matrices):
                    _store_wide(matrix, row, number, [x[i] for x in split], columns)

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
