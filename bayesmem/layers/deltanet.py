"""DeltaNet: error-correcting writes with a learned strength (arXiv 2102.11174, 2406.06484)."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Memory, Values
from bayesmem.layers.gates import SigmoidGate
from bayesmem.layers.heads import Heads, fresh_state, mix_heads
from bayesmem.layers.options import HeadLayout, MixerOptions, default_head_dim, expanded


class DeltaNet(nn.Module):
    """M_t = M_{t-1} + beta k (v - M_{t-1}^T k)^T with unit keys and beta = sigmoid(x W).

    Queries are scaled by head_dim^-0.5, as in the authors' code. With a fixed beta = c / (r^2 + c)
    it is the filter with observation variance r^2 whose covariance is c I before every write
    (arXiv 2605.31163; `Reset` of `bayesmem.design_model`).

    Attributes:
      width: W.
      num_heads: H.
      head_dim: D; None for width / num_heads.
      expand_v: M / D; the product must be a whole number.
      negative_eigenvalues: whether beta goes up to 2 instead of 1 (arXiv 2411.12537).
      beta: a fixed strength in (0, 1], or None to make it from the input.
      options: the options all recurrent mixers share.
    """

    width: int
    num_heads: int = 4
    head_dim: int | None = None
    expand_v: float = 1.0
    negative_eigenvalues: bool = False
    beta: float | None = None
    options: MixerOptions = MixerOptions(conv_size=4, activation="silu", output_gate="none")

    __call__ = mix_heads
    init_state = fresh_state

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, Memory]:
        """Makes beta and runs the delta rule; see `HeadMixer`."""
        x, q, k, v, _ = heads
        if self.beta is None:
            beta = SigmoidGate(self.num_heads, 1.0 + self.negative_eigenvalues, name="beta")(x)
        else:
            beta = jnp.full(v.shape[:3], self.beta, jnp.float32)
        return ops.delta_rule(q * q.shape[-1] ** -0.5, k, v, beta=beta, **op)

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        value_dim = expanded("head_dim", head_dim, "expand_v", self.expand_v)
        return HeadLayout(self.num_heads, self.num_heads, head_dim, value_dim, unit_keys=True)

    def __post_init__(self):
        """Checks the heads, expand_v and a fixed beta."""
        super().__post_init__()
        _ = self.layout
        if self.beta is None:
            return
        if not 0 < self.beta <= 1:
            raise ValueError(f"beta: found {self.beta}, wanted a number in (0, 1], or None")
        if self.negative_eigenvalues:
            raise ValueError(
                f"negative_eigenvalues: found True with a fixed beta {self.beta}, wanted False: "
                f"it is about a beta made from the input"
            )
