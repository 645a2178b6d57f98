"""What training descends, and the sums it reports, of a batch.

The logits of a long row over a large vocabulary are most of a language model's memory: 4,096
tokens x 32,000 ids in float32 are 0.5 GB a sequence, and the backward pass holds them twice. With
`Scoring.tokens` they are made for so many tokens of each row at a time, and made again in the
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from bayesmem.train.losses import (
    IGNORED,
    Batch,
    LossSums,
    hidden_and_penalty,
    mean_of_sums,
    sum_losses,
)

PyTree = Any


class Scoring(NamedTuple):
    """How a batch is scored.

    Attributes:
      tokens: of each row, whose logits are held at once; 0 for all.
      z_loss: weight of the squared log normaliser, log(sum(exp(logits)))^2, of each counted
        target: it keeps logits from drifting (arXiv 2204.02311, section 5). Objective only.
    """

    tokens: int = 0
    z_loss: float = 0.0


PLAIN = Scoring()


class Objective(NamedTuple):
    """What a step descends, and what it and evaluations report.

    Sums are a NamedTuple of arrays that add up over batches; its `counted` says over how many
    targets. `given` are arrays that are read and not trained.

    Attributes:
      descend: (params, batch, key, given) -> what is descended, summed over the counted targets,
        and the sums.
      measure: (params, batch, given) -> the sums, without what only training adds.
      means: from sums to the mean of each measure by name, "loss" and "tokens" (the count) among
        them; for arrays within jit, and for float64 numbers on the host.
      in_nats: whether "loss" is in nats a target.
    """

    descend: Callable[[PyTree, Batch, jax.Array, PyTree], tuple[jax.Array, Any]]
    measure: Callable[[PyTree, Batch, PyTree], Any]
    means: Callable[[Any], dict[str, Any]]
    in_nats: bool = True


def next_token(model: nn.Module, scoring: Scoring = PLAIN) -> Objective:
    """Returns the objective of a language model: the cross-entropy of its targets.

    Args:
      model: a language model.
      scoring: how a batch is scored.
    """

    def descend(
        params: PyTree, batch: Batch, key: jax.Array, given: PyTree
    ) -> tuple[jax.Array, LossSums]:
        del given
        return batch_objective(model, params, batch, key, scoring)

    def measure(params: PyTree, batch: Batch, given: PyTree) -> LossSums:
        del given
        return batch_sums(model, params, batch, scoring=scoring)

    return Objective(descend, measure, mean_of_sums)


def batch_sums(
    model: nn.Module,
    params: PyTree,
    batch: Batch,
    key: jax.Array | None = None,
    scoring: Scoring = PLAIN,
) -> LossSums:
    """Sums of `sum_losses` for a batch; arguments as in `losses.logits_and_penalty`."""
    hidden, _ = hidden_and_penalty(model, params, batch, key)
    return _score(model, params, hidden, batch["targets"], scoring._replace(z_loss=0.0))[1]


def batch_objective(
    model: nn.Module,
    params: PyTree,
    batch: Batch,
    key: jax.Array | None = None,
    scoring: Scoring = PLAIN,
) -> tuple[jax.Array, LossSums]:
    """What training descends: the loss's sum and, for each counted target, penalties.

    Args and sums as in `batch_sums`, which leaves the layers' penalty and the z-loss out.
    """
    hidden, penalty = hidden_and_penalty(model, params, batch, key)
    objective, sums = _score(model, params, hidden, batch["targets"], scoring)
    return objective + sums.counted * penalty, sums


def _score(
    model: nn.Module, params: PyTree, hidden: jax.Array, targets: jax.Array, scoring: Scoring
) -> tuple[jax.Array, LossSums]:
    """The objective's sum without layers' penalties, and the sums, of activations [B, Q, W]."""

    def score(hidden: jax.Array, targets: jax.Array) -> tuple[jax.Array, LossSums]:
        logits = cast(jax.Array, model.apply({"params": params}, hidden, method="logits"))
        sums = sum_losses(logits, targets)
        if not scoring.z_loss:
            return sums.loss, sums
        squares = jnp.square(jax.nn.logsumexp(logits, axis=-1))
        return sums.loss + scoring.z_loss * jnp.sum(squares, where=targets != IGNORED), sums

    return sum_in_parts(score, hidden, targets, scoring.tokens)


def sum_in_parts(
    score: Callable[[PyTree, jax.Array], PyTree], rows: PyTree, targets: jax.Array, size: int
) -> PyTree:
    """Sums what a function gives for parts of the rows; each is made again in the backward pass.

    Args:
      score: from arrays [B, Q', ...] and targets [B, Q'] to arrays that add up over Q', and are 0
        for targets that are ignored.
      rows: arrays [B, Q, ...].
      targets: int [B, Q].
      size: Q'; 0 for all of Q at once.
    """
    length = targets.shape[1]
    if not 0 < size < length:
        return score(rows, targets)

    def parts(x: jax.Array, fill: int = 0) -> jax.Array:
        widths = [(0, 0), (0, -length % size)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, widths, constant_values=fill)
        return jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def add(carry: Any, part: tuple[PyTree, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, carry, score(*part)), None

    every = jax.tree.map(parts, rows), parts(targets, IGNORED)
    shapes = jax.eval_shape(score, *jax.tree.map(lambda x: x[0], every))
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, start, every)[0]
