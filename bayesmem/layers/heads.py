"""What stands around every recurrence: projections to heads before it, norm and gate after it.

A recurrent layer is a Flax module that states its `layout`, its `options` and its `recurrence`, and
takes the rest from here: `__call__ = mix_heads`, `init_state = fresh_state`.
"""

import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from bayesmem.array_types import Addresses, Hidden, Keys, Positions, SegmentIds, Values
from bayesmem.layers.interface import NO_STATE, MixerState, check_input, mask_padding
from bayesmem.layers.linear import linear, parameter
from bayesmem.layers.norm import RMSNorm, l2_normalise
from bayesmem.layers.options import HeadLayout, MixerOptions
from bayesmem.layers.rotary import document_positions, next_position
from bayesmem.layers.short_convolution import ShortConvolution, Window
from bayesmem.ops.checks import require_floating, require_shape

HEAD_AXES = ("embed", "heads")


class Heads(NamedTuple):
    """What a recurrence is made from.

    Attributes:
      x: [B, T, W], the layer's input with zeros at the padding: for gates.
      q: [B, T, Hk, D], queries.
      k: [B, T, Hk, D], keys.
      v: [B, T, H, M], values.
      positions: [B, T] int32, of each token in its document.
    """

    x: Hidden
    q: Keys
    k: Keys
    v: Values
    positions: Positions


