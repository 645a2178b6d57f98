"""AdamW with warm-up and clipping, built from Optax; see `make_optimizer`."""

from __future__ import annotations

from typing import Any

import jax
import optax

from bayesmem.models.parameters import STACKED
from bayesmem.train.settings import OptimizerSettings

PyTree = Any

# Arrays of two axes that are not matrices of a linear map: per-head vectors and the like.
_NEVER_DECAYED = ("bias", "scale", "A_log", "dt_bias")


def make_schedule(settings: OptimizerSettings, total_steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the number of updates done so far.

    It rises linearly from 0 to the peak over `warmup_steps`, then follows `schedule` down to
    `end_fraction` of the peak at `total_steps` and stays there.

    Args:
      settings: the config's optimizer section.
      total_steps: updates of the whole run, > warmup_steps.

    Returns:
      An Optax schedule: int32 [] -> float32 [].

    Raises:
      ValueError: total_steps does not exceed the warm-up.
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if total_steps <= warmup:
        raise ValueError(
            f"total_steps: found {total_steps}; wanted more than optimizer.warmup_steps = {warmup}"
        )
    length, end = total_steps - warmup, settings.end_fraction
    if settings.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, length, alpha=end)
    elif settings.schedule == "linear":
        after = optax.linear_schedule(peak, peak * end, length)
    else:
        after = optax.constant_schedule(peak)
    if warmup == 0:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], [warmup])


def decayed(params: PyTree) -> PyTree:
    """Marks the parameters that weight decay acts on: the matrices.

    A parameter is decayed if it has two axes or more (projections, embeddings, convolution
    filters). Norm scales, biases and the per-head gate parameters `A_log` and `dt_bias` are not,
    whatever their rank: pulling them to zero changes what they mean instead of regularising.

    Args:
      params: parameter tree, boxed by Flax's partitioning metadata or not.

    Returns:
      A tree of bools in the same structure.
    """

    def is_decayed(path: tuple[Any, ...], leaf: jax.Array) -> bool:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        axes = leaf.ndim - (STACKED in names)  # the same without an axis of layers
        return axes >= 2 and (not names or names[-1] not in _NEVER_DECAYED)

    return jax.tree_util.tree_map_with_path(is_decayed, params)


def make_optimizer(settings: OptimizerSettings, total_steps: int) -> optax.GradientTransformation:
    """Builds clipping by the global norm followed by AdamW on the schedule.

    Gradient accumulation is not in here: the step sums the gradients of its microbatches before
    it calls the optimizer once (`bayesmem.train.step`).

    Args:
      settings: the config's optimizer section.
      total_steps: updates of the whole run.

    Returns:
      An Optax gradient transformation.

    Raises:
      ValueError: total_steps does not exceed the warm-up.
    """
    adamw = optax.adamw(
        make_schedule(settings, total_steps),
        b1=settings.beta1,
        b2=settings.beta2,
        weight_decay=settings.weight_decay,
        mask=decayed,
    )
    if settings.clip_norm == 0:
        return adamw
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), adamw)
