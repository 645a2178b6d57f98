"""Recall: how many queries of an associative recall task a model answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bayesmem.train.losses import IGNORED, batch_logits, target_losses
from bayesmem.train.sharding import put_batch


def recall(
    model: nn.Module, params: Any, batches: Iterable[Mapping[str, np.ndarray]], mesh: Mesh
) -> dict[str, Any]:
    """Asks every query of the batches once.

    Args:
      model: a language model.
      params: its parameters, unboxed.
      batches: batches with `query_positions` [B, Q] and `targets` [B, Q]; -100 is no query.
      mesh: from `bayesmem.train.sharding.make_mesh`.

    Returns:
      `accuracy` (correct / queries: the largest logit of the whole vocabulary is the value asked
      for), `correct`, `queries`, `row_accuracy` (rows with every query right / rows), `rows`, and
      `loss` (nats a query).

    Raises:
      ValueError: there is no query.
    """

    @jax.jit
    def sums(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        logits, targets = batch_logits(model, params, batch), batch["targets"]
        asked = targets != IGNORED
        hit = jnp.argmax(logits, axis=-1) == targets
        rows = jnp.any(asked, axis=1)
        return {
            "correct": jnp.sum(hit & asked),
            "queries": jnp.sum(asked),
            "rows_correct": jnp.sum(rows & jnp.all(hit | ~asked, axis=1)),
            "rows": jnp.sum(rows),
            "loss": jnp.sum(target_losses(logits, targets)),
        }

    parts = [jax.device_get(sums(params, put_batch(mesh, batch))) for batch in batches]
    totals = {name: sum(part[name].item() for part in parts) for name in parts[0]} if parts else {}
    if not totals.get("queries"):
        raise ValueError("recall: found no query in the batches; wanted at least one")
    return {
        "accuracy": totals["correct"] / totals["queries"],
        "correct": totals["correct"],
        "queries": totals["queries"],
        "row_accuracy": totals["rows_correct"] / totals["rows"],
        "rows": totals["rows"],
        "loss": totals["loss"] / totals["queries"],
    }
