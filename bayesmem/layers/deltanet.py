"""DeltaNet: error-correcting writes with a learned strength (arXiv 2102.11174, 2406.06484)."""

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Hidden, Positions, SegmentIds
from bayesmem.layers.gates import SigmoidGate
from bayesmem.layers.heads import mix_heads
from bayesmem.layers.interface import MixerState
from bayesmem.layers.options import HeadLayout, MixerOptions, default_head_dim


class DeltaNet(nn.Module):
    """M_t = M_{t-1} + beta k (v - M_{t-1}^T k)^T with unit keys and beta = sigmoid(x W).

    Queries are scaled by head_dim^-0.5, as in the authors' code.

    Attributes:
      width: W.
      num_heads: H.
      head_dim: D = M; None for width / num_heads.
      negative_eigenvalues: whether beta goes up to 2 instead of 1 (arXiv 2411.12537).
      options: the options all recurrent mixers share.
    """

    width: int
    num_heads: int = 4
    head_dim: int | None = None
    negative_eigenvalues: bool = False
    options: MixerOptions = MixerOptions(conv_size=4, activation="silu", output_gate="none")

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
            beta = SigmoidGate(self.num_heads, 1.0 + self.negative_eigenvalues, name="beta")(x)
            return ops.delta_rule(
                q * self.layout.key_dim**-0.5,
                k,
                v,
                beta=beta,
                state=memory,
                segment_ids=segment_ids,
                **self.options.op_arguments(),
            )

        return mix_heads(self, recurrence, x, state, segment_ids, unit_keys=True)
