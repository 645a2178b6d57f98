"""Checkpoints: one directory a step with parameters, optimizer, step, keys and loader state.

Orbax writes the arrays and the loader state; then `COMMIT.json` is written beside them (see
`checkpoint_record`). A step without that record, or whose files differ from it, is unusable: it
is skipped with a warning and left as it is.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import traverse_util
from jax.experimental import multihost_utils

from bayesmem.train.checkpoint_record import (
    check_fit,
    move_aside,
    unusable_because,
    write_record,
)
from bayesmem.train.loader_state import pack_loader_state, unpack_loader_state
from bayesmem.train.sharding import leaf_name
from bayesmem.train.step import TrainState

logger = logging.getLogger(__name__)

PyTree = Any
Leaves = dict[str, Any]

_STEP = re.compile(r"step_(\d+)")


class Restored(NamedTuple):
    """What a checkpoint gives back."""

    step: int
    state: TrainState
    loader_state: Any


def save_checkpoint(directory: Path, state: TrainState, loader_state: Any) -> int:
    """Saves one step; returns when it is on disk. Every process calls it.

    A directory already at this step's place (a half-written or damaged one: usable ones are
    restored from, not reached again) is renamed to `NAME.unusable-N` with a warning.

    Args:
      directory: the run's checkpoint directory, created if needed.
      state: the state to save; its step names the checkpoint.
      loader_state: what the loader's `get_state()` returned: JSON values or bytes.

    Returns:
      The saved step.

    Raises:
      OSError: the disk is full or not writable.
    """
    step = int(state.step)
    path = step_path(directory, step)
    if jax.process_index() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        for found in sorted(directory.glob(f"{path.name}*")):
            left_over = found.name == path.name or found.name.startswith(f"{path.name}.orbax")
            if left_over and ".unusable-" not in found.name:
                move_aside(found)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"bayesmem_save_{step}")
    items = _items(state)
    _checkpointer().save(
        path.absolute(),
        args=ocp.args.Composite(
            loader=ocp.args.JsonSave(pack_loader_state(loader_state)),
            **{name: ocp.args.StandardSave(_nested(leaves)) for name, leaves in items.items()},
        ),
    )
    if jax.process_index() == 0:
        write_record(path, step, items)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"bayesmem_saved_{step}")
    return step


def restore_newest(directory: Path, target: TrainState) -> Restored | None:
    """Restores the newest usable step, strictly.

    Args:
      directory: the run's checkpoint directory; may be missing.
      target: the state to fill: arrays, or shapes with shardings. The placement is the target's,
        so the device count may differ from that of the saving run.

    Returns:
      The restored step, or None if there is no usable one.

    Raises:
      ValueError: the newest usable step does not fit the target; the message names the leaves
        with what was found and what is wanted (missing, extra, shape, dtype), or the leaf and
        axis that do not split over the target's mesh.
    """
    step = newest_usable_step(directory)
    if step is None:
        return None
    path, wanted = step_path(directory, step), _items(target)
    for name, leaves in wanted.items():
        check_fit(path, name, leaves)
    restored = _checkpointer().restore(
        path.absolute(),
        args=ocp.args.Composite(
            loader=ocp.args.JsonRestore(),
            **{name: ocp.args.StandardRestore(_nested(wanted[name])) for name in wanted},
        ),
    )
    state = _state_from_items({name: _flat(restored[name]) for name in wanted}, target)
    return Restored(step, state, unpack_loader_state(restored["loader"]))


def restore_params(directory: Path, target: PyTree, step: int | None = None) -> tuple[int, PyTree]:
    """Restores only the parameters of a step, strictly.

    Args:
      directory: the run's checkpoint directory.
      target: parameter tree of arrays, or of shapes with shardings.
      step: which, if it is there and usable; else the newest usable one.

    Returns:
      The step and the parameters in the target's structure and placement.

    Raises:
      FileNotFoundError: there is no usable step.
      ValueError: the step does not fit; see `restore_newest`.
    """
    if step not in all_steps(directory) or unusable_because(step_path(directory, step)):
        step = newest_usable_step(directory)
    if step is None:
        raise FileNotFoundError(f"{directory}: found no usable checkpoint; wanted step_N with one")
    path, wanted = step_path(directory, step), _flat(target)
    check_fit(path, "params", wanted)
    restored = _checkpointer().restore(
        path.absolute(),
        args=ocp.args.Composite(params=ocp.args.StandardRestore(_nested(wanted))),
    )
    flat = _flat(restored["params"])
    return step, jax.tree.unflatten(jax.tree.structure(target), [flat[name] for name in wanted])


def newest_usable_step(directory: Path) -> int | None:
    """Finds the newest step whose files are whole; warns of each newer one that is not.

    The first process looks, and all processes get its answer.
    """
    found = -1
    if jax.process_index() == 0:
        for step in reversed(all_steps(directory)):
            reason = unusable_because(step_path(directory, step))
            if reason is None:
                found = step
                break
            logger.warning(
                "%s is skipped, and left as it is: %s", step_path(directory, step), reason
            )
    if jax.process_count() > 1:
        found = int(multihost_utils.broadcast_one_to_all(np.int32(found)))
    return None if found < 0 else found


def all_steps(directory: Path) -> list[int]:
    """Steps with a directory, usable or not, in rising order."""
    if not directory.is_dir():
        return []
    matches = (_STEP.fullmatch(path.name) for path in directory.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in matches if match)


def step_path(directory: Path, step: int) -> Path:
    """Directory of a step."""
    return directory / f"step_{step:08d}"


def prune(directory: Path, written: list[int], keep: int) -> list[int]:
    """Removes all but the newest `keep` of the steps this process wrote, and nothing else.

    Args:
      directory: the run's checkpoint directory.
      written: steps this process has saved, in rising order.
      keep: how many of them stay; 0: all.

    Returns:
      The steps of `written` that are left.
    """
    surplus = written[:-keep] if keep else []
    if jax.process_index() == 0:
        for step in surplus:
            shutil.rmtree(step_path(directory, step))
    return written[len(surplus) :]


def abstract_state(state: PyTree) -> PyTree:
    """Shapes, types and placement of a tree of arrays, as a restore target."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def _checkpointer() -> ocp.Checkpointer:
    return ocp.Checkpointer(ocp.CompositeCheckpointHandler())


