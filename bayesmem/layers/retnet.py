"""RetNet: linear attention with a fixed decay a head (arXiv 2307.08621)."""

import jax.numpy as jnp
from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Hidden, Positions, SegmentIds
from bayesmem.layers.heads import mix_heads
from bayesmem.layers.interface import MixerState
from bayesmem.layers.options import (
    HeadLayout,
    MixerOptions,
    default_head_dim,
    require_even,
)
from bayesmem.layers.rotary import document_positions, next_position, rotate


class RetNet(nn.Module):
    """M_t = a_h M_{t-1} + k v^T with a_h = 1 - 2^(-5-h), y = M_t^T q D^-0.5 (equations 6 and 8).

    Attributes:
      width: W.
      num_heads: H.
      head_dim: D = M; None for width / num_heads. Even where `rotary` is on.
      rotary: whether queries and keys are rotated by their positions in the document; with the
        decay this is the paper's xPos.
      rope_theta: base of the rotation's wavelengths.
      options: the options all recurrent mixers share.
    """

    width: int
    num_heads: int = 4
    head_dim: int | None = None
    rotary: bool = True
    rope_theta: float = 10000.0
    options: MixerOptions = MixerOptions()

    def __post_init__(self):
        """Checks the sizes."""
        super().__post_init__()
        if self.rotary:
            require_even("head_dim", self.layout.key_dim)
        _ = self.layout

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        return HeadLayout(self.num_heads, self.num_heads, head_dim, head_dim)

    @nn.nowrap
    def init_state(self, batch: int) -> MixerState:
        """Returns the state of `batch` fresh rows."""
        state = self.layout.init_state(batch, self.options)
        return state._replace(position=jnp.zeros(batch, jnp.int32)) if self.rotary else state

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
        offset = None if state is None else state.position
        if offset is None:
            offset = jnp.zeros(x.shape[0], jnp.int32)
        positions = document_positions(x.shape[:2], segment_ids, offset, positions)
        # log(1 - 2^(-5-h)), the same at every step.
        log_decay = jnp.log1p(-(2.0 ** (-5.0 - jnp.arange(self.num_heads, dtype=jnp.float32))))

        def recurrence(x, q, k, v, memory):
            if self.rotary:
                q, k = (rotate(part, positions, self.rope_theta) for part in (q, k))
            return ops.linear_attention(
                q * self.layout.key_dim**-0.5,
                k,
                v,
                log_decay=jnp.broadcast_to(log_decay, q.shape[:3]),
                state=memory,
                segment_ids=segment_ids,
                **self.options.op_arguments(),
            )

        y, state = mix_heads(self, recurrence, x, state, segment_ids)
        if self.rotary:
            state = state._replace(position=next_position(positions, segment_ids, offset))
        return y, state
