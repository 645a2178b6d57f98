"""Evaluation of a run from its files: config.json and the newest usable checkpoint."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import jax

from bayesmem.data.loader import make_eval_batches
from bayesmem.data.tokenizers import load_tokenizer
from bayesmem.evaluate.perplexity import perplexity
from bayesmem.evaluate.recall import recall
from bayesmem.train.checkpoint import restore_params
from bayesmem.train.parts import build_model
from bayesmem.train.records import free_name, write_json
from bayesmem.train.settings import MeshSettings, Settings
from bayesmem.train.sharding import Mesh, check_batch_size, make_mesh
from bayesmem.train.step import abstract_params
from bayesmem.train.workdir import CHECKPOINTS, read_run

logger = logging.getLogger(__name__)

EVALUATION = "evaluation.json"


def evaluate_workdir(workdir: Path, max_batches: int | None = None) -> dict[str, Any]:
    """Measures the newest usable checkpoint of a run on the test split.

    Args:
      workdir: directory of a training run.
      max_batches: how many batches of the split, the first ones; None: all.

    Returns:
      `step`, `task`, `split`, `max_batches`, and the measure of the task: `recall` for "mqar",
      `perplexity` for "text".

    Raises:
      FileNotFoundError: the directory holds no run, or the run no usable checkpoint.
      ValueError: the config or the checkpoint does not fit.
    """
    config = read_run(workdir)
    settings, model = Settings.from_config(config), build_model(config)
    mesh = _mesh_for_here(settings.mesh)
    check_batch_size(settings.train.batch_size, 1, mesh)
    step, params = restore_params(workdir / CHECKPOINTS, abstract_params(model, mesh))
    batches = make_eval_batches(
        config["data"],
        batch_size=settings.train.batch_size,
        split="test",
        max_batches=max_batches,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )
    task = config["data"]["task"]
    if task == "text":
        tokenizer = load_tokenizer(config["data"].get("tokenizer", "bytes"))
        measured = perplexity(model, params, batches, mesh, tokenizer)
    else:
        measured = recall(model, params, batches, mesh)
    kind = {"step": step, "task": task, "split": "test", "max_batches": max_batches}
    return kind | measured


def write_evaluation(workdir: Path, result: dict[str, Any]) -> Path:
    """Writes evaluation.json; what is there is kept under another name.

    That name is evaluation_step_N.json, N its step, with a number where that exists too. An
    evaluation of the same step over the same batches is replaced: it holds the same numbers.

    Args:
      workdir: directory of the run.
      result: from `evaluate_workdir`.

    Returns:
      The path of evaluation.json.
    """
    path = workdir / EVALUATION
    if path.exists():
        try:
            earlier = json.loads(path.read_text())
            keys = ("step", "split", "max_batches")
            same = all(earlier.get(key) == result.get(key) for key in keys)
            name = f"evaluation_step_{earlier['step']:08d}"
        except (ValueError, TypeError, KeyError, AttributeError):  # not written by us, or torn
            same, name = False, "evaluation_unreadable"
        if not same:
            kept = workdir / f"{name}.json"
            path.rename(kept if not kept.exists() else free_name(workdir, f"{name}_{{}}.json"))
    write_json(path, result)
    return path


def _mesh_for_here(settings: MeshSettings) -> Mesh:
    """The run's mesh if this machine has as many devices, else one that splits the batch only."""
    try:
        return make_mesh(settings)
    except ValueError as error:
        logger.warning("%s; evaluating with data = %d instead", error, jax.device_count())
        return make_mesh(MeshSettings())
