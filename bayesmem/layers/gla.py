"""Gated linear attention: a decay for each key dimension from the input (arXiv 2312.06635)."""

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Hidden, Positions, SegmentIds
from bayesmem.layers.gates import SigmoidDecay
from bayesmem.layers.heads import mix_heads
from bayesmem.layers.interface import MixerState
from bayesmem.layers.options import HeadLayout, MixerOptions, default_head_dim, expanded


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

    def __post_init__(self):
        """Checks the sizes."""
        super().__post_init__()
        _ = self.layout

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        key_dim = expanded("head_dim", head_dim, "expand_k", self.expand_k)
        return HeadLayout(self.num_heads, self.num_heads, key_dim, head_dim)

    @nn.nowrap
    def init_state(self, batch: int) -> MixerState:
        """Returns the state of `batch` fresh rows."""
        return self.layout.init_state(batch, self.options)

    @nn.compact
    def __call__(
        self,
        x: Hidden,
        state: MixerState | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
    ) -> tuple[Hidden, MixerState]:
        """Returns the layer's output [B, T, W] and the state after it; see `Mixer`."""
        del positions

        def recurrence(x, q, k, v, memory):
            gate = SigmoidDecay(
                (self.num_heads, self.layout.key_dim),
                self.decay_rank,
                self.decay_temperature,
                name="decay",
            )
            return ops.linear_attention(
                q * self.layout.key_dim**-0.5,
                k,
                v,
                log_decay=gate(x),
                state=memory,
                segment_ids=segment_ids,
                **self.options.op_arguments(),
            )

        return mix_heads(self, recurrence, x, state, segment_ids)
