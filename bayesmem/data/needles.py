"""Needles in a haystack: facts hidden in a long text, asked for at its end.

The family is that of RULER (Hsieh et al. 2024, arXiv 2404.06654, section 3 and table 5); its first
three tasks are S-NIAH-1, -2 and -3. Sentences and words are this project's own, so scores are not
to be set beside those of RULER's own texts:

| task | haystack | keys | values | keys hidden, values a key, keys asked for |
|---|---|---|---|---|
| niah_single_1 | noise | words | numbers | 1, 1, 1 |
| niah_single_2 | essay | words | numbers | 1, 1, 1 |
| niah_single_3 | essay | words | identifiers | 1, 1, 1 |
| niah_multikey_1 | essay | words | numbers | 4, 1, 1 |
| niah_multikey_2 | other needles | words | numbers | all, 1, 1 |
| niah_multikey_3 | other needles | identifiers | identifiers | all, 1, 1 |
| niah_multivalue | essay | words | numbers | 1, 4, 1 |
| niah_multiquery | essay | words | numbers | 4, 1, 4 |

A prompt ends with the beginning of the answer, and prompt and answer fit the length asked for:
the haystack is as long as fits, found by bisection.
"""

import bisect
import dataclasses
import functools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bayesmem.data.checks import check_count
from bayesmem.data.haystacks import KINDS, NOISE, cycle, read_words
from bayesmem.data.tokenizers import Tokenizer

FILLERS = ("noise", "essay", "needles")
SPARE_TOKENS = 16
"""Tokens for the answer beyond those of the answer itself."""
DEPTHS = tuple(4 * i % 11 / 10 for i in range(11))  # the first few are from all over


@dataclasses.dataclass(frozen=True)
class NeedleTask:
    """One task of the family.

    Attributes:
        name: Decides, with the seed, what is drawn.
        filler: "noise"; "essay", sentences of a text; or "needles", others of the same form.
        keys: "words", "numbers" or "uuids".
        values: The same choice.
        num_keys: Keys hidden besides those of a filler of needles.
        num_values: Values a key.
        num_queries: Keys asked for, at most num_keys.
        turns: What comes before the prompt and before the beginning of the answer: the marks of
            a chat, ("", "") for a base model.

    Raises:
        ValueError: An unknown choice, or numbers that do not fit.
    """

    name: str
    filler: str = "essay"
    keys: str = "words"
    values: str = "numbers"
    num_keys: int = 1
    num_values: int = 1
    num_queries: int = 1
    turns: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        """Checks the choices and the numbers."""
        choices = (("filler", FILLERS), ("keys", KINDS), ("values", KINDS))
        for field, known in choices:
            if getattr(self, field) not in known:
                raise ValueError(
                    f"{field}: found {getattr(self, field)!r}, wanted one of {list(known)}"
                )
        for field in ("num_keys", "num_values", "num_queries"):
            check_count(field, getattr(self, field), minimum=1)
        if self.num_queries > self.num_keys:
            raise ValueError(
                f"num_queries: found {self.num_queries}, wanted at most num_keys {self.num_keys}"
            )


NEEDLE_TASKS = {
    task.name: task
    for task in (
        NeedleTask("niah_single_1", filler="noise"),
        NeedleTask("niah_single_2"),
        NeedleTask("niah_single_3", values="uuids"),
        NeedleTask("niah_multikey_1", num_keys=4),
        NeedleTask("niah_multikey_2", filler="needles"),
        NeedleTask("niah_multikey_3", filler="needles", keys="uuids", values="uuids"),
        NeedleTask("niah_multivalue", num_values=4),
        NeedleTask("niah_multiquery", num_keys=4, num_queries=4),
    )
}


class NeedleItem(NamedTuple):
    """One prompt.

    Attributes:
        prompt: What is read after a document's start; ends with the beginning of the answer.
        answers: All of them are asked for.
        answer_tokens: Most tokens to be written.
        tokens: Tokens of the prompt, the document's start included; with `answer_tokens` at most
            the length.
        depth: Where the first needle asked for is: 0 at the haystack's start, 1 at its end.
    """

    prompt: str
    answers: tuple[str, ...]
    answer_tokens: int
    tokens: int
    depth: float


def make_needles(
    task: NeedleTask,
    tokenizer: Tokenizer,
    *,
    length: int,
    count: int,
    seed: int = 0,
    essay: str = "",
    depths: Sequence[float] = DEPTHS,
) -> list[NeedleItem]:
    """Draws prompts; equal bytes for equal arguments, whatever was drawn before.

    Args:
        task: Which task, of `NEEDLE_TASKS` or another.
        tokenizer: Its tokens are those of the length.
        length: Tokens of prompt and answer, N.
        count: Prompts. The first ones do not depend on it.
        seed: Integer >= 0. Needles are the same at every length.
        essay: Path of the text of a filler "essay".
        depths: Places in [0, 1] of the first needle asked for, taken in turn, each moved to the
            nearest end of a sentence; all other needles are at random places.

    Returns:
        The prompts.

    Raises:
        ValueError: A bad argument, an essay that cannot be read, or a length that does not hold
            the prompt without a haystack, with the number needed.
    """
    for name, value, minimum in (("length", length, 1), ("count", count, 0), ("seed", seed, 0)):
        check_count(name, value, minimum=minimum)
    if not depths or not all(0 <= depth <= 1 for depth in depths):
        raise ValueError(f"depths: found {list(depths)}, wanted numbers in [0, 1]")
    if task.filler == "essay" and not essay:
        raise ValueError(f"essay: found no path, wanted a text for the haystack of {task.name}")
    parts = read_words(essay) if task.filler == "essay" else NOISE
    return [
        _fit(_draw(task, seed, index, depths[index % len(depths)], parts), tokenizer, length)
        for index in range(count)
    ]


