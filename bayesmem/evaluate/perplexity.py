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

from bayesmem.data.tokenizers import ByteTokenizer, Tokenizer
from bayesmem.ops.segments import positions_in_document
from bayesmem.train.losses import IGNORED, hidden_and_penalty, target_losses
from bayesmem.train.objective import sum_in_parts
from bayesmem.train.sharding import put_batch

FIRST_EDGE = 16  # tokens of context in the first bucket; every further edge doubles it
PART = 512  # tokens of each row whose logits are held at once


def perplexity(
    model: nn.Module,
    params: Any,
    batches: Iterable[Mapping[str, np.ndarray]],
    mesh: Mesh,
    tokenizer: Tokenizer | None = None,
) -> dict[str, Any]:
    """Predicts every token of text once.

    The context of a token is what the model has read of its document in the same row: position 0
    has none before its own input.

    Args:
      model: a language model.
      params: its parameters, unboxed.
      batches: batches with `inputs`, `targets` and `segment_ids` [B, T].
      mesh: from `bayesmem.train.sharding.make_mesh`.
      tokenizer: of the batches; None for bytes.

    Returns:
      `loss` (nats a token), `perplexity` (exp of it), `bits_per_byte` (all bits, those of the
      document ends included, over the bytes), `tokens`, `bytes`; and `by_position`, a list of the
      same for the positions `start` <= p < `end` of a document, buckets without tokens left out;
      there a token has as many bytes as all have on average.

    Raises:
      ValueError: there is no counted token.
    """
    tokenizer = ByteTokenizer() if tokenizer is None else tokenizer

    @jax.jit
    def sums(params: Any, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        targets = batch["targets"]
        positions = positions_in_document(
            batch["segment_ids"], jnp.zeros(targets.shape[0], jnp.int32)
        )
        edges = jnp.asarray(position_edges(targets.shape[1]))
        bucket = jnp.searchsorted(edges, positions, side="right") - 1
        hidden, _ = hidden_and_penalty(model, params, batch)

        def score(rows: tuple[jax.Array, jax.Array], targets: jax.Array) -> jax.Array:
            hidden, bucket = rows
            logits: Any = model.apply({"params": params}, hidden, method="logits")
            counted = targets != IGNORED
            ends = targets == tokenizer.document_end
            columns = (target_losses(logits, targets), counted, counted & ~ends)
            stacked = jnp.stack([column.astype(jnp.float32) for column in columns], axis=-1)
            return jnp.zeros((len(edges), 3)).at[bucket].add(stacked)

        summed = sum_in_parts(score, (hidden, bucket), targets, PART)
        return summed, jnp.sum(batch["text_bytes"])

    totals, size, length = np.zeros((1, 3)), 0, 0
    for batch in batches:
        length = batch["targets"].shape[1]
        placed = put_batch(mesh, {**batch, "text_bytes": _text_bytes(batch["targets"], tokenizer)})
        found, found_bytes = jax.device_get(sums(params, placed))
        totals, size = totals + found.astype(np.float64), size + int(found_bytes)
    if totals[:, 2].sum() == 0:
        raise ValueError("perplexity: found no counted token in the batches; wanted at least one")
    totals[:, 2] *= size / totals[:, 2].sum()
    edges = [*position_edges(length), length]
    rows = [
        {"start": start, "end": end} | means(*row)
        for start, end, row in zip(edges[:-1], edges[1:], totals, strict=True)
        if row[2] > 0
    ]
    return means(*totals.sum(axis=0)) | {"by_position": rows}


def position_edges(length: int) -> list[int]:
    """Starts of the position buckets below `length`: 0, 16, 32, 64, ..."""
    edges = [0]
    while (edge := max(FIRST_EDGE, 2 * edges[-1])) < length:
        edges.append(edge)
    return edges


def _text_bytes(targets: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Bytes of the text of each row's targets [B], without documents' ends."""
    if tokenizer.name == "bytes":  # decoding would replace what is no UTF-8
        return np.sum((targets != IGNORED) & (targets != tokenizer.document_end), axis=1)
    texts = (tokenizer.decode(row[row != IGNORED]) for row in targets)
    return np.array([len(text.encode("utf-8", "replace")) for text in texts], np.int32)


def means(nats: float, tokens: float, size: float) -> dict[str, float]:
    """Loss, perplexity and bits per byte of a sum of nats over tokens of `size` bytes."""
    return {
        "loss": nats / tokens,
        "perplexity": math.exp(min(nats / tokens, 700.0)),  # larger is not a float
        "bits_per_byte": nats / size / math.log(2),
        "tokens": int(tokens),
        "bytes": round(size),
    }
