"""Parts of the parameters: split and merged again, and steps that leave the rest as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bayesmem.train.objective import next_token
from bayesmem.train.optimizer import make_optimizer, make_schedule
from bayesmem.train.settings import MeshSettings, OptimizerSettings
from bayesmem.train.sharding import make_mesh, put_batch
from bayesmem.train.step import make_train_step, start_state
from bayesmem.train.trained_part import mask_table, merge, split
from tests.tolerances import assert_close
from tests.train.toys import ToyModel, batch_at

TREE = {"a": {"b": jnp.ones((2, 3)), "c": {"d": jnp.zeros(4)}}, "ab": jnp.ones(5)}


def first(name):
    return name.startswith("a/")


def test_split_and_merge_are_inverse():
    part, rest = split(TREE, first)
    assert jax.tree.map(jnp.size, part) == {"a": {"b": 6, "c": {"d": 4}}}
    assert jax.tree.map(jnp.size, rest) == {"ab": 5}
    for trains in (first, lambda name: name == "a/c/d", lambda name: True, lambda name: False):
        again = merge(*split(TREE, trains))
        assert jax.tree.structure(again) == jax.tree.structure(TREE)
        jax.tree.map(np.testing.assert_array_equal, again, TREE)


def test_all_are_trained_without_a_choice():
    leaves = (jnp.ones(1), [jnp.ones(2)])
    part, rest = split(leaves, None)
    assert part is leaves and rest is None and merge(part, rest) is leaves


def test_boxes_stay_on():
    boxed = {
        "x": nn.Partitioned(jnp.ones(2), ("embed",)),
        "y": nn.Partitioned(jnp.ones(3), (None,)),
    }
    part, rest = split(boxed, lambda name: name == "x")
    assert part["x"].names == ("embed",) and isinstance(rest["y"], nn.Partitioned)


@pytest.mark.parametrize("boxed", [False, True])
def test_table_counts_every_parameter_once(boxed):
    tree = jax.tree.map(lambda x: nn.Partitioned(x, (None,) * x.ndim), TREE) if boxed else TREE
    lines = [line.split() for line in mask_table(tree, first).splitlines()]
    assert lines == [
        ["a/b", "trained", "6"],
        ["a/c/d", "trained", "4"],
        ["ab", "frozen", "5"],
        ["all", "trained", "10"],
        ["frozen", "5"],
    ]


def test_steps_leave_the_rest_bit_for_bit_with_decay_and_momentum():
    model, mesh = ToyModel(), make_mesh(MeshSettings())
    settings = OptimizerSettings(learning_rate=0.05, warmup_steps=0, weight_decay=0.5)
    optimizer = make_optimizer(settings, 5)

    def trains(name):
        return name in ("kernel", "bias")

    def init(key, given):
        boxed = model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]
        return boxed | {"head": boxed["head"].replace_boxed(given)}

    given = jnp.full((16, 11), 0.25)
    state, shardings = start_state(init, optimizer, 0, mesh, trains=trains, given=given)
    np.testing.assert_array_equal(state.params["head"], given)
    held = {leaf.shape for leaf in jax.tree.leaves(state.opt_state)} - {()}
    assert held == {(8, 16), (16,)}
    before = jax.tree.map(np.asarray, state.params)
    objective, schedule = next_token(model), make_schedule(settings, 5)
    step = make_train_step(objective, optimizer, schedule, shardings, trains=trains)

    def mean_loss(part):
        params = before | part
        total, sums = objective.descend(params, batch, jax.random.key(0), ())
        return total / sums.counted

    batch = put_batch(mesh, batch_at(0))
    gradients = jax.grad(mean_loss)({name: before[name] for name in ("kernel", "bias")})
    norm = np.sqrt(sum(np.square(leaf).sum() for leaf in gradients.values()))
    for position in range(3):
        state, metrics = step(state, put_batch(mesh, batch_at(position)))
        if position == 0:
            # The gradient that is clipped is that of what is trained.
            assert_close(metrics["grad_norm"], norm, "float32", "gradient", 16)
    for name, leaf in before.items():
        assert np.array_equal(state.params[name], leaf) != trains(name), name
