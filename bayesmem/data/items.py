"""Items of evaluation tasks: choices between continuations, and questions with their answers.

Files are JSON lines. What they hold:

- choices: `choices` and `label`, with `context` (HellaSwag), `goal` (PIQA), `question` (ARC,
  OpenBookQA) or a `sentence` with a "_" where a choice goes (WinoGrande);
- last words: `context` and `target` (LAMBADA);
- questions: `question` and `answers` or `answer`, with `context` and `title` where there is a
  passage; or a passage with several `qas` (SQuAD), whose impossible ones are left out.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Choices(NamedTuple):
    """Continuations of which one is right.

    Attributes:
        pairs: (context, continuation) of each choice.
        sizes: Characters of what is scored of each choice, for scores by length.
        label: Index of the right one.
    """

    pairs: tuple[tuple[str, str], ...]
    sizes: tuple[int, ...]
    label: int


class Question(NamedTuple):
    """A question, with the passage that answers it or without.

    Attributes:
        question: The question.
        answers: Accepted answers, at least one.
        context: The passage, "" for none.
        title: Of the passage, "" for none.
    """

    question: str
    answers: tuple[str, ...]
    context: str = ""
    title: str = ""


def find_data(data_dir: str | Path, relative: str, path: str = "") -> Path:
    """The file of a task.

    Args:
        data_dir: Folder of all data; "" for none.
        relative: The file's place below it; one of its name right in `data_dir` will do too.
        path: A file that is used instead, "" for none.

    Returns:
        A file that exists.

    Raises:
        ValueError: There is none; names what was looked for.
    """
    if path:
        if not Path(path).exists():
            raise ValueError(f"tasks: found nothing at {path}, wanted a file")
        return Path(path)
    if not str(data_dir):
        raise ValueError(f"data_dir: found none, wanted a folder with {relative}")
    places = [Path(data_dir) / relative, Path(data_dir) / Path(relative).name]
    found = [place for place in places if place.is_file()]
    if not found:
        raise ValueError(f"data_dir: found neither {places[0]} nor {places[1]}, wanted one of them")
    return found[0]


def read_choices(path: str | Path) -> list[Choices]:
    """Reads items of multiple choice.

    Args:
        path: A file of JSON lines as the module docstring says.

    Returns:
        At least one item.

    Raises:
        ValueError: The file cannot be read, or a line is no such item; named as file:line.
    """
    return [_choices(record, place) for record, place in _records(path)]


def read_last_words(path: str | Path) -> list[Choices]:
    """Reads texts whose last word is to be predicted, as items of one choice; see `read_choices`.

    The continuation is a space and the word.
    """
    items = []
    for record, place in _records(path):
        context, target = (_string(record, key, place) for key in ("context", "target"))
        items.append(Choices(((context, " " + target),), (len(target),), 0))
    return items


def read_questions(path: str | Path) -> list[Question]:
    """Reads questions; see `read_choices`. Those said to be impossible are left out."""
    items = []
    for record, place in _records(path):
        context, title = (record.get(key, "") for key in ("context", "title"))
        for asked in record.get("qas", [record]):
            if asked.get("is_impossible"):
                continue
            answers = asked.get("answers", asked.get("answer"))
            answers = [answers] if isinstance(answers, str) else answers
            if not answers or not all(isinstance(x, str) for x in [*answers, context, title]):
                raise ValueError(f"{place}: found {list(asked)}, wanted strings under 'answers'")
            question = _string(asked, "question", place)
            items.append(Question(question, tuple(dict.fromkeys(answers)), context, title))
    if not items:
        raise ValueError(f"{path}: found no question that can be answered, wanted at least one")
    return items


def _choices(record: dict[str, Any], place: str) -> Choices:
    choices, label = record.get("choices"), record.get("label")
    if not isinstance(choices, list) or not all(isinstance(x, str) and x for x in choices):
        raise ValueError(f"{place}: found choices {choices!r}, wanted a list of strings")
    if type(label) is not int or not 0 <= label < len(choices):
        raise ValueError(f"{place}: found label {label!r}, wanted 0..{len(choices) - 1}")
    sizes = tuple(map(len, choices))
    if "sentence" in record:
        before, mark, after = _string(record, "sentence", place).partition("_")
        if not mark or not after:
            raise ValueError(f"{place}: found no '_' with text after it in the sentence")
        # What differs is the context; what follows it is scored, the same for every choice.
        pairs = tuple((before + choice, after) for choice in choices)
        return Choices(pairs, (len(after),) * len(choices), label)
    for key, form in (("context", "{}"), ("goal", _ASKED), ("question", _ASKED)):
        if key in record:
            context = form.format(_string(record, key, place))
            return Choices(tuple((context, " " + choice) for choice in choices), sizes, label)
    raise ValueError(f"{place}: found {list(record)}, wanted a context, goal, question or sentence")


_ASKED = "Question: {}\nAnswer:"


def _string(record: dict[str, Any], key: str, place: str) -> str:
    if not isinstance(record.get(key), str):
        raise ValueError(f"{place}: found {record.get(key)!r} under {key!r}, wanted a string")
    return record[key]


def _records(path: str | Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects of a file of JSON lines, at least one, each with its place."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"path: cannot read {path}: {error}") from error
    places = [(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not places:
        raise ValueError(f"path: found no line in {path}, wanted items")
    for line, place in places:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{place}: found bad JSON ({error}), wanted an object") from error
        if not isinstance(record, dict):
            raise ValueError(f"{place}: found {type(record).__name__}, wanted an object")
        yield record, place
