"""Runs trained together are the runs trained alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bayesmem.train.objective import batch_objective
from bayesmem.train.optimizer import make_optimizer
from bayesmem.train.settings import OptimizerSettings
from bayesmem.train.task_data import MAIN_TEST
from bayesmem.train.tasks import build_task
from bayesmem.train.together import create_runs, make_test, make_train_steps, means_of_runs
from tests.tolerances import assert_close
from tests.train.toys import sweep_config

STEPS = 5
ADAMW = OptimizerSettings(1.0, warmup_steps=1, weight_decay=0.1)


@pytest.fixture(scope="module")
def task():
    return build_task(sweep_config(), "linear_attention", 8, 4)


def trained(task, seeds, rates, steps=STEPS):
    optimizer = make_optimizer(ADAMW, STEPS)
    state = create_runs(task, optimizer, seeds)
    picks = jnp.asarray(task.picks(seeds, 0, steps))
    return make_train_steps(task, optimizer, rates)(state, task.arrays, picks)


def test_runs_do_not_see_each_other(task):
    state, metrics = trained(task, (0, 1, 0), (1e-2, 1e-2, 1e-1))
    for run, (seed, rate) in enumerate(((0, 1e-2), (1, 1e-2), (0, 1e-1))):
        alone, own = trained(task, (seed,), (rate,))
        for one, other in zip(
            jax.tree.leaves(state.params), jax.tree.leaves(alone.params), strict=True
        ):
            assert_close(one[run], other[0], jnp.float32)
        assert_close(metrics.loss[:, run], own.loss[:, 0], jnp.float32)
    assert not np.allclose(metrics.loss[-1, 0], metrics.loss[-1, 2])


def test_a_run_is_plain_adamw_at_its_rate(task):
    """Scaling the updates of a rate of 1 is the optimizer of that rate, decay and schedule too."""
    state, _ = trained(task, (3,), (2e-2,))
    optimizer = make_optimizer(dataclasses.replace(ADAMW, learning_rate=2e-2), STEPS)
    params = jax.tree.map(lambda x: x[0], create_runs(task, optimizer, (3,)).params)
    kept = optimizer.init(params)
    for pick in task.picks((3,), 0, STEPS)[:, 0]:
        batch = task.batch(task.arrays, pick)
        grads, sums = jax.grad(
            lambda x, batch=batch: batch_objective(task._model, x, batch), has_aux=True
        )(params)
        grads = jax.tree.map(lambda g, n=sums.counted: g / n, grads)
        updates, kept = optimizer.update(grads, kept, params)
        params = optax.apply_updates(params, updates)
    for one, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(params), strict=True):
        assert_close(one[0], other, jnp.float32, "gradient")


def test_a_run_that_blows_up_is_left_where_it_was_and_counted(task):
    state, _ = trained(task, (0, 0), (1e-2, 1e38))
    good, _ = trained(task, (0,), (1e-2,))
    assert state.skipped.tolist()[0] == 0 and int(state.skipped[1]) > 0
    for one, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(good.params), strict=True):
        assert bool(jnp.isfinite(one).all())
        assert_close(one[0], other[0], jnp.float32)


def test_every_row_is_taken_once_an_epoch_in_orders_of_their_own(task):
    rows = task.arrays["inputs"].shape[0]
    per_epoch = rows // 4
    picks = task.picks((0, 1), 0, 2 * per_epoch)
    first, second = picks[:per_epoch], picks[per_epoch:]
    for run in range(2):
        for epoch in (first, second):
            assert sorted(epoch[:, run].reshape(-1)) == list(range(rows))
    assert (first[:, 0] != first[:, 1]).any() and (first[:, 0] != second[:, 0]).any()
    assert (task.picks((1,), 3, 7)[:, 0] == picks[3:7, 1]).all()  # whatever was taken before


def test_tests_ask_every_query_once(task):
    state, _ = trained(task, (0, 1), (1e-2, 1e-2))
    found = means_of_runs(make_test(task, MAIN_TEST)(state.params, task.tests[MAIN_TEST]))
    assert [row["queries"] for row in found] == [2 * 6, 2 * 6]  # 6 rows, filled up to 8
    rows = {key: x.reshape(-1, *x.shape[2:])[:6] for key, x in task.tests[MAIN_TEST].items()}
    for run, row in enumerate(found):
        params = jax.tree.map(lambda x, run=run: x[run], state.params)
        logits, _ = task.logits(params, rows)
        assert row["accuracy"] * 12 == int((logits.argmax(-1) == rows["targets"]).sum())
        assert row["margin"] is None