@functools.lru_cache(maxsize=2)
def other_needles(
    task: NeedleTask, seed: int, asked: tuple[str, ...], count: int
) -> tuple[str, ...]:
    """A haystack of needles, none with a key asked for; keys may come again after 256 others.

    Args:
        task: Of what kinds keys and values are.
        seed: Of the needles; the first ones do not depend on the count.
        asked: Keys that are left out.
        count: How many.

    Returns:
        The sentences.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    found: list[str] = []
    while len(found) < count:
        # Always as many at once: the first ones must not depend on the count.
        keys = KINDS[task.keys](rng, 256)
        values = KINDS[task.values](rng, 256)
        pairs = zip(keys, values, strict=True)
        found += [_needle(task, key, value) for key, value in pairs if key not in asked]
    return tuple(found[:count])


class _Drawn(NamedTuple):
    """All of a prompt but the length of its haystack."""

    task: NeedleTask
    asked: tuple[str, ...]
    answers: tuple[str, ...]
    needles: tuple[str, ...]
    places: tuple[float, ...]  # of the needles, in [0, 1)
    parts: tuple[str, ...]  # words of the text that the haystack is cut from
    start: int  # the first of them
    filler_seed: int  # of a haystack of needles

    def haystack(self, count: int) -> list[str]:
        """The first `count` parts of filler: needles, or words."""
        if self.task.filler == "needles":
            return list(other_needles(self.task, self.filler_seed, self.asked, count))
        return cycle(self.parts, self.start, count)

    def prompt(self, count: int) -> str:
        """The prompt with so many parts of filler; needles stand between sentences."""
        filler, at = self.haystack(count), 0
        ends = [i + 1 for i, part in enumerate(filler) if part.endswith((".", "!", "?"))]
        ends = sorted({0, *ends, count})
        lines: list[str] = []
        for i in sorted(range(len(self.needles)), key=lambda i: self.places[i]):
            place = _nearest(ends, self.places[i] * count)
            lines += [*filler[at:place], self.needles[i]]
            at = place
        keys, noun, verb = _listed(self.asked), _NOUN[self.task.values], "is"
        before, after = self.task.turns
        gap = "" if after.endswith((" ", "\n")) else " "
        text = f"{before}Remember each secret {noun} in this text.\n"
        if len(self.answers) > 1:
            noun, verb = f"{noun}s", "are"
        return (
            f"{text}{' '.join([*lines, *filler[at:]])}\n"
            f"What {verb} the secret {noun} of {keys}?{after}{gap}"
            f"The secret {noun} of {keys} {verb}"
        )


def _nearest(ends: Sequence[int], place: float) -> int:
    """The number of an ascending list that is nearest to a place."""
    after = min(bisect.bisect_left(ends, place), len(ends) - 1)
    before = max(after - 1, 0)
    return min(ends[before], ends[after], key=lambda end: abs(end - place))


_NOUN = {"words": "word", "numbers": "number", "uuids": "code"}


def _sentence_start(rng: np.random.Generator, parts: tuple[str, ...]) -> int:
    """A random word that starts a sentence: the first, where none can be found in a few tries."""
    for start in rng.integers(1, max(len(parts), 2), 1000).tolist():
        if parts[start - 1].endswith((".", "!", "?")):
            return start % len(parts)
    return 0


def _needle(task: NeedleTask, key: str, value: str) -> str:
    return f"The secret {_NOUN[task.values]} of {key} is {value}."


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _draw(task: NeedleTask, seed: int, index: int, depth: float, parts: tuple[str, ...]) -> _Drawn:
    """Draws one prompt from a generator of its own."""
    entropy = np.random.SeedSequence((seed, zlib.crc32(task.name.encode())), spawn_key=(index,))
    rng = np.random.Generator(np.random.PCG64(entropy))
    keys = KINDS[task.keys](rng, task.num_keys)
    values = KINDS[task.values](rng, task.num_keys * task.num_values)
    pairs = [(keys[i // task.num_values], value) for i, value in enumerate(values)]
    places = rng.random(len(pairs))
    places[0] = depth
    asked = task.num_queries * task.num_values
    return _Drawn(
        task,
        tuple(keys[: task.num_queries]),
        tuple(value for _, value in pairs[:asked]),
        tuple(_needle(task, key, value) for key, value in pairs),
        tuple(places.tolist()),
        parts,
        _sentence_start(rng, parts) if task.filler == "essay" else 0,
        int(rng.integers(2**32)),
    )


def _fit(drawn: _Drawn, tokenizer: Tokenizer, length: int) -> NeedleItem:
    """Gives a prompt the longest haystack that fits, in at most 2 log2(length) + 2 tries."""
    budget = len(tokenizer.encode(f" {_listed(drawn.answers)}.")) + SPARE_TOKENS

    def tokens(count: int) -> int:
        return 1 + len(tokenizer.encode(drawn.prompt(count)))

    smallest = tokens(0)
    if smallest + budget > length:
        raise ValueError(
            f"length: found {length}, wanted at least {smallest + budget} for {drawn.task.name} in "
            f"tokens of {tokenizer.name}: {smallest} of the prompt without a haystack, {budget} of "
            f"the answer"
        )
    # A word has at least one token, so that no more than `length` of them can fit.
    fits, best, high = 0, smallest, 1
    while high <= length and (found := tokens(high)) + budget <= length:
        fits, best, high = high, found, 2 * high
    while high - fits > 1:
        middle = (fits + high) // 2
        if (found := tokens(middle)) + budget <= length:
            fits, best = middle, found
        else:
            high = middle
    return NeedleItem(drawn.prompt(fits), drawn.answers, budget, best, drawn.places[0])
