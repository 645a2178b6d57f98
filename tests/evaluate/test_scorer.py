"""Scores of rows against NumPy; batches, chunks and windows that must not matter."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bayesmem.data.tokenizers import load_tokenizer
from bayesmem.evaluate.continuations import continuation_row, text_rows
from bayesmem.evaluate.scorer import Row, Scorer, padded_lengths
from bayesmem.models import LanguageModel
from bayesmem.train.settings import MeshSettings
from bayesmem.train.sharding import make_mesh
from tests.models import cases
from tests.tolerances import SCORE_LIMIT, assert_close

LENGTHS = (1, 2, 33, 34, 90)


def scorer(name="hybrid", batch_size=4, chunk=32, max_length=128):
    config = cases.config(name, max_length=max_length)
    params = cases.parameters(name)["params"]
    return Scorer(LanguageModel(config), params, make_mesh(MeshSettings()), batch_size, chunk)


def rows():
    rng = np.random.default_rng(3)
    made = []
    for length in LENGTHS:
        tokens = rng.integers(0, cases.VOCAB, length).astype(np.int32)
        made.append(Row(tokens, int(rng.integers(1, length + 1))))
    return made


@functools.cache
def reader(model):
    return jax.jit(model.apply, compiler_options=cases.QUICK_BUILD)


def whole(scorer, row):
    """Log-probabilities and hits of one row read in one call, in NumPy."""
    if len(row.tokens) == 1:
        return np.zeros(0), np.zeros(0, bool)
    padded = np.zeros((1, max(LENGTHS)), np.int32)
    padded[0, : len(row.tokens) - 1] = row.tokens[:-1]
    logits, _ = reader(scorer.model)({"params": scorer.params}, padded)
    logits = logits[:, : len(row.tokens) - 1]
    logits = np.asarray(logits[0], np.float64)
    top = logits.max(-1, keepdims=True)
    log_probs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    targets = row.tokens[1:]
    picked = log_probs[np.arange(len(targets)), targets]
    return picked[row.first - 1 :], (logits.argmax(-1) == targets)[row.first - 1 :]


@pytest.mark.parametrize("name", ["hybrid", "gated_deltanet"])
def test_scores_are_those_of_one_call_whatever_the_batch_and_the_chunk(name):
    found = {}
    for batch_size, chunk in ((1, 32), (8, 32), (4, 64)):
        scored = dict(scorer(name, batch_size, chunk).score(rows()))
        assert sorted(scored) == list(range(len(LENGTHS)))
        found[batch_size] = [scored[index] for index in range(len(LENGTHS))]
    for index, row in enumerate(rows()):
        log_probs, hits = whole(scorer(name), row)
        for scores in found.values():
            assert_close(scores[index].log_probs, log_probs, "float32", length=100)
            np.testing.assert_array_equal(scores[index].hits, hits)
            assert scores[index].is_greedy == hits.all()
            assert abs(scores[index].log_prob - log_probs.sum()) < SCORE_LIMIT


def test_padded_vocabulary_has_no_share():
    made = scorer()
    assert made.model.config.padded_vocab_size > cases.VOCAB
    rows = [Row(np.array([3, token], np.int32)) for token in range(cases.VOCAB)]
    total = sum(np.exp(scored.log_prob) for _, scored in made.score(rows))
    assert_close(total, 1.0, "float32", length=cases.VOCAB)


def test_attention_reads_rows_longer_than_the_cache_of_the_training():
    row = [rows()[-1]]
    (_, long), (_, short) = (next(scorer(max_length=length).score(row)) for length in (128, 16))
    np.testing.assert_array_equal(long.log_probs, short.log_probs)


def test_a_capacity_of_a_layer_itself_is_named():
    made = scorer()
    options = {**made.model.config.mixer_options, "attention": {"num_heads": 2, "max_length": 48}}
    config = dataclasses.replace(made.model.config, mixer_options=options)
    small = dataclasses.replace(made, model=LanguageModel(config))
    with pytest.raises(ValueError, match="max_length of attention: found 48, wanted 128"):
        list(small.score([rows()[-1]]))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Row(np.zeros(0, np.int32)), r"rows\[0\]: found 0 tokens"),
        (Row(np.zeros(3, np.int32), 0), "first = 0"),
        (Row(np.zeros(3, np.int32), 4), "first = 4; wanted first in 1..3"),
        (Row(np.array([1, cases.VOCAB])), f"found the id {cases.VOCAB}"),
        (Row(np.array([1, -1])), "found the id -1"),
    ],
)
def test_rows_that_cannot_be_scored(row, words):
    with pytest.raises(ValueError, match=words):
        list(scorer().score([row]))


def test_sizes_that_cannot_work():
    with pytest.raises(ValueError, match="chunk: found 48, wanted 32 times"):
        scorer(chunk=48)
    with pytest.raises(ValueError, match="batch_size: found 0"):
        scorer(batch_size=0)
    assert padded_lengths(128) == [32, 64, 128]


def test_continuations_are_cut_where_the_context_ends():
    tokenizer = load_tokenizer("bytes")
    row = continuation_row(tokenizer, "The end", " of it")
    assert row.tokens.tolist() == [256, *b"The end of it"] and row.first == 8
    # A space at the context's end is part of the word after it.
    row = continuation_row(tokenizer, "The end ", "of")
    assert row.tokens.tolist() == [256, *b"The end of"] and row.first == 8
    row = continuation_row(tokenizer, "", "of")
    assert row.tokens.tolist() == [256, *b"of"] and row.first == 1
    with pytest.raises(ValueError, match="continuation: found an empty text"):
        continuation_row(tokenizer, "a", "")


@pytest.mark.parametrize("window", [None, 1, 7, 32, 100])
def test_every_token_of_a_text_is_scored_once(window):
    tokens = np.random.default_rng(0).integers(0, cases.VOCAB - 1, 90)
    made = text_rows(tokens, cases.VOCAB - 1, window)
    assert np.concatenate([row.tokens[row.first :] for row in made]).tolist() == tokens.tolist()
    assert all(row.first == 1 for row in made) and made[0].tokens[0] == cases.VOCAB - 1
    for before, after in zip(made[:-1], made[1:], strict=True):
        assert len(before.tokens) == window + 1 and before.tokens[-1] == after.tokens[0]
    assert text_rows(tokens[:0], 0, window) == []
