"""What the model types of fla have in common: a record for each, and the parts around the mixer."""

from collections.abc import Callable
from typing import Any, NamedTuple

from bayesmem.interop.config_keys import Key, Keys, choice, count, flag, number
from bayesmem.interop.pieces import Piece, piece
from bayesmem.layers.options import HeadLayout
from bayesmem.models.config import ModelConfig

MODEL_KEYS: dict[str, Key] = {
    "vocab_size": count(32000),
    "hidden_size": count(2048),
    "num_hidden_layers": count(24),
    "norm_eps": number(1e-6),
    "tie_word_embeddings": flag(False),
}
"""Keys of every model type."""

MLP_KEYS: dict[str, Key] = {
    "hidden_ratio": Key(4, "a number > 0 or null", lambda v: v is None or number(4).fits(v)),
    "intermediate_size": count(None),
    "hidden_act": choice("swish"),
    "max_position_embeddings": count(2048),
    "attn": choice(None),
    "attnres_block_size": choice(None),
}
"""Keys of the model types whose blocks have a mixer "attn" and an MLP."""


class Architecture(NamedTuple):
    """A model type of fla.

    Attributes:
      model_type: its name in config.json.
      class_name: its class with a language model's head.
      mixer: our layer.
      keys: the keys of config.json that decide what is computed.
      inert: those of its own that change nothing.
      options: our mixer's options of such keys.
      write: the keys, without those of `MODEL_KEYS`, of a configuration and its mixer. What a key
        cannot say may be left out: reading them again shows it.
      pieces: those of one mixer, of the mixer, the keys, and the two prefixes (the tensors', ours).
      trunk: prefix of the tensors: "model" or "backbone".
      names: of a block's norm and mixer, and of the final norm.
    """

    model_type: str
    class_name: str
    mixer: str
    keys: dict[str, Key]
    inert: tuple[str, ...]
    options: Callable[[Keys], dict[str, Any]]
    write: Callable[[ModelConfig, Any], Keys]
    pieces: Callable[[Any, Keys, str, str], list[Piece]]
    trunk: str = "model"
    names: tuple[str, str, str] = ("attn_norm", "attn", "norm")


def model_config(architecture: Architecture, keys: Keys) -> ModelConfig:
    """Returns our configuration of the keys.

    Raises:
      ValueError: sizes do not fit each other.
    """
    return ModelConfig(
        vocab_size=keys["vocab_size"],
        width=keys["hidden_size"],
        num_layers=keys["num_hidden_layers"],
        mixers=(architecture.mixer,),
        mixer_options={
            architecture.mixer: architecture.options(keys) | {"norm_eps": keys["norm_eps"]}
        },
        mlp_width=mlp_width(keys) if "intermediate_size" in keys else 0,
        max_length=keys.get("max_position_embeddings", 2048),
        tie_embeddings=keys["tie_word_embeddings"],
        norm_eps=keys["norm_eps"],
    )


