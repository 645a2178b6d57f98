"""Model type "delta_net" of fla: our layer "deltanet", an MLP in every block."""

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

KEYS = (
    MODEL_KEYS
    | MLP_KEYS
    | {
        "num_heads": count(16),
        "expand_k": number(1.0),
        "expand_v": number(1.0),
        "use_gate": flag(False),
        "use_beta": flag(True),
        "use_short_conv": flag(True),
        "conv_size": count(4),
        "allow_neg_eigval": flag(False),
        "qk_norm": choice("l2"),
        "qk_activation": choice("silu"),
    }
)


def _options(keys: Keys) -> dict[str, Any]:
    key_dim, value_dim = head_size(keys, "expand_k"), head_size(keys, "expand_v")
    return {
        "num_heads": keys["num_heads"],
        "head_dim": key_dim,
        "expand_v": value_dim / key_dim,
        "negative_eigenvalues": keys["allow_neg_eigval"],
        "beta": None if keys["use_beta"] else 1.0,
        "conv_size": keys["conv_size"] if keys["use_short_conv"] else 0,
        "activation": "silu",
        "output_gate": "silu" if keys["use_gate"] else "none",
    }


def _write(config: ModelConfig, layer: Any) -> Keys:
    return written_heads(config, layer) | {
        "use_gate": layer.options.output_gate != "none",
        "use_beta": layer.beta is None,
        "allow_neg_eigval": layer.negative_eigenvalues,
    }


def _pieces(layer: Any, keys: Keys, theirs: str, ours: str) -> list[Piece]:
    heads = layer.layout.value_heads
    strength = [piece(f"{theirs}.b_proj.weight", f"{ours}/beta/gate/kernel", heads)]
    return [
        *projection_pieces(layer, theirs, ours),
        *(strength if keys["use_beta"] else []),
        *output_pieces(layer, "o_norm", theirs, ours),
    ]


DELTA_NET = Architecture(
    model_type="delta_net",
    class_name="DeltaNetForCausalLM",
    mixer="deltanet",
    keys=KEYS,
    # fla normalises the output whatever use_output_norm says.
    inert=("fuse_norm", "use_output_norm"),
    options=_options,
    write=_write,
    pieces=_pieces,
)
