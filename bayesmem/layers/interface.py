"""The one interface of all sequence layers, and the state they pass on.

    y, state = layer.apply(params, x, state, segment_ids=..., positions=...)
    state = layer.init_state(batch)

A call with T = 1 is the decoding step, a call with `state` continues a sequence, and a call with
`state=None` starts afresh: training, prefill, chunked prefill and decoding are one function.
"""

from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesmem.array_types import Addresses, Hidden, Positions, RowCounts, SegmentIds
from bayesmem.ops.checks import require_floating, require_shape
from bayesmem.ops.segments import valid_steps


class MixerState(NamedTuple):
    """State of a recurrent mixer after the last valid token of each row; all of it float32.

    Attributes:
      memory: the op's state: [B, H, D, M], or a `KalmanState` for the Bayesian Layer.
      conv: [B, taps - 1, C], the last raw inputs of the short convolution in the current document,
        oldest first; None for a mixer without convolution.
      position: [B] int32, position of the next token in its document; None for a mixer that uses
        no positions.
    """

    memory: Any
    conv: Float[Array, "B taps-1 C"] | None = None
    position: RowCounts | None = None


NO_STATE = MixerState(None)
"""What a mixer unpacks where the state is None: every part is the part of a fresh start."""


class Mixer(Protocol):
    """What a model asks of a sequence layer (a Flax module, here seen as bound)."""

    def __call__(
        self,
        x: Hidden,
        state: Any = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        addresses: Addresses | None = None,
    ) -> tuple[Hidden, Any]:
        """Mixes [B, T, W] over time and returns the result with the state after the last token.

        With `addresses` [B, T, D] a recurrent layer reads and writes there, see `mix_heads`.
        """

    def init_state(self, batch: int) -> Any:
        """Returns the state of `batch` rows that have read nothing; works on an unbound module."""


def check_input(x: Hidden, width: int, segment_ids: SegmentIds | None) -> None:
    """Checks a layer's input.

    Raises:
      ValueError: x is not [B, T, W], or segment_ids not an integer array [B, T].
    """
    require_shape("x", x, {"W": width}, "B T W")
    if segment_ids is not None:
        check_per_token("segment_ids", segment_ids, x.shape[:2])


def reject_addresses(layer: str, addresses: Addresses | None) -> None:
    """Raises ValueError where a layer that makes its own keys is given addresses."""
    if addresses is not None:
        raise ValueError(
            f"addresses: found an array {addresses.shape} for {layer}, which makes keys and "
            f"queries of its own; wanted None, or a recurrent mixer with keys"
        )


def check_vectors(name: str, value: Array) -> None:
    """Raises ValueError unless `value` is a floating-point array [B, T, F]."""
    require_floating(name, value)
    require_shape(name, value, {}, "B T F")


def check_per_token(
    name: str, value: Array, shape: tuple[int, ...] = (), axes: str = "B T"
) -> None:
    """Raises ValueError unless `value` is an integer array [B, T], of `shape` where it is given.

    Args:
      name: the argument's name.
      value: the array.
      shape: sizes of the first axes; an axis beyond them may have any size.
      axes: names of all axes, separated by a space.
    """
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise ValueError(f"{name}: found dtype {value.dtype}, wanted an integer dtype")
    require_shape(name, value, dict(zip(axes.split(), shape, strict=False)), axes)


def mask_padding(x: Hidden, segment_ids: SegmentIds | None) -> Hidden:
    """Returns x [B, T, W] with zeros at the padding.

    The padding is selected away, not multiplied away: whatever stands there, a NaN included,
    reaches neither an output nor a gradient.
    """
    if segment_ids is None:
        return x
    return jnp.where(valid_steps(segment_ids)[..., None], x, 0)
