"""The teacher of a distillation, from its workdir."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.data.tokenizers import load_tokenizer
from bayesmem.distill.settings import DistillSettings
from bayesmem.models import LanguageModel
from bayesmem.train.checkpoint import restore_params
from bayesmem.train.parts import build_model
from bayesmem.train.sharding import leaf_name, make_mesh
from bayesmem.train.step import abstract_params
from bayesmem.train.workdir import CHECKPOINTS, as_json, read_config

PyTree = Any


class Teacher(NamedTuple):
    """A trained model on text.

    Attributes:
      config: of its run.
      model: what it is.
      step: of the checkpoint.
      params: its parameters, unboxed, on the mesh.
      vocab_size: ids of its tokenizer.
    """

    config: dict[str, Any]
    model: LanguageModel
    step: int
    params: PyTree
    vocab_size: int


def load_teacher(
    settings: DistillSettings, config: Mapping[str, Any], step: int | None = None
) -> Teacher:
    """Restores the teacher, and says how it is read: data keys that are None are its own.

    Args:
      settings: the whole config.
      config: the same, unparsed.
      step: of the checkpoint, if it is there; else the newest usable one.
    """
    workdir = Path(settings.teacher)
    own = read_config(workdir, "config teacher")
    if "model" not in own or "data" not in own:
        raise ValueError(f"config teacher: found no run of one model in {workdir}; wanted one")
    task = own["data"]["task"]
    if task != "text":
        raise ValueError(
            f"config teacher: found a run of data.task = {task!r} in {workdir}; wanted one on text"
        )
    wanted = load_tokenizer(own["data"].get("tokenizer", "bytes"))
    data = own["data"] | {key: x for key, x in as_json(config["data"]).items() if x is not None}
    found = load_tokenizer(data.get("tokenizer", "bytes"))
    if found.fingerprint != wanted.fingerprint:
        raise ValueError(
            f"config data.tokenizer: found {found.name}, wanted the teacher's, {wanted.name}"
        )
    model, mesh = build_model(own), make_mesh(settings.runs["phase_a"].mesh)
    step, params = restore_params(workdir / CHECKPOINTS, abstract_params(model, mesh), step)
    _require_finite(workdir, params)
    return Teacher(own | {"data": data}, model, step, params, wanted.vocab_size)


def _require_finite(workdir: Path, params: PyTree) -> None:
    """Raises ValueError where a parameter is not finite; names them."""
    finite = jax.tree.map(lambda x: jnp.isfinite(x).all(), params)
    flat = jax.tree_util.tree_leaves_with_path(jax.device_get(finite))
    if wrong := [leaf_name(path) for path, good in flat if not good]:
        raise ValueError(
            f"config teacher: found numbers that are not finite in {', '.join(wrong)} of "
            f"{workdir}; wanted finite parameters"
        )
