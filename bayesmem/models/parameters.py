"""Counting a model's parameters, by part."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn


def parameter_counts(params: Mapping[str, Any], depth: int = 1) -> dict[str, int]:
    """Returns the number of parameters of every part, and of all parts as "total".

    Args:
      params: a tree of arrays or shapes, with or without Flax's partitioning boxes.
      depth: how many levels of names tell the parts apart.
    """
    counts: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(nn.meta.unbox(params)):
        part = "/".join(str(getattr(key, "key", key)) for key in path[:depth])
        counts[part] = counts.get(part, 0) + leaf.size
    return counts | {"total": sum(counts.values())}
