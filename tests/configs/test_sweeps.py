"""Every sweep builds: its grid, its data and tests, and a model of each mixer and width."""

import importlib
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

import configs
from bayesmem.models import AddressModel, LanguageModel, parameter_counts
from bayesmem.ops import linalg
from bayesmem.train.grid import SweepSettings
from bayesmem.train.sweep_config import checked
from bayesmem.train.task_data import MAIN_TEST, SAMPLED, all_data, sampled_task
from bayesmem.train.tasks import build_task, model_of
from bayesmem.train.together import create_runs, make_test, make_train_steps
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
    _, grid = checked(config)
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


def steps_of(config, mixer, runs=2):
    """Shapes of two steps of runs trained together, and of their test: traced, not compiled."""
    task = build_task(config, mixer, 32, 4)
    optimizer = optax.sgd(1.0)
    seeds = tuple(range(runs))
    state = jax.eval_shape(lambda: create_runs(task, optimizer, seeds))
    picks = jax.eval_shape(lambda: jnp.asarray(task.picks(seeds, 0, 2)))
    advance = make_train_steps(task, optimizer, (1e-3,) * runs)
    after, metrics = jax.eval_shape(advance, state, task.arrays, picks)
    tally = jax.eval_shape(make_test(task, MAIN_TEST), state.params, task.tests[MAIN_TEST])
    return state, after, metrics, tally


def tiny(name):
    config = load(name).unlock()
    config.data.test_examples = 4
    if name == "mqar":
        config.data.train_examples, config.data.vocab_size, config.model.vocab_size = 8, 16, 16
        del config.tests["length_x4"]
    else:
        for mixer in config.model.mixer_options:
            config.model.mixer_options[mixer]["num_heads"] = 2  # of 16 channels at width 32
    return config


@pytest.mark.parametrize("backend", ("cpu", "gpu"))
@pytest.mark.parametrize(
    "name,mixer",
    [("mqar", mixer) for mixer in mqar.OPTIONS] + [("collision", x) for x in collision.MATCHED],
)
def test_runs_of_every_mixer_can_be_trained_together(monkeypatch, name, mixer, backend):
    """By the forms that a backend takes; a rule that `vmap` lacks would show in tracing."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(linalg, "_splits", lambda backend: False)
    state, after, metrics, tally = steps_of(tiny(name), mixer)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert metrics.loss.shape == (2, 2) and tally.correct.shape == (2,)
