"""Cases C2, C4, C6, C7, C17 and C19 for the Kalman op, and covariance over thousands of updates."""

import functools
import logging

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmem import ops
from tests import oracles
from tests.ops import cases
from tests.ops.filters import FORMS, predict
from tests.tolerances import assert_close


@functools.partial(jax.jit, static_argnames=("form", "chunk_size"))
def read(case, form, chunk_size=64):
    """Reads, the state after them, and what the case is to the sum of the reads."""

    def total(case):
        y, state = ops.kalman_memory(**case, implementation=form, chunk_size=chunk_size)
        return jnp.sum(y), (y, state)

    gradients, (y, state) = jax.grad(total, has_aux=True)(case)
    return y, state, gradients


def readings(obs_var):
    """Case C4: one key dimension, prior 1, key 1 twice, values 2 then 4."""
    one = jnp.ones((1, 2, 1, 1), jnp.float32)
    return {
        "q": one,
        "k": one,
        "v": jnp.array([2.0, 4.0]).reshape(1, 2, 1, 1),
        "process_var": jnp.zeros((1, 2, 1)),
        "obs_var": jnp.full((1, 2, 1), obs_var, jnp.float32),
    }


@pytest.mark.parametrize("obs_var", (1.0, 1e-2, 1e-4, 1e-8, 1e-12, 0.0))
def test_two_readings_average_down_to_no_noise(obs_var):
    y, state = jax.jit(lambda case: ops.kalman_memory(**case))(readings(obs_var))
    floored = max(obs_var, ops.OBS_VAR_FLOOR)
    assert_close(y[0, 1, 0, 0], 6.0 / (2.0 + floored), np.float32)
    assert state.cov[0, 0, 0, 0, 0] > 0


def test_two_readings_in_every_form_in_float64(x64):
    for form in FORMS:
        for obs_var in (1.0, 1e-2, 1e-4, 1e-6):
            case = jax.tree.map(lambda x: np.asarray(x, np.float64), readings(obs_var))
            y, _ = ops.kalman_memory(**case, implementation=form)
            wanted = oracles.kalman(**case)[0]
            assert_close(y, wanted, np.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("process_var", (0.0, 1e-4, 0.05))
@pytest.mark.parametrize("obs_var", (ops.OBS_VAR_FLOOR, 1e-3, 0.05))
def test_covariance_stays_positive_over_4000_updates(obs_var, process_var, form):
    rng = np.random.default_rng(0)
    k = jnp.asarray(cases.unit(rng, 1, 4000, 1, 16), jnp.float32)
    v = jnp.asarray(rng.standard_normal((1, 4000, 1, 4)), jnp.float32)
    process_var, obs_var = (jnp.full((1, 4000, 1), x, jnp.float32) for x in (process_var, obs_var))
    tokens = {"q": k, "k": k, "v": v, "process_var": process_var, "obs_var": obs_var}
    state, smallest = (jnp.zeros((1, 1, 16, 4)), jnp.eye(16)[None, None, None]), np.inf
    for start in range(0, 4000, 80):
        y, _, *state = predict(cases.cut(tokens, start, start + 80, tuple(state)), form)
        chex.assert_tree_all_finite((y, state))
        cov = np.asarray(state[1], np.float64)
        np.testing.assert_array_equal(cov, np.swapaxes(cov, -1, -2))
        smallest = min(smallest, np.linalg.eigvalsh(cov).min())
    assert smallest >= 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim,chunk_size", ((4, 16), (16, 64)))
def test_a_prior_far_above_the_noise_stays_finite(dim, chunk_size, form):
    rng = np.random.default_rng(0)
    k = cases.unit(rng, 8, 64, 2, dim)
    case = {"q": k[::-1].copy(), "k": k, "v": k @ rng.standard_normal((dim, dim))}
    case |= {"process_var": np.zeros((8, 64, 2)), "obs_var": np.full((8, 64, 2), 1e-6)}
    case = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), case)
    for prior_var in (1.0, 1e6):
        found = read(case | {"prior_var": jnp.float32(prior_var)}, form, chunk_size)
        chex.assert_tree_all_finite(found)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    form=st.sampled_from(FORMS),
    kind=st.sampled_from(("identity", "scalar", "diagonal")),
    rotating=st.booleans(),
    log_obs=st.floats(-6, 1),
    log_process=st.floats(-6, 0),
    log_prior=st.floats(-2, 1),
)
def test_covariance_is_symmetric_and_positive_semidefinite(
    seed, form, kind, rotating, log_obs, log_process, log_prior
):
    case = cases.kalman(
        seed, 32, kind, rotating=rotating, packed=True, stateful=False, batch=1, dim=8
    )
    case["obs_var"] = np.full_like(case["obs_var"], 10.0**log_obs)
    case["process_var"] = np.full_like(case["process_var"], 10.0**log_process)
    case["prior_var"] = np.full_like(case["prior_var"], 10.0**log_prior)
    case = {n: jnp.asarray(x, None if n == "segment_ids" else jnp.float32) for n, x in case.items()}
    _, var, state = ops.kalman_predict(**case, implementation=form, chunk_size=16)
    cov = np.asarray(state.cov, np.float64)
    np.testing.assert_array_equal(cov, np.swapaxes(cov, -1, -2))
    # Float32 holds an eigenvalue of 0 to its rounding at the scale of the whole matrix.
    rounding = 8 * np.finfo(np.float32).eps * np.abs(cov).max()
    assert np.linalg.eigvalsh(cov).min() >= -rounding
    assert np.all(np.asarray(var) >= 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strength", (-1.3, -1.5, -20.0, -1e4))
@pytest.mark.parametrize("kind", ("scalar", "diagonal"))
def test_strong_decay_is_finite_and_right(kind, strength, form):
    case = cases.kalman(0, 64, kind, stateful=False, dim=8)
    case["log_decay"] = np.full_like(case["log_decay"], strength)
    # One weak step among strong ones: sums over long spans must not cost it its digits.
    case["log_decay"][:, 40:44] = -1e-3
    exact = oracles.kalman(**case)
    case = {name: jnp.asarray(x, jnp.float32) for name, x in case.items()}
    # The terms of a chunk are those of "chunked"; here elements meet that forget each other.
    y, state, gradients = read(case, form, 16 if form == "associative" else 64)
    assert_close(y, exact[0], np.float32, length=64)
    assert_close(state.cov, exact[3], np.float32, length=64)
    chex.assert_tree_all_finite(gradients)


@pytest.mark.parametrize(
    "form,chunk_size",
    # Of a chunk's length, both forms have the same code.
    (*(("chunked", n) for n in (1, 16, 32, 64, 128)), *(("associative", n) for n in (1, 32))),
)
def test_chunk_size_does_not_matter(form, chunk_size):
    case = cases.kalman(3, 150, "diagonal")
    exact = oracles.kalman(**case)
    case = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), case)
    y, _ = ops.kalman_memory(**case, implementation=form, chunk_size=chunk_size)
    assert_close(y, exact[0], np.float32, length=150)


