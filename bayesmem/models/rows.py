"""Rows of a table by their numbers, with a gradient that is summed in one order.

The gradient of an indexed read adds the cotangents of one row in whatever order a GPU comes to
them, so that two runs of one program differ in their last bits, and soon in their losses. Here the
order is that of the reads, on every device.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.custom_vjp
def take_rows(table: Float[Array, "V W"], rows: Int[Array, "*N"]) -> Float[Array, "*N W"]:
    """Returns `table[rows]`; numbers beyond the table give NaN, as of `jnp.take`.

    Args:
      table: [V, W].
      rows: [*N] int32, numbers of rows; negative ones count from the end.

    Returns:
      [*N, W], of the table's dtype.
    """
    return jnp.take(table, rows, axis=0)


def sum_rows(
    values: Float[Array, "N W"], rows: Int[Array, " N"], count: int
) -> Float[Array, "count W"]:
    """Returns for each row the sum of its values, added in a tree over their order.

    Args:
      values: [N, W], summed in float32.
      rows: [N] int32, not negative, the row of each; those beyond `count` are left out.
      count: number of rows.

    Returns:
      [count, W] float32.
    """
    if not rows.size:
        return jnp.zeros((count, values.shape[1]), jnp.float32)
    order = jnp.argsort(rows, stable=True)
    rows, values = rows[order], values[order].astype(jnp.float32)
    turns = rows[1:] != rows[:-1]  # [N - 1]
    edge = jnp.ones(1, bool)
    first, last = jnp.concatenate([edge, turns]), jnp.concatenate([turns, edge])

    def add(before, after):
        (begun, x), (begins, y) = before, after
        return begun | begins, jnp.where(begins[:, None], y, x + y)

    _, sums = jax.lax.associative_scan(add, (first, values))
    # Every number once: what is no total goes to rows that are not there.
    places = jnp.where(last, rows, count + jnp.arange(len(rows)))
    zeros = jnp.zeros((count, values.shape[1]), jnp.float32)
    return zeros.at[places].set(sums, mode="drop", unique_indices=True)


def _take(table: jax.Array, rows: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return take_rows(table, rows), (rows, table[:, :0])


def _pull(kept: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, None]:
    rows, table = kept  # without columns: its length and dtype
    flat, count = cotangent.reshape(-1, cotangent.shape[-1]), table.shape[0]
    rows = jnp.where(rows < 0, rows + count, rows).reshape(-1)
    sums = sum_rows(flat, jnp.where(rows < 0, count, rows), count)
    return sums.astype(table.dtype), None


take_rows.defvjp(_take, _pull)
