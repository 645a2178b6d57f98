"""Model type "gated_deltanet" of fla: our layer of the same name, an MLP in every block."""

from typing import Any

from bayesmem.interop.architecture import (
    MLP_KEYS,
    MODEL_KEYS,
    Architecture,
    output_pieces,
    projection_pieces,
    ratio,
    written_mlp,
)
from bayesmem.interop.config_keys import Keys, choice, count, flag, number
from bayesmem.interop.pieces import Piece, piece
from bayesmem.models.config import ModelConfig

KEYS = (
    MODEL_KEYS
    | MLP_KEYS
    | {
        "num_hidden_layers": count(21),
        "num_heads": count(6),
        "num_v_heads": count(None),
        "head_dim": count(256),
        "expand_v": number(2.0),
        "use_gate": flag(True),
        "output_gate_activation": choice("swish", "silu", "sigmoid"),
        "use_short_conv": flag(True),
        "conv_size": count(4),
        "allow_neg_eigval": flag(False),
    }
)


def _options(keys: Keys) -> dict[str, Any]:
    gate = "sigmoid" if keys["output_gate_activation"] == "sigmoid" else "silu"
    return {
        "num_heads": keys["num_heads"],
        "head_dim": keys["head_dim"],
        "num_value_heads": keys["num_v_heads"],
        "expand_v": float(keys["expand_v"]),
        "negative_eigenvalues": keys["allow_neg_eigval"],
        "conv_size": keys["conv_size"] if keys["use_short_conv"] else 0,
        "activation": "silu",
        "output_gate": gate if keys["use_gate"] else "none",
    }


def _write(config: ModelConfig, layer: Any) -> Keys:
    layout, options = layer.layout, layer.options
    heads = (layout.key_heads, layout.value_heads)
    return written_mlp(config) | {
        "num_heads": heads[0],
        "num_v_heads": None if heads[0] == heads[1] else heads[1],
        "head_dim": layout.key_dim,
        "expand_v": ratio(layout.value_dim, layout.key_dim),
        "use_gate": options.output_gate != "none",
        "output_gate_activation": "sigmoid" if options.output_gate == "sigmoid" else "swish",
        "use_short_conv": options.conv_size > 0,
        "conv_size": options.conv_size or 4,
        "allow_neg_eigval": layer.negative_eigenvalues,
    }


def _pieces(layer: Any, keys: Keys, theirs: str, ours: str) -> list[Piece]:
    heads = layer.layout.value_heads
    return [
        *projection_pieces(layer, theirs, ours),
        piece(f"{theirs}.a_proj.weight", f"{ours}/decay/step/kernel", heads),
        piece(f"{theirs}.A_log", f"{ours}/decay/A_log", heads, "same"),
        piece(f"{theirs}.dt_bias", f"{ours}/decay/dt_bias", heads, "same"),
        piece(f"{theirs}.b_proj.weight", f"{ours}/beta/gate/kernel", heads),
        *output_pieces(layer, "o_norm", theirs, ours),
    ]


GATED_DELTANET = Architecture(
    model_type="gated_deltanet",
    class_name="GatedDeltaNetForCausalLM",
    mixer="gated_deltanet",
    keys=KEYS,
    inert=("fuse_norm",),
    options=_options,
    write=_write,
    pieces=_pieces,
)
