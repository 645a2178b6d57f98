"""Kimi Delta Attention: the delta rule with a decay for each key dimension (arXiv 2510.26692)."""

from typing import Any

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Memory, Values
from bayesmem.layers.gates import SigmoidGate, StepDecay
from bayesmem.layers.heads import Heads, fresh_state, mix_heads
from bayesmem.layers.options import HeadLayout, MixerOptions, equal_heads, require_positive


class KDA(nn.Module):
    """M_t = A M_{t-1} + beta k (v - (A M_{t-1})^T k)^T with A = diag(a) and unit keys.

    log a = -exp(A_log) softplus(x W_1 W_2 + dt_bias) with a rate a head and a bias a dimension,
    beta = sigmoid(x W), queries are scaled by head_dim^-0.5. The output gate is one full
    projection, where the authors' is of low rank.

    Attributes:
      width: W.
      num_heads: H.
      head_dim: D = M; None for width / num_heads.
      decay_rank: size between the decay's two projections; None for head_dim.
      options: the options all recurrent mixers share.
    """

    width: int
    num_heads: int = 4
    head_dim: int | None = None
    decay_rank: int | None = None
    options: MixerOptions = MixerOptions(conv_size=4, activation="silu", output_gate="sigmoid")

    __call__ = mix_heads
    init_state = fresh_state

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, Memory]:
        """Makes beta and a decay for each key dimension and runs the delta rule."""
        x, q, k, v, _ = heads
        dim = q.shape[-1]
        decay = StepDecay(self.num_heads, dim, rank=self.decay_rank or dim, name="decay")
        beta = SigmoidGate(self.num_heads, name="beta")(x)
        return ops.delta_rule(q * dim**-0.5, k, v, beta=beta, log_decay=decay(x).log_decay, **op)

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        return equal_heads(self.width, self.num_heads, self.head_dim, unit_keys=True)

    def __post_init__(self):
        """Checks the heads and the decay's rank."""
        super().__post_init__()
        if self.decay_rank is not None:
            require_positive(decay_rank=self.decay_rank)
        _ = self.layout
