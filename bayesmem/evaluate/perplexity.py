"""Bits per byte and perplexity of text, over all tokens and by the context a token has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bayesmem.data.text import DOCUMENT_END
from bayesmem.ops.segments import positions_in_document
from bayesmem.train.losses import IGNORED, batch_logits, target_losses
from bayesmem.train.sharding import put_batch

FIRST_EDGE = 16  # tokens of context in the first bucket; every further edge doubles it


def perplexity(
    model: nn.Module, params: Any, batches: Iterable[Mapping[str, np.ndarray]], mesh: Mesh
) -> dict[str, Any]:
    """Predicts every token of byte text once.

    The context of a token is what the model has read of its document in the same row: position 0
    has none before its own input.

    Args:
      model: a language model.
      params: its parameters, unboxed.
      batches: batches with `inputs`, `targets` and `segment_ids` [B, T], of byte tokens.
      mesh: from `bayesmem.train.sharding.make_mesh`.

    Returns:
      `loss` (nats a token), `perplexity` (exp of it), `bits_per_byte` (all bits, those of the
      document ends included, over the bytes), `tokens`, `bytes`; and `by_position`, a list of the
      same for the positions `start` <= p < `end` of a document, buckets without tokens left out.

    Raises:
      ValueError: there is no counted token.
    """

    @jax.jit
    def sums(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        targets = batch["targets"]
        positions = positions_in_document(
            batch["segment_ids"], jnp.zeros(targets.shape[0], jnp.int32)
        )
        edges = jnp.asarray(position_edges(targets.shape[1]))
        bucket = jnp.searchsorted(edges, positions, side="right") - 1
        losses = target_losses(batch_logits(model, params, batch), targets)
        counted = targets != IGNORED
        columns = (losses, counted, counted & (targets != DOCUMENT_END))
        stacked = jnp.stack([column.astype(jnp.float32) for column in columns], axis=-1)
        return jnp.zeros((len(edges), 3)).at[bucket].add(stacked)

    totals, length = np.zeros((1, 3)), 0
    for batch in batches:
        length = batch["targets"].shape[1]
        totals = totals + np.asarray(sums(params, put_batch(mesh, batch)), np.float64)
    if totals[:, 2].sum() == 0:
        raise ValueError("perplexity: found no counted token in the batches; wanted at least one")
    edges = [*position_edges(length), length]
    rows = [
        {"start": start, "end": end} | _means(*row)
        for start, end, row in zip(edges[:-1], edges[1:], totals, strict=True)
        if row[2] > 0
    ]
    return _means(*totals.sum(axis=0)) | {"by_position": rows}


def position_edges(length: int) -> list[int]:
    """Starts of the position buckets below `length`: 0, 16, 32, 64, ..."""
    edges = [0]
    while (edge := max(FIRST_EDGE, 2 * edges[-1])) < length:
        edges.append(edge)
    return edges


def _means(nats: float, tokens: float, size: float) -> dict[str, float]:
    return {
        "loss": nats / tokens,
        "perplexity": math.exp(nats / tokens),
        "bits_per_byte": nats / size / math.log(2),
        "tokens": int(tokens),
        "bytes": int(size),
    }
