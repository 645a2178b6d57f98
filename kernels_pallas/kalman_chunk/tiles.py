"""Matrices of float32 as sums of bfloat16 parts, in registers and in shared memory, and products.

All in the layout of wgmma. A product takes the products of parts that count: with 2 parts 16 bits
survive, with 3 all.
"""

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import registers
from kernels_pallas.kalman_chunk.chunks import BAND, COARSE, FINE

LENGTH = 64
"""L, tokens in a chunk: the rows of one wgmma."""

LAYOUT = plgpu.Layout.WGMMA


def wide(columns: int) -> tuple[Any, ...]:
    """How shared memory holds a bfloat16 matrix for wgmma that is sliced by `columns`, 32 or 64."""
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(2 * columns)


WIDE = wide(64)

WIDE_FLOAT32 = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
"""How shared memory holds a float32 matrix that is copied out."""


def read(ref: Any, layout: Any = LAYOUT, optimized: bool = True) -> jax.Array:
    """`plgpu.load` of a whole reference."""
    index = inspect.signature(plgpu.load).parameters.get("idx")
    needed = index is not None and index.default is inspect.Parameter.empty
    whole: tuple[Any, ...] = ((),) if needed else ()
    return plgpu.load(ref, *whole, layout=layout, optimized=optimized)


def transposed(ref: Any) -> Any:
    """The view of a matrix in shared memory with its axes swapped."""
    if jax.__version_info__ < (0, 11):
        return plgpu.transpose_ref(ref, (1, 0))
    return ref.transpose((1, 0))


def _rounded(x: jax.Array) -> jax.Array:
    """float32 rounded to what bfloat16 holds, ties away from zero.

    By integers: a conversion to bfloat16 and back runs on a unit that is several times slower, and
    so does the conversion alone where its result is not packed in pairs at once.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jax.lax.bitcast_convert_type((bits + 0x8000) & -0x10000, jnp.float32)


def split(x: jax.Array, count: int, plain: bool = True) -> list[jax.Array]:
    """Splits float32 into `count` bfloat16 whose sum it is, to 8 bits a part.

    Inside kernels only: XLA may leave out a rounding that is undone at once (`split_in_xla`).

    Args:
      x: in registers.
      count: parts.
      plain: without inlined code, which takes fewer instructions and rounds ties to even.
    """
    if not plain:
        return registers.split_pairs(x, count, LAYOUT)
    parts = []
    for i in range(count):
        part = _rounded(x) if i + 1 < count else x
        parts.append(part.astype(jnp.bfloat16))
        x = x - part
    return parts


def split_in_xla(x: jax.Array, count: int) -> list[jax.Array]:
    """`split` outside of kernels, where XLA would drop a rounding, and with it what is left."""
    parts = []
    for _ in range(count):
        part = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
        parts.append(part.astype(jnp.bfloat16))
        x = x - part
    return parts


def parts_of(x: jax.Array, count: int) -> jax.Array:
    """Parts [B H G, count, D, K] of [B, H, G, D, K], as a chain of chunks begins with them."""
    return jnp.stack(split_in_xla(x.reshape(-1, *x.shape[-2:]), count), axis=1)


def join_in_xla(parts: jax.Array, axis: int) -> jax.Array:
    """Undoes `split_in_xla`: the float32 sum of parts that lie along `axis`."""
    return jnp.sum(parts.astype(jnp.float32), axis=axis)


def store(refs: Sequence[Any], x: jax.Array, plain: bool = True) -> None:
    """Stores a float32 matrix as parts; `plain` as in `split`."""
    for ref, part in zip(refs, split(x, len(refs), plain), strict=True):
        ref[...] = part


def load(refs: Sequence[Any], plain: bool = True) -> jax.Array:
    """The float32 sum of parts, smallest first; `plain` as in `split`."""
    parts = [read(ref) for ref in refs]
    if plain:
        parts = [part.astype(jnp.float32) for part in parts]
    else:
        parts = [registers.widen(part, LAYOUT) for part in parts]
    return functools.reduce(jnp.add, reversed(parts))


def part_pairs(left: Sequence[Any], right: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Parts whose products make (sum of left) (sum of right), without those that round off."""
    kept = max(len(left), len(right))
    return [(x, y) for i, x in enumerate(left) for j, y in enumerate(right) if i + j < kept]


def product(shape: tuple[int, int], *pairs: tuple[Sequence[Any], Sequence[Any]]) -> jax.Array:
    """The sum of products of pairs of matrices, each given by its parts, [M, N] float32."""

    def scope(acc):
        for left, right in pairs:
            for x, y in part_pairs(left, right):
                plgpu.wgmma(acc, x, y)
        return acc[...]

    return pl.run_scoped(scope, plgpu.ACC(shape, jnp.float32))


def mirrored_product(
    shape: tuple[int, int], left: Sequence[Any], right: Sequence[Any]
) -> jax.Array:
    """`product`, with sums in the order in which `product` of the two transposes has them.

    `product(X^T, Y) + mirrored_product(Y^T, X)` then is symmetric to the last bit.
    """

    def scope(acc):
        for y, x in part_pairs(right, left):
            plgpu.wgmma(acc, x, y)
        return acc[...]

    return pl.run_scoped(scope, plgpu.ACC(shape, jnp.float32))


