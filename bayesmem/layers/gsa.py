"""Gated slot attention: a softmax over slots that each token writes in part (arXiv 2409.07146)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Values
from bayesmem.layers.gates import SigmoidDecay
from bayesmem.layers.heads import Heads, empty_state, mix_heads
from bayesmem.layers.interface import MixerState
from bayesmem.layers.options import (
    HeadLayout,
    MixerOptions,
    default_head_dim,
    require_positive,
)


class GSA(nn.Module):
    """K = diag(a) K + (1 - a) k^T, V = diag(a) V + (1 - a) v^T, y = V^T softmax(K q D^-0.5).

    a = sigmoid(x W_1 W_2 + b)^(1 / temperature) for every slot; q and k pass through SiLU.

    Attributes:
      width: W.
      num_heads: H.
      head_dim: D and M; None for width / num_heads.
      num_slots: S of each head.
      decay_rank: size between the decay's two projections.
      decay_temperature: larger keeps longer.
      options: the options all recurrent mixers share.
    """

    width: int
    num_heads: int = 4
    head_dim: int | None = None
    num_slots: int = 64
    decay_rank: int = 64
    decay_temperature: float = 16.0
    options: MixerOptions = MixerOptions()

    __call__ = mix_heads

    @nn.nowrap
    def init_state(self, batch: int) -> MixerState:
        """Returns empty slots of `batch` rows."""
        layout = self.layout
        lead = (batch, layout.value_heads, self.num_slots)
        sizes = (layout.key_dim, layout.value_dim)
        slots = ops.GatedSlots(*(jnp.zeros((*lead, size), jnp.float32) for size in sizes))
        return empty_state(layout, self.options, batch, slots)

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, ops.GatedSlots]:
        """Makes a decay for each slot, writes and attends; see `HeadMixer`."""
        x, q, k, v, _ = heads
        shape = (self.num_heads, self.num_slots)
        log_decay = SigmoidDecay(shape, self.decay_rank, self.decay_temperature, name="decay")(x)
        silu = jax.checkpoint(nn.silu)
        q = silu(q) * q.shape[-1] ** -0.5
        return ops.gated_slot_attention(q, silu(k), v, log_decay=log_decay, **op)

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        return HeadLayout(self.num_heads, self.num_heads, head_dim, head_dim)

    def __post_init__(self):
        """Checks the heads and the numbers of slots and of the decay."""
        super().__post_init__()
        _ = self.layout
        require_positive(num_slots=self.num_slots, decay_rank=self.decay_rank)
        if not self.decay_temperature > 0:
            raise ValueError(f"decay_temperature: found {self.decay_temperature}, wanted > 0")
