"""RetNet: linear attention with a fixed decay a head (arXiv 2307.08621)."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Memory, Values
from bayesmem.layers.heads import Heads, fresh_state, mix_heads
from bayesmem.layers.options import HeadLayout, MixerOptions, equal_heads
from bayesmem.layers.rotary import rotate


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

    __call__ = mix_heads
    init_state = fresh_state

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, Memory]:
        """Rotates queries and keys and sums with the heads' fixed decays; see `HeadMixer`."""
        _, q, k, v, positions = heads
        if self.rotary:
            q, k = (rotate(part, positions, self.rope_theta) for part in (q, k))
        log_decay = jnp.log1p(-(2.0 ** (-5.0 - jnp.arange(self.num_heads, dtype=jnp.float32))))
        log_decay = jnp.broadcast_to(log_decay, q.shape[:3])
        return ops.linear_attention(q * q.shape[-1] ** -0.5, k, v, log_decay=log_decay, **op)

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        layout = equal_heads(self.width, self.num_heads, self.head_dim)
        return dataclasses.replace(layout, positions=self.rotary)

    def __post_init__(self):
        """Checks that the heads fit the width, and pairs where they are rotated."""
        super().__post_init__()
        _ = self.layout
