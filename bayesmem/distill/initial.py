"""First parameters of a student: the teacher's, and noises that make the filter start near it.

The gain of a filter whose predicted covariance is c I is c / (r^2 + c) on a unit key: with
r^2 = c (1 - beta) / beta = c exp(-x W) it is the delta rule's strength beta = sigmoid(x W). The
covariance is c I only as far as process noise fills up again what a write has taken away, so
ell^2 is a good part of c. Only ratios matter (scaling r^2, ell^2 and P together changes no read),
so c is small: softplus is then the exponential.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from bayesmem.distill.replacement import Pair
from bayesmem.distill.settings import StudentSettings
from bayesmem.layers.gates import inverse_softplus
from bayesmem.models import LanguageModel

PyTree = Any

SCALE = 1e-3
"""c, the predicted variance along a key that r^2 is chosen for; also the prior's."""


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
                own = {n: x for n, x in values.items() if n.startswith(prefix)}
                values |= _close(own, _flat(teacher), prefix, settings)
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


def _close(
    own: dict[str, jax.Array],
    teacher: dict[str, jax.Array],
    prefix: str,
    settings: StudentSettings,
) -> dict[str, jax.Array]:
    """Values of a replaced layer's parameters, all turns [turns, ...] together."""
    groups = settings.num_groups
    strength = f"{prefix}beta/gate/kernel"
    if strength not in teacher:
        raise ValueError(
            f"config student.initial: found 'close' for a layer without {strength}: its beta is "
            f"fixed; wanted 'scratch'"
        )
    noise = {f"{prefix}{kind}_noise/gate/": kind for kind in ("observation", "process")}
    found = {}
    for name, x in own.items():
        kind = next((noise[start] for start in noise if name.startswith(start)), None)
        kernel = name.endswith("kernel")
        if kind is None:
            if teacher[name].shape != x.shape:
                raise ValueError(
                    f"{name}: found {teacher[name].shape} in the teacher, wanted {x.shape}"
                )
            found[name] = teacher[name]
        elif kind == "observation" and kernel:
            found[name] = -jnp.repeat(teacher[strength], groups, axis=-1)
        elif kernel:
            found[name] = jnp.zeros_like(x)
        elif kind == "observation":
            found[name] = jnp.full_like(x, jnp.log(SCALE))
        else:
            # 1 - exp(-x) of a small x needs expm1, which `inverse_softplus` has.
            found[name] = jnp.full_like(
                x, inverse_softplus(jnp.float32(SCALE * settings.process_ratio))
            )
    return found


def _flat(tree: PyTree) -> dict[str, jax.Array]:
    return traverse_util.flatten_dict(tree, sep="/")
