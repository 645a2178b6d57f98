"""Model type "mamba2" of fla: our layer of the same name, and no MLP."""

import math
from typing import Any

from bayesmem.interop.architecture import MODEL_KEYS, Architecture, ratio
from bayesmem.interop.config_keys import Keys, choice, count, flag, number
from bayesmem.interop.pieces import Piece, piece
from bayesmem.models.config import ModelConfig

KEYS = MODEL_KEYS | {
    "num_hidden_layers": count(48),
    "norm_eps": number(1e-5),
    "expand": number(2),
    "head_dim": count(64),
    "num_heads": count(None),
    "state_size": count(128),
    "n_groups": count(1),
    "conv_kernel": count(4),
    "use_conv_bias": flag(True),
    "rmsnorm": flag(True),
    "hidden_act": choice("silu", "swish"),
    "norm_before_gate": choice(False),
    "D_has_hdim": choice(False),
    "use_bias": choice(False),
    "dt_limit": choice([0.0, math.inf]),
    # Keys of the model of the same name in transformers: its config is not fla's.
    "layer_norm_epsilon": choice(None),
    "time_step_limit": choice(None),
}

INERT = (
    "A_init_range chunk_size conv_init dt_init_floor dt_max dt_min fuse_norm "
    "max_position_embeddings rescale_prenorm_residual residual_in_fp32"
)


def _options(keys: Keys) -> dict[str, Any]:
    inner, head_dim = int(keys["expand"] * keys["hidden_size"]), keys["head_dim"]
    heads = inner // head_dim
    if inner % head_dim or keys["num_heads"] not in (None, heads):
        raise ValueError(
            f"config.json head_dim: found {head_dim} with num_heads {keys['num_heads']}, wanted "
            f"head_dim * num_heads = expand * hidden_size = {inner}"
        )
    return {
        "num_heads": heads,
        "head_dim": head_dim,
        "state_dim": keys["state_size"],
        "num_groups": keys["n_groups"],
        "conv_size": keys["conv_kernel"],
        "conv_bias": keys["use_conv_bias"],
        "activation": "silu",
        "output_gate": "silu",
        "output_norm": "gated_groups" if keys["rmsnorm"] else "none",
    }


def _write(config: ModelConfig, layer: Any) -> Keys:
    layout, options = layer.layout, layer.options
    expand = ratio(layout.part_sizes[2], config.width)
    return {
        "expand": int(expand) if expand == int(expand) else expand,
        "head_dim": layout.value_dim,
        "num_heads": layout.value_heads,
        "state_size": layout.key_dim,
        "n_groups": layout.key_heads,
        "conv_kernel": options.conv_size or 4,
        "use_conv_bias": options.conv_bias,
        "rmsnorm": options.output_norm != "none",
    }


def _pieces(layer: Any, keys: Keys, theirs: str, ours: str) -> list[Piece]:
    """The rows of in_proj are z (our gate), x (value), B (key), C (query) and dt, in that order."""
    layout, heads = layer.layout, layer.layout.value_heads
    c, b, x = layout.part_sizes
    sizes = {
        "output/gate": x,
        "heads/value": x,
        "heads/key": b,
        "heads/query": c,
        "decay/step": heads,
    }
    found, row = [], 0
    for name, size in sizes.items():
        found.append(piece(f"{theirs}.in_proj.weight", f"{ours}/{name}/kernel", size, row=row))
        row += size
    # Its convolution reads x, B, C; ours C, B, x.
    for size, row, column in ((x, 0, c + b), (b, x, c), (c, x + b, 0)):
        place = {"row": row, "column": column}
        conv, leaf = f"{theirs}.conv1d", f"{ours}/heads/conv"
        found.append(piece(f"{conv}.weight", f"{leaf}/kernel", size, "conv", **place))
        if layer.options.conv_bias:
            found.append(piece(f"{conv}.bias", f"{leaf}/bias", size, "same", **place))
    if layer.options.output_norm != "none":
        found.append(piece(f"{theirs}.norm.weight", f"{ours}/output/norm/scale", x, "same"))
    return [
        *found,
        piece(f"{theirs}.A_log", f"{ours}/decay/A_log", heads, "same"),
        piece(f"{theirs}.dt_bias", f"{ours}/decay/dt_bias", heads, "same"),
        piece(f"{theirs}.D", f"{ours}/skip", heads, "same"),
        piece(f"{theirs}.out_proj.weight", f"{ours}/output/out/kernel", layer.width),
    ]


MAMBA2 = Architecture(
    model_type="mamba2",
    class_name="Mamba2ForCausalLM",
    mixer="mamba2",
    keys=KEYS,
    inert=tuple(INERT.split()),
    options=_options,
    write=_write,
    pieces=_pieces,
    trunk="backbone",
    names=("norm", "mixer", "norm_f"),
)
