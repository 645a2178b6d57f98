"""Training, prefill and decoding are one function; packing and padding (C8, C10)."""

import functools
import io

import jax
import numpy as np
import pytest

from bayesmem.layers import build_mixer
from tests.layers.cases import (
    BATCH,
    CASES,
    LENGTH,
    QUICK_BUILD,
    STEPS,
    assert_trees_close,
    build,
    inputs,
    run,
)
from tests.tolerances import assert_close

REAL = 11
"""Tokens in the rows that are padded to STEPS."""

each_mixer = pytest.mark.parametrize("case", CASES)


def close(found, wanted):
    assert_close(found, wanted, "float32", length=LENGTH)


def states_close(found, wanted):
    assert_trees_close(found, wanted, assert_close, dtype="float32", length=LENGTH)


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
    x, fresh = inputs()[:, :5], build(case).init_state(BATCH)
    whole, last = in_pieces(case, x, [5], fresh)
    for rest in ([5 - split], [1] * (5 - split)):
        y, state = in_pieces(case, x, [split, *rest], fresh)
        close(y, whole)
        states_close(state, last)


@each_mixer
def test_long_parts_and_a_state_from_a_file_used_twice(case):
    x = inputs()
    whole, last = run(case, x)
    first, state = run(case, x[:, :REAL], build(case).init_state(BATCH))
    state = through_a_file(state)
    second, end = run(case, x[:, REAL:], state)
    again, _ = run(case, x[:, REAL:], state)
    np.testing.assert_array_equal(again, second)
    close(np.concatenate([first, second], axis=1), whole)
    states_close(end, last)


@functools.cache
def long_layer():
    """A layer with chunks of 64 in one jitted call, and its parameters."""
    layer = build_mixer("gated_deltanet", inputs().shape[2], {"num_heads": 2})
    call = jax.jit(layer.apply, compiler_options=QUICK_BUILD)
    return call, jax.jit(layer.init)(jax.random.key(0), inputs(1, batch=1))


@pytest.mark.parametrize("split", [1, 63, 64, 129])
def test_splits_around_a_chunk_of_64(split):
    x, (call, params) = inputs(130, batch=1), long_layer()
    whole, last = call(params, x)
    first, state = call(params, x[:, :split])
    second, end = call(params, x[:, split:], state)
    assert_close(np.concatenate([first, second], axis=1), whole, "float32", length=130 * 16)
    assert_trees_close(end, last, assert_close, dtype="float32", length=130 * 16)


@each_mixer
def test_no_tokens_leave_the_state(case):
    _, state = run(case, inputs()[:, :3], build(case).init_state(BATCH))
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
            states_close(found, ends)


@each_mixer
def test_first_packed_document_continues_the_state(case):
    x = inputs()
    whole, _ = run(case, x)
    _, state = run(case, x[:, :3], build(case).init_state(BATCH))
    ids = np.tile(np.repeat([4, 2], [9, 11]), (BATCH, 1))
    y, _ = run(case, np.concatenate([x[:, 3:12], x[:, :11]], axis=1), state, ids)
    close(y[:, :9], whole[:, 3:12])
    close(y[:, 9:], whole[:, :11])


@each_mixer
def test_padding_anywhere_is_as_if_it_were_not_there(case):
    """Pads hold NaN: they must reach nothing, not even by a product with zero."""
    real = inputs(REAL)
    wanted, wanted_state = run(case, real, build(case).init_state(BATCH))
    x = np.full((BATCH, STEPS, real.shape[2]), np.nan, np.float32)
    ids = np.full((BATCH, STEPS), -1)
    between = np.sort(np.random.default_rng(1).permutation(STEPS)[:REAL])
    places = [np.arange(STEPS - REAL, STEPS), np.arange(REAL), between]
    for row, place in enumerate(places):
        x[row, place], ids[row, place] = real[row], 3
    y, state = run(case, x, None, ids)
    close(np.stack([y[row, place] for row, place in enumerate(places)]), wanted)
    states_close(state, wanted_state)
    np.testing.assert_array_equal(y[ids < 0], 0)


@each_mixer
def test_padding_only_leaves_the_state(case):
    _, state = run(case, inputs()[:, :3], build(case).init_state(BATCH))
    x = np.full_like(inputs(), np.nan)
    y, after = run(case, x, state, np.full((BATCH, STEPS), -1))
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
