"""The chunk form of gated slot attention: two passes over the tokens of a chunk, no slots between.

With W_ijs = (1 - a_js) a_j+1,s ... a_is, what token i finds of token j in slot s, the keys that a
query meets are sum_j W_ijs k_j, so that

    scores_is = f_is (K q_i)_s + sum_j (q_i k_j) W_ijs,   p = softmax(scores)
    y_i = (p_i f_i)^T V + sum_j (sum_s p_is W_ijs) v_j

with f the decay since the chunk's entry (arXiv 2409.07146, section 3.3: two passes of gated linear
attention).
"""

import functools

import jax
import jax.numpy as jnp

from bayesmem.ops import chunking
from bayesmem.ops.gated_slots.types import GatedSlotInputs, GatedSlots
from bayesmem.ops.linalg import einsum, matmul, transpose

LONGEST = 16
"""Most tokens of a chunk: W has L x L x S numbers, which a chunk of 64 would make 16 times more."""


def chunked(inputs: GatedSlotInputs, chunk_size: int) -> tuple[jax.Array, GatedSlots]:
    """Runs chunk after chunk; the backward pass keeps the slots at chunk entries.

    Returns:
      y [B, T, H, M] and the slots.
    """
    steps = inputs.k.shape[1]
    length = min(chunk_size, LONGEST, steps)
    split = functools.partial(chunking.split, length=length)
    tokens = tuple(map(split, (inputs.q, inputs.k, inputs.v, inputs.log_decay)))
    chunks = *tokens, chunking.split_starts(inputs.starts, length)
    slots, y = jax.lax.scan(jax.checkpoint(_chunk, prevent_cse=False), inputs.slots, chunks)
    return chunking.merge(y, steps), slots


def _chunk(slots: GatedSlots, chunk) -> tuple[GatedSlots, jax.Array]:
    """One chunk: q, k [B, H, L, D], v [B, H, L, M], log_decay [B, H, L, S], starts [B, 1, L]."""
    q, k, v, log_decay, starts = chunk
    log_decay = jnp.maximum(log_decay, chunking.LOG_DECAY_FLOOR)
    found = _found(log_decay, starts)
    kept = jnp.exp(jnp.cumsum(log_decay, axis=-2))
    if starts is not None:
        kept = jnp.where((jnp.cumsum(starts, axis=-1) == 0)[..., None], kept, 0.0)
    within = einsum("bhij,bhsij->bhis", matmul(q, transpose(k)), found)
    weights = jax.nn.softmax(kept * matmul(q, transpose(slots.keys)) + within, axis=-1)
    y = matmul(weights * kept, slots.values)
    y = y + matmul(einsum("bhis,bhsij->bhij", weights, found), v)
    last, total = found[..., -1, :], kept[..., -1, :, None]
    slots = GatedSlots(total * slots.keys + matmul(last, k), total * slots.values + matmul(last, v))
    return slots, y


def _found(log_decay: jax.Array, starts: jax.Array | None) -> jax.Array:
    """W [B, H, S, L, L]: zero for later tokens and those of another document."""
    length = log_decay.shape[-2]
    by_slot = transpose(log_decay)
    linked = jnp.tril(jnp.ones((length, length), bool))
    if starts is not None:
        document = jnp.cumsum(starts, axis=-1)[:, :, None]
        linked = linked & (document[..., :, None] == document[..., None, :])
    spans = chunking.segment_sums(by_slot)
    return jnp.where(linked, jnp.exp(spans) * -jnp.expm1(by_slot)[..., None, :], 0.0)
