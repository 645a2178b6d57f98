"""Gated DeltaNet: the delta rule on a memory that decays (arXiv 2412.06464)."""

from typing import Any

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Memory, Values
from bayesmem.layers.gates import SigmoidGate, StepDecay
from bayesmem.layers.heads import Heads, fresh_state, mix_heads
from bayesmem.layers.options import HeadLayout, MixerOptions, default_head_dim, expanded


class GatedDeltaNet(nn.Module):
    """M_t = a M_{t-1} + beta k (v - a M_{t-1}^T k)^T with one decay a and one beta a value head.

    log a = -exp(A_log) softplus(x W + dt_bias), beta = sigmoid(x W), keys and queries have unit
    length and queries are scaled by head_dim^-0.5: the layer of the authors' code.

    Attributes:
      width: W.
      num_heads: heads of queries and keys.
      head_dim: D; None for width / num_heads.
      num_value_heads: heads of values, a multiple of num_heads; None for num_heads.
      expand_v: M / D; the product must be a whole number.
      negative_eigenvalues: whether beta goes up to 2 instead of 1 (arXiv 2411.12537).
      options: the options all recurrent mixers share.
    """

    width: int
    num_heads: int = 4
    head_dim: int | None = None
    num_value_heads: int | None = None
    expand_v: float = 1.0
    negative_eigenvalues: bool = False
    options: MixerOptions = MixerOptions(conv_size=4, activation="silu")

    __call__ = mix_heads
    init_state = fresh_state

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, Memory]:
        """Makes beta and one decay a head and runs the delta rule; see `HeadMixer`."""
        x, q, k, v, _ = heads
        count = self.layout.value_heads
        beta = SigmoidGate(count, 1.0 + self.negative_eigenvalues, name="beta")(x)
        log_decay, _ = StepDecay(count, name="decay")(x)
        return ops.delta_rule(q * q.shape[-1] ** -0.5, k, v, beta=beta, log_decay=log_decay, **op)

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        value_heads = self.num_heads if self.num_value_heads is None else self.num_value_heads
        value_dim = expanded("head_dim", head_dim, "expand_v", self.expand_v)
        return HeadLayout(self.num_heads, value_heads, head_dim, value_dim, unit_keys=True)

    def __post_init__(self):
        """Checks the heads, their ratio and expand_v."""
        super().__post_init__()
        _ = self.layout
