"""The definition of gated slot attention: one write of all slots and one softmax a token."""

import jax
import jax.numpy as jnp

from bayesmem.ops.gated_slots.types import GatedSlotInputs, GatedSlots
from bayesmem.ops.linalg import einsum


def recurrent(inputs: GatedSlotInputs, chunk_size: int) -> tuple[jax.Array, GatedSlots]:
    """Writes and reads token by token (arXiv 2409.07146, equations 8 and 9).

        K = diag(a) K + (1 - a) k^T,   V = diag(a) V + (1 - a) v^T,   y = V^T softmax(K q)

    A document starts from K = V = 0. `chunk_size` has no meaning here.

    Returns:
      y [B, T, H, M] and the slots.
    """
    del chunk_size

    def step(slots: GatedSlots, token: GatedSlotInputs):
        if token.starts is not None:
            fresh = token.starts[:, None, None, None]
            slots = GatedSlots(*(jnp.where(fresh, 0.0, x) for x in slots))
        keep, write = jnp.exp(token.log_decay), -jnp.expm1(token.log_decay)
        slots = GatedSlots(
            *(
                keep[..., None] * old + write[..., None] * new[..., None, :]
                for old, new in zip(slots, (token.k, token.v), strict=True)
            )
        )
        weights = jax.nn.softmax(einsum("bhsd,bhd->bhs", slots.keys, token.q), axis=-1)
        return slots, einsum("bhsm,bhs->bhm", slots.values, weights)

    tokens = inputs._replace(slots=None)  # type: ignore[arg-type]
    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
    slots, y = jax.lax.scan(step, inputs.slots, tokens)
    return jnp.moveaxis(y, 0, 1), slots
