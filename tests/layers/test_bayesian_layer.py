"""What is special to the Bayesian Layer: noises, prior, rotation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bayesmem.layers import BayesianLayer
from tests.tolerances import assert_close

X = np.random.default_rng(0).standard_normal((2, 6, 8)).astype("float32")
PLAIN = BayesianLayer(width=8, num_heads=2)


def parameters(layer, seed=0):
    return nn.meta.unbox(layer.init(jax.random.key(seed), X))


def with_prior(params, prior):
    raw = np.log(np.expm1(np.full(2, prior)))
    return {"params": {**params["params"], "prior": jnp.asarray(raw, jnp.float32)}}


@pytest.mark.parametrize("prior", [0.25, 3.0])
def test_a_learned_prior_reads_as_the_same_fixed_prior(prior):
    fixed = dataclasses.replace(PLAIN, prior_var=prior)
    learned = dataclasses.replace(PLAIN, learn_prior=True)
    params = parameters(fixed)
    wanted, wanted_state = fixed.apply(params, X)
    found, state = learned.apply(with_prior(params, prior), X)
    assert_close(found, wanted, "float32", length=64)
    assert_close(prior * state.memory.cov, wanted_state.memory.cov, "float32", length=64)
    again, _ = learned.apply(with_prior(params, prior), X, learned.init_state(2))
    assert_close(again, wanted, "float32", length=64)


def test_a_learned_prior_starts_at_the_given_one():
    learned = dataclasses.replace(PLAIN, learn_prior=True, prior_var=3.0)
    raw = parameters(learned)["params"]["prior"]
    assert_close(np.log1p(np.exp(raw)), [3, 3], "float32")


def test_fixed_noises_have_no_parameters_and_are_used_as_they_are():
    layer = dataclasses.replace(PLAIN, obs_var=0.05, process_var=0.05, prior_var=3.0)
    params = parameters(layer)
    assert set(params["params"]) == {"heads", "output"}
    _, state = layer.apply(params, X[:, :1])
    # One unit key: the trace of P_1 is that of (p0 + ell^2) I less the part that was read.
    predicted = 3.0 + 0.05
    wanted = 4 * predicted - predicted**2 / (0.05 + predicted)
    found = np.trace(state.memory.cov, axis1=-2, axis2=-1)
    assert_close(found, np.full(found.shape, wanted), "float32", length=64)


def test_covariance_is_symmetric_and_positive_after_wild_inputs():
    layer = BayesianLayer(width=8, num_heads=2, num_groups=2, transition="diagonal", rotation=True)
    params = parameters(layer)
    y, state = layer.apply(params, 100 * np.tile(X, (1, 6, 1)))
    cov = np.asarray(state.memory.cov, np.float64)
    assert cov.shape == (2, 2, 2, 8, 8) and np.isfinite(y).all()
    assert_close(cov, np.swapaxes(cov, -1, -2), "float32", length=64)
    scale = np.abs(cov).max()
    assert np.linalg.eigvalsh(cov).min() >= -1e-6 * scale


def test_a_rotating_memory_has_two_rows_a_key_dimension():
    layer = BayesianLayer(width=8, num_heads=2, head_dim=3, value_dim=5, rotation=True)
    state = layer.init_state(4)
    assert state.memory.mean.shape == (4, 2, 6, 5)
    assert state.memory.cov.shape == (4, 2, 1, 6, 6)
    np.testing.assert_array_equal(state.memory.cov[0, 0, 0], np.eye(6))


def test_no_convolution_unless_asked_for():
    assert "conv" not in parameters(PLAIN)["params"]["heads"]
    assert PLAIN.init_state(1).conv is None
