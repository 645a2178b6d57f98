"""Parameters and dense projections: float32, with logical axis names."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

Axes = tuple[str | None, ...]


def parameter(
    module: nn.Module, name: str, init: Callable[..., Any], axes: Axes, shape: tuple[int, ...]
) -> jax.Array:
    """Returns the float32 parameter `name` of the module that is being applied.

    Args:
      module: the module.
      name: the parameter's name.
      init: makes the parameter from a key and the shape.
      axes: logical name of every axis, None for an axis that is never sharded.
      shape: the parameter's shape.
    """
    value: Any = module.param(name, nn.with_logical_partitioning(init, axes), shape)
    return value


def linear(
    features: int, axes: Axes, name: str, *, dtype: Any = jnp.float32, bias: Any = None
) -> nn.Dense:
    """Returns a Dense submodule `name` of the module that is being applied.

    Args:
      features: size of the output.
      axes: logical names of the kernel's two axes, such as ("embed", "heads").
      name: name of the submodule.
      dtype: dtype of the product. Parameters are float32.
      bias: initializer of the bias, or None for no bias.
    """
    return nn.Dense(features, dtype=dtype, name=name, **_initial(axes, bias))


def wide_linear(features: int, axes: Axes, name: str, *, bias: Any = None) -> nn.Module:
    """Returns a float32 `linear`, for whatever feeds a gate or an address.

    For the backward pass its input is kept as it came, of bfloat16 no float32 copy.

    Args:
      features: size of the output.
      axes: logical names of the kernel's two axes.
      name: name of the submodule.
      bias: initializer of the bias, or None for no bias.
    """
    return _Wide(features, dtype=jnp.float32, name=name, **_initial(axes, bias))


_Wide: Any = nn.remat(nn.Dense)


def _initial(axes: Axes, bias: Any) -> dict[str, Any]:
    """How `nn.Dense` draws its parameters, and whether it has a bias."""
    kernel = nn.with_logical_partitioning(nn.initializers.lecun_normal(), axes)
    if bias is None:
        return {"kernel_init": kernel, "use_bias": False}
    return {"kernel_init": kernel, "bias_init": nn.with_logical_partitioning(bias, axes[1:])}
