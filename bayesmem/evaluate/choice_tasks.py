"""Zero-shot multiple choice, and the last word of LAMBADA, by log-likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bayesmem.data.items import Choices, read_choices, read_last_words
from bayesmem.evaluate.continuations import continuation_row
from bayesmem.evaluate.item_store import Item
from bayesmem.evaluate.scorer import Row, Scored
from bayesmem.evaluate.subject import Subject, Task

BATCHES = 16
"""Batches whose rows are sorted by length together: more pads less, fewer lose less to a kill."""


def choice_task(subject: Subject, path: Path) -> Task:
    """Multiple choice: the choice of the largest log-likelihood is the model's.

    Measures: `accuracy`; `accuracy_by_length`, with log-likelihoods divided by the characters of
    the choice (`acc_norm` of lm-evaluation-harness); `chance`, of guessing.
    """
    items = read_choices(path)

    def result(item: Choices, scored: Sequence[Scored]) -> Item:
        sums = np.array([scores.log_prob for scores in scored])
        return {
            "log_probs": sums.tolist(),
            "label": item.label,
            "choices": len(sums),
            "right": int(np.argmax(sums) == item.label),
            "right_by_length": int(np.argmax(sums / np.array(item.sizes)) == item.label),
        }

    def summarise(results: Sequence[Item]) -> dict[str, float]:
        names = {"accuracy": "right", "accuracy_by_length": "right_by_length"}
        means = {name: float(np.mean([r[key] for r in results])) for name, key in names.items()}
        return means | {"chance": float(np.mean([1 / r["choices"] for r in results]))}

    def run(indices: Sequence[int]) -> Iterator[tuple[int, Item]]:
        for index, scored in _score(subject, items, indices):
            yield index, result(items[index], scored)

    return Task({}, len(items), run, summarise)


def last_word_task(subject: Subject, path: Path) -> Task:
    """LAMBADA (Paperno et al. 2016, arXiv 1606.06031): the last word after its text.

    Measures: `accuracy`, whether greedy decoding writes the word; `perplexity`, of words.
    """
    items = read_last_words(path)

    def run(indices: Sequence[int]) -> Iterator[tuple[int, Item]]:
        for index, (scores,) in _score(subject, items, indices):
            yield index, {"log_prob": scores.log_prob, "right": int(scores.is_greedy)}

    def summarise(results: Sequence[Item]) -> dict[str, float]:
        nats = -float(np.mean([r["log_prob"] for r in results]))
        return {
            "accuracy": float(np.mean([r["right"] for r in results])),
            # Of a model that knows nothing the number may exceed what a float holds.
            "perplexity": math.exp(min(nats, 700.0)),
        }

    return Task({}, len(items), run, summarise)


def _score(
    subject: Subject, items: Sequence[Choices], indices: Sequence[int]
) -> Iterator[tuple[int, list[Scored]]]:
    """Scores the choices of items, groups of items of similar length one after the other."""
    rows = {index: _rows(subject, items[index]) for index in indices}
    order = sorted(rows, key=lambda index: -max(len(row.tokens) for row in rows[index]))
    limit = BATCHES * subject.scorer.batch_size
    group: list[int] = []
    for place, index in enumerate(order):
        group.append(index)
        if place + 1 < len(order) and sum(len(rows[i]) for i in group) < limit:
            continue
        flat = [row for i in group for row in rows[i]]
        scored = dict(subject.scorer.score(flat))
        at = 0
        for i in group:
            yield i, [scored[at + choice] for choice in range(len(rows[i]))]
            at += len(rows[i])
        group = []


def _rows(subject: Subject, item: Choices) -> list[Row]:
    return [continuation_row(subject.tokenizer, *pair) for pair in item.pairs]
