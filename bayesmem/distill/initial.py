"""First parameters of a student: the teacher's, and noises that make the filter start near it.

The gain of a filter whose predicted covariance is c I is c / (r^2 + c) on a unit key: with
r^2 = c (1 - beta) / beta = c exp(-x W) it is the delta rule's strength beta = sigmoid(x W).

The covariance is c I before the first write, the prior. It stays about c in the mean over
directions if process noise fills up what is lost: a decay a takes (1 - a^2) c of each of D
directions, a write about beta c of one. So ell^2 = c (1 - a^2 + beta / D) at x = 0, and its
logarithm follows x as half of that of the decay's step size does: on trained and new layers with
decays of .2 to .999 a token, the first error was least so (0, half and all of it were tried).

Only ratios matter (scaling r^2, ell^2 and P together changes no read), so c is small: softplus is
then the exponential.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from bayesmem.distill.replacement import SCALE, Pair
from bayesmem.distill.settings import StudentSettings
from bayesmem.layers.gates import inverse_softplus
from bayesmem.models import LanguageModel

PyTree = Any


def make_init(pair: Pair, settings: StudentSettings) -> Callable[[jax.Array, PyTree], PyTree]:
    """Returns (key, the teacher's parameters in turns) -> the student's, boxed."""
    model = LanguageModel(pair.student)

    def init(key: jax.Array, teacher: PyTree) -> PyTree:
        boxed = model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]
        values = _flat(nn.meta.unbox(boxed))
        kept = {name: x for name, x in _flat(teacher).items() if not pair.trains(name)}
        values |= kept
        if settings.initial == "close":
            for place in pair.places:
                prefix = f"layers/block_{place}/mixer/"
                mixer: Any = pair.student.build_mixer(place, parent=None)
                own = {n: x for n, x in values.items() if n.startswith(prefix)}
                noises = close_noises(_flat(teacher), prefix, mixer.layout.key_dim, settings)
                values |= _close(own, _flat(teacher) | noises)
        return rebox(boxed, values)

    return init


def keep_init(model: nn.Module) -> Callable[[jax.Array, PyTree], PyTree]:
    """Returns (key, parameters of the model) -> the same, boxed."""

    def init(key: jax.Array, params: PyTree) -> PyTree:
        boxed = model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]
        return rebox(boxed, _flat(params))

    return init


def rebox(boxed: PyTree, values: dict[str, jax.Array]) -> PyTree:
    """Returns a boxed tree with other values, by name."""

    def put(path: tuple[Any, ...], box: Any) -> Any:
        value = values["/".join(key.key for key in path)]
        return box.replace_boxed(value) if isinstance(box, nn.meta.AxisMetadata) else value

    return jax.tree_util.tree_map_with_path(
        put, boxed, is_leaf=lambda node: isinstance(node, nn.meta.AxisMetadata)
    )


def close_noises(
    teacher: dict[str, jax.Array], prefix: str, key_dim: int, settings: StudentSettings
) -> dict[str, jax.Array]:
    """Returns the parameters that r^2 and ell^2 of a close start are made with, by name.

    Args:
      teacher: its parameters by name, all turns [turns, ...] together.
      prefix: of the names of the layer's mixer, in both.
      key_dim: D.
      settings: what is replaced.

    Raises:
      ValueError: the teacher's write strength is not made from the input.
    """
    strength = f"{prefix}beta/gate/kernel"
    if strength not in teacher:
        raise ValueError(
            f"config student.initial: found 'close' for a layer without {strength}: its beta is "
            f"fixed; wanted 'scratch'"
        )
    kernel, groups = teacher[strength], settings.num_groups
    lost = jnp.full(kernel.shape[::2], 0.5 / key_dim)  # [turns, H]; beta = 1/2 at x = 0
    follows = jnp.zeros_like(kernel)
    if f"{prefix}decay/A_log" in teacher:
        rates, bias = (teacher[f"{prefix}decay/{name}"] for name in ("A_log", "dt_bias"))
        lost += -jnp.expm1(-2 * jnp.exp(rates) * nn.softplus(bias))
        follows = 0.5 * teacher[f"{prefix}decay/step/kernel"]
    observed, process = (f"{prefix}{kind}_noise/gate" for kind in ("observation", "process"))
    return {
        f"{observed}/kernel": -jnp.repeat(kernel, groups, axis=-1),
        f"{observed}/bias": jnp.full((len(kernel), kernel.shape[-1] * groups), jnp.log(SCALE)),
        f"{process}/kernel": follows,
        f"{process}/bias": inverse_softplus(SCALE * settings.process_ratio * lost),
    }


def _close(own: dict[str, jax.Array], found: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The values found for a replaced layer's parameters, of the shapes of its own."""
    for name, x in own.items():
        if found[name].shape != x.shape:
            raise ValueError(f"{name}: found {found[name].shape} in the teacher, wanted {x.shape}")
    return {name: found[name].astype(x.dtype) for name, x in own.items()}


def _flat(tree: PyTree) -> dict[str, jax.Array]:
    return traverse_util.flatten_dict(tree, sep="/")
