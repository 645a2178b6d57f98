"""The definition of the additive recurrence: one outer product a token."""

import jax
import jax.numpy as jnp

from bayesmem.ops.additive.types import AdditiveInputs
from bayesmem.ops.linalg import einsum


def recurrent(inputs: AdditiveInputs, chunk_size: int) -> tuple[jax.Array, jax.Array]:
    """Adds to the memory token by token (arXiv 2605.31163, Sec. 3.2, latent-input model).

        M = A M + k v^T,   y = M^T q

    The gain is in v already. A document starts from M = 0. `chunk_size` has no meaning here.

    Returns:
      y [B, T, H, M] and the memory [B, H, D, M].
    """
    del chunk_size

    def step(memory, token: AdditiveInputs):
        if token.starts is not None:
            memory = jnp.where(token.starts[:, None, None, None], 0.0, memory)
        memory = jnp.exp(token.log_decay)[..., None] * memory
        memory = memory + token.k[..., :, None] * token.v[..., None, :]
        return memory, einsum("bhdm,bhd->bhm", memory, token.q)

    tokens = inputs._replace(memory=None)  # type: ignore[arg-type]
    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
    memory, y = jax.lax.scan(step, inputs.memory, tokens)
    return jnp.moveaxis(y, 0, 1), memory
