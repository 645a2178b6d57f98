"""DeltaNet: error-correcting writes with a learned strength (arXiv 2102.11174, 2406.06484)."""

from typing import Any

from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Memory, Values
from bayesmem.layers.gates import SigmoidGate
from bayesmem.layers.heads import Heads, fresh_state, mix_heads
from bayesmem.layers.options import HeadLayout, MixerOptions, equal_heads


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

    __call__ = mix_heads
    init_state = fresh_state

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, Memory]:
        """Makes beta and runs the delta rule; see `HeadMixer`."""
        x, q, k, v, _ = heads
        beta = SigmoidGate(self.num_heads, 1.0 + self.negative_eigenvalues, name="beta")(x)
        return ops.delta_rule(q * q.shape[-1] ** -0.5, k, v, beta=beta, **op)

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        return equal_heads(self.width, self.num_heads, self.head_dim, unit_keys=True)

    def __post_init__(self):
        """Checks that the heads fit the width."""
        super().__post_init__()
        _ = self.layout
