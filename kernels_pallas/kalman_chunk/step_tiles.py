"""What steps of 16 tokens are made of: where things are, and products of thin matrices.

Matrices of a step are transposed, [64, 16] with channels down: so a product has the 64 rows that a
warpgroup makes at once, and P and M^T, which it is multiplied with, stay in registers.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import tiles
from kernels_pallas.kalman_chunk.chunks import BAND, COARSE, FINE
from kernels_pallas.kalman_chunk.elimination import STEP, Factor
from kernels_pallas.kalman_chunk.tiles import LAYOUT, LENGTH

DIM = BAND
"""D and m of a program."""

THIN, SQUARE = (DIM, STEP), (DIM, DIM)

TALL = (LENGTH, STEP)
"""A step's columns of what belongs to a chunk's tokens."""

STEPS = LENGTH // STEP
"""Steps of a chunk."""


class Arrays(NamedTuple):
    """In global memory; see `steps.run_steps`."""

    queries: Any
    keys: Any
    values: Any
    rows: Any
    obs_var: Any
    first_cov: Any
    first_mean: Any
    writes: Any
    covs: Any
    reads: Any
    means: Any


class Held(NamedTuple):
    """In shared memory. Lists are parts, bfloat16. What both warpgroups read is there twice."""

    keys: Any  # [2, L, D] bfloat16
    rows: Any  # [2, 5, L] float32, counted from the entry of each token's step
    obs_var: Any  # [2, L] float32
    key_cov: list[Any]  # [D, 16] P K^T
    joint: Any  # [L, PITCH] float32, S in the rows of the step
    found: Any  # [32, FOUND_PITCH] float32, see `elimination`
    inverse: list[Any]  # [2, 16, 16] T^T
    aged: list[Any]  # [16, 16] T^T times decays
    s: list[Any]  # [16, 16] S
    gain: list[Any]  # [D, 16]
    inner: list[Any]  # [D, 16] X's inner factor
    writes: list[Any]  # [2, 16, D] U
    cov: list[Any]  # [D, D] what goes out
    queries: Any  # [L, D] bfloat16
    values: Any  # [L, m] bfloat16
    weights: list[Any]  # [L, 16] W in the rows of the step
    mean: list[Any]  # [D, m] what goes out
    read: Any  # [16, m] bfloat16, the same
    keys_loaded: Any  # barriers: of copies of keys and numbers,
    cov_loaded: Any  # of the first covariance,
    tokens_loaded: Any  # of queries and values,
    mean_loaded: Any  # of the first mean,
    made: Any  # [2] of T and U of a step, there
    taken: Any  # [2] and read,
    freed: Any  # and of keys: the reader has the next ones and is done with those before


class Program(NamedTuple):
    """Where a program is."""

    program: Any
    batch: Any
    place: Any  # head and noise group
    head: Any
    plain: bool


def products(
    shapes: Sequence[tuple[int, int]],
    sums: Sequence[Sequence[tuple[Any, Any]]],
    plain: bool,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[jax.Array]:
    """Sums of products of pairs of matrices, all waited for once.

    Args:
      shapes: [M, N] of each sum.
      sums: pairs of each, the left ones in registers or in shared memory.
      plain: without wgmma, whose operands the interpreter wants in shared memory.
      meanwhile: done while the products run.
    """
    if plain:
        meanwhile()
        f32 = jnp.float32
        return [sum(x[...].astype(f32) @ y[...].astype(f32) for x, y in each) for each in sums]

    def scope(*accumulators):
        for acc, each in zip(accumulators, sums, strict=True):
            for x, y in each:
                plgpu.wgmma(acc, x, y)
        meanwhile()
        return [acc[...] for acc in accumulators]

    return pl.run_scoped(scope, *[plgpu.ACC(shape, jnp.float32) for shape in shapes])


def times(left: jax.Array, right: Sequence[Any], plain: bool) -> jax.Array:
    """A float32 matrix in registers, as parts, times parts in shared memory."""
    return tiles.register_product(left, len(right), right, False, plain)


def turned(ref: Any, plain: bool) -> jax.Array:
    """Loads the transpose of a bfloat16 matrix in shared memory, as float32."""
    if plain:
        return ref[...].T.astype(jnp.float32)
    x = tiles.read(tiles.transposed(ref), plgpu.Layout.WGMMA_TRANSPOSED)
    return plgpu.layout_cast(x, LAYOUT).astype(jnp.float32)


def store_turned(refs: Sequence[Any], x: jax.Array, plain: bool) -> None:
    """Stores the transpose of a matrix in registers, as parts."""
    for ref, part in zip(refs, tiles.split(x, len(refs), plain), strict=True):
        if plain:
            ref[...] = part.T
        else:
            tiles.transposed(ref)[...] = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)


def decays(vectors: Any, number: Any) -> jax.Array:
    """Decay between any token of the chunk and those of a step, from the earlier, [L, 16]."""
    here = pl.ds(number * STEP, STEP)
    coarse, fine = (vectors.at[row] for row in (COARSE, FINE))
    span = tiles.down(coarse, TALL) - tiles.across(coarse.at[here], TALL)
    span = span + (tiles.down(fine, TALL) - tiles.across(fine.at[here], TALL))
    return jnp.exp2(-jnp.abs(span))


def places(number: Any) -> tuple[jax.Array, jax.Array]:
    """Row and column of each entry of [L, 16], rows counted from the step's first token."""
    row, column = tiles.places(TALL)
    return row - number * STEP, column


def factor_of(held: Held, turn: Any) -> Factor:
    """Where the factor of a step goes; `turn` is its number modulo 2."""
    return Factor([part.at[turn] for part in held.inverse], held.aged, held.s)
