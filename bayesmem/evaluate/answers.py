"""How well a written answer agrees with the accepted ones.

Normalisation, exact match and F1 are those of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250,
section 6.1): lower case, without punctuation and articles, single spaces.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation and the words a, an, the; single spaces."""
    words = re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()
    return " ".join(words)


def agreement(written: str, accepted: Sequence[str]) -> dict[str, float]:
    """Compares an answer with each accepted one.

    Args:
      written: what the model wrote.
      accepted: at least one answer.

    Returns:
      `contains`, whether the words of an accepted answer stand in the written one; `exact`,
      whether they are equal; `f1`, of their words as bags. Each 0 to 1, the best over accepted.
    """
    found = normalise(written)
    scores = [_compare(found, normalise(answer)) for answer in accepted]
    return {name: max(score[name] for score in scores) for name in ("contains", "exact", "f1")}


def share_found(written: str, wanted: Sequence[str]) -> float:
    """The share of strings that stand in a text, upper and lower case alike.

    The string match of RULER (arXiv 2404.06654, section 4).
    """
    return sum(part.lower() in written.lower() for part in wanted) / len(wanted)


def _compare(found: str, answer: str) -> dict[str, float]:
    exact = float(found == answer)
    common = sum((Counter(found.split()) & Counter(answer.split())).values())
    total = len(found.split()) + len(answer.split())
    # An answer without words ("the") is found in nothing but another without words.
    contains = float(f" {answer} " in f" {found} ") if answer else exact
    return {"contains": contains, "exact": exact, "f1": 2 * common / total if total else exact}
