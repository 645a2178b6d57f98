"""The WY / UT chunk form of the delta rule (arXiv 2406.06484; decay 2412.06464, 2510.26692)."""

import functools

import jax
import jax.numpy as jnp

from bayesmem.ops import chunking
from bayesmem.ops.delta.types import DeltaInputs
from bayesmem.ops.linalg import inverse_unit_lower, matmul


@functools.partial(chunking.keep_entries, static_argnums=1)
def chunked(inputs: DeltaInputs, chunk_size: int) -> tuple[jax.Array, jax.Array]:
    """Solves all corrections of a chunk at once.

    With a chunk's entry memory M and kt, qt its keys and queries carried back to the entry, the
    corrections U [L, M] solve (I + X) U = beta (V - kt M), where X_ij = beta_i k_i^T A_{i:j+1} k_j
    for j < i. Then Y = qt M + lower(q_i^T A_{i:j+1} k_j) U, and M' = Phi_L M + K_end^T U with the
    keys carried on to the chunk's end.

    Returns:
      y [B, T, H, M] and the memory [B, H, D, M].
    """
    steps = inputs.k.shape[1]
    split = functools.partial(chunking.split, length=min(chunk_size, steps))
    q, k = split(inputs.q), split(inputs.k)
    starts = chunking.split_starts(inputs.starts, min(chunk_size, steps))
    decay = chunking.chunk_decay(split(inputs.log_decay), starts)
    beta = split(inputs.beta)[..., None]
    inverse = inverse_unit_lower(beta * jnp.tril(chunking.decayed_products(k, k, decay), -1))
    writes = matmul(inverse, beta * split(inputs.v))
    erasures = matmul(inverse, beta * (decay.from_entry * k))
    entries, memory = chunking.pass_state(
        inputs.memory, decay.total, decay.to_end * k, writes, erasures
    )
    corrections = writes - matmul(erasures, entries)
    y = matmul(decay.from_entry * q, entries)
    y = y + matmul(chunking.decayed_products(q, k, decay), corrections)
    return chunking.merge(y, steps), memory
