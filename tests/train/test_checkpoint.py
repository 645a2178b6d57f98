"""Checkpoints: exact round trip, strict fit, and unusable steps that are skipped and kept."""

import json
import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.train.checkpoint import (
    abstract_state,
    all_steps,
    newest_usable_step,
    prune,
    restore_newest,
    restore_params,
    save_checkpoint,
    step_path,
)
from bayesmem.train.optimizer import make_optimizer
from bayesmem.train.settings import MeshSettings, OptimizerSettings
from bayesmem.train.sharding import make_mesh
from bayesmem.train.step import TrainState, create_state
from tests.train.toys import ToyModel

LOADER = {"position": 3, "inner": {"seed": 7}}


@pytest.fixture(scope="module")
def state():
    """A state whose leaves all differ from zero and from each other."""
    settings = OptimizerSettings(learning_rate=0.1, warmup_steps=1, weight_decay=0.1)
    state, _ = create_state(ToyModel(), make_optimizer(settings, 9), 0, make_mesh(MeshSettings()))
    rng = np.random.default_rng(0)

    def fill(leaf):
        values = rng.integers(1, 99, leaf.shape) if leaf.dtype == jnp.int32 else None
        values = rng.normal(size=leaf.shape) if values is None else values
        return jax.device_put(np.asarray(values, leaf.dtype), leaf.sharding)

    params, opt_state = jax.tree.map(fill, (state.params, state.opt_state))
    return state._replace(params=params, opt_state=opt_state, skipped=jnp.int32(2))


def at_step(state, step):
    return state._replace(step=jnp.int32(step))


def target_of(state):
    return abstract_state(state)


def assert_states_equal(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == two.dtype
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, two = jax.random.key_data(one), jax.random.key_data(two)
        np.testing.assert_array_equal(one, two)


@pytest.fixture
def saved(tmp_path, state):
    """A directory with the usable steps 1 and 2."""
    for step in (1, 2):
        save_checkpoint(tmp_path, at_step(state, step), LOADER | {"position": step})
    return tmp_path


def test_round_trip_is_exact(tmp_path, state):
    assert save_checkpoint(tmp_path, at_step(state, 12), LOADER) == 12
    restored = restore_newest(tmp_path, target_of(state))
    assert restored.step == 12 and restored.loader_state == LOADER
    assert_states_equal(restored.state, at_step(state, 12))
    assert isinstance(restored.state, TrainState)


def test_loader_state_may_be_bytes(tmp_path, state):
    save_checkpoint(tmp_path, state, b"\x00grain\xff")
    assert restore_newest(tmp_path, target_of(state)).loader_state == b"\x00grain\xff"


def test_nothing_to_restore(tmp_path, state):
    assert restore_newest(tmp_path / "none", target_of(state)) is None
    assert restore_newest(tmp_path, target_of(state)) is None
    with pytest.raises(FileNotFoundError, match="no usable checkpoint"):
        restore_params(tmp_path, target_of(state).params)


def test_parameters_alone(saved, state):
    step, params = restore_params(saved, target_of(state).params)
    assert step == 2
    jax.tree.map(np.testing.assert_array_equal, params, dict(state.params))


def changed(state, **params):
    target = target_of(state)
    merged = {name: x for name, x in (target.params | params).items() if x is not None}
    return target._replace(params=merged)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"head": None}, r"params/head: found float32\[16, 11\], wanted nothing"),
        ({"new": (3,)}, r"params/new: found nothing, wanted float32\[3\]"),
        ({"bias": (17,)}, r"params/bias: found float32\[16\], wanted float32\[17\]"),
    ],
)
def test_leaf_that_does_not_fit_is_named(saved, state, params, words):
    params = {
        name: None if shape is None else jax.ShapeDtypeStruct(shape, jnp.float32)
        for name, shape in params.items()
    }
    with pytest.raises(ValueError, match=words):
        restore_newest(saved, changed(state, **params))


def test_leaf_of_another_dtype_is_named(saved, state):
    leaf = jax.ShapeDtypeStruct((16,), jnp.bfloat16)
    with pytest.raises(
        ValueError, match=r"params/bias: found float32\[16\], wanted bfloat16\[16\]"
    ):
        restore_newest(saved, changed(state, bias=leaf))


