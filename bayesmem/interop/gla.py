"""Model type "gla" of fla: our layer of the same name, an MLP in every block."""

from typing import Any

from bayesmem.interop.architecture import (
    MLP_KEYS,
    MODEL_KEYS,
    Architecture,
    head_size,
    output_pieces,
    projection_pieces,
    written_heads,
)
from bayesmem.interop.config_keys import Keys, choice, count, flag, number
from bayesmem.interop.pieces import Piece, piece
from bayesmem.models.config import ModelConfig

DECAY_RANK = 16
DECAY_TEMPERATURE = 16.0
"""No key of config.json changes these two."""

KEYS = (
    MODEL_KEYS
    | MLP_KEYS
    | {
        "num_heads": count(4),
        "num_kv_heads": count(None),
        "expand_k": number(0.5),
        "expand_v": number(1.0),
        "use_output_gate": flag(True),
        "use_short_conv": flag(False),
        "conv_size": count(4),
        "feature_map": choice(None),
        "clamp_min": choice(None),
        "elementwise_affine": choice(True),
        "fuse_norm": flag(True),  # decides the name of the norm of the heads
    }
)


def _options(keys: Keys) -> dict[str, Any]:
    if keys["num_kv_heads"] not in (None, keys["num_heads"]):
        raise ValueError(
            f"config.json num_kv_heads: found {keys['num_kv_heads']}, wanted null or the "
            f"{keys['num_heads']} of num_heads"
        )
    key_dim, value_dim = head_size(keys, "expand_k"), head_size(keys, "expand_v")
    return {
        "num_heads": keys["num_heads"],
        "head_dim": value_dim,
        "expand_k": key_dim / value_dim,
        "decay_rank": DECAY_RANK,
        "decay_temperature": DECAY_TEMPERATURE,
        "conv_size": keys["conv_size"] if keys["use_short_conv"] else 0,
        # The activation is the convolution's.
        "activation": "silu" if keys["use_short_conv"] else "identity",
        "output_gate": "silu" if keys["use_output_gate"] else "none",
    }


def _write(config: ModelConfig, layer: Any) -> Keys:
    return written_heads(config, layer) | {
        "use_output_gate": layer.options.output_gate != "none",
    }


def _pieces(layer: Any, keys: Keys, theirs: str, ours: str) -> list[Piece]:
    size = layer.layout.part_sizes[0]
    joined = keys["fuse_norm"] and keys["use_output_gate"]
    return [
        *projection_pieces(layer, theirs, ours),
        piece(f"{theirs}.gk_proj.0.weight", f"{ours}/decay/down/kernel", layer.decay_rank),
        piece(f"{theirs}.gk_proj.1.weight", f"{ours}/decay/up/kernel", size),
        piece(f"{theirs}.gk_proj.1.bias", f"{ours}/decay/up/bias", size, "same"),
        *output_pieces(layer, "g_norm_swish_gate" if joined else "g_norm", theirs, ours),
    ]


GLA = Architecture(
    model_type="gla",
    class_name="GLAForCausalLM",
    mixer="gla",
    keys=KEYS,
    inert=("use_gk", "use_gv"),
    options=_options,
    write=_write,
    pieces=_pieces,
)
