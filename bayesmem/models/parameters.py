"""A model's parameters: how many, and one by one or stacked over the turns of its mixers."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

STACKED = "layers"
"""Name of the blocks' parameters with a first axis of turns, see `ModelConfig.scan_layers`."""


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


def unroll_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parameters of a model of scanned blocks as of the same model without the scan.

    Args:
      params: unboxed, with `layers/block_N` for each of M mixers, leaves [turns, ...].

    Returns:
      The same with `blocks_0` to `blocks_(turns * M - 1)`.
    """
    own = {name: part for name, part in params.items() if name != STACKED}
    blocks = params[STACKED]
    turns = jax.tree.leaves(blocks)[0].shape[0]
    for turn in range(turns):
        for place in range(len(blocks)):
            part = jax.tree.map(lambda x, turn=turn: x[turn], blocks[f"block_{place}"])
            own[f"blocks_{turn * len(blocks) + place}"] = part
    return own


def stack_params(params: Mapping[str, Any], mixers: int) -> dict[str, Any]:
    """Returns the inverse of `unroll_params`.

    Args:
      params: unboxed, with `blocks_0` and on.
      mixers: M, how many mixers take turns; divides the number of blocks.
    """
    names = sorted((n for n in params if n.startswith("blocks_")), key=lambda n: int(n[7:]))
    own = {name: part for name, part in params.items() if name not in names}
    own[STACKED] = {
        f"block_{place}": jax.tree.map(
            lambda *x: jnp.stack(x), *[params[name] for name in names[place::mixers]]
        )
        for place in range(mixers)
    }
    return own
