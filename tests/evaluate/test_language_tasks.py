"""Tasks of language models against sums made by hand from the model's own log-probabilities."""

import functools
import json

import jax
import numpy as np
import pytest

from bayesmem.data.tokenizers import load_tokenizer
from bayesmem.evaluate import subject as answering
from bayesmem.evaluate.answer_tasks import needle_task, recall_task
from bayesmem.evaluate.choice_tasks import choice_task, last_word_task
from bayesmem.evaluate.scorer import Scorer
from bayesmem.evaluate.subject import Prompt, Subject, write_answers
from bayesmem.evaluate.text_tasks import text_task, text_window
from bayesmem.models import LanguageModel
from bayesmem.train.settings import MeshSettings
from bayesmem.train.sharding import make_mesh
from tests.evaluate.byte_model import byte_model
from tests.models import cases
from tests.tolerances import SCORE_LIMIT, assert_close

LONGEST = 128
BYTES = load_tokenizer("bytes")


def subject(batch_size=4):
    config, params = byte_model()
    return Subject(
        Scorer(LanguageModel(config), params, make_mesh(MeshSettings()), batch_size, 64), BYTES
    )


@functools.cache
def reader():
    return jax.jit(LanguageModel(byte_model()[0]).apply, compiler_options=cases.QUICK_BUILD)


def log_probs(text):
    """Of every byte of a text after a document's start, [N, V] in NumPy."""
    _, params = byte_model()
    tokens = np.zeros((1, LONGEST), np.int32)
    read = [256, *text.encode()]
    tokens[0, : len(read)] = read
    logits = np.asarray(reader()({"params": params}, tokens)[0][0], np.float64)[: len(read) - 1]
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def by_hand(context, continuation):
    """Log-probability of a continuation, and whether each byte is the likeliest."""
    found = log_probs(context + continuation)[len(context) :]
    ids = list(continuation.encode())
    return found[np.arange(len(ids)), ids].sum(), bool((found.argmax(-1) == ids).all())


def results(task, indices=None):
    found = dict(task.run(range(task.size) if indices is None else indices))
    return [found[index] for index in sorted(found)]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def choices(tmp_path_factory):
    """Items of two to four choices of very different lengths."""
    rng = np.random.default_rng(0)
    say = lambda n: "".join(rng.choice(list("abc de"), n)).strip() or "x"  # noqa: E731
    records = [
        {
            "context": say(20),
            "choices": [say(int(rng.integers(1, 30))) for _ in range(2 + i % 3)],
            "label": i % 2,
        }
        for i in range(9)
    ]
    return write(tmp_path_factory.mktemp("choices") / "c.jsonl", records), records


def test_multiple_choice_by_hand(choices):
    path, records = choices
    task = choice_task(subject(), path)
    found = results(task)
    right = right_by_length = chance = 0
    for record, result in zip(records, found, strict=True):
        pairs = [(record["context"], " " + choice) for choice in record["choices"]]
        sums = np.array([by_hand(*pair)[0] for pair in pairs])
        np.testing.assert_allclose(result["log_probs"], sums, rtol=0, atol=SCORE_LIMIT)
        right += sums.argmax() == record["label"]
        sizes = [len(choice) for choice in record["choices"]]
        right_by_length += (sums / sizes).argmax() == record["label"]
        chance += 1 / len(sums)
    assert right != right_by_length and 0 < right < 9  # or neither measure is tested
    assert task.summarise(found) == {
        "accuracy": right / 9,
        "accuracy_by_length": right_by_length / 9,
        "chance": pytest.approx(chance / 9),
    }


def test_batches_of_one_and_eight_agree(choices):
    one, eight = (results(choice_task(subject(size), choices[0])) for size in (1, 8))
    for a, b in zip(one, eight, strict=True):
        np.testing.assert_allclose(a["log_probs"], b["log_probs"], rtol=0, atol=SCORE_LIMIT)


def test_items_asked_for_are_those_run(choices):
    task = choice_task(subject(), choices[0])
    some = dict(task.run([7, 2]))
    whole = results(task)
    assert sorted(some) == [2, 7]
    for index, result in some.items():
        np.testing.assert_allclose(
            result["log_probs"], whole[index]["log_probs"], rtol=0, atol=SCORE_LIMIT
        )


