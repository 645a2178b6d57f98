"""The chunk form of the additive recurrence (arXiv 2312.06635, 2405.21060)."""

import functools

import jax

from bayesmem.ops import chunking
from bayesmem.ops.additive.types import AdditiveInputs
from bayesmem.ops.linalg import matmul


@functools.partial(chunking.keep_entries, static_argnums=1)
def chunked(inputs: AdditiveInputs, chunk_size: int) -> tuple[jax.Array, jax.Array]:
    """Y = qt M + lower(q_i^T A_{i:j+1} k_j) V and M' = Phi_L M + K_end^T V for each chunk.

    Returns:
      y [B, T, H, M] and the memory [B, H, D, M].
    """
    steps = inputs.k.shape[1]
    split = functools.partial(chunking.split, length=min(chunk_size, steps))
    q, k, v = split(inputs.q), split(inputs.k), split(inputs.v)
    starts = chunking.split_starts(inputs.starts, min(chunk_size, steps))
    decay = chunking.chunk_decay(split(inputs.log_decay), starts)
    entries, memory = chunking.pass_state(inputs.memory, decay.total, decay.to_end * k, v, None)
    y = matmul(decay.from_entry * q, entries)
    y = y + matmul(chunking.decayed_products(q, k, decay), v)
    return chunking.merge(y, steps), memory
