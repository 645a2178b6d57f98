"""Keys and queries that are given: values, parameters, states, padding, gradients, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bayesmem.design_model import DesignModel, Reset, derive
from bayesmem.layers import build_mixer
from tests.layers.cases import BATCH, CASES, LENGTH, QUICK_BUILD, STEPS, WIDTH, inputs
from tests.layers.definitions import DEFINITIONS, dense, output
from tests.tolerances import assert_close

UNABLE = ("attention", "ramnet")
ABLE = [case for case, (name, _) in CASES.items() if name not in UNABLE]
REAL = 11
each_mixer = pytest.mark.parametrize("case", ABLE)


@functools.cache
def build(case):
    """The layer of a case, without what is made of projected keys."""
    name, options = CASES[case]
    return build_mixer(name, WIDTH, options | {"conv_size": 0, "conv_bias": False, "qk_bias": 0.0})


@functools.cache
def addresses(dim, steps=STEPS):
    """Unit vectors [B, T, D], some of them twice in a row."""
    noise = np.random.default_rng(1).standard_normal((BATCH, steps, dim)).astype("float32")
    noise[:, 3] = noise[:, 1]
    return noise / np.linalg.norm(noise, axis=-1, keepdims=True)


@functools.cache
def prepared(case):
    """Parameters, addresses, and a jitted call (params, x, addresses, state, segment_ids)."""
    layer, x = build(case), inputs()
    given = addresses(layer.layout.key_dim)
    init = jax.jit(lambda key: layer.init(key, x, addresses=given), compiler_options=QUICK_BUILD)

    def call(params, x, given, state=None, ids=None):
        return layer.apply(params, x, state, segment_ids=ids, addresses=given)

    params = nn.meta.unbox(init(jax.random.key(2)))
    return params, given, jax.jit(call, compiler_options=QUICK_BUILD)


def spoilt(array):
    """A copy with NaN from token REAL on."""
    copy = np.array(array)
    copy[:, REAL:] = np.nan
    return copy


def close(found, wanted):
    assert_close(found, wanted, "float32", length=LENGTH)


@each_mixer
def test_equals_the_recurrence_with_addresses_as_keys_and_queries(case):
    params, given, call = prepared(case)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    wide["heads"]["addresses"] = np.asarray(given, np.float64)
    x = np.asarray(inputs(), np.float64)
    close(call(params, inputs(), given)[0], DEFINITIONS[CASES[case][0]](build(case), wide, x))


@each_mixer
def test_only_values_have_parameters(case):
    params, _, _ = prepared(case)
    assert set(params["params"]["heads"]) == {"value"}
    # What else there is, is there without addresses too.
    shapes = jax.eval_shape(build(case).init, jax.random.key(0), inputs())
    own = {name: part for name, part in params["params"].items() if name != "heads"}
    same = {name: nn.meta.unbox(shapes["params"])[name] for name in own}
    assert len(shapes["params"]) == len(params["params"])
    jax.tree.map(lambda leaf, other: np.testing.assert_equal(leaf.shape, other.shape), own, same)


@each_mixer
def test_goes_on_from_a_state(case):
    params, given, call = prepared(case)
    whole, last = call(params, inputs(), given)
    parts, state = [], build(case).init_state(BATCH)
    for start, end in ((0, REAL), (REAL, REAL + 1), (REAL + 1, STEPS)):
        y, state = call(params, inputs()[:, start:end], given[:, start:end], state)
        parts.append(y)
    close(np.concatenate(parts, axis=1), whole)
    jax.tree.map(close, state, last)


@each_mixer
def test_padding_writes_nothing_whatever_stands_there(case):
    params, given, call = prepared(case)
    ids = np.repeat([[0] * REAL + [-1] * (STEPS - REAL)], BATCH, axis=0).astype(np.int32)
    alone, state = call(params, inputs()[:, :REAL], given[:, :REAL])
    padded, padded_state = call(params, spoilt(inputs()), spoilt(given), None, ids)
    close(padded[:, :REAL], alone)
    np.testing.assert_array_equal(padded[:, REAL:], 0)
    jax.tree.map(close, padded_state, state)


@each_mixer
def test_gradients_are_finite_and_reach_values_and_addresses(case):
    params, given, _ = prepared(case)
    weights = np.random.default_rng(3).standard_normal(inputs().shape).astype("float32")
    ids = np.repeat([[0] * REAL + [-1] * (STEPS - REAL)], BATCH, axis=0).astype(np.int32)

    def loss(params, x, given):
        return jnp.sum(build(case).apply(params, x, segment_ids=ids, addresses=given)[0] * weights)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), compiler_options=QUICK_BUILD)
    found = gradient(params, *(spoilt(array) for array in (inputs(), given)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    for gradient in (found[0]["params"]["heads"]["value"]["kernel"], found[1], found[2]):
        assert np.abs(gradient).max() > 0
    for gradient in found[1:]:
        np.testing.assert_array_equal(gradient[:, REAL:], 0)


@pytest.mark.parametrize("case", ["bayesian", "deltanet"])
def test_bfloat16_activations_stay_near(case):
    params, given, call = prepared(case)
    name, options = CASES[case]
    layer = build_mixer(name, WIDTH, options | {"conv_size": 0}, "bfloat16")
    x = jnp.asarray(inputs(), jnp.bfloat16)
    apply = jax.jit(layer.apply, compiler_options=QUICK_BUILD)
    y, _ = apply(params, x, addresses=given)
    assert y.dtype == jnp.bfloat16
    assert_close(y, call(params, inputs(), given)[0], "bfloat16", length=STEPS)


def test_a_fixed_beta_is_the_filter_whose_covariance_is_reset():
    obs_var, cov = 0.05, 0.02
    layer = build_mixer(
        "deltanet",
        WIDTH,
        {"num_heads": 2, "beta": cov / (obs_var + cov), "conv_size": 0, "activation": "identity"},
    )
    x, given = inputs(), addresses(WIDTH // 2)
    params = nn.meta.unbox(layer.init(jax.random.key(0), x, addresses=given))
    assert set(params["params"]) == {"heads", "output"}
    k = np.repeat(given[:, :, None], 2, axis=2)
    v = dense(params["params"]["heads"]["value"], x).reshape(*x.shape[:2], 2, -1)
    read, _ = derive(DesignModel("memory", obs_var, Reset(cov))).apply(k, k, v)
    wanted = output(params["params"]["output"], np.asarray(read) * (WIDTH // 2) ** -0.5, x, None)
    close(layer.apply(params, x, addresses=given)[0], wanted)


@pytest.mark.parametrize(
    ("mixer", "options", "shape", "words"),
    [
        ("bayesian", {"conv_size": 4}, (2, 3, 8), ["conv_size", "4", "addresses", "wanted 0"]),
        ("deltanet", {}, (2, 3, 8), ["conv_size", "4"]),
        ("bayesian", {"qk_bias": 0.5}, (2, 3, 8), ["qk_bias", "0.5", "addresses", "wanted 0"]),
        ("gla", {}, (2, 3, 7), ["addresses", "7", "D=8"]),
        ("gla", {"expand_k": 0.5}, (2, 3, 8), ["addresses", "D=4"]),
        ("mamba2", {"conv_size": 0}, (2, 3, 8), ["addresses", "D=64"]),
        ("gla", {}, (2, 4, 8), ["addresses", "4", "T=3"]),
        ("gla", {}, (3, 8), ["addresses", "(3, 8)"]),
        ("attention", {}, (2, 3, 8), ["addresses", "attention", "None"]),
        ("ramnet", {}, (2, 3, 8), ["addresses", "ramnet", "None"]),
    ],
)
def test_what_does_not_fit_raises_before_tracing(mixer, options, shape, words):
    layer = build_mixer(mixer, WIDTH, {"num_heads": 2} | options)
    with pytest.raises(ValueError) as error:
        layer.init(jax.random.key(0), jnp.zeros((2, 3, WIDTH)), addresses=jnp.zeros(shape))
    for word in words:
        assert word in str(error.value)


def test_addresses_are_floats():
    layer = build_mixer("gla", WIDTH, {"num_heads": 2})
    given = jnp.zeros((2, 3, 8), jnp.int32)
    with pytest.raises(ValueError, match="addresses: found dtype int32"):
        layer.init(jax.random.key(0), jnp.zeros((2, 3, WIDTH)), addresses=given)
