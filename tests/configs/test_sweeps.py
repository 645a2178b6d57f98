"""Every sweep builds: its grid, its data and tests, and a model of each mixer and width."""

import importlib
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import configs
from bayesmem.models import AddressModel, LanguageModel, parameter_counts
from bayesmem.train.grid import SweepSettings
from bayesmem.train.settings import SECTIONS, Settings
from bayesmem.train.task_data import MAIN_TEST, SAMPLED, all_data, sampled_task
from bayesmem.train.tasks import model_of
from configs.sweeps import collision, mqar

VARIANTS = {
    "collision": [None],
    "random_keys": [None],
    "mqar": [",".join(parts) for parts in itertools.product(mqar.TASKS, mqar.SIZES)],
}
ALL = [(name, variant) for name, variants in VARIANTS.items() for variant in variants]


def load(name, variant=None):
    module = importlib.import_module(f"configs.sweeps.{name}")
    return module.get_config() if variant is None else module.get_config(variant)


def parameters(config, mixer, width):
    """Of a model; none of them is made."""
    model = model_of(config, mixer, width)
    given = [jnp.zeros((1, 2), jnp.int32)]
    module = LanguageModel(model)
    if config["data"]["task"] in SAMPLED:
        task = sampled_task(all_data(config)[MAIN_TEST])
        module = AddressModel(model)
        given = [jnp.zeros((1, 2, 1 + task.dims + task.labels)), jnp.zeros((1, 2, task.dims))]
    boxed = jax.eval_shape(module.init, jax.random.key(0), *given)
    return parameter_counts(boxed["params"])["total"]


def test_every_sweep_is_in_these_tests():
    folder = Path(configs.__file__).parent / "sweeps"
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set(VARIANTS)


@pytest.mark.parametrize("name,variant", ALL)
def test_a_sweep_has_a_grid_data_and_tests(name, variant):
    config = load(name, variant)
    assert config.is_locked
    Settings.from_config({key: config[key] for key in ("seed", *SECTIONS)})
    grid = SweepSettings.from_config(config.sweep)
    assert set(grid.mixers) == set(config.model.mixer_options)
    assert len(all_data(config)) == 1 + len(config.tests)
    assert (
        f"--config=configs/sweeps/{name}.py"
        in importlib.import_module(f"configs.sweeps.{name}").__doc__
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_every_mixer_and_width_has_a_model(name):
    config = load(name)
    grid = SweepSettings.from_config(config.sweep)
    for mixer in grid.mixers:
        assert parameters(config, mixer, grid.widths[0]) > 0
    for width in grid.widths:
        model_of(config, grid.mixers[-1], width)


def test_the_five_mixers_are_matched():
    """They differ by the gates of their writes alone: by less than a tenth."""
    config = load("collision")
    found = {mixer: parameters(config, mixer, 64) for mixer in collision.MATCHED}
    gates = {mixer: count - found["linear_attention"] for mixer, count in found.items()}
    assert gates["deltanet/reset"] == 0  # its strength is fixed
    assert all(0 <= gate < found["linear_attention"] / 10 for gate in gates.values())


def test_longer_rows_have_room_in_caches():
    assert model_of(load("mqar", "base,128x8"), "attention", 64).max_length == 512


def test_an_unknown_variant_lists_what_exists():
    with pytest.raises(ValueError, match="banana.*update.*64x4"):
        load("mqar", "banana")
