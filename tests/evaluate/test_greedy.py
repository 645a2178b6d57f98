"""Greedy generation against one forward pass for each token."""

import numpy as np
import pytest

from bayesmem.evaluate import greedy as generation
from bayesmem.evaluate.greedy import greedy
from bayesmem.models import LanguageModel
from tests.models import cases

NEW = 6


def prompts():
    rng = np.random.default_rng(1)
    return [rng.integers(0, cases.VOCAB, n).astype(np.int32) for n in (1, 3, 33, 50)]


def by_hand(name, prompt):
    tokens = prompt
    for _ in range(NEW):
        logits, _ = cases.run(name, tokens[None])
        tokens = np.append(tokens, np.argmax(np.asarray(logits)[0, -1]))
    return tokens[len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["gated_deltanet"])
def test_padded_batch_writes_what_rows_alone_write(name, monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 32)
    model = LanguageModel(cases.config(name))
    params = cases.parameters(name)["params"]
    wanted = [by_hand(name, prompt) for prompt in prompts()]
    found = greedy(model, params, prompts(), NEW, ())
    assert [row.tolist() for row in found] == wanted
    for prompt, row in zip(prompts(), wanted, strict=True):
        assert greedy(model, params, [prompt], NEW, ())[0].tolist() == row
    # What is written first is the stop of one row: it writes nothing, others go on.
    stop = wanted[2][0]
    for row, cut in zip(wanted, greedy(model, params, prompts(), NEW, (stop,)), strict=True):
        assert cut.tolist() == (row[: row.index(stop)] if stop in row else row)


def test_hybrid_with_a_cache_too_small_for_the_prompt():
    model = LanguageModel(cases.config("hybrid", max_length=8))
    params = cases.parameters("hybrid")["params"]
    large = LanguageModel(cases.config("hybrid", max_length=128))
    found = greedy(model, params, prompts()[3:], NEW, ())
    assert found[0].tolist() == greedy(large, params, prompts()[3:], NEW, ())[0].tolist()
    assert len(found[0]) == NEW


def test_errors():
    model, params = LanguageModel(cases.config("gated_deltanet")), {}
    assert greedy(model, params, [], NEW, ()) == []
    with pytest.raises(ValueError, match="prompts: row 0 is empty"):
        greedy(model, params, [np.zeros(0, np.int32)], NEW, ())
    with pytest.raises(ValueError, match="max_new_tokens: found 0"):
        greedy(model, params, prompts(), 0, ())
