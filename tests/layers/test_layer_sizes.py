"""Construction: names, options, sizes that do not fit, and grouped heads (C19)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bayesmem.layers import MIXERS, MixerOptions, ShortConvolution, build_mixer, mixer_defaults
from tests.layers.cases import QUICK_BUILD, inputs
from tests.tolerances import assert_close


@pytest.mark.parametrize(
    ("mixer", "options", "words"),
    [
        ("gated_deltanet", {"head_dim": 75, "expand_v": 1.5}, ["expand_v", "75", "1.5", "112.5"]),
        ("gated_deltanet", {"num_heads": 2, "num_value_heads": 3}, ["3", "multiple", "2"]),
        ("gla", {"head_dim": 5, "expand_k": 0.5}, ["expand_k", "5", "0.5", "2.5"]),
        ("deltanet", {"num_heads": 3}, ["head_dim", "16", "3"]),
        ("deltanet", {"head_dim": 5, "expand_v": 1.5}, ["expand_v", "5", "1.5", "7.5"]),
        ("deltanet", {"beta": 0.0}, ["beta", "0.0", "(0, 1]"]),
        ("deltanet", {"beta": 1.5}, ["beta", "1.5", "(0, 1]"]),
        ("deltanet", {"beta": float("nan")}, ["beta", "nan"]),
        ("deltanet", {"beta": 0.5, "negative_eigenvalues": True}, ["negative_eigenvalues", "0.5"]),
        ("kda", {"num_heads": 0}, ["num_heads", "0", ">= 1"]),
        ("kda", {"head_dim": -2}, ["-2", ">= 1"]),
        ("retnet", {"head_dim": 5}, ["head_dim", "5", "even"]),
        ("mamba2", {"num_heads": 4, "num_groups": 3}, ["4", "multiple", "3"]),
        ("attention", {"num_heads": 4, "num_kv_heads": 3}, ["4", "multiple", "3"]),
        ("attention", {"head_dim": 3}, ["head_dim", "3", "even"]),
        ("attention", {"max_length": 0}, ["max_length", "0"]),
        ("bayesian", {"num_groups": 3, "value_dim": 4}, ["num_groups", "3", "4"]),
        ("bayesian", {"transition": "full"}, ["transition", "full", "diagonal"]),
        ("bayesian", {"obs_var": 1e-9}, ["obs_var", "1e-09", "1e-06"]),
        ("bayesian", {"prior_var": -1.0}, ["prior_var", "-1.0"]),
        ("bayesian", {"initial_obs_var": 0.0}, ["initial_obs_var", "0.0"]),
        ("linear_attention", {"feature_map": "relu"}, ["feature_map", "relu", "elu+1"]),
        ("linear_attention", {"activation": "relu"}, ["activation", "relu", "silu"]),
        ("linear_attention", {"output_gate": "tanh"}, ["output_gate", "tanh", "sigmoid"]),
        ("linear_attention", {"conv_size": -1}, ["conv_size", "-1"]),
        ("linear_attention", {"conv_bias": True}, ["conv_bias", "True", "conv_size"]),
        ("linear_attention", {"output_norm": "all"}, ["output_norm", "all", "gated_groups"]),
        ("linear_attention", {"qk_bias": -0.5}, ["qk_bias", "-0.5"]),
        ("linear_attention", {"qk_bias": float("nan")}, ["qk_bias", "nan"]),
        ("linear_attention", {"chunk_size": 0}, ["chunk_size", "0"]),
        ("linear_attention", {"taps": 4}, ["taps", "conv_size", "feature_map"]),
        ("attention", {"conv_size": 4}, ["conv_size", "max_length"]),
        ("ramnet", {"top_k": 1025}, ["top_k", "1025", "4^5", "1024"]),
        ("ramnet", {"top_k": 0}, ["top_k", "0"]),
        ("ramnet", {"digits": 2, "base": (4, 8), "top_k": 33}, ["33", "(4, 8)", "32"]),
        ("ramnet", {"digits": 3, "base": (4, 8)}, ["base", "2", "(4, 8)", "digits=3"]),
        ("ramnet", {"digits": 2, "base": (4, 0)}, ["base", "0", ">= 2"]),
        ("ramnet", {"base": 1, "top_k": 1}, ["base", "1", ">= 2"]),
        ("ramnet", {"base": 4.0}, ["base", "4.0"]),
        ("ramnet", {"base": "44"}, ["base", "44"]),
        ("ramnet", {"value_dim": 0}, ["value_dim", "0"]),
        ("ramnet", {"norm_eps": 0.0}, ["norm_eps", "0"]),
        ("ramnet", {"initial_gate": float("nan")}, ["initial_gate", "nan"]),
        ("ramnet", {"initial_temperature": 1e-30}, ["initial_temperature", "1e-30"]),
        ("ramnet", {"cape_share": None}, ["cape_share", "None"]),
        ("ramnet", {"conv_size": -1}, ["conv_size", "-1", ">= 0"]),
        ("ramnet", {"digits": 16}, ["4^16", "2^31"]),
        ("ramnet", {"num_heads": 3}, ["head_dim", "16", "3"]),
        ("ramnet", {"cape_share": 1.5}, ["cape_share", "1.5"]),
        ("ramnet", {"retention": "lru"}, ["retention", "lru", "pdma"]),
        ("ramnet", {"balance": -1.0}, ["balance", "-1.0"]),
        ("ramnet", {"initial_temperature": 0.0}, ["initial_temperature", "0.0"]),
        ("mamba3", {}, ["mamba3", *MIXERS]),
    ],
)
def test_what_does_not_fit_raises_at_construction_and_names_the_numbers(mixer, options, words):
    with pytest.raises(ValueError) as error:
        build_mixer(mixer, 16, options)
    for word in words:
        assert word in str(error.value)


def test_a_factor_may_be_rounded():
    layer = build_mixer("gated_deltanet", 16, {"head_dim": 49, "expand_v": 1 / 49})
    assert layer.layout.value_dim == 1
    layer = build_mixer("gla", 16, {"head_dim": 49, "expand_k": 50 / 49})
    assert layer.layout.key_dim == 50


@pytest.mark.parametrize("mixer", MIXERS)
def test_shapes_of_a_call_are_checked(mixer):
    layer, x = build_mixer(mixer, 16, {"num_heads": 2}), jnp.zeros((2, 3, 16))
    calls = [
        ((x[..., :8],), {}, "x: "),
        ((x[0],), {}, "x: "),
        ((x,), {"segment_ids": jnp.zeros((2, 4), jnp.int32)}, "segment_ids: "),
        ((x,), {"segment_ids": jnp.zeros((2, 3))}, "segment_ids: "),
    ]
    for arguments, named, message in calls:
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda a=arguments, n=named: layer.init(jax.random.key(0), *a, **n))


@pytest.mark.parametrize("mixer", ["retnet", "attention"])
def test_positions_are_checked(mixer):
    layer = build_mixer(mixer, 16, {"num_heads": 2})
    with pytest.raises(ValueError, match="positions: "):
        layer.init(jax.random.key(0), jnp.zeros((2, 3, 16)), positions=jnp.zeros((1, 3), jnp.int32))


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_option_is_known_and_has_its_default(mixer):
    defaults = mixer_defaults(mixer)
    assert build_mixer(mixer, 16, defaults) == build_mixer(mixer, 16)
    assert {"width", "dtype", "options", "name", "parent"}.isdisjoint(defaults)


def test_options_reach_the_layer_and_the_rest_keeps_the_layers_defaults():
    layer = build_mixer("gated_deltanet", 16, {"num_heads": 2, "chunk_size": 8}, "bfloat16")
    wanted = MixerOptions(4, "silu", chunk_size=8, dtype=jnp.dtype("bfloat16"))
    assert layer.num_heads == 2 and layer.options == wanted


def test_implementation_is_passed_on_to_the_op():
    x = jnp.asarray(inputs()[:, :4])
    for mixer in MIXERS.keys() - {"attention"}:
        layer = build_mixer(mixer, 16, {"num_heads": 2, "implementation": "no_such"})
        with pytest.raises(ValueError, match="no_such"):
            jax.eval_shape(layer.init, jax.random.key(0), x)


@pytest.mark.parametrize("mixer", ["gated_deltanet", "mamba2"])
def test_grouped_heads_equal_repeated_heads(mixer):
    if mixer == "gated_deltanet":
        grouped, single = {"num_heads": 2, "num_value_heads": 4}, {"num_heads": 4}
        sizes = {"head_dim": 4}
    else:
        grouped, single = {"num_groups": 2}, {"num_groups": 4}
        sizes = {"num_heads": 4, "state_dim": 4}
    x = jnp.asarray(inputs()[:, :12])
    layer, wide = build_mixer(mixer, 16, grouped | sizes), build_mixer(mixer, 16, single | sizes)
    params = nn.meta.unbox(jax.jit(layer.init)(jax.random.key(3), x))
    repeated = jax.tree.map(lambda leaf: leaf, params)
    heads = repeated["params"]["heads"]
    queries, keys, values = np.split(heads["conv"]["kernel"], [8, 16], axis=1)
    twice = [_repeat_heads(part) for part in (queries, keys)]
    heads["conv"]["kernel"] = np.concatenate([*twice, values], axis=1)
    for name in ("query", "key"):
        heads[name]["kernel"] = _repeat_heads(heads[name]["kernel"])
    found, wanted = (
        jax.jit(lambda p, x, m=module: m.apply(p, x)[0], compiler_options=QUICK_BUILD)(tree, x)
        for module, tree in ((layer, params), (wide, repeated))
    )
    assert_close(found, wanted, "float32", length=x.shape[1] * 16)


def test_convolution_of_one_tap_scales_and_keeps_no_window():
    params = {"params": {"kernel": jnp.full((1, 2), 3.0)}}
    y, window = ShortConvolution(1).apply(params, jnp.ones((1, 4, 2)))
    np.testing.assert_array_equal(y, 3)
    assert window.shape == (1, 0, 2)


def _repeat_heads(kernel):
    """[W, 2 heads * 4] -> [W, 4 heads * 4], each head twice in a row."""
    return np.repeat(kernel.reshape(len(kernel), 2, 4), 2, axis=1).reshape(len(kernel), 16)
