"""The token scan with a reverse pass of its own, which keeps and visits touched rows only.

Differentiated automatically, each gather of the scan becomes an addition to the gradient of all S
slots. Here the gradient of the slots is carried backwards in place, as the slots are forwards: a
token gathers the rows of its slots, changes them, and puts them back. All that the forward pass
keeps are the rows that it wrote over, O(T K M). Putting them back, last token first, the reverse
pass sees the slots as every token saw them.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.ops.slots.types import MASS_FLOOR, SlotInputs, SlotOutputs


class _Tokens(NamedTuple):
    """Inputs of the tokens, time first; slot numbers are row numbers in the table of all heads."""

    write_rows: jax.Array  # [T, B, H, K] int32
    write_weights: jax.Array  # [T, B, H, K]
    keep: jax.Array  # [T, B, H, K]
    read_rows: jax.Array  # [T, B, H, R] int32
    read_weights: jax.Array  # [T, B, H, R]
    v: jax.Array  # [T, B, H, M]
    document: jax.Array | None  # [T, B, 1, 1] number of the token's document


class _Write(NamedTuple):
    """One token's write to its K slots."""

    content: jax.Array  # [B, H, K, M] before
    mass: jax.Array  # [B, H, K] before
    error: jax.Array  # [B, H, K, M] v - content
    floored: jax.Array  # [B, H, K] the mass after the write, plus its floor
    eta: jax.Array  # [B, H, K]


def touched(inputs: SlotInputs) -> SlotOutputs:
    """The token scan of `reference.recurrent`, with its own reverse pass.

    A slot is one row of a table [B H S, M + 1 or M + 2]: its content, its mass and, where documents
    are packed, the number of the document that wrote it. So a document need not clear what others
    wrote: it takes such a row for the start.
    """
    batch, heads, slots, width = inputs.content.shape
    first = slots * jnp.arange(batch * heads, dtype=jnp.int32).reshape(batch, 1, heads, 1)
    columns = [inputs.content, inputs.mass[..., None]]
    document = None
    if inputs.starts is not None:
        document = jnp.cumsum(inputs.starts, axis=1, dtype=jnp.int32).astype(inputs.v.dtype)
        document = document[:, :, None, None]
        columns.append(jnp.zeros_like(columns[1]))
    tokens = _Tokens(
        inputs.write_ids + first,
        inputs.write_weights,
        inputs.keep,
        inputs.read_ids + first,
        inputs.read_weights,
        inputs.v,
        document,
    )
    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
    table = jnp.concatenate(columns, axis=-1)
    o, rows = _scan(tokens, table.reshape(-1, table.shape[-1]), slots)
    last = None if document is None else document[:, -1]
    content, mass = _split(rows.reshape(table.shape), width, last, slots)
    return SlotOutputs(jnp.moveaxis(o, 0, 1), content, mass)


def _split(
    rows: jax.Array, width: int, document: jax.Array | None, slots: int
) -> tuple[jax.Array, jax.Array]:
    """Returns content [..., M] and mass [...] of rows as `document` [B, 1, 1] sees them."""
    content, mass = rows[..., :width], rows[..., width]
    if document is None:
        return content, mass
    ours = rows[..., -1] == document
    return jnp.where(ours[..., None], content, 0), jnp.where(ours, mass, 1 / slots)


def _join(content: jax.Array, mass: jax.Array, document: jax.Array | None) -> jax.Array:
    """Returns rows, the inverse of `_split`."""
    columns = [content, mass[..., None]]
    if document is not None:
        columns.append(jnp.broadcast_to(document, mass.shape)[..., None])
    return jnp.concatenate(columns, axis=-1)


def _take(table: jax.Array, rows: jax.Array) -> jax.Array:
    return table.at[rows].get(mode="promise_in_bounds")


def _put(table: jax.Array, rows: jax.Array, values: jax.Array) -> jax.Array:
    return table.at[rows].set(values, mode="promise_in_bounds", unique_indices=True)


