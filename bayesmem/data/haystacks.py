"""What needles are hidden in, and the words, numbers and identifiers they are made of."""

import functools
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bayesmem.data.documents import read_documents

_NOISE_TEXT = (
    "Rivers run down to the sea. Snow lies on the high hills. Bread is baked before dawn. "
    "The road turns and goes on. Birds fly south in the autumn. Rain fills the old stone well."
)
NOISE = tuple(_NOISE_TEXT.split())
"""Words of sentences that say nothing, repeated in this order."""

_FIRST = (
    "amber ancient awake bitter blank bold brave brief bright brisk broad calm careful clever "
    "cloudy cold crisp curious daily damp dark deep dense distant double dry dusty eager early "
    "eastern empty even faint fast fine firm flat fond formal frail free fresh gentle giant glad "
    "golden grand grave green happy hasty heavy hidden hollow honest humble idle inner jolly keen "
    "kind large late lazy level light little lively local lone long loud lucky mellow merry mild "
    "modest narrow neat noble northern odd open pale patient plain polite proud quick quiet rapid "
    "rare ready rigid ripe rough round royal rural rustic salty sharp shiny short shy silent "
    "simple sleepy slow small smooth sober soft solid southern spare stable steady steep still "
    "stout strict strong subtle sunny sweet swift tall tame tender thick thin tidy tiny tough true "
    "upper urban vast vivid warm wary western wide wild windy wise young"
).split()
_SECOND = (
    "acorn anchor apple arrow badge banner barn basin basket beacon bell bench bottle bowl branch "
    "brick bridge brush bucket button cabin camel candle canvas carpet castle cellar chain chair "
    "chalk cherry circle cliff cloak clock cloud coin collar copper corner cotton cradle crane "
    "crown curtain daisy desk door drum eagle engine falcon farm feather fence ferry fiddle field "
    "flag flame flute forest fountain fox garden gate glove goose grain grove hammer harbor harp "
    "hedge helmet heron hill horn horse island ivory jacket jewel kettle key kite ladder lamp "
    "lantern leaf ledge lemon letter lily linen lion lock magnet maple marble market meadow mill "
    "mirror moon mountain needle nest oak ocean olive orchard otter owl paddle palace parcel path "
    "pearl pebble pencil pepper piano pillar pillow pine pitcher planet plum pocket pond pony "
    "quarry quill rabbit raft ribbon ring robin rocket rope saddle sail salmon scarf shell shield "
    "shovel signal spoon spring stable star statue stone stove swan table tent thimble tower trail "
    "tunnel turtle valley vessel village violin wagon wall walnut whistle willow window wolf"
).split()


def words(rng: np.random.Generator, count: int) -> list[str]:
    """Pairs of words such as "amber-acorn", no two alike.

    Args:
        rng: Where they are drawn from.
        count: How many; at most some 25,000, the number of pairs.

    Returns:
        The pairs.

    Raises:
        ValueError: count is above the number of pairs.
    """
    pairs = len(_FIRST) * len(_SECOND)
    if count > pairs:
        raise ValueError(f"count: found {count} keys of words, wanted at most {pairs}")
    drawn = rng.choice(pairs, count, replace=False, shuffle=True)
    return [f"{_FIRST[i % len(_FIRST)]}-{_SECOND[i // len(_FIRST)]}" for i in drawn.tolist()]


def numbers(rng: np.random.Generator, count: int) -> list[str]:
    """Numbers of seven digits, no two alike."""
    return _distinct(count, lambda: str(rng.integers(1_000_000, 10_000_000)))


def uuids(rng: np.random.Generator, count: int) -> list[str]:
    """Random identifiers of 36 characters (RFC 9562, version 4), no two alike."""
    return _distinct(count, lambda: str(uuid.UUID(bytes=rng.bytes(16), version=4)))


KINDS = {"words": words, "numbers": numbers, "uuids": uuids}


@functools.lru_cache(maxsize=4)
def read_words(path: str | Path) -> tuple[str, ...]:
    """Words of a text in their order.

    Args:
        path: A file or folder as `bayesmem.data.documents` reads them.

    Returns:
        At least one word, punctuation included.

    Raises:
        ValueError: The path cannot be read or holds no words.
    """
    text = b" ".join(document.content for document in read_documents(path))
    found = tuple(text.decode("utf-8", "replace").split())
    if not found:
        raise ValueError(f"path: found no words in {path}, wanted a text")
    return found


def cycle(parts: Sequence[str], start: int, count: int) -> list[str]:
    """`count` parts from a place on, from the first one again after the last."""
    return [parts[(start + i) % len(parts)] for i in range(count)]


def _distinct(count: int, draw: Callable[[], str]) -> list[str]:
    """Draws until there are so many different ones."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)
