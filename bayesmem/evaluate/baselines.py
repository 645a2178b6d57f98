"""What the benchmarks compare with: ops as they are usually written, before any care for speed."""

from typing import Any

import jax
import jax.numpy as jnp

from bayesmem import ops


def plain_slot_memory(
    write: ops.SlotAddress, read: ops.SlotAddress, v: jax.Array, forget: jax.Array, num_slots: int
) -> tuple[jax.Array, Any]:
    """The token scan of `ops.slot_memory` with plain indexing, from the start, for "gsu" alone.

    Its derivative cannot know that the rows of a token differ, nor that they exist, so each token's
    step back goes through the gradient of all slots.

    Args:
      write: slots and weights [B, T, H, K].
      read: slots and weights [B, T, H, R].
      v: [B, T, H, M].
      forget: [B, T, H].
      num_slots: S.

    Returns:
      o [B, T, H, M] and the state.
    """
    batch = jnp.arange(v.shape[0])[:, None, None]
    head = jnp.arange(v.shape[2])[None, :, None]

    def step(state, token):
        content, mass = state
        write, read, v, gamma = token
        to, w = (batch, head, write.ids), write.weights
        keep = jax.nn.sigmoid(jnp.log1p(-w) - jnp.log(w) - gamma[..., None])
        m = keep * mass[to] + w
        s = content[to]
        s = s + (w / m)[..., None] * (v[:, :, None] - s)
        state = ops.SlotState(content.at[to].set(s), mass.at[to].set(m))
        rows = state.content[batch, head, read.ids]
        return state, jnp.sum(read.weights[..., None] * rows, axis=2)

    shape = (v.shape[0], v.shape[2], num_slots)
    dtype = jnp.result_type(v, forget)
    start = ops.SlotState(
        jnp.zeros((*shape, v.shape[3]), dtype), jnp.full(shape, 1 / num_slots, dtype)
    )
    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (write, read, v, forget))
    state, o = jax.lax.scan(step, start, tokens)
    return jnp.moveaxis(o, 0, 1).astype(v.dtype), state


def mesa_net(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    ridge: jax.Array,
) -> tuple[jax.Array, Any]:
    """The token recurrence of a MesaNet (arXiv 2506.05233), its linear system solved exactly.

        G = a G + beta k k^T,   H = a H + beta k v^T,   o = H^T (G + diag(ridge))^-1 q

    Args:
      q: [B, T, H, D].
      k: [B, T, H, D].
      v: [B, T, H, M].
      log_decay: [B, T, H], log a <= 0.
      beta: [B, T, H], at least 0.
      ridge: [H, D], above 0.

    Returns:
      o [B, T, H, M] in the dtype of v, and G [B, H, D, D] and H [B, H, D, M].
    """
    dtype = jnp.result_type(q, k, v, log_decay, beta, ridge)
    diagonal = jax.vmap(jnp.diag)(ridge).astype(dtype)

    def step(state, token):
        keys, values = state
        q, k, v, log_decay, beta = token
        decay, written = jnp.exp(log_decay)[..., None, None], (beta[..., None] * k)[..., None]
        keys = decay * keys + written * k[..., None, :]
        values = decay * values + written * v[..., None, :]
        factor = jax.scipy.linalg.cho_factor(keys + diagonal, lower=True)
        solved = jax.scipy.linalg.cho_solve(factor, q[..., None])[..., 0]
        return (keys, values), jnp.einsum("bhd,bhdm->bhm", solved, values)

    (batch, _, heads, d), m = k.shape, v.shape[3]
    start = (jnp.zeros((batch, heads, d, d), dtype), jnp.zeros((batch, heads, d, m), dtype))
    tokens = [jnp.moveaxis(x.astype(dtype), 1, 0) for x in (q, k, v, log_decay, beta)]
    state, o = jax.lax.scan(step, start, tokens)
    return jnp.moveaxis(o, 0, 1).astype(v.dtype), state
