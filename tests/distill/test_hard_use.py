"""What must not happen to a teacher, and distillations of numbers that are not finite."""

import json
import shutil

import jax
import jax.numpy as jnp
import optax
import pytest

from bayesmem.distill.phases import distill
from bayesmem.train.checkpoint import restore_params, save_checkpoint
from bayesmem.train.parts import build_model
from bayesmem.train.settings import MeshSettings
from bayesmem.train.sharding import make_mesh
from bayesmem.train.step import TrainState, abstract_params
from bayesmem.train.workdir import read_config
from tests.distill.runs import contents, make_config, make_teacher, restored


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return make_teacher(tmp_path_factory.mktemp("teacher"))


def add_step(workdir, step, change):
    """Saves a later step of a run with changed parameters."""
    target = abstract_params(build_model(read_config(workdir)), make_mesh(MeshSettings()))
    params = change(restore_params(workdir / "checkpoints", target)[1])
    zero = jnp.zeros((), jnp.int32)
    state = TrainState(zero + step, params, optax.EmptyState(), jax.random.key(0), zero)
    save_checkpoint(workdir / "checkpoints", state, {})


@pytest.mark.parametrize("place", ["", "inside", "checkpoints"])
def test_a_teachers_folder_is_left_alone(teacher, place):
    before = contents(teacher)
    with pytest.raises(ValueError, match="workdir: found .* in the teacher's folder"):
        distill(make_config(teacher), teacher / place)
    assert contents(teacher) == before


def test_the_workdir_of_another_run_is_left_alone(teacher, tmp_path):
    other = shutil.copytree(teacher, tmp_path / "other")
    before = contents(other)
    with pytest.raises(ValueError, match="holds a run with another config"):
        distill(make_config(teacher), other)
    assert contents(other) == before


def test_a_teacher_that_trains_on_is_read_where_it_was(teacher, tmp_path):
    own, workdir = shutil.copytree(teacher, tmp_path / "own"), tmp_path / "run"
    distill(make_config(own, phases=["phase_a"]), workdir)
    earlier = restored(workdir / "phase_a")
    add_step(own, 9, lambda params: jax.tree.map(lambda x: x + 1, params))
    distill(make_config(own, phases=["phase_a", "phase_b"]), workdir)
    assert json.loads((workdir / "teacher.json").read_text())["step"] == earlier[0] == 4
    for name, value in restored(workdir / "phase_b")[1].items():
        if "layers/block_1/mixer" not in name:
            assert (value == earlier[1][name]).all(), name


def test_numbers_that_are_not_finite_are_named(teacher, tmp_path):
    broken = shutil.copytree(teacher, tmp_path / "broken")
    add_step(broken, 9, lambda params: params | {"final_norm": {"scale": jnp.full(8, jnp.nan)}})
    with pytest.raises(ValueError, match=r"not finite in final_norm/scale of .*broken"):
        distill(make_config(broken), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_no_phase_follows_one_that_diverged(teacher, tmp_path):
    config = make_config(teacher)
    config["phase_a"]["optimizer"]["learning_rate"] = 1e38
    for _ in range(2):  # said again, not passed over
        with pytest.raises(ValueError, match=r"phase_a: found a loss .* not finite.*learning_rate"):
            distill(config, tmp_path / "run")
    assert not (tmp_path / "run" / "phase_b").exists()
