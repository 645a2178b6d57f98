"""Recall and perplexity against NumPy, with ignored targets, blank rows and packed documents."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.data.tokenizers import ByteTokenizer
from bayesmem.evaluate.perplexity import perplexity, position_edges
from bayesmem.evaluate.recall import recall
from bayesmem.train.settings import MeshSettings
from bayesmem.train.sharding import make_mesh
from tests.tolerances import tolerance
from tests.train.toys import ToyModel

VOCAB = 257


@pytest.fixture(scope="module")
def toy():
    """The toy model on byte tokens, its parameters and a mesh."""
    model = ToyModel(vocab_size=VOCAB)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    return model, nn.meta.unbox(variables)["params"], make_mesh(MeshSettings())


def numpy_log_probs(model, params, inputs):
    logits = np.asarray(model.apply({"params": params}, inputs)[0], np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def recall_batches(model, params, count=3, rows=4, length=8, queries=3):
    """Random queries; about half the targets are made what the model answers."""
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(count):
        inputs = rng.integers(0, VOCAB, (rows, length), dtype=np.int32)
        positions = np.sort(rng.integers(0, length, (rows, queries), dtype=np.int32), axis=1)
        answers = numpy_log_probs(model, params, inputs).argmax(-1)
        answers = np.take_along_axis(answers, positions, axis=1).astype(np.int32)
        other = (answers + 1) % VOCAB
        targets = np.where(rng.random((rows, queries)) < 0.7, answers, other)
        targets[0] = answers[0]
        batches.append({"inputs": inputs, "targets": targets, "query_positions": positions})
    batches[-1]["targets"][-1] = -100  # a blank row
    batches[-1]["targets"][0, 1] = -100
    return batches


def test_recall_counts_queries_and_rows(toy):
    model, params, mesh = toy
    batches = recall_batches(model, params)
    correct = queries = rows = rows_correct = nats = 0.0
    for batch in batches:
        log_probs = numpy_log_probs(model, params, batch["inputs"])
        for row in range(4):
            asked = [i for i in range(3) if batch["targets"][row, i] != -100]
            hits = []
            for i in asked:
                here = log_probs[row, batch["query_positions"][row, i]]
                hits.append(here.argmax() == batch["targets"][row, i])
                nats -= here[batch["targets"][row, i]]
            correct, queries = correct + sum(hits), queries + len(asked)
            rows, rows_correct = rows + bool(asked), rows_correct + bool(asked and all(hits))
    found = recall(model, params, batches, mesh)
    assert (found["correct"], found["queries"], found["rows"]) == (correct, queries, rows)
    assert queries == 3 * 12 - 4 and 0 < rows_correct < rows and 0 < correct < queries
    assert found["accuracy"] == correct / queries
    assert found["row_accuracy"] == rows_correct / rows
    np.testing.assert_allclose(found["loss"], nats / queries, **tolerance(jnp.float32, length=8))


def test_recall_without_queries(toy):
    model, params, mesh = toy
    batch = recall_batches(model, params)[0]
    batch["targets"][:] = -100
    for batches in ([], [batch]):
        with pytest.raises(ValueError, match="recall: found no query"):
            recall(model, params, batches, mesh)


def text_batches():
    """Packed rows of 40 tokens; the last batch ends in padding and a blank row."""
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(2):
        inputs = rng.integers(0, VOCAB, (3, 40), dtype=np.int32)
        targets = rng.integers(0, VOCAB, (3, 40), dtype=np.int32)
        targets[0, 5] = targets[1, 39] = 256
        segments = np.zeros((3, 40), np.int32)
        segments[0, 6:] = 1
        segments[0, 30:] = 2
        segments[1, 20:] = 1
        batches.append({"inputs": inputs, "targets": targets, "segment_ids": segments})
    batches[-1]["segment_ids"][1, 33:] = batches[-1]["segment_ids"][2] = -1
    batches[-1]["targets"][batches[-1]["segment_ids"] < 0] = -100
    return batches


@pytest.mark.parametrize("part", [512, 7])
def test_perplexity_by_position_in_the_document(toy, monkeypatch, part):
    monkeypatch.setattr("bayesmem.evaluate.perplexity.PART", part)
    model, params, mesh = toy
    nats, tokens, sizes = {}, {}, {}
    for batch in text_batches():
        log_probs = numpy_log_probs(model, params, batch["inputs"])
        for row in range(3):
            position, segment = 0, None
            for step in range(40):
                target, now = batch["targets"][row, step], batch["segment_ids"][row, step]
                if now < 0:
                    continue
                position, segment = (position + 1, now) if now == segment else (0, now)
                start = 0 if position < 16 else 16 if position < 32 else 32
                nats[start] = nats.get(start, 0.0) - log_probs[row, step, target]
                tokens[start] = tokens.get(start, 0) + 1
                sizes[start] = sizes.get(start, 0) + (target != 256)
    found = perplexity(model, params, text_batches(), mesh)
    close = tolerance(jnp.float32, length=200)
    assert [row["start"] for row in found["by_position"]] == [0, 16, 32]
    assert [row["end"] for row in found["by_position"]] == [16, 32, 40]
    for row in found["by_position"]:
        start = row["start"]
        assert (row["tokens"], row["bytes"]) == (tokens[start], sizes[start])
        np.testing.assert_allclose(row["loss"], nats[start] / tokens[start], **close)
    total, count, size = (sum(part.values()) for part in (nats, tokens, sizes))
    assert (found["tokens"], found["bytes"]) == (count, size) and size < count
    np.testing.assert_allclose(found["perplexity"], np.exp(total / count), **close)
    np.testing.assert_allclose(found["bits_per_byte"], total / size / np.log(2), **close)


class SyllableTokenizer(ByteTokenizer):
    """As if every token were three bytes of text."""

    name = "syllables"

    def decode(self, ids):
        return "abc" * int(np.sum(np.asarray(ids) != self.document_end))


def test_bits_per_byte_are_of_bytes_whatever_the_tokenizer(toy):
    model, params, mesh = toy
    found = perplexity(model, params, text_batches(), mesh, SyllableTokenizer())
    plain = perplexity(model, params, text_batches(), mesh)
    assert found["bytes"] == 3 * plain["bytes"] and found["loss"] == plain["loss"]
    assert found["bits_per_byte"] == pytest.approx(plain["bits_per_byte"] / 3)
    for row, whole in zip(found["by_position"], plain["by_position"], strict=True):
        assert row["bytes"] == 3 * whole["bytes"]


def test_buckets_without_tokens_are_left_out(toy):
    model, params, mesh = toy
    batch = text_batches()[0]
    batch["segment_ids"][:] = np.arange(40) // 10
    found = perplexity(model, params, [batch], mesh)
    assert [row["start"] for row in found["by_position"]] == [0]


def test_perplexity_without_tokens(toy):
    model, params, mesh = toy
    batch = text_batches()[0]
    batch["targets"][:] = -100
    for batches in ([], [batch]):
        with pytest.raises(ValueError, match="perplexity: found no counted token"):
            perplexity(model, params, batches, mesh)


@pytest.mark.parametrize(
    ("length", "edges"),
    [(1, [0]), (16, [0]), (17, [0, 16]), (64, [0, 16, 32]), (65, [0, 16, 32, 64])],
)
def test_position_edges(length, edges):
    assert position_edges(length) == edges
