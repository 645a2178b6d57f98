"""One function for training, prefill and decoding; packed documents; padding (C8)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.models import LanguageModel
from tests.models.cases import (
    MODELS,
    PAD,
    QUICK_BUILD,
    STEPS,
    SUMMED,
    TOKENS,
    VOCAB,
    close,
    config,
    decode,
    parameters,
    run,
)
from tests.tolerances import assert_close

REAL = 10
each_model = pytest.mark.parametrize("name", MODELS)


@each_model
@pytest.mark.parametrize("pieces", [[6, 10], [STEPS - 3, 1, 1, 1], [1] * STEPS])
def test_prefill_in_pieces_and_decoding_equal_the_training_pass(name, pieces):
    whole, last = run(name, TOKENS)
    state, start, parts = LanguageModel(config(name)).init_state(2), 0, []
    for length in pieces:
        logits, state = run(name, TOKENS[:, start : start + length], state)
        parts.append(logits)
        start += length
    close(np.concatenate(parts, axis=1), whole)
    assert jax.tree.structure(state) == jax.tree.structure(last)
    jax.tree.map(close, state, last)


@each_model
def test_packed_documents_are_separate_documents(name):
    ids = np.tile(np.repeat([0, 1, 2], [5, 1, 10]), (2, 1))
    packed, state = run(name, TOKENS, None, ids)
    fresh = LanguageModel(config(name)).init_state(2)
    for part in (slice(0, 5), slice(5, 6), slice(6, 16)):
        alone, end = run(name, TOKENS[:, part], fresh)
        close(packed[:, part], alone)
    np.testing.assert_array_equal(state.position, end.position)
    following, _ = run(name, TOKENS[:, :1], state)
    wanted, _ = run(name, TOKENS[:, :1], end)
    close(following, wanted)


def padded():
    """The first REAL tokens of row 0, left, right and in the middle of padding."""
    tokens, ids = np.full((3, STEPS), PAD, np.int32), np.full((3, STEPS), -1, np.int32)
    places = np.arange(REAL) + np.asarray([[STEPS - REAL], [0], [3]])
    for row, place in enumerate(places):
        tokens[row, place], ids[row, place] = TOKENS[0, :REAL], 0
    return tokens, ids, places


@each_model
def test_padding_is_as_if_it_were_not_there(name):
    """Even where the embedding of the padding token holds NaN (the head's rows are others)."""
    tokens, ids, places = padded()
    wanted, wanted_state = run(name, np.tile(TOKENS[:1, :REAL], (3, 1)))
    params = jax.tree.map(lambda leaf: leaf, parameters(name))
    table = params["params"]["embedding"]["table"]
    assert np.abs(table[PAD]).max() > 0
    for pad_embedding in (table[PAD], np.nan):
        params["params"]["embedding"]["table"] = table.at[PAD].set(pad_embedding)
        logits, state = run(name, tokens, None, ids, params)
        close(np.take_along_axis(np.asarray(logits), places[..., None], axis=1), wanted)
        np.testing.assert_array_equal(np.asarray(logits)[ids < 0], 0)
        jax.tree.map(close, state, wanted_state)


@each_model
def test_padding_takes_and_gives_no_gradient(name):
    model, (tokens, ids, places) = LanguageModel(config(name)), padded()
    rows = np.tile(TOKENS[:1, :REAL], (3, 1))
    weights = np.random.default_rng(1).standard_normal((3, REAL, VOCAB)).astype("float32")
    spread = np.ones((3, STEPS, VOCAB), np.float32)
    np.put_along_axis(spread, places[..., None], weights, axis=1)

    def loss(params, tokens, ids, weights):
        return jnp.sum(model.apply(params, tokens, segment_ids=ids)[0] * weights)

    gradient = jax.jit(jax.grad(loss), compiler_options=QUICK_BUILD)
    wanted = gradient(parameters(name), rows, None, weights)
    params = jax.tree.map(lambda leaf: leaf, parameters(name))
    embedding = params["params"]["embedding"]
    embedding["table"] = embedding["table"].at[PAD].set(jnp.nan)
    found = gradient(params, tokens, ids, spread)
    np.testing.assert_array_equal(found["params"]["embedding"]["table"][PAD], 0)

    def equal(path, one, other):
        assert_close(one, other, "float32", "gradient", 3 * SUMMED), path

    jax.tree_util.tree_map_with_path(equal, found, wanted)


def test_segmented_ramnet_agrees_with_decoding():
    """On a CPU the other tests compare touched slots with the recurrence of up to 8 tokens."""
    whole, last = run("ramnet", TOKENS, form="segmented")
    logits, state = decode("ramnet", TOKENS, LanguageModel(config("ramnet")).init_state(2))
    close(whole, logits)
    jax.tree.map(close, last, state)


@pytest.mark.parametrize("form", ["touched", "segmented"])
def test_forms_of_ramnet_agree_on_packed_and_padded_rows_that_continue(form):
    rows = [[0] * 5 + [-1] * 2 + [1] * 9, [-1] * 3 + [0] * 10 + [-1] * 3]
    later = [[1] * 11 + [2] * 5, [-1] + [0] * 4 + [1] * 9 + [-1] * 2]
    state = wanted_state = LanguageModel(config("ramnet")).init_state(2)
    for ids in (rows, later):
        logits, state = run("ramnet", TOKENS, state, ids, form=form)
        wanted, wanted_state = run("ramnet", TOKENS, wanted_state, ids, form="recurrent")
        close(logits, wanted)
        jax.tree.map(close, state, wanted_state)
    np.testing.assert_array_equal(state.position, [5, 9])


def test_ramnet_goes_on_from_the_position_of_its_state():
    """So the tests of pieces can tell: slots of CAPE heads move with the position."""
    whole, _ = run("ramnet", TOKENS)
    _, state = run("ramnet", TOKENS[:, :10], LanguageModel(config("ramnet")).init_state(2))
    for place in (state.position, *(layer.position for layer in state.layers)):
        np.testing.assert_array_equal(place, 10)
    found, _ = run("ramnet", TOKENS[:, 10:11], state)
    close(found, whole[:, 10:11])
    start = state._replace(position=jnp.zeros_like(state.position))
    lost, _ = run("ramnet", TOKENS[:, 10:11], start)
    with pytest.raises(AssertionError):
        close(lost, found)
