"""States of models that have read long texts, made without reading them: for timing."""

from typing import Any

import jax
import jax.numpy as jnp

from bayesmem.layers import KVCache
from bayesmem.models.language_model import LMState


def state_at(model: Any, params: Any, prompt: jax.Array, context: int) -> LMState:
    """Returns a state as after `context` tokens, of which only the prompt is read.

    Memories of fixed size hold the prompt; caches hold random keys and values for the rest.

    Args:
      model: a `LanguageModel`; its `max_length` is more than `context`.
      params: its variables.
      prompt: [B, T] int32.
      context: tokens that count as read.
    """
    start = model.init_state(prompt.shape[0])
    read = jax.jit(lambda p, t, s: model.apply(p, t, s, method="hidden_states")[1])
    state = read(params, prompt, start)

    def filled(x: Any) -> Any:
        if not isinstance(x, KVCache):
            return x
        one, other = jax.random.split(jax.random.key(0))
        slots = jnp.arange(x.document.shape[-1])
        document = jnp.broadcast_to(jnp.where(slots < context, 0, -1), x.document.shape)
        return KVCache(
            jax.random.normal(one, x.key.shape, x.key.dtype),
            jax.random.normal(other, x.value.shape, x.value.dtype),
            document.astype(x.document.dtype),
            jnp.full_like(x.length, context),
            jnp.full_like(x.position, context),
        )

    layers = jax.tree.map(filled, state.layers, is_leaf=lambda x: isinstance(x, KVCache))
    return LMState(layers, jnp.full_like(state.position, context))