def test_last_words_by_hand(tmp_path):
    context = "the same words again and"
    # What greedy decoding writes first, so that one item is right.
    likely = log_probs(context + " x")[len(context) + 1]
    letter = max(range(97, 123), key=lambda token: likely[token])
    records = [{"context": context, "target": word} for word in (chr(letter), "words", "q")]
    task = last_word_task(subject(), write(tmp_path / "l.jsonl", records))
    found = results(task)
    nats = []
    for record, result in zip(records, found, strict=True):
        log_prob, greedy = by_hand(context, " " + record["target"])
        assert abs(result["log_prob"] - log_prob) < SCORE_LIMIT and result["right"] == greedy
        nats.append(-log_prob)
    measured = task.summarise(found)
    assert measured["accuracy"] == np.mean([r["right"] for r in found])
    assert_close(np.log(measured["perplexity"]), np.mean(nats), "float32", length=100)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Two documents."""
    rng = np.random.default_rng(2)
    documents = ["".join(rng.choice(list("abc \u00e9"), n)) + ".\n" for n in (70, 23)]
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_text("\f\n".join(documents))
    return path, documents


def test_text_by_hand(text):
    path, documents = text
    task = text_task(subject(), path, length=None)
    assert task.options == {"length": None} and task.size == 2
    nats, positions = [], []
    for document in documents:
        ids = list(document.encode())
        nats += (-log_probs(document)[np.arange(len(ids)), ids]).tolist()
        positions += range(len(ids))
    nats, positions = np.array(nats), np.array(positions)
    size, words = len(nats), sum(len(document.split()) for document in documents)
    found = task.summarise(results(task))
    assert (found["tokens"], found["bytes"], found["words"]) == (size, size, words)
    assert_close(found["loss"], nats.mean(), "float32", length=200)
    assert_close(found["bits_per_byte"], nats.mean() / np.log(2), "float32", length=200)
    assert_close(np.log(found["word_perplexity"]), nats.sum() / words, "float32", length=200)
    edges = [0, 16, 32, 64, max(positions) + 1]
    assert [row["start"] for row in found["by_position"]] == edges[:-1]
    for start, end, row in zip(edges[:-1], edges[1:], found["by_position"], strict=True):
        here = (positions >= start) & (positions < end)
        assert (row["end"], row["tokens"]) == (end, here.sum())
        assert_close(row["loss"], nats[here].mean(), "float32", length=200)


def test_windows_of_a_text(text):
    path, documents = text
    sizes = [len(document.encode()) for document in documents]
    task = text_task(subject(), path, length=20)
    assert task.size == sum(-(-size // 20) for size in sizes)
    found = results(task)
    assert sum(result["tokens"] for result in found) == sum(sizes)
    measured = task.summarise(found)
    assert measured["bytes"] == sum(sizes) and measured["by_position"][-1]["end"] == 20
    part = task.summarise(found[:2])
    assert part["tokens"] == part["bytes"] == 40
    whole = text_task(subject(), path, length=None)
    assert abs(measured["loss"] - whole.summarise(results(whole))["loss"]) > SCORE_LIMIT


def test_bits_per_byte_do_not_depend_on_the_tokenizer(text):
    """Another tokenizer, whose tokens are bytes too but count as half of one."""
    path, _ = text

    class Doubled(type(BYTES)):
        name = "doubled"

        def encode(self, content):
            return np.repeat(super().encode(content), 2)

    twice = text_task(Subject(subject().scorer, Doubled()), path, length=None)
    found = results(twice)
    measured = twice.summarise(found)
    assert measured["tokens"] == 2 * measured["bytes"]
    nats = sum(result["nats"] for result in found)
    assert measured["bits_per_byte"] == pytest.approx(nats / measured["bytes"] / np.log(2))


def test_attention_is_given_windows():
    hybrid = cases.config("hybrid", max_length=24)
    assert text_window(hybrid, None) == 24 and text_window(hybrid, 9) == 9
    assert text_window(cases.config("gated_deltanet"), None) is None


@pytest.fixture
def written(monkeypatch):
    """Makes the model write what a function of the prompt says."""

    def install(answer):
        def greedy(model, params, prompts, max_new_tokens, stops):
            assert len(prompts) == 4 and max_new_tokens % 16 == 0 and 256 in stops
            texts = [BYTES.encode(answer(BYTES.decode(row))) for row in prompts]
            # An id that the model has and the tokenizer has not.
            return [np.append(300, text)[:max_new_tokens] for text in texts]

        monkeypatch.setattr(answering, "greedy", greedy)

    return install


def test_needles_that_are_found_and_not(written):
    task = needle_task(subject(), "niah_single_1", length=400, essay="", count=22, seed=0)
    assert task.options == {"length": 400, "seed": 0} and task.size == 22

    def answer(prompt):
        at = prompt.index(" is ") + 4
        return f" {prompt[at : at + 7]}. And more" if at < 100 else " 12"

    written(answer)
    found = results(task)
    assert all(result["tokens"] <= 400 for result in found)
    assert [result["score"] for result in found] == [float(r["written"] != " 12") for r in found]
    measured = task.summarise(found)
    assert len(measured["by_depth"]) == 11
    assert measured["by_depth"][0] == [0.0, 1.0] and measured["by_depth"][-1] == [1.0, 0.0]
    assert measured["score"] == np.mean([result["score"] for result in found])


def test_recall_reads_the_first_line(written, tmp_path):
    records = [
        {"question": "who ran?", "answers": ["Ann"], "context": "It was Ann who ran."},
        {"question": "who sat?", "answers": ["Bo", "Bob"], "context": "Bob sat. " * 30},
        {"question": "when", "answer": ["now"]},
    ]
    path = write(tmp_path / "q.jsonl", records)
    written(lambda prompt: " It was Ann.\nnow" if "Ann" in prompt else " Bob\n")
    found = results(recall_task(subject(), path, length=200))
    assert [result["written"] for result in found] == [" It was Ann.", " Bob", " Bob"]
    assert [result["contains"] for result in found] == [1, 1, 0]
    assert [result["exact"] for result in found] == [0, 1, 0]
    assert [result["whole"] for result in found] == [1, 0, 1]
    task = recall_task(subject(), path, length=None)
    measured = task.summarise(results(task))
    assert measured["contains"] == pytest.approx(2 / 3) and measured["whole"] == 1
    short = recall_task(subject(), path, length=60)
    with pytest.raises(ValueError, match="length: found room for 12 tokens"):
        results(short)


def test_recall_among_other_passages(written, tmp_path):
    words = "red blue green grey".split()
    records = [
        {"question": f"who was {w}", "answers": [w[::-1]], "context": f"{w} {w[::-1]}"}
        for w in words
    ]
    path = write(tmp_path / "q.jsonl", records)
    prompts = []
    written(lambda prompt: prompts.append(prompt) or "der")
    task = recall_task(subject(), path, length=400, among_others=True, seed=1)
    found = results(task)
    assert task.options == {"length": 400, "seed": 1}
    assert [result["exact"] for result in found] == [1, 0, 0, 0]
    for prompt in prompts:
        assert all(f"{word} {word[::-1]}" in prompt for word in words)


def test_answers_keep_their_prompts(written):
    written(lambda prompt: prompt[::-1])
    prompts = [Prompt("a" * n + "b;c", 51 + n, (";",) if n % 2 else ()) for n in range(6)]
    found = dict(write_answers(subject(), prompts))
    wanted = [("c;b" + "a" * n) if n % 2 == 0 else "c" for n in range(6)]
    assert [found[index] for index in range(6)] == wanted


def test_answers_of_the_model_itself():
    prompts = [Prompt("abc", 5), Prompt("a longer one", 20)]
    found = dict(write_answers(subject(), prompts))
    alone = [dict(write_answers(subject(), [prompt]))[0] for prompt in prompts]
    assert [found[0], found[1]] == alone
    assert len(found[0].encode("utf-8", "replace")) >= 1
