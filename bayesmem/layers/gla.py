"""Gated linear attention: a decay for each key dimension from the input (arXiv 2312.06635)."""

from typing import Any

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Memory, Values
from bayesmem.layers.gates import SigmoidDecay
from bayesmem.layers.heads import Heads, fresh_state, mix_heads
from bayesmem.layers.options import (
    HeadLayout,
    MixerOptions,
    default_head_dim,
    expanded,
    require_positive,
)


class GLA(nn.Module):
    """M_t = diag(a) M_{t-1} + k v^T with a = sigmoid(x W_1 W_2 + b)^(1/16), y = M_t^T q D^-0.5.

    Attributes:
      width: W.
      num_heads: H.
      head_dim: M; None for width / num_heads.
      expand_k: D / M; the product must be a whole number.
      decay_rank: size between the decay's two projections.
      decay_temperature: the 16 of the exponent: larger keeps longer.
      options: the options all recurrent mixers share.
    """

    width: int
    num_heads: int = 4
    head_dim: int | None = None
    expand_k: float = 1.0
    decay_rank: int = 16
    decay_temperature: float = 16.0
    options: MixerOptions = MixerOptions()

    __call__ = mix_heads
    init_state = fresh_state

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, Memory]:
        """Makes a decay for each key dimension and sums; see `HeadMixer`."""
        x, q, k, v, _ = heads
        log_decay = SigmoidDecay(
            (self.num_heads, q.shape[-1]), self.decay_rank, self.decay_temperature, name="decay"
        )(x)
        return ops.linear_attention(q * q.shape[-1] ** -0.5, k, v, log_decay=log_decay, **op)

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        key_dim = expanded("head_dim", head_dim, "expand_k", self.expand_k)
        return HeadLayout(self.num_heads, self.num_heads, key_dim, head_dim)

    def __post_init__(self):
        """Checks the heads, expand_k and the decay's sizes."""
        super().__post_init__()
        _ = self.layout
        require_positive(decay_rank=self.decay_rank)
        if not self.decay_temperature > 0:
            raise ValueError(f"decay_temperature: found {self.decay_temperature}, wanted > 0")
