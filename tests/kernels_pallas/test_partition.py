"""Devices of a mesh run their own sequences and heads (8 devices in a subprocess)."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas import partition
from kernels_pallas.kalman_chunk import op
from tests.kernels_pallas.partition_worker import PLAIN, kalman
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
AROUND = (
    "vmap", "vmap of one argument", "checkpoint", "scan", "no jit", "shard_map", "auto_axes",
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


@pytest.mark.parametrize("transformation", AROUND)
@pytest.mark.parametrize("op", ("kalman", "delta"))
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
        partition._sizes(("B H", "H"), ((1, 2), (3,)))
