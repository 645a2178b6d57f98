"""The definition of RAM-Net's slot memory: each token writes a few slots, then reads a few."""

import jax
import jax.numpy as jnp

from bayesmem.ops.slots.types import MASS_FLOOR, SlotInputs, SlotOutputs


def retained(weights: jax.Array, forget: jax.Array, retention: str) -> jax.Array:
    """Returns lambda [B, T, H, K], the part of a slot's mass that a write leaves.

    "gsu" (arXiv 2602.11958v2): sigmoid(logit(1 - w) - gamma). "pdma" (its v1): (1 - w)^gamma.

    Args:
      weights: [B, T, H, K], w. A weight of 0 keeps all: lambda = 1.
      forget: [B, T, H], gamma.
      retention: "gsu" or "pdma".
    """
    info, written, gamma = jnp.finfo(weights.dtype), weights > 0, forget[..., None]
    w = jnp.where(written, jnp.clip(weights, info.tiny, 1 - info.eps), 0.5)
    if retention == "gsu":
        keep = jax.nn.sigmoid(jnp.log1p(-w) - jnp.log(w) - gamma)
    else:
        keep = jnp.exp(gamma * jnp.log1p(-w))
    return jnp.where(written, keep, 1.0)


def recurrent(inputs: SlotInputs) -> SlotOutputs:
    """Writes and reads token by token (RAM-Net, arXiv 2602.11958v2; README, (5)-(8)).

        m[a] = lambda m[a] + w,   eta = w / (m[a] + eps),   s[a] = s[a] + eta (v - s[a])
        o = sum over a of r[a] s[a], after the write

    for the K slots a that are written with weight w and the slots that are read with weight r. All
    other slots stay as they are, and are not touched. A document starts from s = 0, m = 1/S.
    """
    batch = jnp.arange(inputs.v.shape[0])[:, None, None]
    head = jnp.arange(inputs.v.shape[2])[None, :, None]

    def step(slots, token: SlotInputs):
        content, mass = slots
        if token.starts is not None:
            start = token.starts[:, None, None]
            content = jnp.where(start[..., None], 0.0, content)
            mass = jnp.where(start, 1 / mass.shape[-1], mass)
        to, w = (batch, head, token.write_ids), token.write_weights
        m = token.keep * mass[to] + w
        eta = (w / (m + MASS_FLOOR))[..., None]
        s = content[to]
        s = s + eta * (token.v[:, :, None] - s)
        content = content.at[to].set(s, unique_indices=True)
        mass = mass.at[to].set(m, unique_indices=True)
        rows = content[batch, head, token.read_ids]
        return (content, mass), jnp.sum(token.read_weights[..., None] * rows, axis=2)

    tokens = inputs._replace(content=None, mass=None)  # type: ignore[arg-type]
    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
    (content, mass), o = jax.lax.scan(step, (inputs.content, inputs.mass), tokens)
    return SlotOutputs(jnp.moveaxis(o, 0, 1), content, mass)
