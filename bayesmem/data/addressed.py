"""What tasks with given addresses share: the batch, tokens, padding and queries.

A row writes labels at addresses and is then asked for the labels of some of them. Rows are drawn
by `jax.random`, in code that runs inside of `jit`, `vmap` and `scan`, so that a training step makes
its own batch on the device. A token is

    [type, address (D), one-hot label (V)]    of 1 + D + V numbers

with type 0 and the label at a write, type 1 and no label (zeros) at a query. Rows that are shorter
than the task's longest one are padded at their END, with zeros and segment id -1: causality and
the padding's mask both keep it away from the queries, and a row's queries follow its last write
without a gap. So query positions differ from row to row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class AddressBatch(NamedTuple):
    """Rows of a task with addresses; B rows of T tokens, Q queries each.

    Attributes:
      tokens: [B, T, 1 + D + V] float32, zeros at padding.
      addresses: [B, T, D] float32 of unit length, zeros at padding; key and query of every layer.
      segment_ids: [B, T] int32: 0, or -1 at padding.
      query_positions: [B, Q] int32, ascending in a row.
      targets: [B, Q] int32, label of the address that is queried.
      rivals: [B, Q] int32, label of the address that interferes with it; -1 where there is none.
    """

    tokens: Float[Array, "B T F"]
    addresses: Float[Array, "B T D"]
    segment_ids: Int[Array, "B T"]
    query_positions: Int[Array, "B Q"]
    targets: Int[Array, "B Q"]
    rivals: Int[Array, "B Q"]


class Identities(NamedTuple):
    """The N addresses of a row, and what belongs to each.

    Attributes:
      addresses: [N, D] float32 of unit length.
      labels: [N] int32.
      rivals: [N] int32, label of the address that interferes; -1 where there is none.
    """

    addresses: Float[Array, "N D"]
    labels: Int[Array, " N"]
    rivals: Int[Array, " N"]


def address_row(
    identities: Identities,
    order: Int[Array, " T"],
    first_query: Int[Array, ""],
    num_queries: int,
    num_labels: int,
) -> AddressBatch:
    """Returns one row, an `AddressBatch` without the axis B.

    Args:
      identities: the row's addresses.
      order: [T] int32, the identity of each token: writes, then queries, then -1 for padding.
      first_query: [] int32, position of the first query.
      num_queries: Q.
      num_labels: V.
    """
    steps = jnp.arange(order.shape[0])
    valid, is_query = order >= 0, (steps >= first_query) & (order >= 0)
    addresses = jnp.where(valid[:, None], identities.addresses[order], 0.0)
    # A negative label is no class of `one_hot`: zeros.
    written = jnp.where(valid & ~is_query, identities.labels[order], -1)
    parts = [is_query[:, None], addresses, jax.nn.one_hot(written, num_labels)]
    positions = first_query.astype(jnp.int32) + jnp.arange(num_queries, dtype=jnp.int32)
    asked = order[positions]
    return AddressBatch(
        tokens=jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=-1),
        addresses=addresses,
        segment_ids=jnp.where(valid, 0, -1).astype(jnp.int32),
        query_positions=positions,
        targets=identities.labels[asked],
        rivals=identities.rivals[asked],
    )


def unit(x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Returns x divided by its length; for draws, which are never zero."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)
