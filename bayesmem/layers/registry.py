"""Mixers by name: the only place where a configuration's words become a layer."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import jax.numpy as jnp
from flax import linen as nn

from bayesmem.layers.attention import Attention
from bayesmem.layers.bayesian import BayesianLayer
from bayesmem.layers.deltanet import DeltaNet
from bayesmem.layers.gated_deltanet import GatedDeltaNet
from bayesmem.layers.gla import GLA
from bayesmem.layers.gsa import GSA
from bayesmem.layers.kda import KDA
from bayesmem.layers.linear_attention import LinearAttention
from bayesmem.layers.mamba2 import Mamba2
from bayesmem.layers.options import MixerOptions
from bayesmem.layers.ramnet import RamNet
from bayesmem.layers.retnet import RetNet

MIXERS: dict[str, type[nn.Module]] = {
    "bayesian": BayesianLayer,
    "deltanet": DeltaNet,
    "gated_deltanet": GatedDeltaNet,
    "kda": KDA,
    "linear_attention": LinearAttention,
    "retnet": RetNet,
    "gla": GLA,
    "gsa": GSA,
    "mamba2": Mamba2,
    "attention": Attention,
    "ramnet": RamNet,
}
"""Every mixer by the name that configurations use."""

NOT_OPTIONS = {"width", "options", "dtype", "parent", "name"}


def mixer_class(name: str) -> type[nn.Module]:
    """Returns the layer's class.

    Raises:
      ValueError: there is no mixer of that name; lists those there are.
    """
    if name not in MIXERS:
        raise ValueError(f"mixer: found {name!r}, wanted one of {', '.join(map(repr, MIXERS))}")
    return MIXERS[name]


def mixer_defaults(name: str) -> dict[str, Any]:
    """Returns every option of a mixer with its default, those shared by all mixers last."""
    fields = {field.name: field for field in dataclasses.fields(mixer_class(name))}
    defaults = {key: field.default for key, field in fields.items() if key not in NOT_OPTIONS}
    if "options" in fields:
        shared = vars(fields["options"].default)
        defaults |= {key: value for key, value in shared.items() if key not in NOT_OPTIONS}
    return defaults


def build_mixer(
    name: str, width: int, options: Mapping[str, Any] | None = None, dtype: Any = jnp.float32
) -> nn.Module:
    """Returns the layer `name` of width `width`.

    Args:
      name: a key of `MIXERS`.
      width: W, size of input and output.
      options: the layer's own options and those of `MixerOptions` in one mapping.
      dtype: dtype of the activations.

    Raises:
      ValueError: unknown name or option (lists those there are), or sizes that do not fit.
    """
    cls, options = mixer_class(name), dict(options or {})
    known = mixer_defaults(name)
    for key in options:
        if key not in known:
            raise ValueError(
                f"option of {name!r}: found {key!r}, wanted one of {', '.join(map(repr, known))}"
            )
    if "options" not in (fields := {field.name: field for field in dataclasses.fields(cls)}):
        return cls(width=width, dtype=jnp.dtype(dtype), **options)
    shared = {field.name for field in dataclasses.fields(MixerOptions)}
    chosen = {key: options.pop(key) for key in shared & options.keys()}
    default = cast(MixerOptions, fields["options"].default)
    return cls(
        width=width,
        options=dataclasses.replace(default, dtype=jnp.dtype(dtype), **chosen),
        **options,
    )