def add_product(
    so_far: jax.Array, plain: bool, *pairs: tuple[Sequence[Any], Sequence[Any]]
) -> jax.Array:
    """Adds to `so_far` what `product` makes, in the registers that hold it.

    Args:
      so_far: [M, N] float32.
      plain: add afterwards, for the interpreter, where an accumulator starts from 0.
      pairs: as of `product`.
    """
    if plain:
        return so_far + product((so_far.shape[0], so_far.shape[1]), *pairs)

    def scope(acc):
        for left, right in pairs:
            for x, y in part_pairs(left, right):
                plgpu.wgmma(acc, x, y)

    return pl.run_state(scope)(plgpu.ACC.init(so_far))


def register_product(
    left: jax.Array,
    count: int,
    right: Sequence[Any],
    across: bool,
    plain: bool,
    so_far: jax.Array | None = None,
) -> jax.Array:
    """The product of a matrix in registers, split into `count` parts, and one in shared memory.

    Args:
      left: [M, K] float32.
      count: its parts.
      right: parts [K, N], or with `across` [N, K].
      across: whether to take the transpose of `right`.
      plain: without wgmma, whose operands the interpreter wants in shared memory.
      so_far: what the product is added to, if anything.
    """
    parts = split(left, count, plain)
    if plain:
        right = [(part[...].T if across else part[...]).astype(jnp.float32) for part in right]
        pairs = part_pairs([part.astype(jnp.float32) for part in parts], right)
        return plus(so_far, functools.reduce(jnp.add, [x @ y for x, y in pairs]))
    width = right[0].shape[0 if across else 1]
    right = [transposed(part) if across else part for part in right]
    if so_far is not None:
        return add_product(so_far, plain, (parts, right))
    return product((left.shape[0], width), (parts, right))


def down(vector: Any, shape: tuple[int, int]) -> jax.Array:
    """A vector in shared memory as the column that all columns of a matrix are."""
    return jax.lax.broadcast_in_dim(read(vector, LAYOUT.reduce(1)), shape, (0,))


def across(vector: Any, shape: tuple[int, int]) -> jax.Array:
    """A vector in shared memory as the row that all rows of a matrix are."""
    return jax.lax.broadcast_in_dim(read(vector, LAYOUT.reduce(0)), shape, (1,))


def span(vectors: Any, shape: tuple[int, int]) -> jax.Array:
    """log2 of the decay from after token j to after token i (its inverse for j > i), [L, L]."""
    coarse, fine = vectors.at[COARSE], vectors.at[FINE]
    return (down(coarse, shape) - across(coarse, shape)) + (down(fine, shape) - across(fine, shape))


def by_chunk(x: jax.Array, lead: tuple[int, int, int]) -> jax.Array:
    """[B H G, N, ...] -> [N, B, H, G, ...]; `lead` is B, H, G."""
    return jnp.moveaxis(x.reshape(*lead, *x.shape[1:]), 3, 0)


def by_program(x: jax.Array) -> jax.Array:
    """[N, B, H, G, ...] -> [B H G, N, ...]."""
    return jnp.moveaxis(x, 0, 3).reshape(-1, x.shape[0], *x.shape[4:])


def bands(size: int) -> list[slice]:
    """Cuts an axis into bands."""
    return [slice(start, start + BAND) for start in range(0, size, BAND)]


def columns(parts: Sequence[Any], band: Any) -> list[Any]:
    """A band of columns of each part."""
    return [part.at[:, band] for part in parts]


def height(parts: Sequence[Any], band: slice) -> list[Any]:
    """A band of rows of each part."""
    return [part.at[band] for part in parts]


def flipped(parts: Sequence[Any]) -> list[Any]:
    """The views of parts with their axes swapped."""
    return [transposed(part) for part in parts]


def straight(ref: Any) -> jax.Array:
    """Global memory straight to registers: a load that waits for nothing."""
    return read(ref, optimized=False)


def row_sums(x: jax.Array) -> jax.Array:
    """Sums [I, J] over J."""
    return jnp.sum(x, axis=1)


def store_rows(target: Any, vectors: Sequence[jax.Array], start: int = 0) -> None:
    """Stores numbers a token as rows of shared memory, from row `start`."""
    for i, x in enumerate(vectors, start):
        target[i] = x


def load_rows(source: Any, start: int, stop: int) -> list[jax.Array]:
    """Loads what `store_rows` has stored."""
    return [read(source.at[i], LAYOUT.reduce(1)) for i in range(start, stop)]


def plus(so_far: jax.Array | None, share: jax.Array) -> jax.Array:
    """Adds a share to a sum, at once, so that registers hold one of the two only."""
    return share if so_far is None else so_far + share


def places(shape: tuple[int, int] = (LENGTH, LENGTH)) -> tuple[jax.Array, jax.Array]:
    """Row and column of each entry of a matrix."""
    row, column = (plgpu.broadcasted_iota(jnp.int32, shape, i, layout=LAYOUT) for i in (0, 1))
    return row, column


def decays(vectors: Any) -> jax.Array:
    """Decay between any two tokens, from the earlier to the later, [L, L]."""
    return jnp.exp2(-jnp.abs(span(vectors, (LENGTH, LENGTH))))


def emit(target: Any, staged: Any, value: jax.Array) -> None:
    """Writes float32 to global memory, in its dtype.

    A bfloat16 matrix goes by `staged`, shared memory that stays taken until the copy is waited for:
    registers hold too few neighbours of it for whole sectors of global memory.
    """
    if target.dtype == jnp.float32:
        target[...] = value
        return
    staged[...] = value.astype(target.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(staged, target)


def wide_float32(team: int) -> Any:
    """Shared memory for float32 matrices [L, 64] that `team` warpgroups have for one another."""
    return plgpu.SMEM((team, LENGTH, BAND), jnp.float32, transforms=WIDE_FLOAT32)
