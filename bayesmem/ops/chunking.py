"""What every chunk form shares: cutting a sequence into chunks, and decay inside a chunk.

Decays are kept as logarithms. Every exponent formed here is a sum of log decays (<= 0) over just
the tokens it spans, never a difference of two long cumulative sums and never exp(+) * exp(-), so
decays of any strength neither overflow nor lose digits.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bayesmem.ops.linalg import INVERSE, join_lower, matmul, transpose

ENTRIES = "chunk_entries"
"""Name of the memories at chunk entries, for the policies of `jax.checkpoint`."""

keep_entries = functools.partial(
    jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(ENTRIES, INVERSE)
)
"""A chunk form of which the backward pass keeps the inputs, and what goes chunk after chunk or
half after half: the memories at entries and the inverses. All else are products, made again."""

LOG_DECAY_FLOOR = -100.0
"""Log decays are clamped here: exp(-100) is below the smallest float32, so it forgets all."""


class ChunkDecay(NamedTuple):
    """Decay between the tokens of each chunk; C is 1 (one decay a head) or D.

    A factor is 0 where a document starts between its two ends.
    """

    log_decay: jax.Array  # [N, B, H, L, C]
    from_entry: jax.Array  # [N, B, H, L, C] chunk entry -> after token i
    to_end: jax.Array  # [N, B, H, L, C] after token i -> chunk end
    total: jax.Array  # [N, B, H, C] chunk entry -> chunk end
    linked: jax.Array  # [L, L] or [N, B, 1, L, L] bool: j <= i, in the same document
    ratio: jax.Array | None  # [N, B, H, L, L] after j -> after i, where C is 1


def cut(x: jax.Array, length: int, fill: float = 0.0) -> jax.Array:
    """Cuts [B, T, H, ...] into chunks [N, B, L, H, ...], the tail padded with `fill`."""
    batch, steps = x.shape[:2]
    chunks = -(-steps // length)
    if steps < chunks * length:
        widths = [(0, 0), (0, chunks * length - steps)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, widths, constant_values=fill)
    return jnp.moveaxis(x.reshape(batch, chunks, length, *x.shape[2:]), 1, 0)


def split(x: jax.Array, length: int, fill: float = 0.0) -> jax.Array:
    """Cuts [B, T, H, ...] into chunks [N, B, H, L, ...], the tail padded with `fill`."""
    return jnp.swapaxes(cut(x, length, fill), 2, 3)


def join(x: jax.Array, steps: int) -> jax.Array:
    """Joins chunks [N, B, L, H, ...] to [B, T, H, ...] and drops the padded tail."""
    chunks, batch, length = x.shape[:3]
    return jnp.moveaxis(x, 0, 1).reshape(batch, chunks * length, *x.shape[3:])[:, :steps]


def merge(x: jax.Array, steps: int) -> jax.Array:
    """Joins chunks [N, B, H, L, ...] to [B, T, H, ...] and drops the padded tail."""
    return join(jnp.swapaxes(x, 2, 3), steps)


def split_starts(starts: jax.Array | None, length: int) -> jax.Array | None:
    """Cuts document starts [B, T] into chunks [N, B, 1, L]."""
    if starts is None:
        return None
    return split(starts[:, :, None], length, False)


def segment_sums(log_decay: jax.Array) -> jax.Array:
    """Returns sums over spans: [..., L] -> [..., L, L], entry (i, j) = sum of j < s <= i."""
    length = log_decay.shape[-1]
    lower = jnp.tril(jnp.ones((length, length), log_decay.dtype))
    return matmul(lower, jnp.tril(log_decay[..., :, None] * jnp.ones_like(lower), -1))


def chunk_decay(log_decay: jax.Array, starts: jax.Array | None) -> ChunkDecay:
    """Derives all decay factors inside of chunks.

    Args:
      log_decay: [N, B, H, L, C], <= 0, C = 1 or D.
      starts: [N, B, 1, L] bool, where a document starts, or None.
    """
    length, channels = log_decay.shape[-2:]
    log_decay = jnp.maximum(log_decay, LOG_DECAY_FLOOR)
    linked = jnp.tril(jnp.ones((length, length), bool))
    document = None
    if starts is not None:
        document = jnp.cumsum(starts, axis=-1)
        linked = linked & (document[..., :, None] == document[..., None, :])
    if channels == 1:
        ratio = jnp.where(linked, jnp.exp(segment_sums(log_decay[..., 0])), 0.0)
        entry = jnp.exp(log_decay[..., :1, :])
        if starts is not None:
            entry = jnp.where(starts[..., :1, None], 0.0, entry)
        from_entry = ratio[..., :, :1] * entry
        return ChunkDecay(
            log_decay, from_entry, ratio[..., -1, :, None], from_entry[..., -1, :], linked, ratio
        )
    from_entry = jnp.exp(jnp.cumsum(log_decay, axis=-2))
    shifted = jnp.concatenate([log_decay[..., 1:, :], jnp.zeros_like(log_decay[..., :1, :])], -2)
    to_end = jnp.exp(jnp.flip(jnp.cumsum(jnp.flip(shifted, -2), axis=-2), -2))
    if document is not None:
        from_entry = jnp.where((document == 0)[..., None], from_entry, 0.0)
        to_end = jnp.where((document == document[..., -1:])[..., None], to_end, 0.0)
    return ChunkDecay(log_decay, from_entry, to_end, from_entry[..., -1, :], linked, None)


def decayed_products(x: jax.Array, y: jax.Array, decay: ChunkDecay) -> jax.Array:
    """Returns sum_d x_id decay_d(j -> i) y_jd for j <= i in the same document, else 0.

    Args:
      x: [N, B, H, L, D].
      y: [N, B, H, L, D].
      decay: decay of the same chunks.

    Returns:
      [N, B, H, L, L].
    """
    if decay.ratio is not None:
        return matmul(x, transpose(y)) * decay.ratio
    return jnp.where(decay.linked, _diagonal_products(x, y, decay.log_decay), 0.0)


def _diagonal_products(x: jax.Array, y: jax.Array, log_decay: jax.Array) -> jax.Array:
    """`decayed_products` for a decay of each key dimension, document limits left to the caller.

    Halves are joined bottom up. Between a token of a second half and one of the first, the decay
    factors at the limit of the halves into two parts that are each at most 1, so every quadrant is
    a matrix product, and no decay of a single pair of tokens is ever formed.
    """
    *lead, length, dim = x.shape
    size = 1 << (length - 1).bit_length()
    widths = [(0, 0)] * len(lead) + [(0, size - length), (0, 0)]
    x, y, g = (jnp.pad(a, widths) for a in (x, y, log_decay))
    products = jnp.sum(x * y, axis=-1)[..., None, None]
    from_start, to_limit = g[..., None, :], jnp.zeros_like(g)[..., None, :]
    half = 1
    while half < size:
        halves = (*lead, size // (2 * half), 2, half, dim)
        x_pair, y_pair, start_pair, limit_pair = (
            a.reshape(halves) for a in (x, y, from_start, to_limit)
        )
        late = x_pair[..., 1, :, :] * jnp.exp(start_pair[..., 1, :, :])
        early = y_pair[..., 0, :, :] * jnp.exp(limit_pair[..., 0, :, :])
        products = products.reshape(*halves[:-1], half)
        products = join_lower(
            products[..., 0, :, :], matmul(late, transpose(early)), products[..., 1, :, :]
        )
        totals = start_pair[..., -1:, :]
        from_start = start_pair.at[..., 1, :, :].add(totals[..., 0, :, :])
        to_limit = limit_pair.at[..., 0, :, :].add(totals[..., 1, :, :])
        half *= 2
    return products.reshape(*lead, size, size)[..., :length, :length]


@jax.custom_jvp
def pass_state(
    memory: jax.Array,
    total: jax.Array,
    keys: jax.Array,
    writes: jax.Array,
    erasures: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Carries a memory from chunk to chunk: M' = Phi_L M + keys^T (writes - erasures M).

    Args:
      memory: [B, H, D, M], before the first chunk.
      total: [N, B, H, C], decay over each chunk, C = 1 or D.
      keys: [N, B, H, L, D], keys carried on to the chunk's end.
      writes: [N, B, H, L, M].
      erasures: [N, B, H, L, D], or None where a write does not depend on the memory.

    Returns:
      The memories at chunk entries [N, B, H, D, M], and the last memory [B, H, D, M].
    """
    if erasures is None:
        writes = matmul(transpose(keys), writes)

    def step(memory, chunk):
        total, keys, writes, erasures = chunk
        if erasures is not None:
            writes = matmul(transpose(keys), writes - matmul(erasures, memory))
        return total[..., None] * memory + writes, memory

    chunks = total, keys if erasures is not None else None, writes, erasures
    memory, entries = jax.lax.scan(step, memory, chunks)
    return entries, memory


@pass_state.defjvp
def _pass_state_jvp(primals, tangents):
    """What enters changes by a linear recurrence; the rest are products of all chunks at once."""
    _, total, keys, writes, erasures = primals
    entries, last = pass_state(*primals)
    entries = checkpoint_name(entries, ENTRIES)

    def passed_on(total, keys, writes, erasures):
        if erasures is not None:
            writes = writes - matmul(erasures, entries)
        return total[..., None] * entries + matmul(transpose(keys), writes)

    _, change = jax.jvp(passed_on, (total, keys, writes, erasures), tangents[1:])

    def step(d_memory, chunk):
        total, keys, erasures, change = chunk
        if erasures is not None:
            change = change - matmul(transpose(keys), matmul(erasures, d_memory))
        return total[..., None] * d_memory + change, d_memory

    chunks = total, keys if erasures is not None else None, erasures, change
    d_last, d_entries = jax.lax.scan(step, tangents[0], chunks)
    return (entries, last), (d_entries, d_last)
