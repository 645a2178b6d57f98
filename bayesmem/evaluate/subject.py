"""What is evaluated: a model with its tokenizer; and the form of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bayesmem.data.tokenizers import Tokenizer
from bayesmem.evaluate.greedy import greedy
from bayesmem.evaluate.item_store import Item
from bayesmem.evaluate.scorer import Scorer

ROUND = 16
"""Lengths of generations are rounded up to multiples, so that few programs are compiled."""


class Subject(NamedTuple):
    """A language model on text."""

    scorer: Scorer
    tokenizer: Tokenizer


class Task(NamedTuple):
    """Items and what is done with them.

    Attributes:
      options: JSON values that decide the items and their scores.
      size: number of items.
      run: from indices of items to (index, result), in any order.
      summarise: from results to the measures.
    """

    options: dict[str, Any]
    size: int
    run: Callable[[Sequence[int]], Iterator[tuple[int, Item]]]
    summarise: Callable[[Sequence[Item]], dict[str, Any]]


class Prompt(NamedTuple):
    """What is written after.

    Attributes:
      text: read after a document's start.
      new_tokens: most tokens written.
      until: texts that end the answer; a document's end does so too.
    """

    text: str
    new_tokens: int
    until: tuple[str, ...] = ()


def write_answers(subject: Subject, prompts: Sequence[Prompt]) -> Iterator[tuple[int, str]]:
    """Writes greedily after each prompt; those of similar length together, the longest first.

    Args:
      subject: the model.
      prompts: any number.

    Yields:
      (index into `prompts`, the text written before the first of `until`), a batch at a time.
    """
    tokenizer, size = subject.tokenizer, subject.scorer.batch_size
    rows = [
        np.concatenate([[tokenizer.document_end], tokenizer.encode(prompt.text)]).astype(np.int32)
        for prompt in prompts
    ]
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
    for start in range(0, len(order), size):
        indices = order[start : start + size]
        # A batch that is short is filled up: another size would be another program.
        filled = [rows[index] for index in (indices * size)[:size]]
        most = max(prompts[index].new_tokens for index in indices)
        most = -(-most // ROUND) * ROUND
        stops = _stops(tokenizer, [prompts[index] for index in indices])
        scorer = subject.scorer
        written = greedy(scorer.model, scorer.params, filled, most, stops)
        for index, ids in zip(indices, written, strict=False):
            prompt, ids = prompts[index], ids[: prompts[index].new_tokens]
            # A model may have more ids than its tokenizer; these stand for no text.
            text = tokenizer.decode(ids[ids < tokenizer.vocab_size])
            yield index, cut(text, prompt.until)


def cut(text: str, until: Sequence[str]) -> str:
    """The text before the first of several ends."""
    places = [place for place in map(text.find, filter(None, until)) if place >= 0]
    return text[: min(places, default=len(text))]


def _stops(tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> list[int]:
    """Ids that end every row: a document's end, and ends of all prompts that are one token."""
    shared = set(prompts[0].until).intersection(*(prompt.until for prompt in prompts))
    encoded = [tokenizer.encode(text) for text in sorted(shared) if text]
    # Only what decodes to the end itself: a token may stand for more or less in another place.
    single = [ids for ids in encoded if len(ids) == 1 and tokenizer.decode(ids) in shared]
    return [tokenizer.document_end, *(int(ids[0]) for ids in single)]
