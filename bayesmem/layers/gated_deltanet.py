"""Gated DeltaNet: the delta rule on a memory that decays (arXiv 2412.06464)."""

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Hidden, Positions, SegmentIds
from bayesmem.layers.gates import SigmoidGate, StepDecay
from bayesmem.layers.heads import mix_heads
from bayesmem.layers.interface import MixerState
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

    def __post_init__(self):
        """Checks the sizes."""
        super().__post_init__()
        _ = self.layout

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        value_heads = self.num_heads if self.num_value_heads is None else self.num_value_heads
        value_dim = expanded("head_dim", head_dim, "expand_v", self.expand_v)
        return HeadLayout(self.num_heads, value_heads, head_dim, value_dim)

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
            heads = self.layout.value_heads
            beta = SigmoidGate(heads, 1.0 + self.negative_eigenvalues, name="beta")(x)
            decay = StepDecay(heads, name="decay")(x)
            return ops.delta_rule(
                q * self.layout.key_dim**-0.5,
                k,
                v,
                beta=beta,
                log_decay=decay.log_decay,
                state=memory,
                segment_ids=segment_ids,
                **self.options.op_arguments(),
            )

        return mix_heads(self, recurrence, x, state, segment_ids, unit_keys=True)
