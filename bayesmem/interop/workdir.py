"""Checkpoints of other projects as workdirs, which all commands for runs take, and back."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from bayesmem.data.tokenizers import load_tokenizer
from bayesmem.files import write_json
from bayesmem.interop.checkpoint import load_fla, save_fla
from bayesmem.interop.hub import TOKENIZERS, local_folder
from bayesmem.interop.new_folder import new_folder
from bayesmem.interop.origin import Origin
from bayesmem.models.config import ModelConfig
from bayesmem.models.language_model import LanguageModel
from bayesmem.train.checkpoint import restore_params, save_checkpoint
from bayesmem.train.settings import MeshSettings, OptimizerSettings, TrainSettings
from bayesmem.train.sharding import make_mesh
from bayesmem.train.step import TrainState, abstract_params
from bayesmem.train.workdir import CHECKPOINTS, CONFIG, read_run

logger = logging.getLogger(__name__)

ORIGIN = "origin.json"
BYTES = "bytes"
LONGEST_ROW = 2048
"""Tokens a row of the workdir's `data` section, where the model's own length is not below it."""
OPTIMIZER = OptimizerSettings(learning_rate=1e-4, warmup_steps=50, weight_decay=0.1)


def import_workdir(source: str, workdir: Path, tokenizer: str = "") -> ModelConfig:
    """Makes a workdir of a checkpoint: its config, step 0 with the parameters, and its origin.

    Args:
      source: of `load_fla`.
      workdir: where to; not there yet, or empty. It appears as a whole.
      tokenizer: a tokenizer.json or a SentencePiece .model, copied into the workdir; or "bytes"; ""
        for the source's own where it has one, else "bytes".

    Returns:
      The model's configuration.

    Raises:
      FileExistsError: there is something at the workdir.
      FileNotFoundError: a file of the source, or the tokenizer, is missing.
      ValueError: the source cannot be read, see `load_fla`; the tokenizer has more ids than the
        model.
    """
    with new_folder("workdir", workdir) as partial:
        folder = local_folder(source)
        config, params, origin = load_fla(folder)
        flat = traverse_util.flatten_dict(params, sep="/")
        if wrong := [leaf for leaf, x in flat.items() if not np.isfinite(x).all()]:
            logger.warning("%s: found numbers that are not finite in %s", source, ", ".join(wrong))
        name = _copy_tokenizer(folder, tokenizer, partial)
        # Before the workdir is at its place: this checks the tokenizer where it is now.
        _require_ids(config, str(partial / name) if name else BYTES, tokenizer or source)
        place = str(workdir.absolute() / name) if name else BYTES
        write_json(partial / CONFIG, run_config(config, place))
        write_json(partial / ORIGIN, origin.to_json())
        zero = jnp.zeros((), jnp.int32)
        placed = jax.tree.map(jnp.asarray, params)
        state = TrainState(zero, placed, optax.EmptyState(), jax.random.key(0), zero)
        save_checkpoint(partial / CHECKPOINTS, state, {})
    return config


def export_workdir(workdir: Path, output: Path, dtype: str | None = None) -> int:
    """Writes the newest usable checkpoint of a run as a checkpoint of fla.

    A workdir that `import_workdir` made gives the files that it was made from, with the numbers of
    its newest step; its tokenizer is copied too.

    Args:
      workdir: of a run.
      output: where to; not there yet, or empty. It appears as a whole.
      dtype: see `save_fla`.

    Returns:
      The step.

    Raises:
      FileExistsError: there is something at the output.
      FileNotFoundError: the workdir holds no run, or the run no usable checkpoint.
      ValueError: fla has no such model, see `save_fla`; origin.json is none.
    """
    config = read_run(workdir)
    model = LanguageModel(ModelConfig.from_dict(config["model"]))
    target = abstract_params(model, make_mesh(MeshSettings()))
    step, params = restore_params(workdir / CHECKPOINTS, target)
    beside = [workdir / name for name in TOKENIZERS if (workdir / name).is_file()]
    origin = _read_origin(workdir / ORIGIN)
    save_fla(output, model.config, params, origin, dtype, beside=beside)
    return step


def run_config(config: ModelConfig, tokenizer: str) -> dict[str, Any]:
    """Returns the config of a run on text with this model, every section of `configs/lm.py`.

    Args:
      config: of the model.
      tokenizer: of the `data` section.
    """
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    options = {name: dict(own) for name, own in config.mixer_options.items()}
    return {
        "seed": 0,
        "model": fields | {"mixers": list(config.mixers), "mixer_options": options},
        "data": {
            "task": "text",
            "path": "",
            "text_key": "text",
            "tokenizer": tokenizer,
            "seq_len": min(config.max_length, LONGEST_ROW),
        },
        "optimizer": dataclasses.asdict(OPTIMIZER),
        "train": dataclasses.asdict(TrainSettings(steps=300, batch_size=8)),
        "mesh": dataclasses.asdict(MeshSettings()),
    }


def _require_ids(config: ModelConfig, name: str, source: str) -> None:
    """Raises ValueError where a tokenizer has more ids than the model."""
    tokenizer = load_tokenizer(name)
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"tokenizer: found the {tokenizer.vocab_size} ids of "
            f"{'bytes' if name == BYTES else source} for a model of {config.vocab_size}, wanted "
            f"the model's own: --tokenizer=FILE"
        )


def _copy_tokenizer(source: Path, tokenizer: str, workdir: Path) -> str:
    """Copies the tokenizer's files; returns the name of its own, or "" for bytes."""
    if tokenizer == BYTES:
        return ""
    if tokenizer:
        found = Path(tokenizer)
        if not found.is_file():
            raise FileNotFoundError(
                f"tokenizer: found no file {tokenizer}, wanted one or {BYTES!r}"
            )
        name = "tokenizer.model" if found.suffix == ".model" else "tokenizer.json"
    else:
        own = (source / name for name in TOKENIZERS[:2] if (source / name).is_file())
        found, name = next(((path, path.name) for path in own), (source, ""))
    if not name:
        logger.warning("%s has no tokenizer: text is read as bytes", source)
        return ""
    shutil.copyfile(found, workdir / name)
    beside = found.with_name(TOKENIZERS[2])  # may name the token that ends a document
    if beside.is_file():
        shutil.copyfile(beside, workdir / beside.name)
    return name


def _read_origin(path: Path) -> Origin | None:
    if not path.is_file():
        return None
    try:
        return Origin.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path}: found no origin ({error}), wanted what was imported") from error
