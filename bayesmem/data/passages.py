"""Prompts of questions, with a passage cut to what fits."""

from typing import NamedTuple

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
        return AskedPrompt(_prompt(question, question.context), True)
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


def _prompt(question: Question, passage: str) -> str:
    title = f"{question.title}\n" if question.title else ""
    before = f"{title}{passage}\n" if question.context else ""
    asked = question.question.rstrip(" ?")
    return f"{before}Question: {asked}?\nAnswer:"


def _around(words: list[str], answers: tuple[str, ...], count: int) -> str:
    """`count` words of a passage, the first answer found in their middle as far as can be."""
    text = " ".join(words)
    places = [place for place in map(text.find, answers) if place >= 0]
    start = len(text[: min(places)].split()) - count // 2 if places else 0
    start = min(max(start, 0), max(len(words) - count, 0))
    return " ".join(words[start : start + count])
