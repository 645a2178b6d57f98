"""Document limits and positions against a plain loop, padding anywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmem.ops import segments

STEPS = 12
# Ids in any order: an id may come back, and every negative one is padding.
ROWS = st.lists(st.integers(-2, 3), min_size=STEPS, max_size=STEPS)
EXAMPLES = settings(max_examples=200, deadline=None)

document_starts = jax.jit(segments.document_starts)
positions_in_document = jax.jit(segments.positions_in_document)


def walk(row, offset):
    """(valid, starts a document, position) of each step of one row of ids."""
    previous, position, steps = None, offset, []
    for segment in row:
        if segment < 0:
            steps.append((False, False, 0))
            continue
        start = previous is not None and segment != previous
        position = 0 if start else position
        steps.append((True, start, position))
        previous, position = segment, position + 1
    return steps


@EXAMPLES
@given(rows=st.tuples(ROWS, ROWS), offsets=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_all_three_equal_a_plain_loop(rows, offsets):
    ids = jnp.asarray(rows, jnp.int32)
    offset = jnp.asarray(offsets, jnp.int32)
    wanted = [walk(row, start) for row, start in zip(rows, offsets, strict=True)]
    valid, starts, positions = (np.array([[s[i] for s in row] for row in wanted]) for i in range(3))
    np.testing.assert_array_equal(segments.valid_steps(ids), valid)
    np.testing.assert_array_equal(document_starts(ids), starts)
    found = positions_in_document(ids, offset)
    np.testing.assert_array_equal(found, positions)
    assert found.dtype == jnp.int32


@EXAMPLES
@given(row=ROWS, at=st.integers(0, STEPS), pads=st.integers(1, 3), offset=st.integers(0, 9))
def test_padding_put_in_anywhere_changes_no_token(row, at, pads, offset):
    padded = [*row[:at], *[-1] * pads, *row[at:]]
    kept = np.arange(len(padded))
    kept = (kept < at) | (kept >= at + pads)
    offset = jnp.asarray([offset], jnp.int32)
    short, long = (jnp.asarray([ids], jnp.int32) for ids in (row, padded))
    np.testing.assert_array_equal(document_starts(long)[0, kept], document_starts(short)[0])
    np.testing.assert_array_equal(
        positions_in_document(long, offset)[0, kept], positions_in_document(short, offset)[0]
    )


@pytest.mark.parametrize("ids", ([[]], [[-1]], [[4]], [[-1, -1, -1]]))
def test_rows_without_two_tokens_start_nothing(ids):
    ids = jnp.asarray(ids, jnp.int32)
    offset = jnp.asarray([5], jnp.int32)
    assert not np.any(document_starts(ids))
    wanted = np.where(np.asarray(ids) >= 0, 5, 0)
    np.testing.assert_array_equal(positions_in_document(ids, offset), wanted)
