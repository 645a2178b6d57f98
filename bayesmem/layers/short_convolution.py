"""Causal depthwise convolution over the last few tokens of the same document."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bayesmem.array_types import SegmentIds
from bayesmem.layers.interface import mask_padding
from bayesmem.layers.linear import parameter
from bayesmem.layers.options import ACTIVATIONS, require_choice, require_positive
from bayesmem.ops.segments import document_starts, valid_steps

Channels = Float[Array, "B T C"]
Window = Float[Array, "B taps-1 C"]


class ShortConvolution(nn.Module):
    """y_t = sum_j kernel[j] * x_{t - taps + 1 + j}, channel by channel; kernel[-1] is for x_t.

    Padding is skipped as if it were not there: the window holds the last `taps - 1` valid inputs of
    the document, raw (before the convolution), and nothing of an earlier document.

    Attributes:
      size: number of taps, at least 1.
      bias: whether a learned number a channel, 0 at first, is added to y.
      activation: applied to y in float32, "identity" or "silu".
    """

    size: int = 4
    bias: bool = False
    activation: str = "identity"

    def __post_init__(self):
        """Checks the options."""
        super().__post_init__()
        require_positive(size=self.size)
        require_choice("activation", self.activation, ACTIVATIONS)

    @nn.compact
    def __call__(
        self,
        x: Channels,
        window: Window | None = None,
        segment_ids: SegmentIds | None = None,
    ) -> tuple[Channels, Window]:
        """Convolves in float32, and again in the backward pass, which is given x alone.

        Args:
          x: [B, T, C].
          window: [B, taps - 1, C] float32, the inputs before x; None for zeros.
          segment_ids: [B, T] int32 or None, see `bayesmem.ops.segments`.

        Returns:
          y [B, T, C] in x's dtype, zero at padding, and the window after the last valid input.
        """
        batch, _, channels = x.shape
        # scale 1/3: uniform in +-taps^-1/2, the usual draw for a depthwise convolution.
        init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        kernel = parameter(self, "kernel", init, (None, "heads"), (self.size, channels))
        bias = None
        if self.bias:
            bias = parameter(self, "bias", nn.initializers.zeros_init(), ("heads",), (channels,))
        if window is None:
            window = jnp.zeros((batch, self.size - 1, channels), jnp.float32)
        return _convolve(kernel, bias, x, window, segment_ids, self.activation)


@functools.partial(jax.checkpoint, static_argnums=5)
def _convolve(
    kernel: Float[Array, "taps C"],
    bias: Float[Array, " C"] | None,
    x: Channels,
    window: Window,
    segment_ids: SegmentIds | None,
    activation: str,
) -> tuple[Channels, Window]:
    inputs, steps = mask_padding(x, segment_ids).astype(jnp.float32), x.shape[1]
    if segment_ids is None:
        inputs = jnp.concatenate([window, inputs], axis=1)
        taps = [kernel[tap] * inputs[:, tap : tap + steps] for tap in range(len(kernel))]
        y, window = functools.reduce(jnp.add, taps), inputs[:, steps:]
    else:
        y, window = _convolve_documents(kernel, inputs, window, segment_ids)
    if bias is not None:
        y = y + bias
    if activation == "silu":
        y = nn.silu(y)
    return mask_padding(y, segment_ids).astype(x.dtype), window


def _convolve_documents(
    kernel: Float[Array, "taps C"],
    inputs: Channels,
    window: Window,
    segment_ids: SegmentIds,
) -> tuple[Channels, Window]:
    """Convolves the valid inputs pushed together, and moves the results back to their steps."""
    history, steps = window.shape[1], inputs.shape[1]
    valid = valid_steps(segment_ids)
    order = jnp.argsort(~valid, axis=1, stable=True)
    document = jnp.cumsum(document_starts(segment_ids), axis=1, dtype=jnp.int32)
    inputs = jnp.concatenate([window, _pick(inputs, order)], axis=1)
    # The window belongs to the document that the row continues: number 0.
    document = jnp.pad(jnp.take_along_axis(document, order, axis=1), ((0, 0), (history, 0)))

    def same_document(first, reference):
        taken = slice(first, first + steps)
        same = document[:, taken] == reference
        return jnp.where(same[..., None], inputs[:, taken], 0)

    current = document[:, history:]
    taps = [kernel[tap] * same_document(tap, current) for tap in range(history + 1)]
    rank = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
    count = jnp.sum(valid, axis=1, dtype=jnp.int32)[:, None]
    latest = count + jnp.arange(history, dtype=jnp.int32)
    last_document = jnp.sum(document_starts(segment_ids), axis=1)[:, None]
    kept = jnp.take_along_axis(document, latest, axis=1) == last_document
    return _pick(functools.reduce(jnp.add, taps), rank), jnp.where(
        kept[..., None], _pick(inputs, latest), 0
    )


def _pick(x: Channels, index: Int[Array, "B N"]) -> Channels:
    return jnp.take_along_axis(x, index[..., None], axis=1)
