"""What the Kalman chunk's kernels do not have is refused with its reason."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from bayesmem.ops import dispatch
from bayesmem.ops.kalman.types import KalmanInputs
from kernels_pallas import device
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
        ("pallas", {"dim": 257}, True, "D=257"),
        ("pallas", {}, False, "bfloat16"),
        ("pallas", {"dtype": jnp.bfloat16}, True, "float32, and a state of bfloat16"),
        ("pallas", {}, True, "Hopper"),
    ),
)
def test_what_is_not_there_is_refused_with_its_reason(backend, sizes, narrow, reason):
    if reason == "Hopper" and jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    with pytest.raises(NotImplementedError, match=reason):
        op.run(backend, inputs(**sizes), 64, narrow=narrow)


def test_groups_of_few_channels_are_refused():
    with pytest.raises(NotImplementedError, match="M/G=8"):
        op.run("pallas", inputs(width=8), 64, narrow=True)


def test_no_sequence_is_refused():
    nobody = inputs()
    nobody = nobody._replace(v=jax.ShapeDtypeStruct((0, *nobody.v.shape[1:]), jnp.float32))
    with pytest.raises(NotImplementedError, match="0 were found"):
        op.run("pallas", nobody, 64, narrow=True)


@pytest.fixture
def hopper(monkeypatch):
    """A machine that seems to have one."""
    found = type("Device", (), {"compute_capability": "9.0"})()
    real = jax.devices
    monkeypatch.setattr(jax, "devices", lambda *names: real(*names) if names else [found])


def mesh_of(manual, axis_type=AxisType.Auto):
    """What is in use within `jax.shard_map` over some axes."""
    types = tuple(AxisType.Manual if name in manual else axis_type for name in "abc")
    return jax.sharding.AbstractMesh((2, 4, 1), ("a", "b", "c"), axis_types=types)


def test_several_devices_are_taken(hopper, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda *_: 8)
    assert not device.missing_of_machine()
    with jax.sharding.use_abstract_mesh(mesh_of(())):
        assert not device.missing_of_machine()


@pytest.mark.parametrize("manual,refused", (("ab", False), ("a", True), ("bc", True)))
def test_every_axis_of_a_mesh_is_manual_or_none(hopper, manual, refused):
    with jax.sharding.use_abstract_mesh(mesh_of(manual)):
        assert bool(device.missing_of_machine()) == refused
        if refused:
            with pytest.raises(NotImplementedError, match=f"over {', '.join(manual)} of a, b"):
                op.run("pallas", inputs(), 64, narrow=True)


def test_meshes_in_the_types_of_arrays_are_refused(hopper):
    with jax.sharding.use_abstract_mesh(mesh_of((), AxisType.Explicit)):
        with pytest.raises(NotImplementedError, match="Explicit was found.*auto_axes"):
            op.run("pallas", inputs(), 64, narrow=True)


def test_a_default_device_without_kernels_is_refused(hopper):
    with jax.default_device("cpu"):
        assert "Hopper" in device.missing_of_machine()[0]


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
