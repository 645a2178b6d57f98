"""Address tasks in a sweep: batches are drawn from seed and step, tests from keys of their own."""

import json

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from bayesmem.data.collision import CollisionTask, sample_collision
from bayesmem.train.sweep import sweep
from bayesmem.train.task_data import MAIN_TEST
from bayesmem.train.tasks import TEST_ROWS, build_task
from configs import common


def small(**changes):
    """Two pairs of keys in four dimensions."""
    data = ml_collections.ConfigDict()
    data.task, data.pairs, data.dims, data.labels, data.boost = "collision", 2, 4, 4, 1
    data.floods, data.overlap, data.seed, data.test_examples = (1, 2), (0.6, 0.8), 0, 6
    config = common.base(data, 4)
    config.model.width, config.model.mlp_width, config.model.num_layers = 8, 0, 1
    config.model.tie_embeddings = False
    config.model.mixer_options["deltanet"] = {"num_heads": 2, "conv_size": 0}
    config.train.steps, config.train.batch_size, config.train.log_every = 4, 4, 2
    config.optimizer.warmup_steps = 0
    common.sweep(config, ("deltanet",))
    config.sweep.seeds = (0, 1)
    config.tests["long"] = {"floods": (5,)}
    for path, value in changes.items():
        section, key = path.split("__")
        config[section][key] = value
    return config


@pytest.fixture(scope="module")
def task():
    return build_task(small(), "deltanet", 8, 4)


def tokens(batch):
    return np.asarray(batch["tokens"])


def test_a_batch_belongs_to_seed_and_step(task):
    picks = task.picks((7, 3), 2, 5)
    assert picks.tolist() == [[[7, step], [3, step]] for step in (2, 3, 4)]
    one = tokens(task.batch((), jnp.asarray(picks[0, 0])))
    assert (one == tokens(task.batch((), jnp.asarray(task.picks((7,), 0, 9)[2, 0])))).all()
    others = [picks[0, 1], picks[1, 0]]
    assert all((one != tokens(task.batch((), jnp.asarray(pick)))).any() for pick in others)


def test_tests_have_their_own_distribution_and_no_row_of_training(task):
    entries = {name: jax.tree.map(lambda x: x[0], keys) for name, keys in task.tests.items()}
    main, long = (task.test_batch(name, entry) for name, entry in entries.items())
    assert main["tokens"].shape[1] == CollisionTask(2, 4, 4, 1, (1, 2)).length
    wanted = sample_collision(CollisionTask(2, 4, 4, 1, (5,)), entries["long"][0], TEST_ROWS)
    assert (tokens(long) == np.asarray(wanted.tokens)).all()
    trained = {row.tobytes() for step in range(20) for row in tokens(
        task.batch((), jnp.asarray((0, step))))}  # fmt: skip
    tested = {row.tobytes() for row in tokens(main)}
    assert len(trained) == 80 and len(tested) == TEST_ROWS and not trained & tested
    # The rows asked for count, and they do not depend on the batch of training.
    assert ((np.asarray(main["targets"]) != -100).sum(1) == [2] * 6 + [0] * (TEST_ROWS - 6)).all()
    other = build_task(small(), "deltanet", 8, 2)
    assert (tokens(other.test_batch(MAIN_TEST, entries[MAIN_TEST])) == tokens(main)).all()
    assert (entries[MAIN_TEST][0] == jax.tree.map(lambda x: x[0], other.tests[MAIN_TEST])[0]).all()


def test_logits_are_those_of_the_queries(task):
    params = jax.tree.map(lambda x: x, task.init(jax.random.key(0)))
    batch = task.batch((), jnp.asarray((0, 0)))
    logits, penalty = task.logits(params, batch)
    assert logits.shape == (4, 2, 4) and float(penalty) == 0
    spoilt = batch | {"tokens": batch["tokens"] + 5.0 * (batch["segment_ids"] < 0)[..., None]}
    assert (np.asarray(task.logits(params, spoilt)[0]) == np.asarray(logits)).all()


def test_margins_reach_the_results(tmp_path):
    assert sweep(small(), tmp_path)["done"] == 2
    again = tmp_path / "again"
    sweep(small(), again)
    (one,), (two,) = (sorted((p / "results").glob("*.json")) for p in (tmp_path, again))
    assert one.name == two.name
    values = [json.loads(path.read_text())["runs"] for path in (one, two)]
    assert values[0] == values[1]
    for run in values[0]:
        for name in (MAIN_TEST, "long"):
            assert run["tests"][name]["queries"] == 2 * 6
            assert -1 <= run["tests"][name]["margin"] <= 1


@pytest.mark.parametrize(
    "changes,message",
    (
        ({"data__pairs": 3}, "config data: dims: found 4"),
        ({"data__floods": ()}, "floods"),
        ({"data__overlap": (0.9, 0.2)}, "overlap"),
        ({"data__test_examples": 0}, "test_examples: found 0"),
        ({"data__unread": 1}, "unknown keys ['unread']"),
        ({"tests__long": {"labels": 6}}, "config tests['long']: found task, classes"),
        ({"tests__long": {"dims": 5}}, "config tests['long']: found task, classes"),
        ({"sweep__widths": (8, 16)}, "width 16 at addresses of data.dims = 4"),
        ({"tests__long": {"task": "random_keys"}}, "config tests['long']"),
        ({"model__tie_embeddings": True}, "tie_embeddings"),
        ({"model__mixer_options": {"deltanet": {"num_heads": 1}}}, "addresses"),
    ),
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ValueError) as caught:
        sweep(small(**changes), tmp_path / "new")
    assert message in str(caught.value)
    assert not (tmp_path / "new").exists()
