"""Matrices of float32 as sums of bfloat16 parts, in registers and in shared memory, and products.

All in the layout of wgmma. A product takes the products of parts that count: with 2 parts 16 bits
survive, with 3 all.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

LENGTH = 64
"""L, tokens in a chunk: [S | I] then has a row for each of a warpgroup's 128 threads."""

LAYOUT = plgpu.Layout.WGMMA

WIDE_FLOAT32 = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
"""How shared memory holds a float32 matrix that is copied out."""


RESET = -40.0
"""Floor of log2 of a decay, a document start included, where decays come from sums c_i."""


def mosaic_kernel(body: Callable[..., None], out: Any, scratch: Any, **options: Any) -> Any:
    """`plgpu.kernel` with the names that this version of JAX has for outputs and scratch."""
    known = inspect.signature(plgpu.kernel).parameters
    named = {
        "out_type" if "scratch_types" in known else "out_shape": out,
        "scratch_types" if "scratch_types" in known else "scratch_shapes": scratch,
    }
    params = plgpu.CompilerParams(
        lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True
    )
    return plgpu.kernel(body, compiler_params=params, **named, **options)


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


def split(x: jax.Array, count: int) -> list[jax.Array]:
    """Splits float32 into `count` bfloat16 whose sum it is, to 8 bits a part.

    Inside kernels only: XLA may leave out a rounding that is undone at once (`split_in_xla`).
    """
    parts = []
    for _ in range(count):
        part = x.astype(jnp.bfloat16)
        parts.append(part)
        x = x - part.astype(jnp.float32)
    return parts


def split_in_xla(x: jax.Array, count: int) -> list[jax.Array]:
    """`split` outside of kernels, where XLA would otherwise drop the rounding and with it the rest."""
    parts = []
    for _ in range(count):
        part = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
        parts.append(part.astype(jnp.bfloat16))
        x = x - part
    return parts


def store(refs: Sequence[Any], x: jax.Array) -> None:
    """Stores a float32 matrix as parts."""
    for ref, part in zip(refs, split(x, len(refs)), strict=True):
        ref[...] = part


def load(refs: Sequence[Any]) -> jax.Array:
    """The float32 sum of parts, smallest first."""
    parts = [read(ref).astype(jnp.float32) for ref in refs]
    return functools.reduce(jnp.add, reversed(parts))


def _pairs(left: Sequence[Any], right: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Parts whose products make (sum of left) (sum of right), without those that round off."""
    kept = max(len(left), len(right))
    return [(x, y) for i, x in enumerate(left) for j, y in enumerate(right) if i + j < kept]


def product(shape: tuple[int, int], *pairs: tuple[Sequence[Any], Sequence[Any]]) -> jax.Array:
    """The sum of products of pairs of matrices, each given by its parts, [M, N] float32."""

    def scope(acc):
        for left, right in pairs:
            for x, y in _pairs(left, right):
                plgpu.wgmma(acc, x, y)
        return acc[...]

    return pl.run_scoped(scope, plgpu.ACC(shape, jnp.float32))


def register_product(
    left: jax.Array, count: int, right: Sequence[Any], across: bool, plain: bool
) -> jax.Array:
    """The product of a matrix in registers, split into `count` parts, and one in shared memory.

    Args:
      left: [M, K] float32.
      count: its parts.
      right: parts [K, N], or with `across` [N, K].
      across: whether to take the transpose of `right`.
      plain: without wgmma, whose operands the interpreter wants in shared memory.
    """
    parts = split(left, count)
    if plain:
        right = [(part[...].T if across else part[...]).astype(jnp.float32) for part in right]
        pairs = _pairs([part.astype(jnp.float32) for part in parts], right)
        return functools.reduce(jnp.add, [x @ y for x, y in pairs])
    width = right[0].shape[0 if across else 1]
    right = [transposed(part) if across else part for part in right]
    return product((left.shape[0], width), (parts, right))


def log_sums(ratio: jax.Array) -> jax.Array:
    """Returns cumulative log decays [..., L], in units of log 2, from decays [..., L, L]."""
    steps = jnp.diagonal(ratio, -1, axis1=-2, axis2=-1)
    logs = jnp.maximum(jnp.log2(steps), RESET)
    return jnp.cumsum(jnp.pad(logs, [(0, 0)] * (logs.ndim - 1) + [(1, 0)]), axis=-1)
