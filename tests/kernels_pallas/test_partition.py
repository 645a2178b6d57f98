"""Devices of a mesh run their own sequences and heads (8 devices in a subprocess)."""

import json
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from kernels_pallas import axes, partition
from kernels_pallas.delta_chunk import op as delta_op
from kernels_pallas.kalman_chunk import op
from kernels_pallas.kalman_chunk.config import Config
from tests.kernels_pallas.partition_worker import PLAIN, delta, gradients, kalman
from tests.tolerances import tolerance

ROOT = pathlib.Path(__file__).parents[2]
# Sequences and heads of a device's part, of those in `partition_worker.LAYOUTS`.
PARTS = {
    "both": (2, 2),
    "sequences": (1, 3),
    "heads": (3, 1),
    "neither": (3, 3),
    "some": (3, 2),
}
BOTH = ("vmap", "vmap of one argument", "checkpoint", "scan", "no jit", "shard_map")
SHARED = (  # tried with the smaller op: what they go through is one for both
    "vmap of vmap of vmap", "auto_axes", "set_mesh, arguments nowhere yet",
    "set_mesh, constraints by axes",
)  # fmt: skip


@pytest.fixture(scope="module")
def eight():
    """Results of partition_worker."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels_pallas.partition_worker"],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("layout", PARTS)
@pytest.mark.parametrize("op", ("kalman", "delta"))
def test_values_and_gradients_equal_those_of_one_device(eight, op, layout):
    assert eight["layouts"][f"{op}, {layout}"]["wrong"] == ""


@pytest.mark.parametrize("layout", PARTS)
@pytest.mark.parametrize("op", ("kalman", "delta"))
def test_a_device_runs_its_part_only(eight, op, layout):
    parts = eight["layouts"][f"{op}, {layout}"]["parts"]
    for name in ("mean_chain", "backward"):
        smallest = min(sizes for found, *sizes in parts if found == name)
        assert tuple(smallest) == PARTS[layout]


@pytest.mark.parametrize("layout", ("both", "sequences", "heads"))
@pytest.mark.parametrize("op", ("kalman", "delta"))
def test_only_sums_move_between_devices(eight, op, layout):
    # Those of the loss and of gradients of what all sequences share; no token, no state moves.
    assert eight["layouts"][f"{op}, {layout}"]["moves"] == ["all-reduce"]


def test_results_that_nothing_depends_on_have_parts_too(eight):
    found = eight["reads"]
    assert found["wrong"] == "" and found["moves"] == ["all-reduce"]
    assert ["backward", *PARTS["both"]] in found["parts"]


@pytest.mark.parametrize(
    ("op", "transformation"),
    [("kalman", name) for name in BOTH] + [("delta", name) for name in (*BOTH, *SHARED)],
)
def test_transformations_around_an_op_on_a_mesh(eight, op, transformation):
    assert eight["around"][op][transformation] == ""


def test_merged_axes_cross_the_border_apart(eight):
    assert eight["merged"] == {"wrong": "", "parts": [["flat", 2, 2], ["flat", 8, 4]], "moves": []}


def test_layers_train_on_a_mesh_as_on_one_device(eight):
    one, several = eight["train"]["one"], eight["train"]["eight"]
    np.testing.assert_allclose(
        several["losses"], one["losses"], **tolerance(jnp.float32, "gradient")
    )
    assert len(set(one["losses"])) == 3
    for name in ("mean_chain", "backward"):
        assert [name, 16, 2] in one["parts"] and [name, 4, 1] in several["parts"]


def test_one_device_does_without(monkeypatch):
    inputs = kalman(2, 2)
    monkeypatch.setattr(partition, "_function", None)
    assert "custom_partitioning" not in str(
        jax.make_jaxpr(lambda x: op.filter_tokens(x, PLAIN))(inputs)
    )


def test_sizes_that_do_not_agree_are_named():
    with pytest.raises(ValueError, match="axis H: found 3 and 2"):
        axes.sizes(("B H", "H"), ((1, 2), (3,)))


CALLS = {
    "kalman": (kalman, lambda x: op.filter_tokens(x, Config())),
    "kalman, reads only": (kalman, lambda x: op.filter_tokens(x, Config()).y),
    "delta": (delta, lambda x: delta_op.run_tokens(x, Config())),
}


@pytest.mark.parametrize(
    "name,dim",
    (*((name, dim) for name in CALLS for dim in (64, 128)),
     ("kalman", 256), ("kalman, reads only", 256)),
)  # fmt: skip
def test_what_kernels_leave_to_their_reverse_is_where_it_is_said_to_be(monkeypatch, name, dim):
    make, run = CALLS[name]
    inputs = jax.eval_shape(lambda: make(3, 5, dim))
    wanted = jax.eval_shape(lambda x: gradients(run, x), inputs)
    ran = []
    monkeypatch.setattr(partition, "needed", lambda arrays: ran.append(arrays) or True)
    found = jax.make_jaxpr(lambda x: gradients(run, x), return_shape=True)(inputs)
    assert len(ran) == 2 and str(found[0]).count("custom_partitioning[") == 2
    assert found[1] == wanted


def sharded(shape, *spec):
    """What `partition` is given of an array; JAX's own refuses parts of different sizes."""
    return SimpleNamespace(
        shape=shape, ndim=len(shape), sharding=SimpleNamespace(spec=PartitionSpec(*spec))
    )


@pytest.mark.parametrize(
    "batch,cut", ((8, ("data", "fsdp")), (4, ("data",)), (6, ("fsdp",)), (3, ()))
)
def test_mesh_axes_that_divide_are_kept(batch, cut):
    mesh = AbstractMesh((4, 2), ("data", "fsdp"))
    x = sharded((batch, 5), ("data", "fsdp"))
    assert partition._cut(mesh, [x], [("B", "H")]) == {"B": cut, "H": ()}


def test_a_mesh_axis_cuts_one_axis_and_the_most_devices_are_chosen():
    mesh = AbstractMesh((4, 2), ("data", "fsdp"))
    x, y = sharded((8, 8), "fsdp", "data"), sharded((8, 8), "data", "fsdp")
    nowhere = SimpleNamespace(shape=(8, 8), ndim=2, sharding=None)
    cut = partition._cut(mesh, [nowhere, x, y], [("B", "H")] * 3)
    assert cut == {"B": ("data",), "H": ("fsdp",)}


def test_without_a_mesh_nothing_is_cut():
    x = SimpleNamespace(shape=(8,), ndim=1, sharding=object())
    assert partition._cut(AbstractMesh((), ()), [x], [("B",)]) == {}
