"""Keys that repeat until float32 can no longer hold the variance of what they read."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from bayesmem.ops import linalg
from bayesmem.ops.kalman import api, entries
from bayesmem.ops.kalman.chunked import chunked
from tests import oracles
from tests.ops import cases
from tests.tolerances import assert_close

ORDERS = ("at_once", "in_turn")


@pytest.fixture(scope="module", params=ORDERS)
def order(request):
    """A chunk form; all chunks at once as on a GPU, with its factorization and split products.

    Of the module, so that its tests share programs.
    """
    at_once = request.param == "at_once"
    jax.clear_caches()  # what has been traced for the other backend
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(api.FORMS, request.param, functools.partial(chunked, at_once=at_once))
        patch.setattr(entries, "UNROLL", 1)
        if at_once:
            patch.setattr(jax, "default_backend", lambda: "gpu")
            patch.setattr(linalg, "_splits", lambda backend: True)
            patch.setattr(linalg, "_PIVOTS", 2)  # a CPU takes minutes to compile steps of 8
        yield request.param
    jax.clear_caches()


def repeated(dim, obs_var, process_var, steps=512, count=3, length=1.0):
    """Returns a case, float32: every key is one of `count`, of the length `length`."""
    rng = np.random.default_rng(0)
    shape = 2, steps, 2
    keys = length * cases.unit(rng, count, dim)
    case = {
        "q": rng.standard_normal((*shape, dim)),
        "k": keys[rng.integers(0, count, shape)],
        "v": rng.standard_normal((*shape, 4)),
        "log_decay": np.zeros(shape),
        "process_var": np.full(shape, process_var),
        "obs_var": np.full(shape, obs_var),
    }
    return {name: jnp.asarray(x, jnp.float32) for name, x in case.items()}


def predict(case, order, prior_var):
    y, var, state = ops.kalman_predict(
        **case, prior_var=prior_var, implementation=order, chunk_size=64
    )
    return y, var, state.mean, state.cov


@functools.partial(jax.jit, static_argnums=1)
def filtered(case, order, prior_var):
    """Returns outputs and the gradients of one weighted sum of the reads and the last mean."""
    weights = np.random.default_rng(1).standard_normal(case["v"].shape)

    def loss(case):
        outputs = predict(case, order, prior_var)
        return jnp.sum(weights * outputs[0]) + jnp.sum(outputs[2]), outputs

    gradients, outputs = jax.grad(loss, has_aux=True)(case)
    return outputs, gradients


def assert_sound(outputs, gradients):
    chex.assert_tree_all_finite((outputs, gradients))
    cov = np.asarray(outputs[3], np.float64)
    np.testing.assert_array_equal(cov, np.swapaxes(cov, -1, -2))
    assert np.linalg.eigvalsh(cov).min() >= 0


@pytest.mark.parametrize("dim", (16, 64))
@pytest.mark.parametrize("process_var", (0.0, 1e-3))
@pytest.mark.parametrize("obs_var", (1e-6, 1e-2))
def test_everything_stays_finite_and_the_covariance_positive(order, dim, process_var, obs_var):
    assert_sound(*filtered(repeated(dim, obs_var, process_var), order, 1.0))


@pytest.mark.parametrize("dim", (16, 64))
def test_a_prior_far_above_the_noise(order, dim):
    assert_sound(*filtered(repeated(dim, 1e-6, 0.0), order, 1e6))


def test_long_keys(order):
    assert_sound(*filtered(repeated(16, 1e-6, 0.0, length=4.0), order, 1.0))


def test_what_is_put_back_cannot_be_seen_where_nothing_was_lost(order):
    case = repeated(16, 0.1, 0.0, steps=1024, count=8)
    _, var, _, cov = jax.jit(predict, static_argnums=1)(case, order, 1.0)
    exact = oracles.kalman(**{name: np.asarray(x, np.float64) for name, x in case.items()})
    scale = np.abs(exact[3]).max()
    assert_close(cov / scale, exact[3] / scale, np.float32)
    assert_close(var, exact[1], np.float32)
