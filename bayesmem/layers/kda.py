"""Kimi Delta Attention: the delta rule with a decay for each key dimension (arXiv 2510.26692)."""

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Hidden, Positions, SegmentIds
from bayesmem.layers.gates import SigmoidGate, StepDecay
from bayesmem.layers.heads import mix_heads
from bayesmem.layers.interface import MixerState
from bayesmem.layers.options import HeadLayout, MixerOptions, default_head_dim


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

    def __post_init__(self):
        """Checks the sizes."""
        super().__post_init__()
        _ = self.layout

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        return HeadLayout(self.num_heads, self.num_heads, head_dim, head_dim)

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
            dim = self.layout.key_dim
            beta = SigmoidGate(self.num_heads, name="beta")(x)
            decay = StepDecay(self.num_heads, dim, rank=self.decay_rank or dim, name="decay")(x)
            return ops.delta_rule(
                q * dim**-0.5,
                k,
                v,
                beta=beta,
                log_decay=decay.log_decay,
                state=memory,
                segment_ids=segment_ids,
                **self.options.op_arguments(),
            )

        return mix_heads(self, recurrence, x, state, segment_ids, unit_keys=True)
