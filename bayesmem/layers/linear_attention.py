"""Linear attention: sums of key-value products that never decay (arXiv 2006.16236)."""

from typing import Any

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Memory, Values
from bayesmem.layers.heads import Heads, fresh_state, mix_heads
from bayesmem.layers.options import HeadLayout, MixerOptions, equal_heads, require_choice

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

    __call__ = mix_heads
    init_state = fresh_state

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, Memory]:
        """Maps queries and keys to their features and sums; see `HeadMixer`."""
        _, q, k, v, _ = heads
        if self.feature_map == "elu+1":
            q, k = nn.elu(q) + 1, nn.elu(k) + 1
        return ops.linear_attention(q * q.shape[-1] ** -0.5, k, v, **op)

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        return equal_heads(self.width, self.num_heads, self.head_dim)

    def __post_init__(self):
        """Checks the heads and the feature map."""
        super().__post_init__()
        require_choice("feature_map", self.feature_map, FEATURE_MAPS)
        _ = self.layout
