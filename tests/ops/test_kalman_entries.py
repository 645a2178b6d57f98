"""The chunk form with all chunks at once, which accelerators run, against chunk after chunk."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from bayesmem.ops.kalman import api, entries
from bayesmem.ops.kalman.chunked import chunked
from tests.ops import cases
from tests.tolerances import assert_close

ORDERS = ("at_once", "in_turn")


@pytest.fixture(autouse=True)
def orders(monkeypatch):
    for name in ORDERS:
        form = functools.partial(chunked, at_once=name == "at_once")
        monkeypatch.setitem(api.FORMS, name, form)
    monkeypatch.setattr(entries, "UNROLL", 1)  # compiles faster; one test puts it back


def split(case):
    """Splits a case into what has a derivative and what has none."""
    fixed = {name: x for name, x in case.items() if name == "segment_ids"}
    return {name: x for name, x in case.items() if name not in fixed}, fixed


def outputs(varied, fixed, order, chunk_size):
    """Filters with a covariance made symmetric: the orders may differ on what is none."""
    case = varied | fixed
    if "state" in case:
        mean, cov = case["state"]
        case["state"] = mean, 0.5 * (cov + jnp.swapaxes(cov, -1, -2))
    y, var, state = ops.kalman_predict(**case, implementation=order, chunk_size=chunk_size)
    return y, var, state.mean, state.cov


def both_ways(case, chunk_size, order):
    """Returns outputs, and their derivatives by forward and by reverse mode."""
    varied, fixed = split(case)
    rng = np.random.default_rng(0)

    def like(x):
        return jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape), x.dtype), x)

    run = functools.partial(outputs, fixed=fixed, order=order, chunk_size=chunk_size)
    direction = like(varied)
    cotangents = like(jax.eval_shape(run, varied))

    @jax.jit
    def derive(varied, direction, cotangents):
        y, tangents = jax.jvp(run, (varied,), (direction,))
        return y, tangents, jax.vjp(run, varied)[1](cotangents)

    return derive(varied, direction, cotangents)


def assert_same(case, chunk_size, dtype, length=1):
    found, wanted = (both_ways(case, chunk_size, order) for order in ORDERS)
    kinds = "value", "gradient", "gradient"
    for kind, x, right in zip(kinds, found, wanted, strict=True):
        for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(right), strict=True):
            assert_close(a, b, dtype, kind, length)


@pytest.mark.parametrize(
    "kind,rotating",
    (("identity", False), ("scalar", True), ("diagonal", True), ("diagonal", False)),
)
def test_outputs_and_derivatives_for_every_transition(x64, kind, rotating):
    case = cases.kalman(5, 37, kind, rotating=rotating, groups=2, packed=True)
    assert_same(case, 16, np.float64)


@pytest.mark.parametrize("steps,chunk_size,unroll", ((1, 64, 1), (12, 1, 2), (33, 16, 2)))
def test_outputs_and_derivatives_at_every_length(x64, monkeypatch, steps, chunk_size, unroll):
    monkeypatch.setattr(entries, "UNROLL", unroll)
    case = cases.kalman(steps, steps, "scalar", stateful=False)
    assert_same(case, chunk_size, np.float64)


@pytest.mark.parametrize("strength", (-1.5, -1e4))
def test_strong_decay(strength):
    case = cases.kalman(0, 48, "diagonal", dim=8, packed=True)
    case["log_decay"] = np.full_like(case["log_decay"], strength)
    case["log_decay"][:, 20:24] = -1e-3
    case = {n: jax.tree.map(jnp.asarray, x) for n, x in case.items()}
    assert_same(case, 16, np.float32, length=48)


def test_readings_without_noise_that_repeat_each_other_stay_finite():
    rng = np.random.default_rng(0)
    k = cases.unit(rng, 2, 64, 2, 4)
    case = {"q": k[::-1].copy(), "k": k, "v": k @ rng.standard_normal((4, 4))}
    case |= {"process_var": np.zeros((2, 64, 2)), "obs_var": np.full((2, 64, 2), 1e-6)}
    case = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), case)
    case["prior_var"] = jnp.full(2, 1e6)
    chex.assert_tree_all_finite(both_ways(case, 16, "at_once"))


def test_numerical_gradients(x64):
    case = cases.kalman(2, 3, "scalar", batch=1, key_heads=1, heads=1, dim=2, value_dim=2)
    flat, tree = jax.tree.flatten(case)

    @jax.jit
    def loss(*flat):
        found = outputs(jax.tree.unflatten(tree, flat), {}, "at_once", 1)
        return sum(jnp.sum(jnp.sin(x)) for x in found)

    chex.assert_numerical_grads(loss, [jnp.asarray(x) for x in flat], order=1)


def test_a_backward_pass_keeps_entries_only():
    case = cases.kalman(2, 40, "scalar", stateful=False, batch=1, heads=2)
    varied, fixed = split(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), case))

    def read(varied):
        return outputs(varied, fixed, "at_once", 8)[0]

    inputs = {x.shape for x in jax.tree.leaves(varied)}
    _, pull = jax.eval_shape(lambda v: jax.vjp(read, v), varied)
    kept = [x.shape for x in jax.tree.leaves(pull)]
    assert {(5, 1, 2, 4, 6), (5, 1, 2, 4, 4), (5, 1, 2, 8, 8)} <= set(kept)
    largest = max(np.prod(shape) for shape in inputs)
    others = [shape for shape in kept if len(shape) == 5 and shape[0] == 5]
    assert len(others) == 3
    assert all(np.prod(shape) <= largest for shape in kept if shape not in others)
