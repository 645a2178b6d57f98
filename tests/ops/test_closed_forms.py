"""The geometry of the Kalman memory in closed form (KALMAN notes, appendix E), for every form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests.tolerances import tolerance

FORMS = ("recurrent", "chunked", "associative")
R2, ELL2, PRIOR = 0.05, 0.02, 3.0
RHO, D = 0.92, 4
KEY_A = np.eye(D)[0]
KEY_B = RHO * KEY_A + np.sqrt(1 - RHO**2) * np.eye(D)[1]
SETTLED = (ELL2 + np.sqrt(ELL2**2 + 4 * R2 * ELL2)) / 2  # x of a key that is written for ever
EXACT = tolerance(jnp.float64, length=64)

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(params=FORMS)
def form(request):
    """Name of an implementation."""
    return request.param


def scalars(value, steps):
    """A constant as [1, steps, 1]."""
    return jnp.full((1, steps, 1), value)


def variance_of(query, keys, form, state=None, process_var=ELL2):
    """q^T P_t q after writing each of `keys` [T, D], for a fixed query [D]; and the last state."""
    steps = len(keys)
    write = jnp.asarray(keys)[None, :, None]
    _, variance, state = ops.kalman_predict(
        jnp.broadcast_to(jnp.asarray(query), write.shape),
        write,
        jnp.zeros((1, steps, 1, 1)),
        process_var=scalars(process_var, steps),
        obs_var=scalars(R2, steps),
        prior_var=PRIOR,
        state=state,
        chunk_size=16,
        implementation=form,
    )
    return np.asarray(variance[0, :, 0, 0]), state


def boosted(form):
    """State after 30 writes of B, with A and C (e3) written once before."""
    _, state = variance_of(KEY_B, np.stack([KEY_A, np.eye(D)[2], *[KEY_B] * 30]), form)
    return state


def test_repeated_unit_key_follows_the_riccati_map(form):
    """x' = r^2 x / (r^2 + x) + ell^2 for the predicted variance x along the key."""
    variance, _ = variance_of(KEY_B, np.repeat(KEY_B[None], 64, axis=0), form)
    predicted = np.concatenate([[PRIOR], variance[:-1]]) + ELL2
    np.testing.assert_allclose(variance + ELL2, R2 * predicted / (R2 + predicted) + ELL2, **EXACT)


def test_variance_and_gain_settle_at_their_floor(form):
    """x_inf is the root of x^2 - ell^2 x - r^2 ell^2; the gain floor is x_inf / (r^2 + x_inf)."""
    variance, _ = variance_of(KEY_B, np.repeat(KEY_B[None], 64, axis=0), form)
    np.testing.assert_allclose(variance[-1] + ELL2, SETTLED, **EXACT)
    np.testing.assert_allclose(variance[-1] / R2, SETTLED / (R2 + SETTLED), **EXACT)


def test_cross_direction_growth_of_a_step(form):
    """k_B^T P_t k_B grows by ell^2 - beta (k_B^T Pb k_A)^2 when A is written."""
    state = boosted(form)
    before = np.asarray(state.cov[0, 0, 0])
    predicted = before + ELL2 * np.eye(D)
    beta = 1 / (R2 + KEY_A @ predicted @ KEY_A)
    variance, _ = variance_of(KEY_B, KEY_A[None], form, state)
    growth = ELL2 - beta * (KEY_B @ predicted @ KEY_A) ** 2
    np.testing.assert_allclose(variance[0] - KEY_B @ before @ KEY_B, growth, **EXACT)


def test_cross_direction_growth_settles(form):
    """The growth tends to (1 - rho^2) ell^2: what A leaves unobserved of B."""
    variance, _ = variance_of(KEY_B, np.repeat(KEY_A[None], 64, axis=0), form, boosted(form))
    np.testing.assert_allclose(np.diff(variance)[-8:], (1 - RHO**2) * ELL2, **EXACT)


def test_one_write_cannot_resolve_more_than_its_noise_allows(form):
    """k_B^T P_t k_B >= r^2 / (r^2 + s_A^2) s_B^2 for any keys, with equality at k_B = k_A."""
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(24, D))
    state = None
    for key in keys:
        cov = PRIOR * np.eye(D) if state is None else np.asarray(state.cov[0, 0, 0])
        predicted = cov + ELL2 * np.eye(D)
        kept = R2 / (R2 + key @ predicted @ key)
        other, after = variance_of(KEY_B, key[None], form, state)
        own, state = variance_of(key, key[None], form, state)
        assert other[0] > kept * (KEY_B @ predicted @ KEY_B)
        np.testing.assert_allclose(own[0], kept * (key @ predicted @ key), **EXACT)
        np.testing.assert_array_equal(after.cov, state.cov)


