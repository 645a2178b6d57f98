"""Readers of items, prompts of questions, and errors that name the line."""

import json

import pytest

from bayesmem.data.items import Question, find_data, read_choices, read_last_words, read_questions
from bayesmem.data.passages import ask, ask_among
from bayesmem.data.tokenizers import load_tokenizer

BYTES = load_tokenizer("bytes")


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + "\n")
    return path


def test_each_kind_of_choice(tmp_path):
    path = write(
        tmp_path / "choices.jsonl",
        {"context": "He sat", "choices": ["down.", "a"], "label": 0},
        {"goal": "Clean it", "choices": ["wash", "burn it"], "label": 1},
        {"question": "Why?", "choices": ["x", "yy", "zzz"], "label": 2},
        {"sentence": "The _ was big.", "choices": ["cat", "tiger"], "label": 1, "id": "7"},
    )
    context, goal, question, sentence = read_choices(path)
    assert context.pairs == (("He sat", " down."), ("He sat", " a"))
    assert context.sizes == (5, 1) and context.label == 0
    assert goal.pairs[1] == ("Question: Clean it\nAnswer:", " burn it")
    assert question.pairs[2] == ("Question: Why?\nAnswer:", " zzz") and question.label == 2
    assert sentence.pairs == (("The cat", " was big."), ("The tiger", " was big."))
    assert sentence.sizes == (9, 9)


def test_last_words(tmp_path):
    (item,) = read_last_words(write(tmp_path / "last.jsonl", {"context": "so", "target": "it"}))
    assert item.pairs == (("so", " it"),)


def test_each_kind_of_question(tmp_path):
    path = write(
        tmp_path / "questions.jsonl",
        {"question": "who", "answer": ["A", "B", "A"]},
        {"question": "what", "answers": ["C"], "title": "T", "context": "D C."},
        {
            "title": "U",
            "context": "E",
            "qas": [
                {"question": "no", "answers": [], "is_impossible": True},
                {"question": "yes", "answers": ["E"], "is_impossible": False},
            ],
        },
    )
    assert read_questions(path) == [
        Question("who", ("A", "B")),
        Question("what", ("C",), "D C.", "T"),
        Question("yes", ("E",), "E", "U"),
    ]


@pytest.mark.parametrize(
    ("read", "record", "words"),
    [
        (read_choices, {"context": "a", "choices": ["b", "c"], "label": 2}, "label 2, wanted 0..1"),
        (read_choices, {"context": "a", "choices": ["b"], "label": "0"}, "label '0'"),
        (read_choices, {"context": "a", "choices": "b", "label": 0}, "choices 'b'"),
        (read_choices, {"choices": ["b"], "label": 0}, "wanted a context, goal"),
        (read_choices, {"sentence": "no gap", "choices": ["b"], "label": 0}, "found no '_'"),
        (read_last_words, {"context": "a"}, "None under 'target'"),
        (read_questions, {"question": "a"}, "wanted strings under 'answers'"),
        (read_questions, {"answers": ["a"]}, "None under 'question'"),
        (read_questions, [1], "found list, wanted an object"),
    ],
)
def test_a_bad_line_is_named(tmp_path, read, record, words):
    good = {
        read_choices: {"context": "a", "choices": ["b"], "label": 0},
        read_last_words: {"context": "a", "target": "b"},
        read_questions: {"question": "a", "answers": ["b"]},
    }[read]
    path = write(tmp_path / "bad.jsonl", good, record)
    with pytest.raises(ValueError, match="bad.jsonl:2: .*") as error:
        read(path)
    assert words in str(error.value)


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match="cannot read"):
        read_choices(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="found no line"):
        read_choices(write(tmp_path / "empty.jsonl"))
    (tmp_path / "torn.jsonl").write_text('{"question": ')
    with pytest.raises(ValueError, match="torn.jsonl:1: found bad JSON"):
        read_questions(tmp_path / "torn.jsonl")
    impossible = {"context": "a", "qas": [{"question": "b", "is_impossible": True}]}
    with pytest.raises(ValueError, match="no question that can be answered"):
        read_questions(write(tmp_path / "impossible.jsonl", impossible))


