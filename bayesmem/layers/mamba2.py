"""Mamba-2: state-space duality with a scalar decay a head (arXiv 2405.21060)."""

from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from bayesmem import ops
from bayesmem.array_types import Memory, Values
from bayesmem.layers.gates import StepDecay
from bayesmem.layers.heads import Heads, fresh_state, mix_heads
from bayesmem.layers.linear import parameter
from bayesmem.layers.options import HeadLayout, MixerOptions, default_head_dim


class Mamba2(nn.Module):
    """M_t = a M_{t-1} + dt B x^T, y = M_t^T C + D x, with a = exp(-dt exp(A_log)).

    dt = softplus(u W + dt_bias). In the words of linear attention: C is the query, B the key, x the
    value and dt the gain; B and C are shared by the heads of a group. By default the output is
    normalised head by head before its gate. The authors' code adds a bias in the convolution, and
    gates first and then normalises the heads of a group together: that is conv_bias=True with
    output_norm="gated_groups".

    Attributes:
      width: W.
      num_heads: H, heads of x.
      head_dim: M; None for width / num_heads.
      state_dim: D, size of B and C.
      num_groups: groups that share B and C; divides num_heads.
      options: the options all recurrent mixers share.
    """

    width: int
    num_heads: int = 4
    head_dim: int | None = None
    state_dim: int = 64
    num_groups: int = 1
    options: MixerOptions = MixerOptions(conv_size=4, activation="silu")

    __call__ = mix_heads
    init_state = fresh_state

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, Memory]:
        """Makes the step size, which is gain and decay, sums, and adds D x; see `HeadMixer`."""
        u, c, b, x, _ = heads
        log_decay, step = StepDecay(self.num_heads, name="decay")(u)
        ones = nn.initializers.ones_init()
        skip = parameter(self, "skip", ones, (None,), (self.num_heads,))
        y, memory = ops.linear_attention(c, b, x, gain=step, log_decay=log_decay, **op)
        return _with_skip(y, skip, x), memory

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        return HeadLayout(self.num_groups, self.num_heads, self.state_dim, head_dim)

    def __post_init__(self):
        """Checks the heads, their groups and the state."""
        super().__post_init__()
        _ = self.layout


@jax.checkpoint
def _with_skip(y: Values, skip: Float[Array, " H"], x: Values) -> Values:
    return y + (skip[:, None] * x).astype(y.dtype)
