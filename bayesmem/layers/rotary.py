"""Positions of tokens in their documents, and the rotation of queries and keys by them."""

import jax.numpy as jnp

from bayesmem.array_types import Keys, Positions, RowCounts, SegmentIds
from bayesmem.layers.interface import check_per_token
from bayesmem.ops.segments import positions_in_document, valid_steps


def document_positions(
    shape: tuple[int, ...],
    segment_ids: SegmentIds | None,
    offset: RowCounts,
    positions: Positions | None = None,
) -> Positions:
    """Returns the position of every token in its document, [B, T] int32, 0-based.

    Args:
      shape: (B, T).
      segment_ids: [B, T] int32, or None where each row is one document.
      offset: [B] int32, the position at which each row continues its document.
      positions: [B, T] int32 to be used instead, or None.

    Raises:
      ValueError: segment_ids or positions is not an integer array [B, T].
    """
    for name, value in (("segment_ids", segment_ids), ("positions", positions)):
        if value is not None:
            check_per_token(name, value, shape)
    if positions is not None:
        return positions
    if segment_ids is None:
        return offset[:, None] + jnp.arange(shape[1], dtype=jnp.int32)
    return positions_in_document(segment_ids, offset)


def next_position(
    positions: Positions, segment_ids: SegmentIds | None, offset: RowCounts
) -> RowCounts:
    """Returns the position after each row's last valid token, [B]; `offset` where it has none."""
    steps = positions.shape[1]
    if steps == 0:
        return offset
    if segment_ids is None:
        return positions[:, -1] + 1
    index = jnp.where(valid_steps(segment_ids), jnp.arange(steps), -1).max(axis=1)
    last = jnp.take_along_axis(positions, jnp.maximum(index, 0)[:, None], axis=1)[:, 0]
    return jnp.where(index >= 0, last + 1, offset)


def rotate(x: Keys, positions: Positions, theta: float) -> Keys:
    """Rotates x by its position (rotary embedding, arXiv 2104.09864, equation 34).

    Args:
      x: [B, T, H, D] with D even; dimensions i and i + D/2 form a pair.
      positions: [B, T] int32.
      theta: base of the wavelengths; pair i turns by theta^(-2i/D) radians a token.

    Returns:
      [B, T, H, D] in x's dtype, with angles and products made in float32.
    """
    half = x.shape[-1] // 2
    rates = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[..., None, None].astype(jnp.float32) * rates
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