def test_data_is_looked_for_below_and_in_its_folder(tmp_path):
    for words in (f"neither {tmp_path}/zeroshot/x.jsonl nor {tmp_path}/x.jsonl",):
        with pytest.raises(ValueError, match=words):
            find_data(tmp_path, "zeroshot/x.jsonl")
    (tmp_path / "x.jsonl").write_text("")
    assert find_data(tmp_path, "zeroshot/x.jsonl") == tmp_path / "x.jsonl"
    (tmp_path / "zeroshot").mkdir()
    (tmp_path / "zeroshot" / "x.jsonl").write_text("")
    assert find_data(str(tmp_path), "zeroshot/x.jsonl") == tmp_path / "zeroshot" / "x.jsonl"
    assert find_data("", "y", str(tmp_path / "x.jsonl")) == tmp_path / "x.jsonl"
    with pytest.raises(ValueError, match="data_dir: found none, wanted a folder with y"):
        find_data("", "y")
    with pytest.raises(ValueError, match="found nothing at /nowhere"):
        find_data(tmp_path, "y", "/nowhere")


PASSAGE = " ".join(f"word{i}" for i in range(60))


def test_prompts_of_questions():
    closed = ask(Question("who ran", ("A",)), BYTES, None)
    assert closed == ("Question: who ran?\nAnswer:", True)
    opened = ask(Question("Who ran ?", ("A",), "A ran.", "Runs"), BYTES, None)
    assert opened.prompt == "Runs\nA ran.\nQuestion: Who ran?\nAnswer:"


@pytest.mark.parametrize("answer", ["word0", "word30", "word59"])
@pytest.mark.parametrize("room", [80, 150, 300])
def test_passages_are_cut_around_the_answer(answer, room):
    made = ask(Question("who", (answer + "x", answer), PASSAGE), BYTES, room)
    passage = made.prompt.split("\n")[0]
    assert not made.whole and passage in PASSAGE and answer in passage.split()
    assert room - 14 < 1 + len(made.prompt.encode()) <= room  # two words more would not fit


def test_passage_without_the_answer_is_cut_at_its_end():
    made = ask(Question("who", ("nobody",), PASSAGE), BYTES, 100)
    assert made.prompt.startswith("word0 word1 ")


def test_question_that_does_not_fit():
    question = Question("who", ("a",), PASSAGE)
    with pytest.raises(ValueError, match=r"length: found room for 20 tokens .* at least \d+"):
        ask(question, BYTES, 20)


OTHERS = [f"In year {year} there was{' much' * (year % 7)} rain." for year in range(1000, 1400)]


@pytest.mark.parametrize("turns", [("", ""), ("<user> ", "\n<model>")], ids=["base", "chat"])
@pytest.mark.parametrize("room", [300, 1024, 4096])
def test_c24_questions_among_other_passages(room, turns, monkeypatch):
    calls = []
    encode = type(BYTES).encode
    monkeypatch.setattr(type(BYTES), "encode", lambda *a: calls.append(1) or encode(*a))
    question = Question("When was snow?", ("1005",), "Snow fell in 1005.")
    starts = set()
    for seed in range(5):
        calls.clear()
        made = ask_among(question, OTHERS, BYTES, room, seed=seed, turns=turns)
        assert len(calls) <= 2 * room.bit_length() + 3
        assert made.whole and made == ask_among(
            question, OTHERS, BYTES, room, seed=seed, turns=turns
        )
        assert room - 65 < 1 + len(made.prompt.encode()) <= room
        before, after = turns
        assert made.prompt.startswith(before)
        assert made.prompt.endswith(f"Question: When was snow?{after}\nAnswer:")
        # Another passage with the answer would be another right one.
        assert made.prompt.count("1005") == made.prompt.count("Snow fell in 1005.") == 1
        starts.add(round(made.prompt.index("Snow") / room, 1))
    assert len(starts) > 2 or room == 300


def test_passage_that_does_not_fit_alone_is_cut_and_others_run_out():
    question = Question("who", ("word30",), PASSAGE)
    made = ask_among(question, OTHERS, BYTES, 150, turns=("<user> ", "\n<model>"))
    assert not made.whole and "word30" in made.prompt and len(made.prompt) < 150
    assert "rain" not in made.prompt and made.prompt.endswith("?\n<model>\nAnswer:")
    few = ask_among(question, OTHERS[:3], BYTES, 4000)
    assert few.whole and few.prompt.count("rain") == 3 and PASSAGE in few.prompt
