"""Prompts of questions: with a passage cut to what fits, or among others up to a length."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bayesmem.data.items import Question
from bayesmem.data.tokenizers import Tokenizer


class AskedPrompt(NamedTuple):
    """One prompt.

    Attributes:
        prompt: Ends with the beginning of the answer.
        whole: Whether the passage was not cut.
    """

    prompt: str
    whole: bool


def ask(question: Question, tokenizer: Tokenizer, room: int | None) -> AskedPrompt:
    """Makes the prompt of a question.

    A passage that does not fit is cut to as many words as do, around the first answer in it, or
    from its start where no answer is literally in it.

    Args:
        question: What is asked.
        tokenizer: Its tokens are counted.
        room: Most tokens of a document's start and the prompt; None for no limit.

    Returns:
        The prompt.

    Raises:
        ValueError: The question alone does not fit.
    """
    words = question.context.split()

    def size(count: int) -> int:
        return 1 + len(tokenizer.encode(_prompt(question, _around(words, question.answers, count))))

    if room is None or size(len(words)) <= room:
        return AskedPrompt(_prompt(question), True)
    if size(0) > room:
        raise ValueError(
            f"length: found room for {room} tokens of {tokenizer.name}, wanted at least {size(0)} "
            f"for the question {question.question!r} without its passage"
        )
    fits, beyond = 0, len(words)
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        fits, beyond = (middle, beyond) if size(middle) <= room else (fits, middle)
    return AskedPrompt(_prompt(question, _around(words, question.answers, fits)), False)


def ask_among(
    question: Question,
    others: Sequence[str],
    tokenizer: Tokenizer,
    room: int,
    *,
    seed: int = 0,
    turns: tuple[str, str] = ("", ""),
) -> AskedPrompt:
    """Makes the prompt of a question whose passage stands among as many others as fit.

    The question answering of RULER (arXiv 2404.06654, section 3.4). The passage is at a random
    place; it is cut, as by `ask`, only where it does not fit alone.

    Args:
        question: What is asked, with its passage.
        others: Passages of other questions. Those that hold an answer are left out.
        tokenizer: Its tokens are counted.
        room: Most tokens of a document's start and the prompt.
        seed: Of the order of the others and of the place.
        turns: What comes before the prompt and before "Answer:", the marks of a chat.

    Returns:
        The prompt, found in at most 2 log2(room) + 3 tries.

    Raises:
        ValueError: The question alone does not fit.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    lower = [answer.lower() for answer in question.answers]
    place = rng.random()
    order = rng.permutation(len(others)).tolist()
    # No passage has less than a token: more than `room` of them are never looked at.
    order = [i for i in order if not any(answer in others[i].lower() for answer in lower)][:room]

    def among(count: int) -> str:
        at = round(place * count)
        chosen = [others[i] for i in order[:count]]
        passages = [*chosen[:at], question.context, *chosen[at:]]
        return _prompt(question._replace(title="", context="\n\n".join(passages)), None, turns)

    def fit(count: int) -> bool:
        return 1 + len(tokenizer.encode(among(count))) <= room

    if not fit(0):
        spent = len(tokenizer.encode("".join(turns)))
        cut = ask(question._replace(title=""), tokenizer, room - spent - _SEAM)
        passage = cut.prompt[: cut.prompt.rindex("\nQuestion: ")]
        return AskedPrompt(_prompt(question._replace(title=""), passage, turns), False)
    fits, beyond = 0, 1
    while beyond <= len(order) and fit(beyond):
        fits, beyond = beyond, 2 * beyond
    beyond = min(beyond, len(order) + 1)
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        fits, beyond = (middle, beyond) if fit(middle) else (fits, middle)
    return AskedPrompt(among(fits), True)


_SEAM = 2
"""Tokens that texts may have more together than apart, for each of two turns of a chat."""


def _prompt(
    question: Question, passage: str | None = None, turns: tuple[str, str] = ("", "")
) -> str:
    """The prompt with the whole passage, or another in its place."""
    title = f"{question.title}\n" if question.title else ""
    passage = question.context if passage is None else passage
    before = f"{title}{passage}\n" if question.context else ""
    asked = question.question.rstrip(" ?")
    return f"{turns[0]}{before}Question: {asked}?{turns[1]}\nAnswer:"


def _around(words: list[str], answers: tuple[str, ...], count: int) -> str:
    """`count` words of a passage, the first answer found in their middle as far as can be."""
    text = " ".join(words)
    places = [place for place in map(text.find, answers) if place >= 0]
    start = len(text[: min(places)].split()) - count // 2 if places else 0
    start = min(max(start, 0), max(len(words) - count, 0))
    return " ".join(words[start : start + count])
