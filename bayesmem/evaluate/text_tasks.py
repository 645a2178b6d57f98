"""Perplexity and bits per byte of any text, over all tokens and by the context a token has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayesmem.data.documents import read_documents
from bayesmem.evaluate.continuations import text_rows
from bayesmem.evaluate.item_store import Item
from bayesmem.evaluate.perplexity import means, position_edges
from bayesmem.evaluate.scorer import Row, Scored, attention_layers
from bayesmem.evaluate.subject import Subject, Task
from bayesmem.models import ModelConfig


class Window(NamedTuple):
    """Part of a document that is read from a fresh state.

    Attributes:
      row: its tokens, after the one before them.
      size: its share of the document's bytes: those of its tokens, where every token has as many.
      words: its share of the document's words, which are separated by spaces.
    """

    row: Row
    size: float
    words: float


def text_task(subject: Subject, path: Path, *, length: int | None) -> Task:
    """Predicts every token of a text once; documents' ends are not predicted.

    Measures: `loss` (nats a token), `perplexity`, `bits_per_byte` and `word_perplexity`, which
    do not depend on the tokenizer, `tokens`, `bytes`, `words`; and `by_position`, loss and
    perplexity of the tokens with `start` <= p < `end` tokens of the text before them in a window.

    Args:
      subject: the model.
      path: a text as `bayesmem.data.documents` reads it.
      length: tokens after which the state starts afresh; None to carry it through a document,
        whatever its length. Attention layers are then given windows of the model's `max_length`.

    Raises:
      ValueError: a text that cannot be read; a length below 1.
    """
    length = text_window(subject.scorer.model.config, length)
    items = _windows(subject, path, length)

    def run(indices: Sequence[int]) -> Iterator[tuple[int, Item]]:
        for place, scored in subject.scorer.score([items[i].row for i in indices]):
            yield indices[place], _result(items[indices[place]], scored)

    return Task({"length": length}, len(items), run, _summarise)


def text_window(config: ModelConfig, length: int | None) -> int | None:
    """Tokens of a text that are read from one fresh state: None for a recurrent model's all."""
    if length is None and attention_layers(config):
        return config.max_length
    return length


def _windows(subject: Subject, path: Path, length: int | None) -> list[Window]:
    found = []
    for document in read_documents(path):
        tokens = subject.tokenizer.encode(document.content)
        words = len(document.content.split())
        for row in text_rows(tokens, subject.tokenizer.document_end, length):
            share = (len(row.tokens) - 1) / len(tokens)
            found.append(Window(row, share * len(document.content), share * words))
    return found


def _result(window: Window, scored: Scored) -> Item:
    """Sums of a window, and of its tokens by their position in it."""
    edges = position_edges(len(scored.log_probs))
    nats = -scored.log_probs.astype(np.float64)
    buckets = [(float(part.sum()), len(part)) for part in np.split(nats, edges[1:])]
    return {
        "nats": float(nats.sum()),
        "tokens": len(nats),
        "bytes": window.size,
        "words": window.words,
        "by_position": buckets,
    }


def _summarise(results: Sequence[Item]) -> dict[str, Any]:
    nats, tokens, size, words = (
        math.fsum(result[name] for result in results)
        for name in ("nats", "tokens", "bytes", "words")
    )
    longest = max(len(result["by_position"]) for result in results)
    sums = np.zeros((longest, 2))
    for result in results:
        sums[: len(result["by_position"])] += np.array(result["by_position"])
    edges = position_edges(max(result["tokens"] for result in results))
    ends = [*edges[1:], max(result["tokens"] for result in results)]
    whole = means(nats, tokens, size)
    return whole | {
        "word_perplexity": math.exp(min(nats / words, 700.0)) if words else None,
        "words": round(words),
        "by_position": [
            {"start": start, "end": end, "tokens": int(count), "loss": part / count}
            | {"perplexity": math.exp(min(part / count, 700.0))}
            for start, end, (part, count) in zip(edges, ends, sums.tolist(), strict=True)
        ],
    }
