"""One function for training, prefill, chunked prefill and decoding; packing and padding (C8, C10)."""

import io

import jax
import numpy as np
import pytest

from tests.layers.cases import BATCH, CASES, LENGTH, STEPS, assert_trees_close, build, inputs, run
from tests.tolerances import assert_close

REAL = 12
"""Tokens in the rows that are padded to STEPS."""

each_mixer = pytest.mark.parametrize("case", CASES)


def close(found, wanted):
    assert_close(found, wanted, "float32", length=LENGTH)


def in_pieces(case, x, lengths, state=None):
    outputs, start = [], 0
    for length in lengths:
        y, state = run(case, x[:, start : start + length], state)
        outputs.append(y)
        start += length
    return np.concatenate(outputs, axis=1), state


def through_a_file(state):
    leaves, tree = jax.tree.flatten(state)
    file = io.BytesIO()
    np.savez(file, *leaves)
    file.seek(0)
    stored = np.load(file)
    return jax.tree.unflatten(tree, [stored[f"arr_{i}"] for i in range(len(leaves))])


@each_mixer
@pytest.mark.parametrize("split", [1, 2, 3])
def test_short_first_part_then_the_rest_at_once_and_token_by_token(case, split):
    x = inputs()[:, :8]
    whole, last = run(case, x)
    for rest in ([8 - split], [1] * (8 - split)):
        y, state = in_pieces(case, x, [split, *rest])
        close(y, whole)
        assert_trees_close(state, last, assert_close, dtype="float32", length=LENGTH)


@each_mixer
def test_long_parts_and_a_state_from_a_file_used_twice(case):
    x = inputs()
    whole, last = run(case, x)
    first, state = run(case, x[:, :11])
    state = through_a_file(state)
    second, end = run(case, x[:, 11:], state)
    again, _ = run(case, x[:, 11:], state)
    np.testing.assert_array_equal(again, second)
    close(np.concatenate([first, second], axis=1), whole)
    assert_trees_close(end, last, assert_close, dtype="float32", length=LENGTH)


@each_mixer
def test_init_state_is_the_state_of_a_fresh_start(case):
    x = inputs()[:, :8]
    wanted = run(case, x)
    found = run(case, x, build(case).init_state(BATCH))
    assert_trees_close(found, wanted, assert_close, dtype="float32", length=LENGTH)


@each_mixer
def test_no_tokens_leave_the_state(case):
    _, state = run(case, inputs()[:, :3])
    for ids in (None, np.zeros((BATCH, 0))):
        y, after = run(case, inputs()[:, :0], state, ids)
        assert y.shape == (BATCH, 0, inputs().shape[2])
        assert_trees_close(after, state, np.testing.assert_array_equal)


@each_mixer
def test_packed_documents_are_separate_documents(case):
    """Boundaries everywhere, documents shorter than the convolution's window among them."""
    x = inputs()
    packings = [[7, 1, 12], [1, 2, 17], [10, 9, 1]]
    ids = [np.repeat([5, 3, 5], lengths) for lengths in packings]
    packed, last = run(case, x, None, ids)
    for row, lengths in enumerate(packings):
        starts = np.cumsum([0, *lengths])
        documents, alone_ids = np.zeros_like(x), np.full((BATCH, STEPS), -1)
        for document, length in enumerate(lengths):
            start = starts[document]
            documents[document, :length] = x[row, start : start + length]
            alone_ids[document, :length] = 0
        alone, states = run(case, documents, None, alone_ids)
        for document, length in enumerate(lengths):
            start = starts[document]
            close(packed[row, start : start + length], alone[document, :length])
        if case != "attention":  # a cache also keeps what came before the last document
            ends = jax.tree.map(lambda leaf: leaf[-1], states)
            found = jax.tree.map(lambda leaf, row=row: leaf[row], last)
            assert_trees_close(found, ends, assert_close, dtype="float32", length=LENGTH)


@each_mixer
def test_first_packed_document_continues_the_state(case):
    x = inputs()
    whole, _ = run(case, x[:, :15])
    _, state = run(case, x[:, :6])
    ids = np.tile(np.repeat([4, 2], [9, 11]), (BATCH, 1))
    second = np.concatenate([x[:, 6:15], x[:, :11]], axis=1)
    y, _ = run(case, second, state, ids)
    close(y[:, :9], whole[:, 6:])
    close(y[:, 9:], whole[:, :11])


@each_mixer
def test_padding_anywhere_is_as_if_it_were_not_there(case):
    """Pads hold NaN: they must reach nothing, not even by a product with zero."""
    real = inputs(REAL)
    wanted, wanted_state = run(case, real)
    x = np.full((BATCH, STEPS, real.shape[2]), np.nan, np.float32)
    ids = np.full((BATCH, STEPS), -1)
    between = np.sort(np.random.default_rng(1).permutation(STEPS)[:REAL])
    places = [np.arange(STEPS - REAL, STEPS), np.arange(REAL), between]
    for row, place in enumerate(places):
        x[row, place], ids[row, place] = real[row], 3
    y, state = run(case, x, None, ids)
    close(np.stack([y[row, place] for row, place in enumerate(places)]), wanted)
    assert_trees_close(state, wanted_state, assert_close, dtype="float32", length=LENGTH)
    np.testing.assert_array_equal(y[ids < 0], 0)


@each_mixer
def test_padding_only_leaves_the_state(case):
    _, state = run(case, inputs()[:, :3])
    x = np.full((BATCH, 4, inputs().shape[2]), np.nan, np.float32)
    y, after = run(case, x, state, np.full((BATCH, 4), -1))
    np.testing.assert_array_equal(y, 0)
    assert_trees_close(after, state, np.testing.assert_array_equal)


@each_mixer
def test_no_token_sees_a_later_one(case):
    x = inputs()
    y, _ = run(case, x)
    changed = np.array(x)
    changed[:, 13:] += 1
    after, _ = run(case, changed)
    np.testing.assert_array_equal(after[:, :8], y[:, :8])
    close(after[:, :13], y[:, :13])
    assert np.abs(after[:, 13:] - y[:, 13:]).max() > 0.01


@each_mixer
def test_rows_of_a_batch_do_not_mix(case):
    x = inputs()
    y, _ = run(case, x)
    reversed_rows, _ = run(case, x[::-1])
    close(reversed_rows[::-1], y)
