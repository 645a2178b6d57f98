"""Mamba-2: state-space duality with a scalar decay a head (arXiv 2405.21060)."""

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Hidden, Positions, SegmentIds
from bayesmem.layers.gates import StepDecay
from bayesmem.layers.heads import mix_heads
from bayesmem.layers.interface import MixerState
from bayesmem.layers.linear import parameter
from bayesmem.layers.options import HeadLayout, MixerOptions, default_head_dim


class Mamba2(nn.Module):
    """M_t = a M_{t-1} + dt B x^T, y = M_t^T C + D x, with a = exp(-dt exp(A_log)).

    dt = softplus(u W + dt_bias). In the words of linear attention: C is the query, B the key, x the
    value and dt the gain; B and C are shared by the heads of a group. The output is normalised head
    by head before its gate, where the authors' code gates first and normalises all heads together.

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

    def __post_init__(self):
        """Checks the sizes."""
        super().__post_init__()
        _ = self.layout

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        return HeadLayout(self.num_groups, self.num_heads, self.state_dim, head_dim)

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
            decay = StepDecay(self.num_heads, name="decay")(x)
            skip = parameter(self, "skip", nn.initializers.ones_init(), (None,), (self.num_heads,))
            y, memory = ops.linear_attention(
                q,
                k,
                v,
                gain=decay.step,
                log_decay=decay.log_decay,
                state=memory,
                segment_ids=segment_ids,
                **self.options.op_arguments(),
            )
            return y + (skip[:, None] * v).astype(y.dtype), memory

        return mix_heads(self, recurrence, x, state, segment_ids)
