"""The train step: accumulation, skipping, donation, and the metrics."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bayesmem.train.objective import batch_sums, next_token
from bayesmem.train.optimizer import make_optimizer, make_schedule
from bayesmem.train.settings import MeshSettings, OptimizerSettings
from bayesmem.train.sharding import make_mesh, put_batch
from bayesmem.train.step import create_state, make_eval_step, make_train_step
from tests.tolerances import tolerance
from tests.train.toys import ToyModel, batch_at

SETTINGS = OptimizerSettings(learning_rate=0.05, warmup_steps=2, weight_decay=0.1)


def trained(steps, *, batches=batch_at, dtype="float32", grad_accumulation=1):
    """Trains the toy model; returns the state and the metrics of every step as floats."""
    model, mesh = ToyModel(dtype=dtype), make_mesh(MeshSettings())
    optimizer, rate = make_optimizer(SETTINGS, 40), make_schedule(SETTINGS, 40)
    state, shardings = create_state(model, optimizer, 0, mesh)
    step = make_train_step(
        next_token(model), optimizer, rate, shardings, grad_accumulation=grad_accumulation
    )
    rows = []
    for position in range(steps):
        state, metrics = step(state, put_batch(mesh, batches(position)))
        rows.append({name: float(value) for name, value in metrics.items()})
    return state, rows


def test_loss_falls_and_metrics_are_those_of_the_batch():
    state, rows = trained(30)
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    assert set(rows[0]) == {"loss", "accuracy", "grad_norm", "lr", "tokens", "skipped"}
    assert rows[0]["tokens"] == (batch_at(0)["targets"] != -100).sum()
    assert [row["lr"] for row in rows[:3]] == pytest.approx([0.0, 0.025, 0.05])
    assert int(state.step) == 30 and int(state.skipped) == 0


def test_first_step_is_plain_gradient_through_optax():
    model, mesh = ToyModel(), make_mesh(MeshSettings())
    optimizer = optax.sgd(0.1)
    state, shardings = create_state(model, optimizer, 0, mesh)
    batch = put_batch(mesh, batch_at(0))

    def mean_loss(params):
        sums = batch_sums(model, params, batch)
        return sums.loss / sums.counted

    loss, grads = jax.jit(jax.value_and_grad(mean_loss))(state.params)
    wanted = jax.tree.map(lambda p, g: np.asarray(p - 0.1 * g), state.params, grads)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(grads)))
    step = make_train_step(next_token(model), optimizer, lambda count: 0.1, shardings)
    after, metrics = step(state, batch)
    np.testing.assert_allclose(metrics["loss"], loss, **tolerance(jnp.float32))
    np.testing.assert_allclose(metrics["grad_norm"], norm, **tolerance(jnp.float32, "gradient"))
    for name, value in wanted.items():
        np.testing.assert_allclose(after.params[name], value, **tolerance(jnp.float32))


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_accumulated_microbatches_equal_the_whole_batch(parts):
    # Targets are ignored unevenly: a mean of the microbatches' means would differ.
    def lopsided(position):
        batch = batch_at(position)
        batch["targets"][position % 8 : 5, 1:] = -100
        return batch

    with jax.enable_x64(True):
        whole, rows = trained(4, batches=lopsided, dtype="float64")
        split, split_rows = trained(4, batches=lopsided, dtype="float64", grad_accumulation=parts)
    for wanted, found in zip(rows, split_rows, strict=True):
        np.testing.assert_allclose(found["loss"], wanted["loss"], **tolerance(jnp.float32))
        assert found["tokens"] == wanted["tokens"]
    for name, value in whole.params.items():
        assert value.dtype == np.float64
        np.testing.assert_allclose(split.params[name], value, **tolerance(np.float64))


def test_batch_that_does_not_split_into_microbatches():
    with pytest.raises(ValueError, match="8 rows.*grad_accumulation = 3"):
        trained(1, grad_accumulation=3)


def poisoned_step(value):
    """One step from a state whose forward pass meets `value`, and the state before it."""
    model, mesh = ToyModel(), make_mesh(MeshSettings())
    optimizer, rate = make_optimizer(SETTINGS, 40), make_schedule(SETTINGS, 40)
    state, shardings = create_state(model, optimizer, 0, mesh)
    params = dict(state.params)
    params["head"] = params["head"].at[0, 0].set(value)
    state = state._replace(params=params)
    before = jax.tree.map(np.array, (state.params, state.opt_state))
    step = make_train_step(next_token(model), optimizer, rate, shardings)
    return before, *step(state, put_batch(mesh, batch_at(0)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_step_that_is_not_finite_is_skipped_and_counted(value):
    before, state, metrics = poisoned_step(value)
    after = (state.params, state.opt_state)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(new, old)
    assert int(state.skipped) == 1 and int(state.step) == 1
    assert float(metrics["skipped"]) == 1


def test_finite_loss_with_infinite_gradient_is_skipped():
    # d sqrt(x) / dx at 0: the loss is finite, its gradient is not.
    class Root(ToyModel):
        def logits(self, hidden):
            return jnp.sqrt(jnp.abs(self.head[0, 0] * 0)) + hidden @ self.head

    model, mesh = Root(), make_mesh(MeshSettings())
    optimizer = optax.sgd(0.1)
    state, shardings = create_state(model, optimizer, 0, mesh)
    before = jax.tree.map(np.array, state.params)
    step = make_train_step(next_token(model), optimizer, lambda count: 0.1, shardings)
    state, metrics = step(state, put_batch(mesh, batch_at(0)))
    assert np.isfinite(metrics["loss"]) and not np.isfinite(metrics["grad_norm"])
    assert int(state.skipped) == 1
    jax.tree.map(np.testing.assert_array_equal, state.params, before)


def test_skipped_steps_do_not_advance_the_learning_rate():
    model, mesh = ToyModel(), make_mesh(MeshSettings())
    optimizer, rate = make_optimizer(SETTINGS, 40), make_schedule(SETTINGS, 40)
    state, shardings = create_state(model, optimizer, 0, mesh)
    step = make_train_step(next_token(model), optimizer, rate, shardings)
    state, first = step(state, put_batch(mesh, batch_at(0)))
    head = state.params["head"]
    kept = np.array(head)
    state = state._replace(params=state.params | {"head": jnp.full_like(head, np.nan)})
    state, _ = step(state, put_batch(mesh, batch_at(1)))
    head = jax.device_put(kept, head.sharding)
    state = state._replace(params=state.params | {"head": head})
    state, third = step(state, put_batch(mesh, batch_at(2)))
    assert float(first["lr"]) == 0
    assert float(third["lr"]) == pytest.approx(0.025)
    assert int(state.step) == 3 and int(state.skipped) == 1


def test_state_is_donated():
    model, mesh = ToyModel(), make_mesh(MeshSettings())
    optimizer, rate = make_optimizer(SETTINGS, 40), make_schedule(SETTINGS, 40)
    state, shardings = create_state(model, optimizer, 0, mesh)
    make_train_step(next_token(model), optimizer, rate, shardings)(
        state, put_batch(mesh, batch_at(0))
    )
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_same_seed_same_run_other_seed_other_parameters():
    one, two = trained(3)[0], trained(3)[0]
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
    model, mesh = ToyModel(), make_mesh(MeshSettings())
    states = [create_state(model, optax.sgd(0.1), seed, mesh)[0] for seed in (0, 1)]
    assert np.abs(states[0].params["head"] - states[1].params["head"]).max() > 0


def test_eval_step_sums_without_touching_the_state():
    model, mesh = ToyModel(), make_mesh(MeshSettings())
    state, _ = create_state(model, optax.sgd(0.1), 0, mesh)
    batch = put_batch(mesh, batch_at(0))
    sums = make_eval_step(next_token(model))(state.params, batch)
    wanted = jax.jit(lambda params: batch_sums(model, params, batch))(state.params)
    np.testing.assert_allclose(sums, wanted, **tolerance(jnp.float32))
    assert not state.params["head"].is_deleted()
