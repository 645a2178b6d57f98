"""Which parameters are trained: the others are read, and have neither gradient nor optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn
from flax import traverse_util

PyTree = Any
Trains = Callable[[str], bool]
"""From a parameter's name, its keys joined by "/", to whether it is trained."""


def split(params: PyTree, trains: Trains | None) -> tuple[PyTree, PyTree]:
    """Returns the parameters that are trained, and the rest; `merge` is the inverse.

    Args:
      params: nested dicts of arrays, boxed or not; any tree where all are trained.
      trains: None for all.
    """
    if trains is None:
        return params, None
    flat = traverse_util.flatten_dict(params, sep="/")
    part = {name: leaf for name, leaf in flat.items() if trains(name)}
    rest = {name: leaf for name, leaf in flat.items() if name not in part}
    return _nested(part), _nested(rest)


def merge(part: PyTree, rest: PyTree) -> PyTree:
    """Returns all parameters, from the results of `split`."""
    if rest is None:
        return part
    flat = traverse_util.flatten_dict(part, sep="/") | traverse_util.flatten_dict(rest, sep="/")
    return _nested(flat)


def mask_table(params: Mapping[str, Any], trains: Trains) -> str:
    """Returns a table of what is trained and what is not, with numbers of parameters.

    Args:
      params: arrays or shapes, boxed or not.
      trains: as in `split`.
    """
    counts: dict[tuple[str, bool], int] = {}
    for name, leaf in traverse_util.flatten_dict(nn.meta.unbox(params), sep="/").items():
        key = "/".join(name.split("/")[:3]), trains(name)
        counts[key] = counts.get(key, 0) + leaf.size
    width = max(len(name) for name, _ in counts)
    lines = [
        f"{name:{width}}  {'trained' if trained else 'frozen':8}{count:>14,}"
        for (name, trained), count in counts.items()
    ]
    total = {kind: sum(n for (_, k), n in counts.items() if k == kind) for kind in (True, False)}
    lines.append(f"{'all':{width}}  {'trained':8}{total[True]:>14,}")
    lines.append(f"{'':{width}}  {'frozen':8}{total[False]:>14,}")
    return "\n".join(lines)


def _nested(flat: dict[str, jax.Array]) -> dict[str, Any]:
    return traverse_util.unflatten_dict(flat, sep="/")
