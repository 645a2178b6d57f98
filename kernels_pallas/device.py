"""What kernels need of the machine."""

import jax

CAPABILITY = "9.0"
"""Compute capability of Hopper, whose warpgroup products the kernels are written in."""


def require_device() -> None:
    """Raises NotImplementedError, with the reason, where the kernels cannot run.

    XLA does not know how to cut a kernel into parts: under a mesh it would gather the inputs and
    run all of it on every device. Within `jax.shard_map` each device has its own part.
    """
    device = jax.devices()[0]
    found = str(getattr(device, "compute_capability", "none"))
    if found != CAPABILITY:
        raise NotImplementedError(
            f"the pallas kernel needs a Hopper GPU (compute capability {CAPABILITY}), and {found} "
            f"was found"
        )
    manual = getattr(jax.sharding.get_abstract_mesh(), "manual_axes", ())
    if jax.device_count() > 1 and not manual:
        raise NotImplementedError(
            f"the pallas kernel runs on one device, and {jax.device_count()} were found: hide the "
            f"others (CUDA_VISIBLE_DEVICES) or call the op within jax.shard_map"
        )
