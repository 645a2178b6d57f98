"""The model types that can be read and written, and how two configurations differ."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bayesmem.interop.architecture import Architecture, model_config, model_keys
from bayesmem.interop.config_keys import Keys, read_keys
from bayesmem.interop.delta_net import DELTA_NET
from bayesmem.interop.gated_deltanet import GATED_DELTANET
from bayesmem.interop.gla import GLA
from bayesmem.interop.mamba2 import MAMBA2
from bayesmem.models.config import ModelConfig

ARCHITECTURES = {found.model_type: found for found in (GATED_DELTANET, DELTA_NET, GLA, MAMBA2)}

# What changes how a model is computed or trained, not what it computes.
_HOW = "max_length dtype remat remat_saves scan_layers vocab_multiple repeatable".split()
_HOW_OPTIONS = ("chunk_size", "implementation", "dtype")
# Of a layer: sizes, which several options give, are compared as its one layout.
_NOT_COMPARED = (
    "num_heads head_dim expand_k expand_v num_value_heads num_groups state_dim parent name".split()
)


def read_config(config: Mapping[str, Any]) -> tuple[Architecture, Keys, ModelConfig]:
    """Reads what a config.json holds.

    Returns:
      The model type's record, the keys that decide what is computed, and our configuration.

    Raises:
      ValueError: the model type is unknown, a value cannot be expressed here, or sizes do not fit
        each other; names key, value, what is wanted, and of what fla's default was taken.
    """
    name = config.get("model_type")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(map(repr, ARCHITECTURES))
        raise ValueError(f"config.json model_type: found {name!r}, wanted one of {known}")
    architecture = ARCHITECTURES[name]
    keys = read_keys(config, architecture.keys, architecture.inert)
    try:
        return architecture, keys, model_config(architecture, keys)
    except ValueError as error:
        text = str(error).removeprefix("config.json ")
        raise ValueError(f"config.json {text}{defaults_taken(config)}") from error


def defaults_taken(config: Mapping[str, Any]) -> str:
    """A line for errors: the keys that a known model type's config.json lacks; "" if it has all."""
    known = ARCHITECTURES[config["model_type"]].keys
    absent = [f"{name} {key.default}" for name, key in known.items() if name not in config]
    return f"\n  not in config.json, so fla's defaults: {', '.join(absent)}" if absent else ""


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Returns the config.json of a model made here.

    Raises:
      ValueError: the layers are of several mixers, fla has no model of theirs, or its model cannot
        do what an option asks for; names it.
    """
    kinds = {config.mixer_name(layer).partition("/")[0] for layer in range(config.num_layers)}
    known = {found.mixer: found for found in ARCHITECTURES.values()}
    if len(kinds) > 1 or not kinds <= set(known):
        raise ValueError(
            f"mixers: found {', '.join(sorted(kinds))}, wanted one of {', '.join(known)} in all "
            f"layers: fla has no other models that can be written"
        )
    architecture = known[kinds.pop()]
    keys = model_keys(architecture, config)
    again = model_config(architecture, _defaults(architecture) | keys)
    lost = differences(config, again)
    if lost:
        raise ValueError(
            "\n  ".join([f"config: fla's {architecture.model_type} cannot express it:", *lost])
        )
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    own = {"architectures": [architecture.class_name], "model_type": architecture.model_type}
    return own | keys | ends


def differences(config: ModelConfig, other: ModelConfig) -> list[str]:
    """Says in what two configurations compute something else, one line each."""
    names = [f.name for f in dataclasses.fields(config) if not f.name.startswith("mixer")]
    found = [
        f"{name}: found {getattr(config, name)!r}, wanted {getattr(other, name)!r}"
        for name in names
        if name not in _HOW and getattr(config, name) != getattr(other, name)
    ]
    if config.num_layers != other.num_layers:
        return found
    for layer in range(config.num_layers):
        one, two = _described(config, layer), _described(other, layer)
        found += [
            f"{name} of layer {layer}: found {one.get(name)!r}, wanted {two.get(name)!r}"
            for name in sorted(one.keys() | two.keys())
            if one.get(name) != two.get(name)
        ]
    return found


def _described(config: ModelConfig, layer: int) -> dict[str, Any]:
    """What a layer's mixer computes, by the names of its options."""
    module = config.build_mixer(layer, parent=None)
    own = {f.name: getattr(module, f.name) for f in dataclasses.fields(module)}
    options = own.pop("options", None)
    shared = {} if options is None else vars(options)
    described = {name: value for name, value in own.items() if name not in _NOT_COMPARED}
    described |= {name: value for name, value in shared.items() if name not in _HOW_OPTIONS}
    sizes = dataclasses.asdict(module.layout) if hasattr(module, "layout") else {}
    return {"mixer": config.mixer_name(layer).partition("/")[0]} | described | sizes


def _defaults(architecture: Architecture) -> Keys:
    return {name: key.default for name, key in architecture.keys.items()}
