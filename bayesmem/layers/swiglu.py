"""The gated feed-forward layer of the residual blocks."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bayesmem.array_types import Hidden
from bayesmem.layers.linear import linear


class SwiGLU(nn.Module):
    """W_down(silu(W_gate x) * W_up x), without biases (arXiv 2002.05202, equation 6).

    Attributes:
      width: size of input and output.
      hidden: size between them.
      dtype: dtype of the activations.
    """

    width: int
    hidden: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Hidden) -> Hidden:
        """Returns [B, T, W]; zero where x is zero."""
        gate = linear(self.hidden, ("embed", "mlp"), "gate", dtype=self.dtype)(x)
        up = linear(self.hidden, ("embed", "mlp"), "up", dtype=self.dtype)(x)
        return linear(self.width, ("mlp", "embed"), "down", dtype=self.dtype)(_gated(gate, up))


@jax.checkpoint
def _gated(gate: Hidden, up: Hidden) -> Hidden:
    return nn.silu(gate) * up