def _write(token: _Tokens, old: jax.Array, slots: int) -> _Write:
    """Derives a write from the rows before it, `old` [B, H, K, M + 1 or M + 2]."""
    content, mass = _split(old, token.v.shape[-1], token.document, slots)
    floored = token.keep * mass + token.write_weights + MASS_FLOOR
    error = token.v[..., None, :] - content
    return _Write(content, mass, error, floored, token.write_weights / floored)


def _forward(
    tokens: _Tokens, table: jax.Array, slots: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns o [T, B, H, M], the last table, and the rows before each write [T, B, H, K, ...]."""
    width = tokens.v.shape[-1]

    def step(table, token: _Tokens):
        old = _take(table, token.write_rows)
        write = _write(token, old, slots)
        content = write.content + write.eta[..., None] * write.error
        mass = token.keep * write.mass + token.write_weights
        table = _put(table, token.write_rows, _join(content, mass, token.document))
        read, _ = _split(_take(table, token.read_rows), width, token.document, slots)
        return table, (jnp.sum(token.read_weights[..., None] * read, axis=-2), old)

    table, (o, old) = jax.lax.scan(step, table, tokens)
    return o, table, old


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _scan(tokens: _Tokens, table: jax.Array, slots: int) -> tuple[jax.Array, jax.Array]:
    """Returns o [T, B, H, M] and the last table."""
    return _forward(tokens, table, slots)[:2]


def _scan_forward(tokens: _Tokens, table: jax.Array, slots: int):
    o, table, old = _forward(tokens, table, slots)
    return (o, table), (tokens, table, old)


def _scan_reverse(slots, kept, cotangents):
    """Carries the gradient g of content and mass backwards: equations (10)-(15) of the README."""
    tokens, table, old = kept
    of_o, g = cotangents
    width, columns = tokens.v.shape[-1], table.shape[-1]

    def step(carried, given):
        # The rows of the token after this one are put back here, not where they were in use: in
        # one step, the compiler would read from a copy of the table.
        (g, table, later_rows, later), (token, old, of_o) = carried, given
        table = _put(table, later_rows, later)
        read = _take(table, token.read_rows)
        content, _ = _split(read, width, token.document, slots)
        of_read_weights = jnp.sum(content * of_o[..., None, :], axis=-1)
        seen = token.read_weights[..., None]
        if token.document is not None:
            seen = jnp.where(read[..., -1:] == token.document[..., None], seen, 0)
        of_read = seen * jnp.pad(of_o, [(0, 0), (0, 0), (0, 1)])[..., None, :]
        g = g.at[token.read_rows].add(of_read, mode="promise_in_bounds")

        write = _write(token, old, slots)
        of_new = _take(g, token.write_rows)
        of_content = of_new[..., :-1]
        of_eta = jnp.sum(of_content * write.error, axis=-1)
        of_mass = of_new[..., -1] - of_eta * write.eta / write.floored
        of_old = _join((1 - write.eta)[..., None] * of_content, token.keep * of_mass, None)
        if token.document is not None:
            of_old = jnp.where(old[..., -1:] == token.document[..., None], of_old, 0)
        g = _put(g, token.write_rows, of_old)
        of_token = token._replace(
            write_rows=None,
            write_weights=of_eta / write.floored + of_mass,
            keep=of_mass * write.mass,
            read_rows=None,
            read_weights=of_read_weights,
            v=jnp.sum(write.eta[..., None] * of_content, axis=-2),
            document=None if token.document is None else jnp.zeros_like(token.document),
        )
        return (g, table, token.write_rows, old), of_token

    last = tokens.write_rows[-1]
    carried = (g[:, : width + 1], table, last, _take(table, last))
    carried, of_tokens = jax.lax.scan(step, carried, (tokens, old, of_o), reverse=True)
    return of_tokens, jnp.pad(carried[0], [(0, 0), (0, columns - width - 1)])


_scan.defvjp(_scan_forward, _scan_reverse)