class HeadMixer(Protocol):
    """What `mix_heads` asks of a layer."""

    @property
    def width(self) -> int:
        """W."""

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads."""

    @property
    def options(self) -> MixerOptions:
        """The options all recurrent mixers share."""

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, Any]:
        """Returns y [B, T, H, M] and the memory after it.

        Args:
          heads: queries, keys, values, and what gates are made from.
          **op: state (the memory or None), segment_ids, chunk_size and implementation, for the op.
        """


class HeadProjections(nn.Module):
    """Queries, keys and values: projection, convolution, activation, bias, normalisation.

    Where addresses are given, keys and queries are these, as they are, and values alone are
    projected and activated.

    Attributes:
      layout: numbers and sizes of the heads.
      options: conv_size, conv_bias, activation, qk_bias and dtype are used.
    """

    layout: HeadLayout
    options: MixerOptions

    @nn.compact
    def __call__(
        self,
        x: Hidden,
        window: Window | None,
        segment_ids: SegmentIds | None,
        addresses: Addresses | None = None,
    ) -> tuple[Keys, Keys, Values, Window | None]:
        """Returns q, k [B, T, Hk, D], v [B, T, H, M] and the convolution's new window (or None).

        Args:
          x: [B, T, W] with zeros at the padding.
          window: [B, taps - 1, C] or None, the state of the short convolution.
          segment_ids: [B, T] int32 or None.
          addresses: [B, T, D] with zeros at the padding, or None.
        """
        options, layout = self.options, self.layout
        sizes = dict(zip(("query", "key", "value"), layout.part_sizes, strict=True))
        if addresses is not None:
            sizes = {"value": sizes["value"]}
        parts = [
            linear(size, HEAD_AXES, name, dtype=options.dtype)(x) for name, size in sizes.items()
        ]
        if options.conv_size:
            convolve = ShortConvolution(
                options.conv_size, options.conv_bias, options.activation, name="conv"
            )
            joined, window = convolve(jnp.concatenate(parts, axis=-1), window, segment_ids)
            parts = jnp.split(joined, np.cumsum(layout.part_sizes)[:2], axis=-1)
        elif options.activation == "silu":
            parts = [jax.checkpoint(nn.silu)(part) for part in parts]
        key_shape = (*x.shape[:2], layout.key_heads, layout.key_dim)
        v = parts[-1].reshape(*x.shape[:2], layout.value_heads, layout.value_dim)
        if addresses is not None:
            k = jnp.broadcast_to(addresses.astype(options.dtype)[:, :, None], key_shape)
            return k, k, v, window
        q, k = (part.reshape(key_shape) for part in parts[:2])
        if options.qk_bias:
            init = nn.initializers.normal(options.qk_bias)
            bias = parameter(self, "qk_bias", init, (None, None), key_shape[2:])
            q, k = q + bias.astype(q.dtype), k + bias.astype(k.dtype)
        if layout.unit_keys:
            q, k = l2_normalise(q), l2_normalise(k)
        return q, k, v, window


class GatedOutput(nn.Module):
    """RMSNorm, a gate made from x, and the projection back to the width.

    Attributes:
      width: W.
      options: output_gate, output_norm, norm_eps and dtype are used.
      groups: G, groups of heads that are normalised together where output_norm is "gated_groups".
    """

    width: int
    options: MixerOptions
    groups: int = 1

    @nn.compact
    def __call__(self, y: Values, x: Hidden) -> Hidden:
        """Returns [B, T, W] from the read values y [B, T, H, M] and the layer's input x.

        The result is zero where y is zero.
        """
        options, y = self.options, y.astype(self.options.dtype)
        if options.output_norm == "heads":
            y = RMSNorm(options.norm_eps, name="norm")(y)
        y = y.reshape(*y.shape[:2], y.shape[2] * y.shape[3])
        if options.output_gate != "none":
            gate = linear(y.shape[-1], HEAD_AXES, "gate", dtype=options.dtype)(x)
            y = gated(y, gate, options.output_gate)
        if options.output_norm == "gated_groups":
            y = RMSNorm(options.norm_eps, self.groups, name="norm")(y)
        return linear(self.width, HEAD_AXES[::-1], "out", dtype=options.dtype)(y)


@functools.partial(jax.checkpoint, static_argnums=2)
def gated(
    y: Float[Array, "B T C"], gate: Float[Array, "B T C"], kind: str
) -> Float[Array, "B T C"]:
    """Returns y * silu(gate) or, of another kind, y * sigmoid(gate); only the two are kept."""
    return y * (nn.silu(gate) if kind == "silu" else nn.sigmoid(gate))


def check_addresses(
    addresses: Addresses, x: Hidden, layout: HeadLayout, options: MixerOptions
) -> None:
    """Checks addresses that are to be the keys and queries of a layer.

    Raises:
      ValueError: they are not floating-point [B, T, D] with the layer's D, or the options ask for
        what is made of projected keys.
    """
    for name in ("conv_size", "qk_bias"):
        if value := getattr(options, name):
            raise ValueError(
                f"{name}: found {value} with addresses, wanted 0: keys and queries are given"
            )
    require_floating("addresses", addresses)
    batch, steps = x.shape[:2]
    require_shape("addresses", addresses, {"B": batch, "T": steps, "D": layout.key_dim}, "B T D")


@nn.compact
def mix_heads(
    self: HeadMixer,
    x: Hidden,
    state: MixerState | None = None,
    *,
    segment_ids: SegmentIds | None = None,
    positions: Positions | None = None,
    addresses: Addresses | None = None,
) -> tuple[Hidden, MixerState]:
    """Runs a layer's recurrence between the projections to heads and the gated output.

    The `__call__` of every recurrent layer, see `Mixer`; makes its submodules "heads" and "output".

    Args:
      self: the layer.
      x: [B, T, W].
      state: the layer's state, or None for a fresh start.
      segment_ids: [B, T] int32 or None, see `bayesmem.ops.segments`.
      positions: [B, T] int32, or None to count from the start of each document.
      addresses: [B, T, D], or None. Where they are given, they are the keys and the queries of
        every head in place of those made from x, for which the layer then has no parameters. They
        are used as they are: of unit length where the recurrence asks for unit keys. A recurrence
        that rotates its keys by their positions (RetNet) rotates them too.

    Returns:
      y [B, T, W], zero at padding, and the state after the last valid token.

    Raises:
      ValueError: a shape or dtype does not fit, or the options ask for a convolution or a bias of
        keys that are given.
    """
    check_input(x, self.width, segment_ids)
    if addresses is not None:
        check_addresses(addresses, x, self.layout, self.options)
        addresses = mask_padding(addresses, segment_ids)
    memory, window, offset = state or NO_STATE
    if offset is None:
        offset = jnp.zeros(x.shape[0], jnp.int32)
    positions = document_positions(x.shape[:2], segment_ids, offset, positions)
    x = mask_padding(x, segment_ids)
    project = HeadProjections(self.layout, self.options, name="heads")
    q, k, v, window = project(x, window, segment_ids, addresses)
    y, memory = self.recurrence(
        Heads(x, q, k, v, positions),
        state=memory,
        segment_ids=segment_ids,
        chunk_size=self.options.chunk_size,
        implementation=self.options.implementation,
    )
    y = GatedOutput(self.width, self.options, self.layout.key_heads, name="output")(y, x)
    following = next_position(positions, segment_ids, offset) if self.layout.positions else None
    return y, MixerState(memory, window, following)


@nn.nowrap
def fresh_state(self: HeadMixer, batch: int) -> MixerState:
    """Returns the state of `batch` rows that have read nothing, for a memory [B, H, D, M].

    The `init_state` of every recurrent layer whose memory is one array.
    """
    layout = self.layout
    shape = (batch, layout.value_heads, layout.key_dim, layout.value_dim)
    return empty_state(layout, self.options, batch, jnp.zeros(shape, jnp.float32))


def empty_state(layout: HeadLayout, options: MixerOptions, batch: int, memory: Any) -> MixerState:
    """Returns the memory of `batch` rows with an empty convolution window, at position 0."""
    window = position = None
    if options.conv_size:
        window = jnp.zeros((batch, options.conv_size - 1, sum(layout.part_sizes)), jnp.float32)
    if layout.positions:
        position = jnp.zeros(batch, jnp.int32)
    return MixerState(memory, window, position)
