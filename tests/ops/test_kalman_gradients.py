"""Gradients of the Kalman op, for every form."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests import oracles
from tests.ops import cases
from tests.ops.filters import FAST_FORMS, FORMS, cast, predict
from tests.tolerances import assert_close

TRANSITIONS = (("identity", False), ("scalar", True), ("diagonal", True), ("diagonal", False))


def symmetric(gradients):
    """Keeps the symmetric part of the covariance's gradient: only that has a meaning."""
    mean, cov = gradients["state"]
    return gradients | {"state": (mean, 0.5 * (cov + jnp.swapaxes(cov, -1, -2)))}


@pytest.mark.parametrize(
    "form,kind,rotating",
    (
        *(("chunked", kind, turns) for kind, turns in TRANSITIONS),
        ("associative", "identity", False),
        ("associative", "diagonal", True),
        ("recurrent", "diagonal", True),
    ),
)
def test_gradients_equal_complex_step_through_oracle(x64, kind, rotating, form):
    case = cases.kalman(5, 37, kind, rotating=rotating, groups=2, packed=True)
    rng = np.random.default_rng(11)
    cotangents = [rng.standard_normal(y.shape) for y in oracles.kalman(**case)]
    varied = {name: x for name, x in case.items() if name != "segment_ids"}

    def loss(varied):
        outputs = predict(case | varied, form, chunk_size=16)
        return sum(jnp.sum(c * y) for c, y in zip(cotangents, outputs, strict=True))

    gradients = jax.jit(jax.grad(loss))(varied)
    for name, value in varied.items():
        direction = jax.tree.map(lambda x: rng.standard_normal(np.shape(x)), value)
        if name == "state":
            direction = direction[0], direction[1] + np.swapaxes(direction[1], -1, -2)
        if name == "log_decay" and rotating and kind == "diagonal":
            direction[..., 1::2] = direction[..., ::2]
        wanted = oracles.directional_derivative(oracles.kalman, case, name, direction, cotangents)
        found = sum(
            jnp.vdot(g, d)
            for g, d in zip(
                jax.tree.leaves(gradients[name]), jax.tree.leaves(direction), strict=True
            )
        )
        assert_close(found, wanted, np.float64, "gradient")


@pytest.mark.parametrize("steps", (1, 15, 40))
def test_gradients_equal_those_of_the_reference(x64, steps):
    case = cases.kalman(steps, steps, "diagonal", packed=True)
    rng = np.random.default_rng(7)
    cotangents = [rng.standard_normal(y.shape) for y in oracles.kalman(**case)]
    segment_ids = case.pop("segment_ids")

    def loss(case, form):
        outputs = predict(case | {"segment_ids": segment_ids}, form, 16)
        return sum(jnp.sum(c * y) for c, y in zip(cotangents, outputs, strict=True))

    gradients = {}
    for form in FORMS:
        gradient = jax.jit(jax.grad(loss), static_argnums=1)(case, form)
        gradients[form] = symmetric(gradient)
    chex.assert_trees_all_equal_shapes(*gradients.values())
    wanted = jax.tree.leaves(gradients["recurrent"])
    for form in FAST_FORMS:
        for found, right in zip(jax.tree.leaves(gradients[form]), wanted, strict=True):
            assert_close(found, right, np.float64, "gradient")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", (1, 2))
def test_numerical_gradients(x64, steps, form):
    case = cases.kalman(2, steps, "scalar", batch=1, key_heads=1, heads=1, dim=2, value_dim=2)

    flat, tree = jax.tree.flatten(case)

    @jax.jit
    def loss(*flat):
        case = jax.tree.unflatten(tree, flat)
        mean, cov = case["state"]
        # A covariance is symmetric: the forms may differ on what no covariance is.
        case["state"] = mean, 0.5 * (cov + jnp.swapaxes(cov, -1, -2))
        return sum(jnp.sum(jnp.sin(y)) for y in predict(case, form))

    chex.assert_numerical_grads(loss, [jnp.asarray(x) for x in flat], order=1)


@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_low_precision_gradients_stay_within_the_table(dtype, form):
    case = cases.kalman(13, 100, "scalar", dim=8)
    low = cast(case, dtype)
    rng = np.random.default_rng(1)
    cotangent = rng.standard_normal(case["v"].shape)

    def loss(case, form):
        y, _ = ops.kalman_memory(**case, implementation=form, chunk_size=32)
        return jnp.sum(cotangent * y)

    found = symmetric(jax.jit(jax.grad(loss), static_argnums=1)(low, form))
    jax.config.update("jax_enable_x64", True)
    try:
        exact = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), low)
        wanted = symmetric(jax.jit(jax.grad(loss), static_argnums=1)(exact, "recurrent"))
        for name in found:
            for g, w in zip(
                jax.tree.leaves(found[name]), jax.tree.leaves(wanted[name]), strict=True
            ):
                scale = float(jnp.abs(w).max())
                assert_close(g / scale, w / scale, dtype, "gradient", length=100)
    finally:
        jax.config.update("jax_enable_x64", False)
