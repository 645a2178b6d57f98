"""What stands around every recurrence: projections to heads before it, norm and gate after it."""

from collections.abc import Callable
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from bayesmem.array_types import Hidden, Keys, SegmentIds, Values
from bayesmem.layers.interface import NO_STATE, MixerState, check_input, mask_padding
from bayesmem.layers.linear import linear
from bayesmem.layers.norm import RMSNorm, l2_normalise
from bayesmem.layers.options import HeadLayout, MixerOptions
from bayesmem.layers.short_convolution import ShortConvolution, Window

HEAD_AXES = ("embed", "heads")


class HeadProjections(nn.Module):
    """Queries, keys and values: projection, short convolution, activation, normalisation.

    Attributes:
      layout: numbers and sizes of the heads.
      options: conv_size, activation and dtype are used.
      unit_keys: whether queries and keys are L2-normalised (in float32).
    """

    layout: HeadLayout
    options: MixerOptions
    unit_keys: bool = False

    @nn.compact
    def __call__(
        self, x: Hidden, window: Window | None, segment_ids: SegmentIds | None
    ) -> tuple[Keys, Keys, Values, Window | None]:
        """Returns q, k [B, T, Hk, D], v [B, T, Hv, M] and the convolution's new window (or None).

        Args:
          x: [B, T, W] with zeros at the padding.
          window: [B, taps - 1, C] or None, the state of the short convolution.
          segment_ids: [B, T] int32 or None.
        """
        options, layout = self.options, self.layout
        parts = [
            linear(size, HEAD_AXES, name, dtype=options.dtype)(x)
            for name, size in zip(("query", "key", "value"), layout.part_sizes, strict=True)
        ]
        if options.conv_size:
            joined, window = ShortConvolution(options.conv_size, name="conv")(
                jnp.concatenate(parts, axis=-1), window, segment_ids
            )
            parts = jnp.split(joined, np.cumsum(layout.part_sizes)[:2], axis=-1)
        if options.activation == "silu":
            parts = [nn.silu(part) for part in parts]
        q, k = (part.reshape(*x.shape[:2], layout.key_heads, layout.key_dim) for part in parts[:2])
        if self.unit_keys:
            q, k = l2_normalise(q), l2_normalise(k)
        v = parts[2].reshape(*x.shape[:2], layout.value_heads, layout.value_dim)
        return q, k, v, window


class GatedOutput(nn.Module):
    """RMSNorm of each head, times a gate made from x, and the projection back to the width.

    Attributes:
      width: W.
      options: output_gate, norm_eps and dtype are used.
    """

    width: int
    options: MixerOptions

    @nn.compact
    def __call__(self, y: Values, x: Float[Array, "B T W"]) -> Hidden:
        """Returns [B, T, W] from the read values y [B, T, H, M] and the layer's input x.

        The norm's scale is shared by the heads. The result is zero where y is zero.
        """
        options = self.options
        y = RMSNorm(options.norm_eps, name="norm")(y.astype(options.dtype))
        y = y.reshape(*y.shape[:2], y.shape[2] * y.shape[3])
        if options.output_gate != "none":
            gate = linear(y.shape[-1], HEAD_AXES, "gate", dtype=options.dtype)(x)
            y = y * (nn.silu(gate) if options.output_gate == "silu" else nn.sigmoid(gate))
        return linear(self.width, ("heads", "embed"), "out", dtype=options.dtype)(y)


class HeadMixer(Protocol):
    """What `mix_heads` reads of the layer that calls it."""

    @property
    def width(self) -> int:
        """W."""

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""

    @property
    def options(self) -> MixerOptions:
        """The options all recurrent mixers share."""


Recurrence = Callable[[Hidden, Keys, Keys, Values, Any], tuple[Values, Any]]
"""(x, q, k, v, memory or None) -> (y [B, T, H, M], memory): a layer's own part."""


def mix_heads(
    layer: HeadMixer,
    recurrence: Recurrence,
    x: Hidden,
    state: MixerState | None,
    segment_ids: SegmentIds | None,
    *,
    unit_keys: bool = False,
) -> tuple[Hidden, MixerState]:
    """Runs a layer's recurrence between the projections to heads and the gated output.

    Called in the layer's compact `__call__`, of which it makes the submodules "heads" and "output".

    Args:
      layer: the calling layer.
      recurrence: the layer's gates and op; the x it is given has zeros at the padding.
      x: [B, T, W].
      state: the layer's state, or None for a fresh one.
      segment_ids: [B, T] int32 or None.
      unit_keys: whether queries and keys are L2-normalised.

    Returns:
      y [B, T, W] and the state, without a position.
    """
    check_input(x, layer.width, segment_ids)
    memory, window, _ = state or NO_STATE
    x = mask_padding(x, segment_ids)
    project = HeadProjections(layer.layout, layer.options, unit_keys, name="heads")
    q, k, v, window = project(x, window, segment_ids)
    y, memory = recurrence(x, q, k, v, memory)
    output = GatedOutput(layer.width, layer.options, name="output")
    return output(y, x), MixerState(memory, window)
