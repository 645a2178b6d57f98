"""Documents packed into one row: which steps are padding and where documents start.

Convention of every op, layer and model: `segment_ids` [B, T] holds one id a token. A new id starts
a new document, whose state begins at the prior. A negative id marks padding (left, right or in
between): such a step reads zero, writes nothing and leaves every state as it was. The first real
document continues from the state that was passed in.
"""

import jax
import jax.numpy as jnp

from bayesmem.array_types import Positions, RowCounts, SegmentIds, StepMask


def valid_steps(segment_ids: SegmentIds) -> StepMask:
    """Returns where a step is a token, not padding: [B, T] bool."""
    return segment_ids >= 0


def document_starts(segment_ids: SegmentIds) -> StepMask:
    """Returns where a document starts inside the row: [B, T] bool.

    True at a token whose previous token (padding skipped) has another id. The first token of a row
    is never a start: it continues from the state that was passed in.
    """
    steps = segment_ids.shape[1]
    valid = valid_steps(segment_ids)
    index = jnp.where(valid, jnp.arange(steps, dtype=jnp.int32), -1)
    latest = jax.lax.cummax(index, axis=1)
    previous = jnp.pad(latest[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    previous_id = jnp.take_along_axis(segment_ids, jnp.maximum(previous, 0), axis=1)
    return valid & (previous >= 0) & (segment_ids != previous_id)


def positions_in_document(segment_ids: SegmentIds, offset: RowCounts) -> Positions:
    """Returns the 0-based position of every token in its document: [B, T] int32.

    Args:
      segment_ids: [B, T] int32.
      offset: [B] int32, the position at which the first document of the row continues.

    Padding gets position 0.
    """
    valid = valid_steps(segment_ids)
    token = jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1
    offset = jnp.asarray(offset, jnp.int32)[:, None]
    origin = jnp.where(document_starts(segment_ids), token, -offset)
    return jnp.where(valid, token - jax.lax.cummax(origin, axis=1), 0)
