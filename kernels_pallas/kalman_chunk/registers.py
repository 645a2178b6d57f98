"""Numbers in registers and in shared memory, thread by thread, in Mosaic GPU's own dialect.

For code that has to be written so (`panels`, `elimination`, `delta_chunk.solve`, and conversions of
`tiles`): MLIR values and pointers, not arrays. The interpreter runs none of it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic import gpu as mgpu
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

SIZE = 64
"""Rows and columns of the matrices that `store_wide` knows."""

PIECE = 8
"""Columns that it stores at once: 16 bytes of bfloat16."""


def i32(value: int) -> ir.Value:
    """A constant."""
    return arith.constant(ir.IntegerType.get_signless(32), value)


def f32(value: float) -> ir.Value:
    """A constant."""
    return arith.constant(ir.F32Type.get(), value)


def below(x: ir.Value, y: ir.Value) -> ir.Value:
    """Whether x < y, unsigned."""
    return arith.cmpi(arith.CmpIPredicate.ult, x, y)


def equal(x: ir.Value, y: ir.Value) -> ir.Value:
    """Whether x = y."""
    return arith.cmpi(arith.CmpIPredicate.eq, x, y)


def asm(instruction: str, *operands: ir.Value) -> ir.Value:
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


def multiply_subtract(x: ir.Value, minus_y: ir.Value, z: ir.Value) -> ir.Value:
    """Returns x - y z in one rounding."""
    return asm("fma.rn.f32", minus_y, z, x)


def load_vector(pointer: ir.Value, offset: Any, count: int = 4) -> list[ir.Value]:
    """Loads `count` float32 at `offset`, a multiple of as many numbers."""
    dtype = ir.F32Type.get()
    address = mgpu_utils.getelementptr(pointer, [offset], dtype)
    loaded = llvm.load(ir.VectorType.get((count,), dtype), address, alignment=4 * count)
    return [vector.extract(loaded, [], [i]) for i in range(count)]


def store_vector(pointer: ir.Value, offset: ir.Value, values: list[ir.Value]) -> None:
    """Stores float32 or bfloat16 at `offset`, counted in numbers, a multiple of as many."""
    dtype = values[0].type
    packed = vector.from_elements(ir.VectorType.get((len(values),), dtype), values)
    address = mgpu_utils.getelementptr(pointer, [offset], dtype)
    llvm.store(packed, address, alignment=mgpu_utils.bytewidth(dtype) * len(values))


def shuffle(x: ir.Value, lane: ir.Value) -> ir.Value:
    """The float32 that a lane of this warp has; all lanes ask."""
    return llvm.inline_asm(
        ir.F32Type.get(),
        [x, lane],
        "shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;",
        "=f,f,r",
        has_side_effects=True,
        asm_dialect=0,
    )


def this_thread() -> ir.Value:
    """This thread's index in its warpgroup."""
    try:
        index = nvvm.read_ptx_sreg_tid_x()
    except TypeError:  # other versions of jaxlib want the type
        index = nvvm.read_ptx_sreg_tid_x(ir.IntegerType.get_signless(32))
    return arith.andi(index, i32(127))


