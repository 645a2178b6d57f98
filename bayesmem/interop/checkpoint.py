"""Checkpoints of flash-linear-attention, read into our parameters and written from them."""

import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bayesmem.interop.architecture import model_pieces
from bayesmem.interop.architectures import (
    defaults_taken,
    differences,
    read_config,
    write_config,
)
from bayesmem.interop.hub import local_folder
from bayesmem.interop.new_folder import new_folder
from bayesmem.interop.origin import DTYPES, Origin
from bayesmem.interop.pieces import Piece, fill_leaves, make_tensors, tensor_shapes
from bayesmem.interop.tensor_files import (
    CONFIG,
    SINGLE,
    TensorFiles,
    read_headers,
    read_text,
    write_files,
)
from bayesmem.layers.options import require_choice
from bayesmem.models.config import ModelConfig
from bayesmem.models.language_model import LanguageModel
from bayesmem.models.parameters import STACKED, unroll_params

PyTree = Any
Shapes = Mapping[str, tuple[int, ...]]

HEAD = "lm_head.weight"
KEPT_FLOAT32 = ("A_log", "dt_bias")
"""Ends of the names of tensors that stay float32 in every dtype: rounding them changes decays."""


class Imported(NamedTuple):
    """A checkpoint of another project.

    Attributes:
      config: our configuration of the model.
      params: the parameters of `LanguageModel(config)`, float32 NumPy arrays in nested dicts.
      origin: what is needed to write the same files again.
    """

    config: ModelConfig
    params: dict[str, Any]
    origin: Origin


def load_fla(source: str | Path) -> Imported:
    """Reads a checkpoint of flash-linear-attention, without torch or any code of theirs.

    Args:
      source: a folder with config.json and model.safetensors, or several files with their index; or
        "hf:ORG/NAME" of the Hugging Face hub, see `local_folder`.

    Returns:
      Configuration, parameters and origin.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: the model cannot be expressed here, a file is damaged, or tensors are missing,
        extra or of another shape: names all of them.
      ImportError: the source is one of the hub, and `huggingface_hub` is not installed.
    """
    folder = local_folder(str(source))
    text = read_text(folder / CONFIG)
    content = json.loads(text)
    architecture, keys, config = read_config(content)
    files = read_headers(folder)
    found = files.shapes()
    if config.num_layers > len(found):  # before as many layers are traced
        raise ValueError(
            f"{folder / CONFIG} num_hidden_layers: found {config.num_layers}, wanted at most "
            f"{len(found)}: the files hold no more tensors{defaults_taken(content)}"
        )
    leaves = leaf_shapes(config)
    pieces = model_pieces(architecture, config, keys)
    wanted = tensor_shapes(pieces, leaves)
    table = _embedding(pieces)
    tied = config.tie_embeddings and HEAD in found
    if tied:
        wanted[HEAD] = wanted[table]
    _require_tensors(str(folder), found, wanted, defaults_taken(content))
    if tied:
        _require_tied(files, table)
    params = fill_leaves(pieces, leaves, files.tensors())
    return Imported(config, traverse_util.unflatten_dict(params, sep="/"), files.origin(text))


