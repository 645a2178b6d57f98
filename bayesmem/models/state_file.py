"""A generation in a file, to be continued later by the same model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem.models.generate import Generation
from bayesmem.models.language_model import LanguageModel
from bayesmem.models.sampling import row_keys

RECORD = "record"
FORMAT = 1
HASHED = 64
"""Numbers of each parameter that tell checkpoints apart."""


def save_generation(
    path: Path, generation: Generation, made_by: Mapping[str, Any], notes: Mapping[str, Any]
) -> None:
    """Writes an .npz file, by way of a temporary file beside it; the rows stay as they were.

    It holds every array of the generation under the name of its place, and as "record" the JSON
    text of the other arguments.

    Args:
      path: the file; its folder is made if missing.
      generation: B rows.
      made_by: JSON values that say which model the state is of, see `describe_model`.
      notes: JSON values that `load_generation` gives back.

    Raises:
      OSError: the disk is full or not writable.
    """
    record = {
        "format": FORMAT,
        "made_by": dict(made_by),
        "notes": dict(notes),
        "batch": len(generation.token),
        "key_kind": str(jax.random.key_impl(generation.keys)),
    }
    arrays = {name: _plain(leaf) for name, leaf in _leaves(_with_words(generation)).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as stream:
        np.savez(stream, **{RECORD: np.array(json.dumps(record))}, **arrays)  # type: ignore[arg-type]
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def load_generation(
    path: Path, model: LanguageModel, made_by: Mapping[str, Any]
) -> tuple[Generation, dict[str, Any]]:
    """Reads a file of `save_generation`.

    Args:
      path: the file.
      model: the language model that goes on from it, unbound.
      made_by: what the file must say it is of.

    Returns:
      The generation and the notes.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is no such file, is of another model, or an array does not fit this one; names
        what differs.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        record = json.loads(str(arrays.pop(RECORD)))
        batch, notes, found = record["batch"], record["notes"], record["made_by"]
        kind, form = record["key_kind"], record["format"]
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"state: {path} is damaged, or no state of generation") from error
    if form != FORMAT:
        raise ValueError(f"state: {path} has format {form}, wanted {FORMAT}")
    differing = _differing(found, dict(made_by))
    if differing:
        raise ValueError("\n  ".join([f"state: {path} is of another model:", *differing]))
    template = jax.eval_shape(lambda: _empty(model, batch))
    wanted = _leaves(template)
    if arrays.keys() != wanted.keys():
        odd = sorted(arrays.keys() ^ wanted.keys())
        raise ValueError(f"state: {path} and the model do not both have {', '.join(odd)}")
    leaves = [_typed(path, name, arrays[name], leaf) for name, leaf in wanted.items()]
    loaded = jax.tree.unflatten(jax.tree.structure(template), leaves)
    return loaded._replace(keys=jax.random.wrap_key_data(loaded.keys, impl=kind)), notes


def describe_model(model: LanguageModel, params: Any) -> dict[str, Any]:
    """Returns JSON values that tell a model from others: its config and a few of its parameters.

    Args:
      model: a language model, unbound.
      params: its parameters, unboxed.
    """
    config = dataclasses.asdict(model.config)
    # How gradients are made changes no state, nor does the capacity of caches that are not there.
    attends = any(name.partition("/")[0] == "attention" for name in model.config.mixers)
    for name in ("remat", "remat_saves", "repeatable", *(() if attends else ("max_length",))):
        config.pop(name)
    digest = hashlib.sha256()
    for name, leaf in _leaves(params).items():
        few = np.asarray(leaf[(0,) * (leaf.ndim - 1)][:HASHED], np.float32)
        digest.update(f"{name} {leaf.shape} ".encode() + few.tobytes())
    plain = json.loads(json.dumps(config, default=dict))
    return {"model": plain, "parameters": digest.hexdigest()}


def _empty(model: LanguageModel, batch: int) -> Generation:
    zero = jnp.zeros(batch, jnp.int32)
    return _with_words(Generation(model.init_state(batch), zero, row_keys(0, batch), zero))


def _with_words(generation: Generation) -> Generation:
    """Random keys as arrays of words."""
    return generation._replace(keys=jax.random.key_data(generation.keys))


def _leaves(tree: Any) -> dict[str, Any]:
    with_paths = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in with_paths
    }


def _plain(leaf: jax.Array) -> np.ndarray:
    """An array of a dtype that NumPy itself has: bfloat16 as the words that hold it."""
    array = np.asarray(leaf)
    return array.view(np.uint16) if array.dtype == jnp.bfloat16 else array


def _typed(path: Path, name: str, array: np.ndarray, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    """Inverse of `_plain`, checked."""
    stored = np.uint16 if wanted.dtype == jnp.bfloat16 else wanted.dtype
    if array.shape != wanted.shape or array.dtype != stored:
        raise ValueError(
            f"state: {path} holds {name} as {array.dtype}{list(array.shape)}, wanted "
            f"{np.dtype(stored)}{list(wanted.shape)}"
        )
    return jnp.asarray(array.view(wanted.dtype))


def _differing(found: Any, wanted: Any, place: str = "") -> list[str]:
    """Says which values differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        names = sorted(found.keys() | wanted.keys())
        return [
            line
            for name in names
            for line in _differing(
                found.get(name, "nothing"), wanted.get(name, "nothing"), f"{place}.{name}"
            )
        ]
    return [] if found == wanted else [f"{place[1:]}: found {found!r}, wanted {wanted!r}"]
