"""What tests of several kernels do in the same way."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from tests.tolerances import assert_close


def count_kernels(call, *arguments) -> int:
    """Lowers a call for CUDA, which needs no GPU, and returns how many kernels it runs."""
    checks = [export.DisabledSafetyCheck.custom_call(f"mosaic_gpu{v}") for v in ("", "_v2")]
    lowered = export.export(jax.jit(call), platforms=["cuda"], disabled_checks=checks)
    return lowered(*arguments).mlir_module().count("custom_call @mosaic_gpu")


def assert_cotangent_close(found, wanted, rounded: bool, dtype, length: int = 1) -> None:
    """Asserts that a cotangent is right, relative to its largest entry.

    Args:
      found: of kernels.
      wanted: of the definition.
      rounded: whether it was rounded to bfloat16, once, at the end: that does not add up.
      dtype: of the table of tolerances, otherwise.
      length: as there.
    """
    wanted = np.asarray(jnp.asarray(wanted, jnp.float32))
    scale = max(float(np.abs(wanted).max()), 1e-30)
    one, other = np.asarray(jnp.asarray(found, jnp.float32)) / scale, wanted / scale
    if rounded:
        assert_close(one, other, jnp.bfloat16)
    else:
        assert_close(one, other, dtype, "gradient", length)


def assert_passed_close(found, wanted) -> None:
    """Asserts that what a forward pass leaves (`op.Passed`) is right, to 2 parts.

    Args:
      found: of kernels; reads in bfloat16.
      wanted: of the algebra.
    """
    for name in found._fields:
        one, other = (jnp.asarray(getattr(x, name), jnp.float32) for x in (found, wanted))
        if name == "reads":
            assert_close(one, other, jnp.bfloat16)
        else:
            scale = float(jnp.abs(other).max())
            assert_close(one / scale, other / scale, "2 parts")
