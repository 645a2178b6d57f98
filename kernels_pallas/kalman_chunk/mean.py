"""What a chunk does with the mean, for the kernels that carry and read it; (7), (8) of README.md.

References are in shared memory, lists are parts, bfloat16. M is [D, 64], a band of value channels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from kernels_pallas.kalman_chunk import tiles
from kernels_pallas.kalman_chunk.chunks import ENTRY, TO_END
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

TALL, SQUARE = (LENGTH, BAND), (LENGTH, LENGTH)


class Arrays(NamedTuple):
    """In global memory; see `reads.run_reads`."""

    queries: Any
    keys: Any
    values: Any
    rows: Any
    inverse: Any
    writes: Any
    first: Any
    reads: Any
    means: Any


class Program(NamedTuple):
    """Where a program is."""

    program: Any
    batch: Any
    place: Any  # head and noise group
    head: Any
    channels: Any
    plain: bool


def locate(gm: Arrays, groups: int, band: Any, plain: bool) -> Program:
    """Returns where this program is.

    Args:
      gm: global memory.
      groups: G, noise groups of a head.
      band: which 64 value channels are its.
      plain: without inlined code.
    """
    program, places = lax.axis_index("program"), gm.values.shape[3]
    batch, place = program // places, lax.rem(program, places)
    channels = pl.ds(band * BAND, BAND)
    return Program(program, batch, place, place // groups, channels, plain)


def surprise(keys: Any, values: Any, mean: Sequence[Any], vectors: Any, plain: bool) -> jax.Array:
    """Returns V - a (K M), [L, 64]; `plain` as in `tiles.split`."""
    known = tiles.down(vectors.at[ENTRY], TALL) * tiles.product(TALL, ([keys], mean))
    return tiles.load([values], plain) - known


def weights(queries: Any, written: Sequence[Any], vectors: Any) -> jax.Array:
    """Returns W_ij = q_i . U_j times the decay from j to i, for j <= i, [L, L].

    Args:
      queries: [L, D].
      written: U^T, [D, L].
      vectors: numbers of each token.
    """
    overlap = tiles.product(SQUARE, ([queries], written))
    row, column = tiles.places()
    return jnp.where(row >= column, overlap * tiles.decays(vectors), jnp.float32(0.0))


def recall(
    queries: Any,
    mean: Sequence[Any],
    w: jax.Array,
    errors: Sequence[Any],
    vectors: Any,
    plain: bool,
) -> jax.Array:
    """Returns Y = a (Q M) + W E, [L, 64]; `plain` as in `tiles.register_product`."""
    recalled = tiles.down(vectors.at[ENTRY], TALL) * tiles.product(TALL, ([queries], mean))
    return recalled + tiles.register_product(w, len(mean), errors, False, plain)


def aged(error: jax.Array, vectors: Any) -> jax.Array:
    """Returns e E, [L, 64]."""
    return tiles.down(vectors.at[TO_END], TALL) * error


def following(
    mean: Sequence[Any], written: Sequence[Any], errors: Sequence[Any], vectors: Any, plain: bool
) -> jax.Array:
    """Returns M' = a_L M + U^T (e E), or rows of it; `errors` are those of `aged`."""
    change = tiles.product((mean[0].shape[0], BAND), (written, errors))
    return tiles.load(mean, plain) * vectors[ENTRY, LENGTH - 1] + change