def test_warped_key_turns_to_the_unresolved_direction(form):
    """u_A = rho s_B^2 k_B + sqrt(1 - rho^2) s_perp^2 k_perp once B is resolved.

    Exact where k_B and k_perp are eigenvectors of Pb, which repeated writes of B bring about.
    """
    _, state = variance_of(KEY_B, np.repeat(KEY_B[None], 64, axis=0), form)
    predicted = np.asarray(state.cov[0, 0, 0]) + ELL2 * np.eye(D)
    perp = (KEY_A - RHO * KEY_B) / np.sqrt(1 - RHO**2)
    along, across = KEY_B @ predicted @ KEY_B, perp @ predicted @ perp
    # The write itself shows the warped key: one reading of a one-hot value puts beta u in the mean.
    _, after = ops.kalman_memory(
        *(jnp.asarray(KEY_A)[None, None, None],) * 2,
        jnp.ones((1, 1, 1, 1)),
        process_var=scalars(ELL2, 1),
        obs_var=scalars(R2, 1),
        state=state,
        implementation=form,
    )
    warped = RHO * along * KEY_B + np.sqrt(1 - RHO**2) * across * perp
    gain = warped / (R2 + KEY_A @ warped)
    np.testing.assert_allclose(after.mean[0, 0, :, 0], gain, **EXACT)
    assert warped @ perp > warped @ KEY_B, "the write has turned away from B"
    assert KEY_A @ perp < KEY_A @ KEY_B, "while its key points at B"


@pytest.mark.parametrize("steps", [1, 5, 70])
def test_no_process_noise_is_ridge_regression(form, steps):
    """process_var = 0, A = I: recursive least squares, (K^T R^-1 K + I / p0) M = K^T R^-1 V."""
    rng = np.random.default_rng(steps)
    keys = rng.normal(size=(2, steps, 3, D))
    values = rng.normal(size=(2, steps, 3, 2))
    obs_var = rng.uniform(0.1, 1.0, size=(2, steps, 3))
    prior = np.array([0.5, 1.0, 2.0])
    query = rng.normal(size=keys.shape)
    arguments = [jnp.asarray(array) for array in (query, keys, values)]
    mean, variance, state = ops.kalman_predict(
        *arguments,
        process_var=jnp.zeros(obs_var.shape),
        obs_var=jnp.asarray(obs_var),
        prior_var=jnp.asarray(prior),
        chunk_size=16,
        implementation=form,
    )
    weighted = np.swapaxes(keys / obs_var[..., None], 1, 2)  # [B, H, T, D]
    by_head, targets = np.swapaxes(keys, 1, 2), np.swapaxes(values, 1, 2)
    precision = np.einsum("bhtd,bhte->bhde", weighted, by_head)
    precision += np.eye(D) / prior[:, None, None]
    ridge = np.linalg.solve(precision, np.einsum("bhtd,bhtm->bhdm", weighted, targets))
    scale = tolerance(jnp.float64, length=steps)
    np.testing.assert_allclose(state.mean, ridge, **scale)
    np.testing.assert_allclose(state.cov[:, :, 0], np.linalg.inv(precision), **scale)
    last = query[:, -1]
    np.testing.assert_allclose(mean[:, -1], np.einsum("bhd,bhdm->bhm", last, ridge), **scale)
    solved = np.linalg.solve(precision, last[..., None])[..., 0]
    np.testing.assert_allclose(
        variance[:, -1, :, 0], np.einsum("bhd,bhd->bh", last, solved), **scale
    )


def test_gradient_of_ridge_regression(form):
    """d(read)/d(values) is the hat matrix row q^T (K^T K / r^2 + I / p0)^-1 K^T / r^2."""
    rng = np.random.default_rng(3)
    keys, query = rng.normal(size=(20, D)), rng.normal(size=D)

    def read(values):
        mean, _ = ops.kalman_memory(
            jnp.broadcast_to(jnp.asarray(query), (1, 20, 1, D)),
            jnp.asarray(keys)[None, :, None],
            values[None, :, None, None],
            process_var=scalars(0.0, 20),
            obs_var=scalars(R2, 20),
            prior_var=PRIOR,
            chunk_size=16,
            implementation=form,
        )
        return mean[0, -1, 0, 0]

    hat = query @ np.linalg.solve(keys.T @ keys / R2 + np.eye(D) / PRIOR, keys.T / R2)
    np.testing.assert_allclose(
        jax.grad(read)(jnp.zeros(20)), hat, **tolerance(jnp.float64, kind="gradient", length=20)
    )
