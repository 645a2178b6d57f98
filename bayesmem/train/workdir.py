"""The run's directory: who owns it, and the config it was started with."""

from __future__ import annotations

import fnmatch
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bayesmem.train.records import free_name, write_json

logger = logging.getLogger(__name__)

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
RESULT = "train_result.json"
RESULTS = "results"
"""Folder of a sweep's results, one file for each set of runs trained together."""

# Keys that may differ when a run is continued: they change what is written and when, or where the
# arrays live, not what is trained.
MAY_DIFFER = (
    "train.log_every",
    "train.eval_every",
    "train.eval_batches",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.wandb_project",
    "mesh.*",
    "train.loss_tokens",
    "model.remat",
    "model.remat_saves",
    "student.remat",
    "phases",
    "sweep.*",
)

# What the config of an earlier version means that does not have a key.
ABSENT_MEANS = {
    "data.tokenizer": "bytes",
    "model.remat_saves": "nothing",
    "model.scan_layers": False,
    "train.loss_tokens": 0,
    "train.z_loss": 0.0,
}


def claim_workdir(
    workdir: Path, config: Mapping[str, Any], holds: Sequence[str] = (CHECKPOINTS, RESULTS)
) -> None:
    """Creates the directory and writes config.json, or checks the one that is there.

    An existing config.json is not rewritten: it says how the run was started. Only if that run
    has saved nothing to continue from, another config takes its place, and the old one is kept as
    config.superseded-N.json, with a warning. The first process does all this; the others nothing.

    Args:
      workdir: the run's directory, created with its parents if missing.
      config: the whole config, of JSON values and tuples.
      holds: folders that show that something was saved, if there is anything in them.

    Raises:
      NotADirectoryError: the path, or a parent of it, is a file.
      ValueError: the directory belongs to a run whose config differs in a key that is not in
        `MAY_DIFFER`; the message names the keys with both values.
    """
    if jax.process_index() != 0:
        return
    path, wanted = workdir / CONFIG, as_json(config)
    make_workdir(workdir)
    if not path.exists():
        write_json(path, wanted)
        return
    differing = differences(read_config(workdir), wanted)
    if not differing:
        return
    folders = [workdir / name for name in holds]
    if any(folder.is_dir() and any(folder.iterdir()) for folder in folders):
        raise ValueError(
            "\n  ".join([f"workdir {workdir} holds a run with another config:", *differing])
            + "\nuse another --workdir, or the config the run was started with"
        )
    aside = free_name(workdir, "config.superseded-{}.json")
    logger.warning("%s: no checkpoint was saved with its config, now %s", workdir, aside.name)
    path.rename(aside)
    write_json(path, wanted)


def make_workdir(workdir: Path) -> None:
    """Makes the directory with its parents; NotADirectoryError where one of them is a file."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"workdir: found a file at {workdir}; wanted a directory"
        ) from error


def read_config(workdir: Path, argument: str = "workdir") -> dict[str, Any]:
    """Reads the config a run was started with; tuples come back as lists.

    Args:
      workdir: of the run.
      argument: what the user has named it by, for the error.

    Raises:
      FileNotFoundError: the directory holds no run.
      ValueError: the file is not JSON.
    """
    path = workdir / CONFIG
    if not path.is_file():
        raise FileNotFoundError(
            f"{argument}: found no {CONFIG} in {workdir}; wanted a training run"
        )
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(
            f"{path}: found text that is not JSON ({error}); wanted a config"
        ) from error


def read_run(workdir: Path, argument: str = "workdir") -> dict[str, Any]:
    """Reads the config of a run of one model; `argument` as of `read_config`.

    Raises:
      FileNotFoundError: the directory holds no run.
      ValueError: the file is not JSON, or is the config of a sweep or of a whole distillation.
    """
    config = read_config(workdir, argument)
    if missing := {"model", "data", "optimizer", "train"} - set(config):
        raise ValueError(
            f"{argument}: found no {', '.join(sorted(missing))} in the config of {workdir}; wanted "
            f"a run of one model, such as a phase of a distillation"
        )
    if "sweep" in config:
        raise ValueError(
            f"{argument}: found a sweep in {workdir}, wanted a run of one model: a sweep tests its "
            f"own"
        )
    return config


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Says with both values which keys differ that may not where a run is continued.

    A sweep may also have new mixers, with their options.

    Args:
      old: the config a run was started with, JSON values.
      new: the one that is asked for.
    """
    there, asked = ABSENT_MEANS | _flat(dict(old)), ABSENT_MEANS | _flat(dict(new))
    allowed = [prefix + name for name in MAY_DIFFER for prefix in ("", "*.")]
    if "sweep" in new:
        known = old.get("model", {}).get("mixer_options", {})
        added = new["model"]["mixer_options"].keys() - known
        allowed += [f"model.mixer_options.{name}{end}" for name in added for end in ("", ".*")]
    absent = "nothing"
    return [
        f"{key}: {there.get(key, absent)!r} there, {asked.get(key, absent)!r} asked"
        for key in sorted(there.keys() | asked.keys())
        if there.get(key, absent) != asked.get(key, absent)
        and not any(fnmatch.fnmatch(key, name) for name in allowed)
    ]


def as_json(value: Any) -> Any:
    """Plain JSON values: mappings as dicts, tuples as lists."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    return json.loads(json.dumps(value, default=lambda item: item.to_dict()))


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested dicts; an empty dict counts as a value."""
    if not isinstance(tree, dict) or (prefix and not tree):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else key)
    return flat
