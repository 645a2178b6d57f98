"""The algebra of the Kalman chunk's kernels: values and hand-written gradients, in plain JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.ops.kalman import api
from bayesmem.ops.kalman.chunked import chunked
from kernels_pallas.kalman_chunk import op
from kernels_pallas.kalman_chunk.config import Config
from tests import oracles
from tests.ops import cases
from tests.tolerances import assert_close

PLAIN = Config(length=16, kernel=False)
STEPS = 37  # two chunks and a part of one
KINDS = ("identity", "scalar", "strong", "stronger", "floor", "packed", "groups")


def case_of(kind):
    """A case of the op for each thing that may go wrong."""
    decay = "identity" if kind == "identity" else "scalar"
    groups = 2 if kind in ("groups", "packed") else 1
    sizes = {"dim": 8, "heads": 2, "key_heads": 2, "batch": 2}
    case = cases.kalman(3, STEPS, decay, groups=groups, packed=kind == "packed", **sizes)
    rng = np.random.default_rng(8)
    if kind in ("strong", "stronger"):
        strength = -20.0 if kind == "strong" else -100.0
        hit = rng.random(case["log_decay"].shape) < 0.3
        hit[:, 16:32] = True  # a whole chunk
        case["log_decay"] = np.where(hit, strength, case["log_decay"])
    if kind == "floor":
        hit = rng.random(case["obs_var"].shape) < 0.5
        case["obs_var"] = np.where(hit, 1e-6, case["obs_var"])
    return case


def prepared(case):
    """`KalmanInputs` of a case, as the op hands them to a form."""
    state = case.get("state")
    given = {name: jnp.asarray(case[name]) for name in ("q", "k", "v", "process_var", "obs_var")}
    given["prior_var"] = jnp.asarray(case["prior_var"])
    given["log_decay"] = None if "log_decay" not in case else jnp.asarray(case["log_decay"])
    given["angle"] = None
    state = None if state is None else api.KalmanState(*map(jnp.asarray, state))
    segment_ids = case.get("segment_ids")
    segment_ids = None if segment_ids is None else jnp.asarray(segment_ids)
    sizes = api._check(given, state, segment_ids)
    return api._prepare(given, state, segment_ids, sizes)


def differentiable(inputs):
    return {n: x for n, x in inputs._asdict().items() if x is not None and n != "starts"}


def symmetric(gradients):
    cov = gradients["cov"]
    return gradients | {"cov": 0.5 * (cov + jnp.swapaxes(cov, -1, -2))}


@functools.partial(jax.jit, static_argnums=1)
def plain(inputs, config):
    return op.filter_tokens(inputs, config)


@pytest.mark.parametrize("kind", KINDS)
def test_values_equal_the_oracle(x64, kind):
    case = case_of(kind)
    found = plain(prepared(case), PLAIN)
    y, var, mean, cov = oracles.kalman(**case)
    groups = found.y.shape[3]
    assert_close(found.y.reshape(y.shape), y, np.float64)
    assert_close(found.var, var, np.float64)
    means = np.moveaxis(mean.reshape(*mean.shape[:-1], groups, -1), -2, -3)
    assert_close(found.mean, means, np.float64)
    assert_close(found.cov, cov, np.float64)


ALL = ("y", "var", "mean", "cov")


@pytest.mark.parametrize(
    "kind,outputs", (*((kind, ALL) for kind in KINDS), ("scalar", ("y",)), ("scalar", ("cov",)))
)
def test_gradients_equal_those_of_the_chunk_form(x64, kind, outputs):
    inputs = prepared(case_of(kind))
    rng = np.random.default_rng(4)
    wanted = jax.eval_shape(lambda: chunked(inputs, 16))
    weights = {n: jnp.asarray(rng.standard_normal(getattr(wanted, n).shape)) for n in outputs}

    def loss(varied, form):
        found = form(inputs._replace(**varied))
        return sum(jnp.sum(weights[n] * getattr(found, n)) for n in outputs)

    forms = (lambda x: chunked(x, 16), lambda x: op.filter_tokens(x, PLAIN))
    varied = differentiable(inputs)
    right, found = (symmetric(jax.jit(jax.grad(lambda x, f=f: loss(x, f)))(varied)) for f in forms)
    for name in varied:
        assert_close(found[name], right[name], np.float64, "gradient")


@pytest.mark.parametrize("kind", ("packed",))
def test_reverse_equals_autodiff_of_the_same_forward(x64, kind):
    inputs = prepared(case_of(kind))
    tokens, vectors = jax.jit(lambda x: op.cut(x, PLAIN))(inputs)

    def loss(varied, forward):
        passed = forward(*varied)
        rng = np.random.default_rng(5)
        return sum(jnp.sum(jnp.asarray(rng.standard_normal(x.shape)) * x) for x in passed)

    forms = (lambda *a: op._forward(*a, PLAIN)[0], lambda *a: op.pass_chunks(*a, PLAIN))
    varied = tokens, vectors, inputs.cov, inputs.mean
    right, found = (jax.jit(jax.grad(lambda x, f=f: loss(x, f)))(varied) for f in forms)
    for side in (right, found):
        assert not np.any(side[1].coarse - side[1].fine), "both parts of a sum get its cotangent"
    right, found = (
        (*t, *v, mean, 0.5 * (cov + jnp.swapaxes(cov, -1, -2)))
        for t, v, cov, mean in (right, found)
    )
    for one, other in zip(found, right, strict=True):
        assert_close(one, other, np.float64, "gradient")


@pytest.mark.parametrize("kind", ("strong", "floor", "packed"))
def test_float32_stays_finite_and_close(kind):
    inputs = prepared(case_of(kind))
    low = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype != bool else x, inputs)

    def loss(varied):
        found = op.filter_tokens(low._replace(**varied), PLAIN)
        return jnp.sum(found.y) + jnp.sum(found.var)

    gradient = jax.jit(jax.grad(loss))(differentiable(low))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    found, wanted = plain(low, PLAIN), jax.jit(chunked, static_argnums=1)(low, 16)
    for one, other in zip(found, wanted, strict=True):
        assert np.isfinite(one).all()
        if kind != "floor":  # there both are far from exact arithmetic, each in its way
            assert_close(one, other, np.float32, length=STEPS * 8)


def test_chunk_length_does_not_matter(x64):
    inputs = prepared(case_of("scalar"))
    first, second = (plain(inputs, Config(length=n, kernel=False)) for n in (8, 64))
    for one, other in zip(first, second, strict=True):
        assert_close(one, other, np.float64)
