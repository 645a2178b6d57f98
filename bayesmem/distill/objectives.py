"""What the phases of a distillation descend and report.

Phase A: the normalised squared error of each replaced layer alone, sum |y - y*|^2 / sum |y*|^2 with
y* the teacher's output on the same input. Phase B: the divergence of the student's next token from
the teacher's, and the squared difference of the streams after each replaced layer over the
teacher's variance there: one variance of all channels and tokens. Both normalise over the tokens of
a microbatch. Phase A descends the sum over layers, which do not act on each other, and reports the
mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.distill.replacement import Pair
from bayesmem.distill.settings import JointSettings
from bayesmem.distill.streams import Matches, match_layers, match_streams
from bayesmem.models import LanguageModel
from bayesmem.train.losses import IGNORED, LossSums, at_least_one, sum_losses
from bayesmem.train.objective import Objective, sum_in_parts

PyTree = Any
Batch = Mapping[str, jax.Array]


class LayerSums(NamedTuple):
    """Sums of phase A."""

    matches: Matches  # of the layers' outputs
    counted: jax.Array  # [] valid tokens


class JointSums(NamedTuple):
    """Sums of phase B."""

    divergence: jax.Array  # [] nats
    next_token: LossSums  # of the student
    matches: Matches  # of the streams
    elements: jax.Array  # [] channels of valid tokens
    descended: jax.Array  # []
    counted: jax.Array  # [] counted targets


def layer_objective(pair: Pair) -> Objective:
    """Returns phase A's objective; "loss" is the mean of the layers' errors.

    Its `given` are the parameters of the teacher's replaced mixers, see `match_layers`.
    """

    def measure(params: PyTree, batch: Batch, given: PyTree) -> LayerSums:
        matches = match_layers(pair, params, given, batch)
        return LayerSums(matches, _valid(batch))

    def descend(
        params: PyTree, batch: Batch, key: jax.Array, given: PyTree
    ) -> tuple[jax.Array, LayerSums]:
        del key
        sums = measure(params, batch, given)
        return sums.counted * jnp.sum(_normalised(sums.matches)), sums

    def means(sums: LayerSums) -> dict[str, Any]:
        errors = _normalised(sums.matches)
        named = {f"nmse_layer_{n}": e for n, e in zip(pair.layers, errors, strict=True)}
        return {"loss": errors.mean(), "tokens": sums.counted} | named

    return Objective(descend, measure, means, in_nats=False)


def joint_objective(
    pair: Pair, settings: JointSettings, *, vocab_size: int, tokens: int = 0
) -> Objective:
    """Returns phase B's objective; "loss" is what is descended, "cross_entropy" the student's.

    Args:
      pair: teacher and student.
      settings: temperature and weights.
      vocab_size: ids of the tokenizer: of the divergence; cross-entropy has all the model's.
      tokens: of each row, whose logits are held at once; 0 for all.
    """
    model: Any = LanguageModel(pair.student)

    def measure(params: PyTree, batch: Batch, given: PyTree) -> JointSums:
        teacher, student, matches = match_streams(pair, params, given, batch)

        def score(rows: tuple[jax.Array, jax.Array], targets: jax.Array) -> Any:
            logits = [model.apply({"params": params}, h, method="logits") for h in rows]
            wanted, found = (x[..., :vocab_size] for x in logits)
            apart = divergence(wanted, found, settings.temperature)
            counted = targets != IGNORED
            return jnp.sum(jnp.where(counted, apart, 0.0)), sum_losses(logits[1], targets)

        apart, own = sum_in_parts(score, (teacher, student), batch["targets"], tokens)
        elements = _valid(batch) * pair.student.width
        boundary = jnp.mean(_over_variance(matches, elements))
        descended = settings.kl_weight * settings.temperature**2 * apart
        descended += settings.boundary_weight * own.counted * boundary
        return JointSums(apart, own, matches, elements, descended, own.counted)

    def descend(
        params: PyTree, batch: Batch, key: jax.Array, given: PyTree
    ) -> tuple[jax.Array, JointSums]:
        del key
        sums = measure(params, batch, given)
        return sums.descended, sums

    def means(sums: JointSums) -> dict[str, Any]:
        count = at_least_one(sums.counted)
        errors = _over_variance(sums.matches, sums.elements)
        named = {f"boundary_layer_{n}": e for n, e in zip(pair.layers, errors, strict=True)}
        return {
            "loss": sums.descended / count,
            "divergence": sums.divergence / count,
            "cross_entropy": sums.next_token.loss / count,
            "accuracy": sums.next_token.correct / count,
            "tokens": sums.counted,
        } | named

    return Objective(descend, measure, means, in_nats=False)


def divergence(teacher: jax.Array, student: jax.Array, temperature: float = 1.0) -> jax.Array:
    """Returns KL(softmax(teacher / temperature) | softmax(student / temperature)), in nats.

    Args:
      teacher: float32 [..., V] logits, of the tokens that are compared; no gradient.
      student: float32 [..., V] logits of the same tokens.
      temperature: > 0.

    Returns:
      float32 [...].
    """
    wanted = jax.nn.log_softmax(jax.lax.stop_gradient(teacher) / temperature)
    found = jax.nn.log_softmax(student / temperature)
    return jnp.sum(jnp.exp(wanted) * (wanted - found), axis=-1)


def _valid(batch: Batch) -> jax.Array:
    """The number of tokens that are no padding [], float32."""
    ids = batch.get("segment_ids", batch["inputs"])
    return jnp.sum(ids >= 0, dtype=jnp.float32)


def _normalised(matches: Matches) -> Any:
    """Errors over the teacher's mean squares [R]; within jit and on the host."""
    return matches.error / at_least_one(matches.square)


def _over_variance(matches: Matches, elements: Any) -> Any:
    """Errors over the teacher's variances [R]; within jit and on the host."""
    count = at_least_one(elements)
    variance = matches.square - matches.total * matches.total / count
    return matches.error / at_least_one(variance * (variance > 0))
