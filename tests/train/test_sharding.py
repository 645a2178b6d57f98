"""The mesh: placement, errors, and equal losses on 1 and 8 devices (8 in a subprocess)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bayesmem.train.settings import MeshSettings
from bayesmem.train.sharding import (
    batch_spec,
    check_batch_size,
    make_mesh,
    parameter_shardings,
    put_batch,
)
from tests.tolerances import tolerance
from tests.train.mesh_worker import LANGUAGE_MODEL_MESHES, MESHES
from tests.train.toys import batch_at

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """Results of mesh_worker, and what it logged."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.mesh_worker", str(tmp_path_factory.mktemp("mesh"))],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("name", [*list(MESHES)[1:], "data=8, accumulated"])
def test_losses_equal_those_of_one_device(eight, name):
    results, _ = eight
    assert results["one"]["losses"][-1] < results["one"]["losses"][0]
    np.testing.assert_allclose(
        results[name]["losses"], results["one"]["losses"], **tolerance(jnp.float32)
    )


@pytest.mark.parametrize("name", list(LANGUAGE_MODEL_MESHES)[1:])
def test_language_model_losses_equal_those_of_one_device(eight, name):
    results = eight[0]["language model"]
    assert len(set(results["one"])) == 3
    np.testing.assert_allclose(results[name], results["one"], **tolerance(jnp.float32, "gradient"))


def test_fsdp_splits_parameters_and_moments(eight):
    results, _ = eight
    assert results["fsdp=8"]["shard"] == results["fsdp=8"]["moment_shard"] == [11, 1]
    assert results["data=2,fsdp=4"]["shard"] == [11, 2]
    assert results["data=8, accumulated"]["shard"] == [11, 8]
    assert "'tensor'" in results["data=2,tensor=2,sequence=2"]["specs"]["kernel"]


def test_axis_that_does_not_divide_is_replicated_and_named(eight):
    _, log = eight
    assert "params/embedding: axis 0 (11) is not a multiple of mesh axis tensor (2)" in log


@pytest.mark.parametrize("count", [1, 2, 8])
def test_c11_other_device_count_is_bit_equal(eight, count):
    assert eight[0]["c11"][f"{count} fsdp"] == [True, count]


def test_c11_indivisible_count_names_leaf_and_axis(eight):
    message = eight[0]["c11"]["5 fsdp"]
    assert "params/w: axis 0 does not split over mesh axis fsdp: 24 % 5 = 4" in message
    assert eight[0]["c11"]["5 None"] == [True, 5]


def test_state_saved_on_one_mesh_restores_on_others(eight):
    assert eight[0]["restored"] == [True, True]


def test_mesh_must_use_all_devices():
    with pytest.raises(ValueError, match=r"fsdp = 64.*with \d+ devices"):
        make_mesh(MeshSettings(fsdp=64))
    with pytest.raises(ValueError, match="data = 3"):
        make_mesh(MeshSettings(data=3), jax.devices()[:1])


class TallMesh:
    """Stands in for a mesh of 8 devices where only its sizes are asked."""

    shape = {"data": 2, "fsdp": 4, "tensor": 1, "sequence": 2}


def test_batch_size_must_split_over_the_mesh():
    check_batch_size(32, 4, TallMesh)
    with pytest.raises(ValueError, match=r"train.batch_size: found 20.*\(2\).*\(4\).*\(1\) = 8"):
        check_batch_size(20, 1, TallMesh)
    with pytest.raises(ValueError, match="batch inputs: found 6 rows; wanted a multiple.*= 8"):
        put_batch(TallMesh, batch_at(0, rows=6))


def test_time_is_split_where_it_divides():
    assert batch_spec(TallMesh, "inputs", (8, 6)) == PartitionSpec(("data", "fsdp"), "sequence")
    assert batch_spec(TallMesh, "inputs", (8, 7)) == PartitionSpec(("data", "fsdp"))
    assert batch_spec(TallMesh, "query_positions", (8, 6)) == PartitionSpec(("data", "fsdp"))


def test_unknown_logical_axis_is_named():
    mesh = make_mesh(MeshSettings(), jax.devices()[:1])
    box = nn.LogicallyPartitioned(jnp.zeros((2, 3)), ("embed", "hedas"))
    with pytest.raises(ValueError, match="layer/kernel.*hedas"):
        parameter_shardings(mesh, {"layer": {"kernel": box}})
    box = nn.LogicallyPartitioned(jnp.zeros((2, 3)), ("embed",))
    with pytest.raises(ValueError, match="layer/kernel.*one each"):
        parameter_shardings(mesh, {"layer": {"kernel": box}})
