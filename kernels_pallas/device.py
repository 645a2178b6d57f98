"""What kernels need of the machine and of a call."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp

from kernels_pallas import partition

CAPABILITY = "9.0"
"""Compute capability of Hopper, whose warpgroup products the kernels are written in."""

PROGRAMS = 65_535
"""Most programs of a launch along one axis of its grid."""


def require(backend: str, missing: list[str], inputs: Any, programs: int, narrow: bool) -> None:
    """Raises NotImplementedError with all reasons why kernels cannot take a call, if there is one.

    Args:
      backend: "pallas"; there is no other.
      missing: what the op's own kernels do not have of this call, each as a reason.
      inputs: arrays of the call, a NamedTuple.
      programs: how many programs a launch has for each chunk. On a mesh the parts of a call are
        known only once it is compiled, too late to refuse it: there all of it has to fit.
      narrow: whether q, k and v came as bfloat16.
    """
    if backend != "pallas":
        raise NotImplementedError(f"there is no {backend} kernel for it, only a pallas one")
    missing = list(missing)
    if not narrow:
        missing.append("takes q, k and v in bfloat16 only")
    if not 0 < programs <= PROGRAMS:
        missing.append(
            f"runs 1 to {PROGRAMS} sequences x heads x groups, and {programs} were found"
        )
    if any(getattr(jax.typeof(x), "vma", None) for x in jax.tree.leaves(inputs) if _traced(x)):
        missing.append("runs within jax.shard_map with check_vma=False only")
    if partition.explicit(inputs):
        missing.append(
            "runs on meshes with axes of type Auto, and Explicit was found: call the op within "
            "jax.sharding.auto_axes"
        )
    missing += missing_of_machine()
    if missing:
        raise NotImplementedError(f"the pallas kernel {'; it '.join(missing)}")


def not_float32(dtype: Any) -> list[str]:
    """Returns the reason against a state of another dtype than float32, if it has one."""
    return [] if dtype == jnp.float32 else [f"is float32, and a state of {dtype} was found"]


def _traced(x: Any) -> bool:
    return isinstance(x, jax.Array)


def current() -> Any:
    """The device that a call runs on where no mesh says otherwise."""
    device = getattr(jax.config, "jax_default_device", None) or jax.devices()[0]
    return jax.devices(device)[0] if isinstance(device, str) else device


def missing_of_machine() -> list[str]:
    """Returns what the kernels miss of the machine, and of the mesh that is in use.

    `partition` cuts a call among the devices of a mesh, and within `jax.shard_map` over all axes
    each device has its own part. Within one over some axes there is no telling: a custom call that
    is partly cut by hand is more than XLA's partitioners promise to finish.
    """
    missing = []
    found = str(getattr(current(), "compute_capability", "none"))
    if found != CAPABILITY:
        missing.append(
            f"needs a Hopper GPU (compute capability {CAPABILITY}), and {found} was found"
        )
    mesh = jax.sharding.get_abstract_mesh()
    spread = {name for name, size in mesh.shape.items() if size > 1}
    manual = set(getattr(mesh, "manual_axes", ()))
    if manual and not spread <= manual:
        missing.append(
            f"runs within jax.shard_map over all axes of a mesh or none, and over "
            f"{', '.join(sorted(manual))} of {', '.join(sorted(spread | manual))} was found"
        )
    try:
        importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    except ImportError as error:
        missing.append(f"needs Pallas' Mosaic GPU ({error})")
    return missing
