"""All tokens at once: events sorted by slot, then segmented scans over each slot's writes.

Between two of its writes a slot does not change, so its content is a linear recurrence over its own
writes alone. Sorted by (slot, time), the writes of a slot lie side by side, and two associative
scans run over all slots at once: one for the mass, then one for the content. A read takes the row
of the latest write before it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.ops.slots.types import MASS_FLOOR, SlotInputs, SlotOutputs


class _Order(NamedTuple):
    """Writes of one head in the order (slot, time); E = S + T K, the first of a slot its state."""

    source: jax.Array  # [E] which write comes here: 0..S-1 the states, then token by token
    first: jax.Array  # [E] bool, whether it is the first of its slot in its document
    document: jax.Array  # [E] int32
    read: jax.Array  # [T, R] place of the latest write before each read
    last: jax.Array  # [S] place of the last write of each slot


def segmented(inputs: SlotInputs) -> SlotOutputs:
    """Computes the slot memory by segmented scans; equations (16)-(18) of the README."""
    if inputs.starts is None:
        document = jnp.zeros(inputs.v.shape[:2], jnp.int32)
    else:
        document = jnp.cumsum(inputs.starts, axis=1, dtype=jnp.int32)
    axes = SlotInputs._make((1, 1, 1, 1, 1, 1, None, 0, 0))
    outer = SlotOutputs._make((1, 0, 0))
    over_heads = jax.vmap(_head, in_axes=(axes, None), out_axes=outer)
    return jax.vmap(over_heads)(inputs._replace(starts=None), document)


def _head(x: SlotInputs, document: jax.Array) -> SlotOutputs:
    """One head: arrays of `SlotInputs` without B and H, documents numbered [T].

    Of all that has an axis of E or T R and one of M, a backward pass is given the content alone.
    """
    slots, count = x.content.shape[0], x.write_ids.shape[1]
    order = _sort(x, document, slots)
    token = jnp.maximum(order.source - slots, 0)
    mass, eta = _gains(x.mass, x.write_weights, x.keep, order)
    row = jnp.where(order.source < slots, order.source, slots + token // count)
    written = _weighted_rows(eta, jnp.concatenate([x.content, x.v]), row)
    content = linear_scan(jnp.where(order.first, 0.0, 1 - eta), written)

    known = order.document[order.read] == document[:, None]
    weights = jnp.where(known, x.read_weights, 0.0)
    kept = order.document[order.last] == document[-1]
    return SlotOutputs(
        _sums_of_rows(weights, content, order.read),
        jnp.where(kept[:, None], content[order.last], 0.0),
        jnp.where(kept, mass[order.last], 1 / slots),
    )


@jax.checkpoint
def _gains(
    states: jax.Array, weights: jax.Array, keep: jax.Array, order: _Order
) -> tuple[jax.Array, jax.Array]:
    """Returns the mass after each write [E] and eta [E], the part of its content that is new.

    Args:
      states: [S], mass of the states.
      weights: [T, K], of the writes.
      keep: [T, K].
      order: of the writes.
    """
    slots = states.shape[0]

    def in_order(states, writes):
        return jnp.concatenate([states, writes.reshape(-1)])[order.source]

    w, keep = in_order(states, weights), in_order(jnp.zeros_like(states), keep)
    mass = linear_scan(
        jnp.where(order.first, 0.0, keep), w + jnp.where(order.first, keep / slots, 0.0)
    )
    return mass, jnp.where(order.source < slots, 1.0, w / (mass + MASS_FLOOR))


@jax.checkpoint
def _weighted_rows(weights: jax.Array, table: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns `weights` [E] times `table`[rows], [E, M]."""
    return weights[:, None] * table[rows]


@jax.checkpoint
def _sums_of_rows(weights: jax.Array, table: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns the sums of `table`[rows] by weights [T, R], [T, M]."""
    return jnp.einsum("tr,trm->tm", weights, table[rows])


def _sort(x: SlotInputs, document: jax.Array, slots: int) -> _Order:
    """Sorts the events of one head by (slot, time, write before read)."""
    steps, writes = x.write_ids.shape
    reads = x.read_ids.shape[1]
    state = jnp.arange(slots, dtype=jnp.int32)
    slot = jnp.concatenate([state, jnp.concatenate([x.write_ids, x.read_ids], 1).reshape(-1)])
    writing = jnp.arange(writes + reads) < writes
    writing = jnp.concatenate([state >= 0, jnp.tile(writing, steps)])
    # Events are in the order of time already, so a stable sort by slot is all it takes.
    order = jnp.argsort(slot, stable=True)
    place = jnp.cumsum(writing[order], dtype=jnp.int32) - 1
    place = jnp.zeros_like(place).at[order].set(place, unique_indices=True)
    of_tokens = place[slots:].reshape(steps, writes + reads)
    of_writes = jnp.concatenate([place[:slots], of_tokens[:, :writes].reshape(-1)])
    index = jnp.arange(of_writes.shape[0], dtype=jnp.int32)
    source = jnp.zeros_like(index).at[of_writes].set(index, unique_indices=True)
    documents = jnp.concatenate([jnp.zeros_like(state), jnp.repeat(document, writes)])[source]
    begins = jnp.diff(documents, prepend=documents[:1]) != 0
    return _Order(
        source=source,
        first=begins | (source < slots),
        document=documents,
        read=of_tokens[:, writes:],
        last=jnp.append(place[1:slots], jnp.int32(index.shape[0])) - 1,
    )


@jax.custom_vjp
def linear_scan(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns h with h_e = a_e h_{e-1} + b_e, and h_{-1} = 0.

    Where a is 0, nothing that comes before is seen, not even a NaN.

    Args:
      a: [E].
      b: [E] or [E, M].
    """
    return _scan(a, b, reverse=False)


def _scan(a: jax.Array, b: jax.Array, reverse: bool) -> jax.Array:
    def combine(early, late):
        (a1, b1), (a2, b2) = early, late
        return a2 * a1, jnp.where(a2 == 0, b2, a2 * b1 + b2)

    a = a.reshape(-1, *(1,) * (b.ndim - 1))
    return jax.lax.associative_scan(combine, (a, b), reverse=reverse)[1]


def _linear_scan_forward(a: jax.Array, b: jax.Array):
    h = linear_scan(a, b)
    return h, (a, h)


def _linear_scan_reverse(kept, of_h):
    a, h = kept
    of_b = _scan(jnp.append(a[1:], 0.0), of_h, reverse=True)
    of_a = of_b[1:] * h[:-1]
    of_a = jnp.pad(of_a.reshape(of_a.shape[0], -1).sum(axis=1), (1, 0))
    return of_a, of_b


linear_scan.defvjp(_linear_scan_forward, _linear_scan_reverse)