def _items(state: TrainState) -> dict[str, Leaves]:
    """The two array items of a checkpoint, by leaf name, with the random key as plain words."""
    rest = {
        "step": state.step,
        "skipped": state.skipped,
        "rng": _key_words(state.rng),
        "optimizer": state.opt_state,
    }
    return {"params": _flat(state.params), "training": _flat(rest)}


def _state_from_items(items: dict[str, Leaves], target: TrainState) -> TrainState:
    """Inverse of `_items`, in the target's structure."""
    flat = items["training"]
    names = _flat({"optimizer": target.opt_state})
    params = [items["params"][name] for name in _flat(target.params)]
    return TrainState(
        step=flat["step"],
        params=jax.tree.unflatten(jax.tree.structure(target.params), params),
        opt_state=jax.tree.unflatten(
            jax.tree.structure(target.opt_state), [flat[name] for name in names]
        ),
        rng=jax.random.wrap_key_data(flat["rng"]),
        skipped=flat["skipped"],
    )


def _key_words(key: Any) -> Any:
    """The uint32 words of a typed key, or their shape if the key is one."""
    if not isinstance(key, jax.ShapeDtypeStruct):
        return jax.random.key_data(key)
    words = jax.eval_shape(jax.random.key_data, key)
    return jax.ShapeDtypeStruct(words.shape, words.dtype, sharding=key.sharding)


def _flat(tree: PyTree) -> Leaves:
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _nested(leaves: Leaves) -> dict[str, Any]:
    return traverse_util.unflatten_dict(leaves, sep="/")
