"""Names of an array's axes, written as a string: how it is read, and merged axes taken apart.

"B N L (H G)" stands for an array [B, N, L, H G, ...]: a name for each of its first axes, and
several names in brackets for one that is merged of several.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax

Names = tuple[str, ...]
"""Names of the first axes of an array, none of them merged."""


def groups(place: str) -> list[list[str]]:
    """Reads a string: "B (H G)" -> [["B"], ["H", "G"]]."""
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\w+", place)]


def names(place: str) -> Names:
    """Reads a string of an array whose axes are apart: "B (H G)" -> ("B", "H", "G")."""
    return tuple(name for group in groups(place) for name in group)


def sizes(
    places: Iterable[str], shapes: Iterable[tuple[int, ...]], apart: bool = False
) -> dict[str, int]:
    """Returns the sizes of all axes by name, those that are nowhere on their own by division.

    Args:
      places: a string for each array.
      shapes: of the arrays.
      apart: whether merged axes are apart in the shapes.

    Raises:
      ValueError: an axis has two sizes.
    """
    found: dict[str, int] = {}
    merged = []
    for place, shape in zip(places, shapes, strict=True):
        parts = [[name] for name in names(place)] if apart else groups(place)
        for group, size in zip(parts, shape, strict=False):
            if len(group) > 1:
                merged.append((group, size))
            elif found.setdefault(group[0], size) != size:
                raise ValueError(f"axis {group[0]}: found {size} and {found[group[0]]}")
    for group, size in merged:
        unknown = [name for name in group if name not in found]
        if len(unknown) == 1:
            found[unknown[0]] = size // math.prod(found.get(name, 1) for name in group)
    return found


def split(x: Any, place: str, sizes: Mapping[str, int]) -> Any:
    """Takes merged axes apart: [B, H G, ...] -> [B, H, G, ...] for "B (H G)".

    Args:
      x: an array whose axes are merged as the string says.
      place: the string.
      sizes: of the merged axes by name.
    """
    parts = groups(place)
    shape = [
        size if name is None else sizes[name]
        for group, size in zip(parts, x.shape, strict=False)
        for name in (group if len(group) > 1 else [None])
    ]
    return x.reshape(*shape, *x.shape[len(parts) :])


def merge(x: jax.Array, place: str) -> jax.Array:
    """Reverses `split`: [B, H, G, ...] -> [B, H G, ...] for "B (H G)"."""
    shape, position = [], 0
    for group in groups(place):
        shape.append(math.prod(x.shape[position : position + len(group)]))
        position += len(group)
    return x.reshape(*shape, *x.shape[position:])