def test_optimizer_that_does_not_fit_is_named(saved, state):
    target = target_of(state)._replace(opt_state=())
    with pytest.raises(ValueError, match=r"training/optimizer/\S+: found .* wanted nothing"):
        restore_newest(saved, target)


def files_of(path):
    return sorted(file for file in path.rglob("*") if file.is_file())


def contents(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in files_of(path)}


def empty_directory(path):
    shutil.rmtree(path)
    path.mkdir()


def truncate_everything(path):
    for file in files_of(path):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_one_byte_of_the_largest_file(path):
    file = max(files_of(path), key=lambda file: file.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def remove_item(path):
    shutil.rmtree(path / "training")


def record_without_files(path):
    (path / "COMMIT.json").write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [
        empty_directory,
        truncate_everything,
        flip_one_byte_of_the_largest_file,
        remove_item,
        record_without_files,
    ],
)
def test_unusable_newest_step_is_skipped_with_a_warning_and_kept(saved, state, damage, caplog):
    damage(step_path(saved, 2))
    before = contents(saved)
    with caplog.at_level(logging.WARNING):
        restored = restore_newest(saved, target_of(state))
    assert restored.step == 1 and restored.loader_state["position"] == 1
    assert_states_equal(restored.state, at_step(state, 1))
    assert "step_00000002 is skipped" in caplog.text
    assert contents(saved) == before


def test_every_single_file_missing_or_cut_is_noticed(saved):
    whole = step_path(saved, 2)
    for file in files_of(whole):
        for data in (None, file.read_bytes()[: file.stat().st_size // 2]):
            shutil.copytree(whole, step_path(saved, 3))
            broken = step_path(saved, 3) / file.relative_to(whole)
            broken.unlink() if data is None else broken.write_bytes(data)
            assert newest_usable_step(saved) == 2, file
            shutil.rmtree(step_path(saved, 3))


def test_kill_before_the_record_leaves_the_step_unusable(saved, state):
    (step_path(saved, 2) / "COMMIT.json").unlink()
    (saved / "step_00000003.orbax-checkpoint-tmp").mkdir()
    assert newest_usable_step(saved) == 1
    assert all_steps(saved) == [1, 2]


@pytest.mark.parametrize("key", ("files", "leaves"))
def test_a_record_without_files_or_leaves_leaves_the_step_unusable(saved, key):
    path = step_path(saved, 2) / "COMMIT.json"
    record = json.loads(path.read_text())
    for broken in (record | {key: {}}, {name: x for name, x in record.items() if name != key}):
        path.write_text(json.dumps(broken))
        assert newest_usable_step(saved) == 1


def test_saving_over_an_unusable_step_moves_it_aside(saved, state, caplog):
    truncate_everything(step_path(saved, 2))
    old = contents(step_path(saved, 2))
    half = saved / "step_00000002.orbax-checkpoint-tmp"
    half.mkdir()
    (half / "part").write_text("half")
    save_checkpoint(saved, at_step(state, 2), LOADER)
    assert newest_usable_step(saved) == 2
    assert contents(saved / "step_00000002.unusable-0") == old
    aside = saved / "step_00000002.orbax-checkpoint-tmp.unusable-0"
    assert (aside / "part").read_text() == "half"
    assert "renamed to step_00000002.unusable-0" in caplog.text
    truncate_everything(step_path(saved, 2))
    save_checkpoint(saved, at_step(state, 2), LOADER)
    assert contents(saved / "step_00000002.unusable-0") == old
    assert (saved / "step_00000002.unusable-1").is_dir()


def test_prune_removes_only_surplus_steps_of_this_process(saved, state):
    written = [save_checkpoint(saved, at_step(state, step), LOADER) for step in (3, 4, 5)]
    assert prune(saved, written, 0) == [3, 4, 5]
    assert prune(saved, written, 2) == [4, 5]
    assert all_steps(saved) == [1, 2, 4, 5]
    assert prune(saved, [4, 5], 2) == [4, 5]


def test_record_lists_every_file_and_leaf(saved, state):
    record = json.loads((step_path(saved, 2) / "COMMIT.json").read_text())
    on_disk = {str(file.relative_to(step_path(saved, 2))) for file in files_of(step_path(saved, 2))}
    assert set(record["files"]) == on_disk - {"COMMIT.json"}
    assert set(record["leaves"]["params"]) == set(state.params)
    assert record["leaves"]["training"]["rng"] == {"shape": [2], "dtype": "uint32"}
