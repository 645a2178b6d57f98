"""Normalisations, made in float32 and made again in the backward pass, which is given x alone."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bayesmem.layers.linear import parameter

KEY_NORM_EPS = 1e-6
"""Added to the squared length of a key: a zero key stays zero, with a finite gradient."""


class RMSNorm(nn.Module):
    """Root mean square normalisation of the last axis with a learned scale (arXiv 1910.07467).

    Attributes:
      eps: added to the mean square.
      groups: G, equal parts of the last axis that are normalised each by itself; divides C.
    """

    eps: float = 1e-5
    groups: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "... C"]) -> Float[Array, "... C"]:
        """Returns x * rsqrt(mean(x^2) + eps) * scale in x's dtype, the mean over a group."""
        scale = parameter(self, "scale", nn.initializers.ones_init(), (None,), x.shape[-1:])
        return _rms_normalise(x, scale, self.eps, self.groups)


@functools.partial(jax.checkpoint, static_argnums=(2, 3))
def _rms_normalise(
    x: Float[Array, "... C"], scale: Float[Array, " C"], eps: float, groups: int
) -> Float[Array, "... C"]:
    wide = x.astype(jnp.float32)
    if groups > 1:
        wide = wide.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    unit = (wide * jax.lax.rsqrt(mean_square + eps)).reshape(x.shape)
    return (unit * scale).astype(x.dtype)


@jax.checkpoint
def l2_normalise(x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Returns x * rsqrt(sum(x^2) + 1e-6) over the last axis, in x's dtype.

    The constant stands inside of the root: the slope at x = 0 is 1000, never NaN.
    """
    wide = x.astype(jnp.float32)
    square = jnp.sum(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(square + KEY_NORM_EPS)).astype(x.dtype)