def model_keys(architecture: Architecture, config: ModelConfig) -> Keys:
    """Returns the keys of a configuration; what they cannot say is left out."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
    } | architecture.write(config, config.build_mixer(0, parent=None))


def mlp_width(keys: Keys) -> int:
    """The MLP's hidden size: stated, or 2/3 hidden_ratio hidden_size up to a multiple of 256."""
    if keys["intermediate_size"] is not None:
        return keys["intermediate_size"]
    ratio = 4 if keys["hidden_ratio"] is None else keys["hidden_ratio"]
    return 256 * -(-int(keys["hidden_size"] * ratio * 2 / 3) // 256)


def written_mlp(config: ModelConfig) -> Keys:
    """The keys of `MLP_KEYS` of a configuration."""
    size = config.mlp_width or None
    return {"intermediate_size": size, "max_position_embeddings": config.max_length}


def written_heads(config: ModelConfig, layer: Any) -> Keys:
    """The keys of heads whose sizes are stated by `head_size`, with those of `written_mlp`."""
    layout, options = layer.layout, layer.options
    keys, _, values = layout.part_sizes
    return written_mlp(config) | {
        "num_heads": layout.key_heads,
        "expand_k": keys / config.width,
        "expand_v": values / config.width,
        "use_short_conv": options.conv_size > 0,
        "conv_size": options.conv_size or 4,
    }


def model_pieces(architecture: Architecture, config: ModelConfig, keys: Keys) -> list[Piece]:
    """Returns the pieces of a whole model.

    Args:
      architecture: its model type.
      config: from `model_config`.
      keys: what it was made from.
    """
    trunk, (norm, mixer, final) = architecture.trunk, architecture.names
    width, vocab = config.width, config.vocab_size
    found = [piece(f"{trunk}.embeddings.weight", "embedding/table", vocab, "same")]
    for layer in range(config.num_layers):
        theirs, ours = f"{trunk}.layers.{layer}", f"blocks_{layer}"
        found.append(piece(f"{theirs}.{norm}.weight", f"{ours}/mixer_norm/scale", width, "same"))
        module = config.build_mixer(layer, parent=None)
        found += architecture.pieces(module, keys, f"{theirs}.{mixer}", f"{ours}/mixer")
        if config.mlp_width:
            found.append(
                piece(f"{theirs}.mlp_norm.weight", f"{ours}/mlp_norm/scale", width, "same")
            )
            sizes = {"gate": config.mlp_width, "up": config.mlp_width, "down": width}
            found += [
                piece(f"{theirs}.mlp.{name}_proj.weight", f"{ours}/mlp/{name}/kernel", size)
                for name, size in sizes.items()
            ]
    found.append(piece(f"{trunk}.{final}.weight", "final_norm/scale", width, "same"))
    if not config.tie_embeddings:
        found.append(piece("lm_head.weight", "head/table", vocab, "same"))
    return found


def projection_pieces(layer: Any, theirs: str, ours: str) -> list[Piece]:
    """Pieces of q, k and v: a projection each, and of our one convolution the part of each."""
    layout: HeadLayout = layer.layout
    found, column = [], 0
    for name, size in zip(("query", "key", "value"), layout.part_sizes, strict=True):
        letter = name[0] if name != "value" else "v"
        found.append(piece(f"{theirs}.{letter}_proj.weight", f"{ours}/heads/{name}/kernel", size))
        if layer.options.conv_size:
            tensor, leaf = f"{theirs}.{letter}_conv1d.weight", f"{ours}/heads/conv/kernel"
            found.append(piece(tensor, leaf, size, "conv", column=column))
        column += size
    return found


def output_pieces(layer: Any, norm: str, theirs: str, ours: str) -> list[Piece]:
    """Pieces of the norm of the heads (of that name), the gate if there is one, the projection."""
    layout: HeadLayout = layer.layout
    found = [
        piece(f"{theirs}.{norm}.weight", f"{ours}/output/norm/scale", layout.value_dim, "same"),
        piece(f"{theirs}.o_proj.weight", f"{ours}/output/out/kernel", layer.width),
    ]
    if layer.options.output_gate != "none":
        values = layout.part_sizes[2]
        found.append(piece(f"{theirs}.g_proj.weight", f"{ours}/output/gate/kernel", values))
    return found


def head_size(keys: Keys, factor: str) -> int:
    """hidden_size * expand_k (or expand_v) / num_heads.

    Raises:
      ValueError: it is not a whole number.
    """
    width, heads = keys["hidden_size"], keys["num_heads"]
    total = round(width * keys[factor])
    if abs(total - width * keys[factor]) > 1e-9 * total or total % heads or not total:
        raise ValueError(
            f"config.json {factor}: hidden_size {width} * {factor} {keys[factor]} / num_heads "
            f"{heads} = {width * keys[factor] / heads:g}, wanted a whole number >= 1"
        )
    return total // heads


def ratio(size: int, of: int) -> float:
    """Quotient of two sizes, rounded so that of * ratio is not below size."""
    found = size / of
    return found if of * found >= size else found * (1 + 2**-52)
