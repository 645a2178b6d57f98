"""Linear attention: sums of key-value products that never decay (arXiv 2006.16236)."""

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Hidden, Positions, SegmentIds
from bayesmem.layers.heads import mix_heads
from bayesmem.layers.interface import MixerState
from bayesmem.layers.options import (
    HeadLayout,
    MixerOptions,
    default_head_dim,
    require_choice,
)

FEATURE_MAPS = ("identity", "elu+1")


class LinearAttention(nn.Module):
    """M_t = M_{t-1} + phi(k) v^T, y = M_t^T phi(q) D^-0.5.

    The per-head RMSNorm of the output takes the place of the paper's running normaliser
    phi(q)^T sum phi(k), which cancels in it wherever it is positive.

    Attributes:
      width: W.
      num_heads: H.
      head_dim: D = M; None for width / num_heads.
      feature_map: phi, "identity" or "elu+1" (the paper's elu(x) + 1, equation 7).
      options: the options all recurrent mixers share.
    """

    width: int
    num_heads: int = 4
    head_dim: int | None = None
    feature_map: str = "identity"
    options: MixerOptions = MixerOptions()

    def __post_init__(self):
        """Checks the sizes."""
        super().__post_init__()
        require_choice("feature_map", self.feature_map, FEATURE_MAPS)
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
            if self.feature_map == "elu+1":
                q, k = nn.elu(q) + 1, nn.elu(k) + 1
            return ops.linear_attention(
                q * self.layout.key_dim**-0.5,
                k,
                v,
                state=memory,
                segment_ids=segment_ids,
                **self.options.op_arguments(),
            )

        return mix_heads(self, recurrence, x, state, segment_ids)
