"""The definition of the delta rule: one correction a token."""

import jax
import jax.numpy as jnp

from bayesmem.ops.delta.types import DeltaInputs
from bayesmem.ops.linalg import einsum


def recurrent(inputs: DeltaInputs, chunk_size: int) -> tuple[jax.Array, jax.Array]:
    """Corrects the memory token by token (arXiv 2605.31163, Proposition 2, Eq. 17).

        Mb = A M,   M = Mb + beta k (v - Mb^T k)^T,   y = M^T q

    A document starts from M = 0. `chunk_size` has no meaning here.

    Returns:
      y [B, T, H, M] and the memory [B, H, D, M].
    """
    del chunk_size

    def step(memory, token: DeltaInputs):
        if token.starts is not None:
            memory = jnp.where(token.starts[:, None, None, None], 0.0, memory)
        memory = jnp.exp(token.log_decay)[..., None] * memory
        error = token.v - einsum("bhdm,bhd->bhm", memory, token.k)
        write = token.beta[..., None] * token.k
        memory = memory + write[..., :, None] * error[..., None, :]
        return memory, einsum("bhdm,bhd->bhm", memory, token.q)

    tokens = inputs._replace(memory=None)  # type: ignore[arg-type]
    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
    memory, y = jax.lax.scan(step, inputs.memory, tokens)
    return jnp.moveaxis(y, 0, 1), memory
