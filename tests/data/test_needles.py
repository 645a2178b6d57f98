"""Needle prompts: case C24, places, answers, lengths and errors."""

import re

import numpy as np
import pytest

from bayesmem.data.haystacks import NOISE, read_words
from bayesmem.data.needles import DEPTHS, NEEDLE_TASKS, NeedleTask, make_needles, other_needles
from bayesmem.data.tokenizers import ByteTokenizer, load_tokenizer

LENGTHS = (300, 1024, 4096)


class PieceTokenizer(ByteTokenizer):
    """Words, spaces and marks as pieces: as few tokens as tokenizers of real models make."""

    name = "pieces"

    def __init__(self):
        self.calls = 0

    def encode(self, text):
        self.calls += 1
        return np.zeros(len(re.findall(r" ?\w{1,6}|\W", text)), np.int32)


@pytest.fixture(scope="module")
def essay(tmp_path_factory):
    """Sentences of different lengths, one much longer than a short prompt."""
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(50)]
    lengths = [*rng.integers(3, 30, 300), 400]
    path = tmp_path_factory.mktemp("essay") / "essay.txt"
    path.write_text("\n\n".join(" ".join(rng.choice(words, n)) + "." for n in lengths))
    return str(path)


@pytest.mark.parametrize("turns", [("", ""), ("<user> ", "\n<model>")], ids=["base", "chat"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NEEDLE_TASKS)
def test_c24_prompts_end_in_bounded_tries_and_fit(name, length, turns, essay):
    plain = NEEDLE_TASKS[name]
    task = NeedleTask(**{**vars(plain), "turns": turns})
    tokenizer = PieceTokenizer()
    items = make_needles(task, tokenizer, length=length, count=4, essay=essay)
    assert len(items) == 4 and tokenizer.calls <= 4 * (2 * np.log2(length) + 4)
    unit = 40 if task.filler == "needles" else 4  # tokens of the largest part of a haystack
    for item in items:
        tokens = 1 + len(tokenizer.encode(item.prompt))
        assert item.tokens == tokens
        assert length - unit <= tokens + item.answer_tokens <= length
        before, after = turns
        assert item.prompt.startswith(before + "Remember")
        assert re.search(rf"\?{re.escape(after)} The secret [\w, -]+ (is|are)$", item.prompt)
        answer = tokenizer.encode(" " + ", ".join(item.answers))
        assert len(answer) <= item.answer_tokens


@pytest.mark.parametrize("length", LENGTHS)
def test_c24_bytes(length, essay):
    tokenizer = load_tokenizer("bytes")
    for name, task in NEEDLE_TASKS.items():
        if length == 300 and "multi" in name:
            continue  # their needles alone are longer
        for item in make_needles(task, tokenizer, length=length, count=3, essay=essay):
            assert len(item.prompt.encode()) + 1 == item.tokens
            assert length - 100 <= item.tokens + item.answer_tokens <= length


@pytest.mark.parametrize("name", NEEDLE_TASKS)
def test_c24_same_seed_is_byte_equal_whatever_was_drawn_before(name, essay):
    make = lambda count, seed: make_needles(  # noqa: E731
        NEEDLE_TASKS[name], PieceTokenizer(), length=900, count=count, seed=seed, essay=essay
    )
    first = make(3, 1)
    np.random.random(7)  # noqa: NPY002
    make(2, 5)
    again = make(5, 1)
    assert again[:3] == first
    assert len({item.prompt for item in again} | {item.prompt for item in make(5, 2)}) == 10


@pytest.mark.parametrize("name", NEEDLE_TASKS)
def test_each_answer_is_hidden_once_and_belongs_to_its_key(name, essay):
    task = NEEDLE_TASKS[name]
    items = make_needles(task, PieceTokenizer(), length=1500, count=6, essay=essay)
    for item in items:
        assert len(set(item.answers)) == task.num_queries * task.num_values
        *_, question = item.prompt.split("\n")
        needles = re.findall(r"The secret \w+ of (\S+) is (\S+)\.", item.prompt)
        hidden = [(key, value) for key, value in needles if value in item.answers]
        assert sorted(value for _, value in hidden) == sorted(item.answers)
        asked = {key for key, _ in hidden}
        assert len(asked) == task.num_queries and all(key in question for key in asked)
        others = [(key, value) for key, value in needles if value not in item.answers]
        assert not asked & {key for key, _ in others}
        if task.filler != "needles":
            assert len(others) == (task.num_keys - task.num_queries) * task.num_values
        else:
            assert len(others) > 10


def test_a_key_asked_for_is_in_no_other_needle():
    task = NEEDLE_TASKS["niah_multikey_2"]
    plain = other_needles(task, 3, (), 300)
    key = plain[5].split()[4]
    found = other_needles(task, 3, (key,), 299)
    assert key in plain[5] and not any(f" {key} " in needle for needle in found)
    assert [needle for needle in plain if f" {key} " not in needle][:290] == list(found[:290])


def test_depth_is_where_the_needle_is(essay):
    for name in ("niah_single_1", "niah_single_2", "niah_multikey_2", "niah_multikey_1"):
        items = make_needles(
            NEEDLE_TASKS[name], PieceTokenizer(), length=4096, count=11, essay=essay
        )
        assert [item.depth for item in items] == list(DEPTHS)
        for item in items:
            _, text, _ = item.prompt.split("\n")
            needle = text.index(f"is {item.answers[0]}.")
            assert abs(needle / len(text) - item.depth) < 0.11  # a sentence of 400 words


def test_fillers_are_what_was_asked(essay):
    tokenizer = PieceTokenizer()
    for name, words in (("niah_single_1", NOISE), ("niah_single_2", read_words(essay))):
        (item,) = make_needles(NEEDLE_TASKS[name], tokenizer, length=700, count=1, essay=essay)
        _, text, _ = item.prompt.split("\n")
        text = re.sub(r"The secret number of \S+ is \d{7}\. ?", "", text)
        filler = text.split()
        joined = " ".join([*words] * 20)
        assert len(filler) > 100 and " ".join(filler) in joined
        # Two essays of one corpus begin at other places.
    two = make_needles(NEEDLE_TASKS["niah_single_2"], tokenizer, length=700, count=2, essay=essay)
    assert two[0].prompt.split()[40:60] != two[1].prompt.split()[40:60]


def test_haystack_longer_than_the_essay(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("One two. Three four!")
    (item,) = make_needles(
        NEEDLE_TASKS["niah_single_2"], PieceTokenizer(), length=500, count=1, essay=str(path)
    )
    assert item.prompt.count("One two. Three four!") > 30


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"length": 40}, r"length: found 40, wanted at least \d+ for niah_single_2"),
        ({"length": 0}, "length: found 0"),
        ({"seed": -1}, "seed: found -1"),
        ({"depths": ()}, "depths: found"),
        ({"depths": (0.5, 1.5)}, r"depths: found \[0.5, 1.5\]"),
        ({"essay": ""}, "essay: found no path"),
        ({"essay": "/nowhere/at/all.txt"}, "path: found nothing"),
    ],
)
def test_errors(changes, words, essay):
    arguments = {"length": 400, "count": 1, "essay": essay} | changes
    with pytest.raises(ValueError, match=words):
        make_needles(NEEDLE_TASKS["niah_single_2"], PieceTokenizer(), **arguments)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"filler": "hay"}, "filler: found 'hay'"),
        ({"values": "names"}, "values: found 'names'"),
        ({"num_queries": 2}, "num_queries: found 2, wanted at most num_keys 1"),
        ({"num_values": 0}, "num_values: found 0"),
    ],
)
def test_bad_tasks(fields, words):
    with pytest.raises(ValueError, match=words):
        NeedleTask("mine", **fields)
