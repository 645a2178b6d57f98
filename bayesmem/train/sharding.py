"""One device mesh and where parameters, optimizer state and batches live on it.

Parameters carry logical axis names (`flax.linen.with_logical_partitioning`); `RULES` maps them to
mesh axes. One device is a mesh of ones, so there is one code path. Placement never changes what
is computed: XLA inserts the communication.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bayesmem.train.settings import MeshSettings

logger = logging.getLogger(__name__)

PyTree = Any

AXES = ("data", "fsdp", "tensor", "sequence")
BATCH_AXES = ("data", "fsdp")
# Logical axis of a parameter -> mesh axis, in order of precedence.
RULES = (("vocab", "tensor"), ("heads", "tensor"), ("mlp", "tensor"), ("embed", "fsdp"))


def make_mesh(settings: MeshSettings, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Builds the mesh (data, fsdp, tensor, sequence).

    Args:
      settings: the config's mesh section.
      devices: devices to use; None: all.

    Returns:
      A mesh whose axes are of the kind that leaves the communication to XLA.

    Raises:
      ValueError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = {axis: getattr(settings, axis) for axis in AXES}
    if sizes["data"] == -1:
        sizes["data"] = len(devices) // math.prod(sizes[axis] for axis in AXES[1:])
    if math.prod(sizes.values()) != len(devices):
        found = ", ".join(f"{axis} = {getattr(settings, axis)}" for axis in AXES)
        raise ValueError(
            f"config mesh: found {found} with {len(devices)} devices; "
            "wanted sizes whose product is the number of devices (data = -1: all remaining)"
        )
    return jax.make_mesh(
        tuple(sizes.values()),
        AXES,
        axis_types=(jax.sharding.AxisType.Auto,) * len(AXES),
        devices=devices,
    )


def parameter_shardings(mesh: Mesh, boxed: PyTree) -> PyTree:
    """Gives each leaf of a boxed tree its place on the mesh.

    A parameter axis that its mesh axis does not divide is replicated for that leaf, with one log
    line naming leaf, axis and sizes: the result is the same, only more memory is used.

    Args:
      mesh: from `make_mesh`.
      boxed: tree of arrays or shapes, those with logical axis names in Flax metadata boxes
        (a train state with boxed parameters is one); leaves without names are replicated.

    Returns:
      Tree of `NamedSharding`, in the structure of the unboxed tree.

    Raises:
      ValueError: a leaf has a logical axis that no rule knows, or not one name an axis.
    """

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        if not isinstance(leaf, nn.LogicallyPartitioned):
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, _leaf_spec(mesh, leaf_name(path), leaf.names, leaf.value.shape))

    return jax.tree_util.tree_map_with_path(
        place, boxed, is_leaf=lambda node: isinstance(node, nn.LogicallyPartitioned)
    )


def _leaf_spec(
    mesh: Mesh, name: str, logical: tuple[str | None, ...], shape: tuple[int, ...]
) -> PartitionSpec:
    """Maps one leaf's logical axes to mesh axes, dropping those that do not divide."""
    if len(logical) != len(shape):
        raise ValueError(f"{name}: found axis names {logical} for shape {shape}; wanted one each")
    known = [rule[0] for rule in RULES]
    unknown = [axis for axis in logical if axis is not None and axis not in known]
    if unknown:
        raise ValueError(f"{name}: found logical axes {unknown}; wanted names out of {known}")
    spec = nn.logical_to_mesh_axes(logical, RULES)
    kept = []
    for axis, mesh_axis in enumerate(spec or ()):
        size = 1 if mesh_axis is None else mesh.shape[mesh_axis]
        if shape[axis] % size:
            logger.warning(
                "%s: axis %d (%d) is not a multiple of mesh axis %s (%d): replicated",
                name, axis, shape[axis], mesh_axis, size,
            )  # fmt: skip
            mesh_axis = None
        kept.append(mesh_axis)
    return PartitionSpec(*kept)


def batch_spec(mesh: Mesh, name: str, shape: tuple[int, ...]) -> PartitionSpec:
    """Rows over (data, fsdp); time, where there is time and it divides, over sequence."""
    per_token = name in ("inputs", "segment_ids") and len(shape) == 2
    if per_token and shape[1] % mesh.shape["sequence"] == 0:
        return PartitionSpec(BATCH_AXES, "sequence")
    return PartitionSpec(BATCH_AXES)


def batch_shards(mesh: Mesh) -> int:
    """Number of parts the rows of a batch are split into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_batch_size(batch_size: int, grad_accumulation: int, mesh: Mesh) -> None:
    """Checks that every microbatch splits evenly over the mesh and the processes.

    Raises:
      ValueError: it does not; the message names the config keys.
    """
    parts = batch_shards(mesh) * grad_accumulation
    if batch_size % parts or batch_size % jax.process_count():
        raise ValueError(
            f"config train.batch_size: found {batch_size}; wanted a multiple of "
            f"mesh.data ({mesh.shape['data']}) x mesh.fsdp ({mesh.shape['fsdp']}) x "
            f"train.grad_accumulation ({grad_accumulation}) = {parts} "
            f"and of the {jax.process_count()} processes"
        )


def put_batch(mesh: Mesh, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Makes global arrays of this process's part of a batch.

    Args:
      mesh: from `make_mesh`.
      batch: arrays [B / processes, ...] of this process.

    Returns:
      Arrays [B, ...], rows over (data, fsdp).

    Raises:
      ValueError: the rows do not split evenly over the mesh.
    """
    placed = {}
    for name, array in batch.items():
        rows = array.shape[0] * jax.process_count()
        if rows % batch_shards(mesh):
            raise ValueError(
                f"batch {name}: found {rows} rows; wanted a multiple of mesh.data x mesh.fsdp = "
                f"{batch_shards(mesh)}"
            )
        sharding = NamedSharding(mesh, batch_spec(mesh, name, array.shape))
        placed[name] = jax.make_array_from_process_local_data(sharding, np.asarray(array))
    return placed


def leaf_name(path: tuple[Any, ...]) -> str:
    """Readable name of a leaf: its keys joined by "/", metadata boxes left out."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