def save_fla(
    folder: str | Path,
    config: ModelConfig,
    params: Mapping[str, Any],
    origin: Origin | None = None,
    dtype: str | None = None,
    beside: Sequence[Path] = (),
) -> None:
    """Writes a checkpoint of flash-linear-attention.

    With an origin, the files are those of the origin: the same names, dtypes, shards and
    config.json. Without one, they are a new config.json and one model.safetensors.

    Args:
      folder: where to; not there yet, or empty. It appears as a whole.
      config: of the model.
      params: of `LanguageModel(config)`, boxed or not.
      origin: from `load_fla`, or None.
      dtype: "float32", "bfloat16" or "float16"; None for the origin's, or float32. A_log and
        dt_bias stay float32 in every dtype that is asked for.
      beside: files that are copied into the folder, such as a tokenizer's.

    Raises:
      FileExistsError: there is something at the folder.
      ValueError: fla's model cannot do what an option asks for, the configuration is not the
        origin's, or the parameters are not the configuration's; names what.
    """
    if dtype is not None:
        require_choice("dtype", dtype, tuple(DTYPES.values()))
    config, leaves = plain_params(config, params)
    content = json.loads(origin.config) if origin else write_config(config)
    architecture, keys, stated = read_config(content)
    if lost := differences(config, stated):
        raise ValueError("\n  ".join(["config: found another than the origin's:", *lost]))
    shapes = {name: leaf.shape for name, leaf in leaves.items()}
    _require_tensors("params", shapes, leaf_shapes(config))
    pieces = model_pieces(architecture, config, keys)
    wanted, table = tensor_shapes(pieces, shapes), _embedding(pieces)
    if origin is None:
        dtypes = dict.fromkeys(wanted, "float32")
        text = json.dumps(content | {"torch_dtype": "float32"}, indent=2) + "\n"
        origin = Origin(text, None, {SINGLE: dtypes}, {SINGLE: {"format": "pt"}})
    if dtype is not None:
        origin = origin.with_dtype(dtype, KEPT_FLOAT32)
    names = [name for shard in origin.shards.values() for name in shard]
    if config.tie_embeddings and HEAD in names:
        wanted[HEAD] = wanted[table]
    _require_tensors("origin", dict.fromkeys(names, ()), dict.fromkeys(wanted, ()))

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        own = [table if name == HEAD and config.tie_embeddings else name for name in names]
        made = make_tensors(pieces, leaves, own)
        return ((name, tensor) for name, (_, tensor) in zip(names, made, strict=True))

    with new_folder("output", Path(folder)) as partial:
        write_files(partial, origin, tensors())
        for path in beside:
            shutil.copyfile(path, partial / path.name)


def plain_params(
    config: ModelConfig, params: Mapping[str, Any]
) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Returns a model without scanned blocks and padded rows, its leaves float32 by path."""
    tree = nn.meta.unbox(dict(params))
    if config.scan_layers and STACKED in tree:
        tree = unroll_params(tree)
    flat = traverse_util.flatten_dict(tree, sep="/")
    leaves = {name: np.asarray(leaf, np.float32) for name, leaf in flat.items()}
    for name in ("embedding/table", "head/table"):
        if name in leaves and len(leaves[name]) == config.padded_vocab_size:
            leaves[name] = leaves[name][: config.vocab_size]
    return dataclasses.replace(config, scan_layers=False, vocab_multiple=1), leaves


def leaf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of a model by its path, names joined by "/"."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    boxed = jax.eval_shape(LanguageModel(config).init, jax.random.key(0), tokens)["params"]
    flat = traverse_util.flatten_dict(nn.meta.unbox(boxed), sep="/")
    return {name: leaf.shape for name, leaf in flat.items()}


def _embedding(pieces: list[Piece]) -> str:
    """Name of the tensor that is the embedding's table."""
    return next(p.tensor for p in pieces if p.leaf == "embedding/table")


def _require_tensors(place: str, found: Shapes, wanted: Shapes, note: str = "") -> None:
    """Raises one ValueError that names all tensors that are missing, extra, or of another shape.

    Args:
      place: what holds them.
      found: there.
      wanted: of the configuration.
      note: ends the message.
    """
    both = [name for name in wanted if name in found]
    lines = {
        "missing": [f"{n} {list(wanted[n])}" for n in wanted if n not in found],
        "extra": [f"{n} {list(found[n])}" for n in found if n not in wanted],
        "of another shape": [
            f"{n}: found {list(found[n])}, wanted {list(wanted[n])}"
            for n in both
            if tuple(found[n]) != tuple(wanted[n])
        ],
    }
    problems = [f"{kind}: {name}" for kind, names in lines.items() for name in sorted(names)]
    if problems:
        listed = "\n  ".join([f"{place} does not fit its configuration:", *problems])
        raise ValueError(f"{listed}{note}")


def _require_tied(files: TensorFiles, table: str) -> None:
    """Raises ValueError unless a head that is stored besides its tied table is the same."""
    found = dict(files.tensors((HEAD, table)))
    one, two = (found[name].astype(np.float32) for name in (HEAD, table))
    if not np.array_equal(one, two, equal_nan=True):
        raise ValueError(
            f"{HEAD}: found other numbers than in {table}, wanted the same: config.json has "
            f"tie_word_embeddings true"
        )