def store_wide(
    matrix: ir.Value, row: ir.Value, eighth: ir.Value, values: list[ir.Value], columns: int = SIZE
) -> None:
    """Stores columns 8 `eighth` .. +8 of a row of a [64, 64] bfloat16 matrix, see `tiles.wide`.

    Tiles have 8 rows of 2 `columns` bytes, of whose 16-byte parts number p of row i lies at place
    p xor i (128 bytes) or p xor i/2 (64 bytes).
    """
    pieces = columns // PIECE
    local = arith.andi(row, i32(7))
    swap = local if columns == SIZE else arith.shrui(local, i32(1))
    tile = arith.muli(arith.shrui(row, i32(3)), i32(SIZE // columns))
    tile = arith.addi(tile, arith.divui(eighth, i32(pieces)))
    place = arith.xori(arith.remui(eighth, i32(pieces)), swap)
    line = arith.addi(arith.muli(tile, i32(8)), local)
    offset = arith.addi(arith.muli(line, i32(columns)), arith.muli(place, i32(PIECE)))
    store_vector(matrix, offset, values)


def fence(*kinds: str) -> None:
    """Orders a thread's accesses to memory; `kinds` as PTX names them."""

    @plgpu.inline_mgpu()
    def run(_):
        for kind in kinds:
            nothing = ir.Type.parse("!llvm.void")
            llvm.inline_asm(nothing, [], f"fence.{kind};", "~{memory}", has_side_effects=True)

    run()


def tf32_parts(x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Splits float32 in what tf32 keeps of it and the rest."""
    integer, dtype = ir.IntegerType.get_signless(32), ir.F32Type.get()
    high = llvm.bitcast(dtype, arith.andi(llvm.bitcast(integer, x), i32(-8192)))
    return high, asm("sub.rn.f32", x, high)


def bf16_parts(x: ir.Value, count: int) -> list[ir.Value]:
    """Splits float32 into a sum of `count` bfloat16; all but the last rounded as `tiles` has it."""
    low, dtype, integer = ir.BF16Type.get(), ir.F32Type.get(), ir.IntegerType.get_signless(32)
    parts = []
    for _ in range(count - 1):
        bits = arith.addi(llvm.bitcast(integer, x), i32(0x8000))
        part = llvm.bitcast(dtype, arith.andi(bits, i32(-0x10000)))
        parts.append(arith.truncf(low, part))
        x = asm("sub.rn.f32", x, part)
    return [*parts, arith.truncf(low, x)]


def _packed(low: ir.Value, high: ir.Value) -> ir.Value:
    """Two float32 rounded to bfloat16, in one register."""
    return llvm.inline_asm(
        ir.IntegerType.get_signless(32),
        [high, low],
        "cvt.rn.bf16x2.f32 $0, $1, $2;",
        "=r,f,f",
        has_side_effects=False,
        asm_dialect=0,
    )


def _halves(pair: ir.Value) -> list[ir.Value]:
    """Float32 of two packed bfloat16, the lower first."""
    dtype = ir.F32Type.get()
    bits = arith.shli(pair, i32(16)), arith.andi(pair, i32(-0x10000))
    return [llvm.bitcast(dtype, x) for x in bits]


def _array(like: Any, registers: np.ndarray) -> Any:
    """An array that lies in registers as another does."""
    return mgpu.FragmentedArray(_registers=registers, _layout=like.layout, _is_signed=None)


def widen(x: jax.Array, layout: Any) -> jax.Array:
    """bfloat16 as float32, one instruction a number, of which a register has two."""
    result = plgpu.ShapeDtypeStruct(x.shape, jnp.float32, layout=layout)

    @plgpu.inline_mgpu(arg_types=(layout,), return_type=result)
    def run(_, x):
        integer, two = ir.IntegerType.get_signless(32), ir.VectorType.get((2,), ir.F32Type.get())
        wide = np.empty_like(x.registers)
        for place, pair in np.ndenumerate(x.registers):
            wide[place] = vector.from_elements(two, _halves(llvm.bitcast(integer, pair)))
        return _array(x, wide)

    return run(x)


def split_pairs(x: jax.Array, count: int, layout: Any) -> list[jax.Array]:
    """`tiles.split` two numbers at a time: 3 instructions a number, where integers take 4."""
    result = plgpu.ShapeDtypeStruct(x.shape, jnp.bfloat16, layout=layout)

    @plgpu.inline_mgpu(arg_types=(layout,), return_type=(result,) * count)
    def run(_, x):
        two = ir.VectorType.get((2,), ir.BF16Type.get())
        parts = [np.empty_like(x.registers) for _ in range(count)]
        for place, pair in np.ndenumerate(x.registers):
            left: list[ir.Value] = [vector.extract(pair, [], [i]) for i in range(2)]
            for part in parts:
                packed = _packed(*left)
                part[place] = llvm.bitcast(two, packed)
                if part is not parts[-1]:
                    kept = _halves(packed)
                    left = [asm("sub.rn.f32", *both) for both in zip(left, kept, strict=True)]
        return tuple(_array(x, part) for part in parts)

    return list(run(x))


def distance(start: ir.Value, pointer: ir.Value, size: int) -> ir.Value:
    """How many times `size` bytes of shared memory lie between two pointers."""
    integer = ir.IntegerType.get_signless(32)
    difference = arith.subi(llvm.ptrtoint(integer, pointer), llvm.ptrtoint(integer, start))
    return arith.divui(difference, i32(size))