@pytest.mark.parametrize("form", FORMS)
def test_zero_keys_write_nothing(form):
    case = cases.kalman(1, 30, "scalar", stateful=False)
    case["k"][:, 5] = 0
    case["k"][0] = 0
    case = {name: jnp.asarray(x, jnp.float32) for name, x in case.items()}
    y, state, gradients = read(case, form, 16)
    np.testing.assert_array_equal(np.asarray(state.mean[0]), 0)
    np.testing.assert_array_equal(np.asarray(y[0]), 0)
    chex.assert_tree_all_finite((y, state, gradients))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", (1, 16, 80, 100))
def test_odd_head_dims(dim, form):
    case = cases.kalman(dim, 40, "scalar", dim=dim, value_dim=dim, batch=1)
    exact = oracles.kalman(**case)
    case = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), case)
    y, state = ops.kalman_memory(**case, implementation=form, chunk_size=16)
    assert_close(y, exact[0], np.float32, length=dim)
    assert_close(state.cov, exact[3], np.float32, length=dim)


@pytest.mark.parametrize("backend", ("pallas", "triton"))
def test_a_kernel_without_a_gpu_says_so(backend):
    case = jax.tree.map(jnp.asarray, cases.kalman(1, 20, "scalar"))
    with pytest.raises(NotImplementedError, match=f"{backend}.*'cpu'.*'chunked'"):
        ops.kalman_memory(**case, implementation=backend)


def test_auto_falls_back_with_one_log_line(caplog):
    case = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), cases.kalman(1, 20, "scalar"))
    from bayesmem.ops import dispatch

    dispatch._log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="bayesmem"):
        for _ in range(3):
            y, _ = ops.kalman_memory(**case)
    assert [record.name for record in caplog.records].count("bayesmem") == 1
    wanted, _ = ops.kalman_memory(**case, implementation="chunked")
    chex.assert_trees_all_equal(y, wanted)
