"""What the Kalman chunk's kernels do not have is refused with its reason."""

import jax
import jax.numpy as jnp
import pytest

from bayesmem.ops import dispatch
from bayesmem.ops.kalman.types import KalmanInputs
from kernels_pallas.kalman_chunk import op
from kernels_pallas.kalman_chunk.config import Config


def inputs(dim=64, width=64, channels=1, angle=None, dtype=jnp.float32):
    """Shapes of a call of 70 tokens."""
    lead = (1, 70, 2)
    sizes = KalmanInputs(
        q=(*lead, dim),
        k=(*lead, dim),
        v=(*lead, 1, width),
        log_decay=(*lead, channels),
        angle=None,
        process_var=lead,
        obs_var=(*lead, 1),
        prior_var=(2,),
        starts=None,
        mean=(1, 2, 1, dim, width),
        cov=(1, 2, 1, dim, dim),
    )
    shapes = {
        name: None if x is None else jax.ShapeDtypeStruct(x, dtype)
        for name, x in sizes._asdict().items()
    }
    return KalmanInputs(**shapes | {"angle": angle})


@pytest.mark.parametrize(
    "backend,sizes,narrow,reason",
    (
        ("triton", {}, True, "no triton kernel"),
        ("pallas", {"angle": 1}, True, "rotations"),
        ("pallas", {"channels": 64}, True, "one decay a head"),
        ("pallas", {"dim": 256}, True, "D=256"),
        ("pallas", {}, False, "bfloat16"),
        ("pallas", {"dtype": jnp.bfloat16}, True, "float32, and bfloat16"),
        ("pallas", {}, True, "Hopper"),
    ),
)
def test_what_is_not_there_is_refused_with_its_reason(backend, sizes, narrow, reason):
    if reason == "Hopper" and jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    with pytest.raises(NotImplementedError, match=reason):
        op.run(backend, inputs(**sizes), 64, narrow=narrow)


def test_options_reach_kernels_only():
    def plain(x):
        return x

    def kernel(x, narrow=None):
        return x, narrow

    forms = dispatch.tell_kernels({"chunked": plain, "pallas": kernel}, narrow=True)
    assert set(forms) == {"chunked", "pallas"}
    assert dispatch.run("op", "pallas", forms, (), 3) == (3, True)
    assert dispatch.run("op", "chunked", forms, (), 3) == 3


@pytest.mark.parametrize("wrong", ({"length": 32}, {"length": 0, "kernel": False}, {"parts": 1}))
def test_tuning_values_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Config(**wrong)
