"""The token scan with a reverse pass of its own, which keeps and visits touched rows only.

Differentiated automatically, each gather of the scan becomes an addition to the gradient of all S
slots. Here the gradient of the slots is carried backwards in place, as the slots are forwards: a
token gathers the rows of its slots, changes them, and puts them back. What the forward pass keeps
are the rows that it touched, O(T K M), and no state in between.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.ops.slots.types import MASS_FLOOR, SlotInputs, SlotOutputs


class _Tokens(NamedTuple):
    """Inputs of the tokens, time first; slot numbers are row numbers of all heads' tables."""

    write_rows: jax.Array  # [T, B, H, K] int32
    write_weights: jax.Array  # [T, B, H, K]
    keep: jax.Array  # [T, B, H, K]
    read_rows: jax.Array  # [T, B, H, R] int32
    read_weights: jax.Array  # [T, B, H, R]
    v: jax.Array  # [T, B, H, M]
    starts: jax.Array | None  # [T, B] bool


def touched(inputs: SlotInputs) -> SlotOutputs:
    """The token scan of `reference.recurrent`, with its own reverse pass.

    Content and mass of a slot lie side by side, as one row [M + 1] of a table [B H S, M + 1].
    """
    batch, heads, slots, width = inputs.content.shape
    first = slots * jnp.arange(batch * heads, dtype=jnp.int32).reshape(batch, 1, heads, 1)
    tokens = _Tokens(
        inputs.write_ids + first,
        inputs.write_weights,
        inputs.keep,
        inputs.read_ids + first,
        inputs.read_weights,
        inputs.v,
        inputs.starts,
    )
    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
    table = jnp.concatenate([inputs.content, inputs.mass[..., None]], axis=-1)
    o, table = _scan(tokens, table.reshape(-1, width + 1))
    table = table.reshape(batch, heads, slots, width + 1)
    return SlotOutputs(jnp.moveaxis(o, 0, 1), table[..., :-1], table[..., -1])


def _take(table: jax.Array, rows: jax.Array) -> jax.Array:
    return table.at[rows].get(mode="promise_in_bounds")


def _put(table: jax.Array, rows: jax.Array, values: jax.Array) -> jax.Array:
    return table.at[rows].set(values, mode="promise_in_bounds", unique_indices=True)


def _restart(table: jax.Array, start: jax.Array | None, row: jax.Array) -> jax.Array:
    """Sets all slots of the batch rows that `start` [B] names to `row`; free where none does."""
    if start is None:
        return table

    def restarted(table):
        slots = table.reshape(start.shape[0], -1, table.shape[-1])
        return jnp.where(start[:, None, None], row, slots).reshape(table.shape)

    return jax.lax.cond(jnp.any(start), restarted, lambda table: table, table)


def _write(token: _Tokens, old: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the error v - s [B, H, K, M], the new mass [B, H, K] and eta [B, H, K]."""
    mass = token.keep * old[..., -1] + token.write_weights
    return token.v[..., None, :] - old[..., :-1], mass, token.write_weights / (mass + MASS_FLOOR)


def _forward(
    tokens: _Tokens, table: jax.Array, residuals: bool
) -> tuple[jax.Array, jax.Array, Any]:
    """Scans the tokens; with `residuals` also returns the rows before each write, and those read.

    Returns:
      o [T, B, H, M], the last table, and (rows [T, B, H, K, M + 1], read rows [T, B, H, R, M]).
    """
    slots = table.shape[0] // (tokens.v.shape[1] * tokens.v.shape[2])
    fresh = jnp.zeros(table.shape[-1], table.dtype).at[-1].set(1 / slots)

    def step(table, token: _Tokens):
        table = _restart(table, token.starts, fresh)
        old = _take(table, token.write_rows)
        error, mass, eta = _write(token, old)
        content = old[..., :-1] + eta[..., None] * error
        new = jnp.concatenate([content, mass[..., None]], axis=-1)
        table = _put(table, token.write_rows, new)
        read = _take(table, token.read_rows)[..., :-1]
        o = jnp.sum(token.read_weights[..., None] * read, axis=-2)
        return table, (o, (old, read) if residuals else None)

    table, (o, kept) = jax.lax.scan(step, table, tokens)
    return o, table, kept


@jax.custom_vjp
def _scan(tokens: _Tokens, table: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _forward(tokens, table, residuals=False)[:2]


def _scan_forward(tokens: _Tokens, table: jax.Array):
    o, table, kept = _forward(tokens, table, residuals=True)
    return (o, table), (tokens, *kept)


def _scan_reverse(kept, cotangents):
    """Carries the gradient g of the table backwards; equations (9)-(14) of the README."""
    tokens, old, read = kept
    of_o, of_table = cotangents
    nothing = jnp.zeros(of_table.shape[-1], of_table.dtype)

    def step(of_table, given):
        token, old, read, of_o = given
        of_read_weights = jnp.sum(read * of_o[..., None, :], axis=-1)
        of_read = token.read_weights[..., None] * of_o[..., None, :]
        of_read = jnp.pad(of_read, [(0, 0)] * (of_read.ndim - 1) + [(0, 1)])
        of_table = of_table.at[token.read_rows].add(of_read, mode="promise_in_bounds")
        of_new = _take(of_table, token.write_rows)
        error, mass, eta = _write(token, old)
        of_content = of_new[..., :-1]
        of_eta = jnp.sum(of_content * error, axis=-1)
        of_mass = of_new[..., -1] - of_eta * eta / (mass + MASS_FLOOR)
        of_v = jnp.sum(eta[..., None] * of_content, axis=-2)
        of_old = jnp.concatenate(
            [(1 - eta)[..., None] * of_content, (token.keep * of_mass)[..., None]], axis=-1
        )
        of_table = _put(of_table, token.write_rows, of_old)
        of_table = _restart(of_table, token.starts, nothing)
        of_weights = of_eta / (mass + MASS_FLOOR) + of_mass
        of_token = token._replace(
            write_rows=None,  # type: ignore[arg-type]
            write_weights=of_weights,
            keep=of_mass * old[..., -1],
            read_rows=None,  # type: ignore[arg-type]
            read_weights=of_read_weights,
            v=of_v,
            starts=None,
        )
        return of_table, of_token

    of_table, of_tokens = jax.lax.scan(step, of_table, (tokens, old, read, of_o), reverse=True)
    return of_tokens, of_table


_scan.defvjp(_scan_forward, _scan_reverse)
