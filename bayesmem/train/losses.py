"""Next-token and query losses of a language model on a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

IGNORED = -100

Batch = Mapping[str, jax.Array]
PyTree = Any


class LossSums(NamedTuple):
    """Sums over the counted targets; sums of parts add up to the sums of the whole."""

    loss: jax.Array  # [] nats
    correct: jax.Array  # [] targets that are the argmax
    counted: jax.Array  # [] targets that are not ignored


def target_losses(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross-entropy of each target, in nats; exactly 0 with zero gradient where ignored.

    Args:
      logits: float32 [..., V].
      targets: int [...]; -100 is ignored.

    Returns:
      float32 [...].
    """
    counted = targets != IGNORED
    # Cut before the loss as well as after it: a -100 inside Optax gives NaN, and NaN times a zero
    # cotangent is NaN.
    safe = jnp.where(counted, targets, 0)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, safe)
    return jnp.where(counted, losses, 0.0)


def sum_losses(logits: jax.Array, targets: jax.Array) -> LossSums:
    """Sums loss, hits and count over the counted targets.

    Args:
      logits: float32 [..., V].
      targets: int [...]; -100 is ignored.

    Returns:
      The sums; all zero, with finite gradients, if every target is ignored.
    """
    counted = targets != IGNORED
    correct = counted & (jnp.argmax(logits, axis=-1) == targets)
    return LossSums(
        loss=jnp.sum(target_losses(logits, targets)),
        correct=jnp.sum(correct, dtype=jnp.float32),
        counted=jnp.sum(counted, dtype=jnp.float32),
    )


def batch_logits(
    model: nn.Module, params: PyTree, batch: Batch, key: jax.Array | None = None
) -> jax.Array:
    """Returns the first result of `logits_and_penalty`."""
    return logits_and_penalty(model, params, batch, key)[0]


def logits_and_penalty(
    model: nn.Module, params: PyTree, batch: Batch, key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Runs the model on a batch and returns the logits its targets are about.

    Args:
      model: a language model: `hidden_states` and `logits` as in `bayesmem.models`.
      params: its parameters, unboxed.
      batch: `inputs` int [B, T], `targets` int [B, T], optionally `segment_ids` int [B, T]; or
        `query_positions` int [B, Q] with `targets` int [B, Q], and then the head is applied at
        those positions only.
      key: random key for stochastic layers, or None.

    Returns:
      Logits float32 [B, T, V], or [B, Q, V] with query positions; and the sum [] of what layers
      have sown into "losses", such as the slot balance of `RamNet`.
    """
    hidden, penalty = hidden_and_penalty(model, params, batch, key)
    return cast(jax.Array, model.apply({"params": params}, hidden, method="logits")), penalty


def hidden_and_penalty(
    model: nn.Module, params: PyTree, batch: Batch, key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The final activations [B, T, W] or [B, Q, W], and the penalty; see `logits_and_penalty`."""
    (hidden, _), sown = model.apply(
        {"params": params},
        batch["inputs"],
        segment_ids=batch.get("segment_ids"),
        rngs=None if key is None else {"dropout": key},
        mutable=["losses"],
        method="hidden_states",
    )
    queries = batch.get("query_positions")
    if queries is not None:
        hidden = jnp.take_along_axis(hidden, queries[..., None], axis=1)
    penalty = sum(map(jnp.sum, jax.tree.leaves(sown)), jnp.zeros((), jnp.float32))
    return cast(jax.Array, hidden), penalty


def mean_of_sums(sums: LossSums) -> dict[str, Any]:
    """Turns sums into means over the counted targets.

    Args:
      sums: sums over any number of batches, of arrays or of float64 numbers.

    Returns:
      `loss` (nats), `accuracy` and `tokens` (the count); loss and accuracy are 0 for no targets.
    """
    count = at_least_one(sums.counted)
    return {"loss": sums.loss / count, "accuracy": sums.correct / count, "tokens": sums.counted}


def at_least_one(count: Any) -> Any:
    """Returns a whole number, or 1 for 0, as what it is: an array or a number."""
    return count + (count == 0)
