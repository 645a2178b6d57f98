"""Tasks whose answers are written: needles in a haystack, recall from documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayesmem.data.items import read_questions
from bayesmem.data.needles import DEPTHS, NEEDLE_TASKS, make_needles
from bayesmem.data.passages import AskedPrompt, ask, ask_among
from bayesmem.evaluate.answers import agreement, share_found
from bayesmem.evaluate.item_store import Item
from bayesmem.evaluate.subject import Prompt, Subject, Task, write_answers

NEEDLE_COUNT = 10 * len(DEPTHS)
"""Prompts of a needle task, where no other number is asked for: ten at each depth."""
ANSWER_TOKENS = 48
"""Most tokens of an answer to a question."""


def needle_task(
    subject: Subject, name: str, *, length: int, essay: str, count: int, seed: int
) -> Task:
    """Needles: an answer's score is the share of the values asked for that stand in it.

    Measures: `score`, and `by_depth`: pairs of a depth and the mean score there.

    Args:
      subject: the model.
      name: of `NEEDLE_TASKS`.
      length: tokens of prompt and answer.
      essay: path of the text of the haystack, for the tasks that have one.
      count: prompts.
      seed: of what is drawn.

    Raises:
      ValueError: as of `make_needles`.
    """
    chosen = NEEDLE_TASKS[name]
    items = make_needles(
        chosen, subject.tokenizer, length=length, count=count, seed=seed, essay=essay
    )

    def run(indices: Sequence[int]) -> Iterator[tuple[int, Item]]:
        prompts = [Prompt(items[i].prompt, items[i].answer_tokens) for i in indices]
        for place, text in write_answers(subject, prompts):
            item = items[indices[place]]
            yield (
                indices[place],
                {
                    "depth": item.depth,
                    "tokens": item.tokens,
                    "answers": item.answers,
                    "written": text,
                    "score": share_found(text, item.answers),
                },
            )

    def summarise(results: Sequence[Item]) -> dict[str, Any]:
        depths = sorted({r["depth"] for r in results})
        by_depth = [[d, _mean([r for r in results if r["depth"] == d], "score")] for d in depths]
        return {"score": _mean(results, "score"), "by_depth": by_depth}

    return Task({"length": length, "seed": seed}, len(items), run, summarise)


def recall_task(
    subject: Subject, path: Path, *, length: int | None, among_others: bool = False, seed: int = 0
) -> Task:
    """Questions with their passage, or without: `contains`, `exact` and `f1`, means over questions.

    The measures compare the first line that is written, see `bayesmem.evaluate.answers`; `whole`
    is the share of passages that were not cut.

    Args:
      subject: the model.
      path: a file of questions, see `bayesmem.data.items`.
      length: tokens of prompt and answer, to which passages are cut; None for whole ones.
      among_others: whether a passage stands among others of the file, as many as fit the length.
      seed: of these others.

    Raises:
      ValueError: a bad file; a question does not fit the length (when it is asked).
    """
    items = read_questions(path)
    room = None if length is None else length - ANSWER_TOKENS
    passages = list(dict.fromkeys(item.context for item in items if item.context))

    def prompt(index: int) -> AskedPrompt:
        if room is None or not among_others:
            return ask(items[index], subject.tokenizer, room)
        others = [passage for passage in passages if passage != items[index].context]
        number = int(np.random.SeedSequence((seed, index)).generate_state(1)[0])
        return ask_among(items[index], others, subject.tokenizer, room, seed=number)

    def run(indices: Sequence[int]) -> Iterator[tuple[int, Item]]:
        asked = [prompt(i) for i in indices]
        prompts = [Prompt(one.prompt, ANSWER_TOKENS, ("\n",)) for one in asked]
        for place, text in write_answers(subject, prompts):
            item = items[indices[place]]
            yield (
                indices[place],
                {
                    "question": item.question,
                    "answers": item.answers,
                    "written": text,
                    "whole": int(asked[place].whole),
                    **agreement(text, item.answers),
                },
            )

    def summarise(results: Sequence[Item]) -> dict[str, float]:
        return {name: _mean(results, name) for name in ("contains", "exact", "f1", "whole")}

    options = {"length": length} | ({"seed": seed} if among_others else {})
    return Task(options, len(items), run, summarise)


def _mean(results: Sequence[Item], name: str) -> float:
    return float(np.mean([result[name] for result in results]))
