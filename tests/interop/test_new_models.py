"""Models made here as checkpoints of fla, and those that fla has no model for."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bayesmem.interop import load_fla, save_fla
from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.models.parameters import unroll_params

BASE = {"vocab_size": 50, "width": 12, "num_layers": 2, "mlp_width": 20}

MODELS = {
    "gated_deltanet": ("gated_deltanet", {"num_heads": 2}, {}),
    "gated_deltanet_wide": (
        "gated_deltanet",
        {
            "num_heads": 1,
            "head_dim": 49,
            "num_value_heads": 2,
            "expand_v": 1 / 49,
            "negative_eigenvalues": True,
            "output_gate": "sigmoid",
            "conv_size": 0,
        },
        {"tie_embeddings": True, "vocab_multiple": 64, "dtype": "bfloat16"},
    ),
    "gated_deltanet_scanned": (
        "gated_deltanet",
        {"num_heads": 2, "output_gate": "none", "chunk_size": 8},
        {"scan_layers": True, "remat": True, "vocab_multiple": 8},
    ),
    "deltanet": ("deltanet", {"num_heads": 2, "head_dim": 5, "expand_v": 1.4}, {}),
    "deltanet_fixed": ("deltanet", {"num_heads": 3, "beta": 1.0, "output_gate": "silu"}, {}),
    "gla": ("gla", {"num_heads": 2, "expand_k": 0.5}, {}),
    "gla_convolved": (
        "gla",
        {"num_heads": 2, "conv_size": 3, "activation": "silu", "output_gate": "none"},
        {},
    ),
    "mamba2": (
        "mamba2",
        {
            "num_heads": 6,
            "head_dim": 3,
            "num_groups": 2,
            "state_dim": 5,
            "conv_bias": True,
            "output_norm": "gated_groups",
        },
        {"mlp_width": 0},
    ),
    "mamba2_plain": ("mamba2", {"num_heads": 4, "output_norm": "none"}, {"mlp_width": 0}),
}


def make(mixer, options, changes):
    config = ModelConfig(**BASE | {"mixers": (mixer,), "mixer_options": {mixer: options}} | changes)
    tokens = jnp.zeros((1, 1), jnp.int32)
    boxed = jax.jit(LanguageModel(config).init)(jax.random.key(0), tokens)["params"]
    return config, nn.meta.unbox(boxed)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_made_here_comes_back(name, tmp_path):
    config, params = make(*MODELS[name])
    save_fla(tmp_path / "out", config, params)
    again = load_fla(tmp_path / "out")
    assert [p.name for p in sorted((tmp_path / "out").iterdir())] == [
        "config.json",
        "model.safetensors",
    ]
    if config.scan_layers:
        params = unroll_params(params)
    for table in ("embedding", "head"):
        if table in params:
            params[table]["table"] = params[table]["table"][: config.vocab_size]
    assert jax.tree.structure(again.params) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, again.params, params)
    save_fla(tmp_path / "again", again.config, again.params, again.origin)
    for path in (tmp_path / "out").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_the_model_that_comes_back_computes_the_same(tmp_path):
    config, params = make(*MODELS["mamba2"])
    save_fla(tmp_path / "out", config, params)
    again = load_fla(tmp_path / "out")
    tokens = jnp.arange(20)[None] % config.vocab_size
    wanted, _ = jax.jit(LanguageModel(config).apply)({"params": params}, tokens)
    found, _ = jax.jit(LanguageModel(again.config).apply)({"params": again.params}, tokens)
    np.testing.assert_array_equal(found, wanted)


def test_a_dtype_is_asked_for(tmp_path):
    config, params = make(*MODELS["gated_deltanet"])
    save_fla(tmp_path / "out", config, params, dtype="bfloat16")
    origin = load_fla(tmp_path / "out").origin
    assert json.loads(origin.config)["torch_dtype"] == "bfloat16"
    shard = origin.shards["model.safetensors"]
    assert shard["model.norm.weight"] == "bfloat16"
    assert shard["model.layers.1.attn.A_log"] == "float32"


@pytest.mark.parametrize(
    ("mixer", "options", "changes", "words"),
    [
        ("bayesian", {}, {}, ["mixers", "bayesian", "gated_deltanet", "mamba2"]),
        ("gla", {}, {"mixers": ("gla", "mamba2")}, ["mixers", "gla, mamba2"]),
        ("gla", {"num_heads": 2, "output_gate": "sigmoid"}, {}, ["output_gate of layer 0"]),
        ("gla", {"num_heads": 2, "decay_rank": 4}, {}, ["decay_rank of layer 1", "4", "16"]),
        ("gla", {"num_heads": 2, "decay_temperature": 8.0}, {}, ["decay_temperature", "8.0"]),
        ("gla", {"num_heads": 2, "conv_size": 4}, {}, ["activation", "'identity'", "'silu'"]),
        ("gla", {"num_heads": 2, "norm_eps": 1e-3}, {}, ["norm_eps of layer 0", "0.001", "1e-05"]),
        ("gla", {"num_heads": 2}, {"mlp_width": 0}, ["mlp_width", "0", "256"]),
        ("deltanet", {"num_heads": 2, "qk_bias": 0.5}, {}, ["qk_bias", "0.5", "0.0"]),
        ("deltanet", {"num_heads": 2, "beta": 0.5}, {}, ["beta", "0.5", "1.0"]),
        ("deltanet", {"num_heads": 2, "output_gate": "sigmoid"}, {}, ["output_gate", "'silu'"]),
        ("deltanet", {"num_heads": 2, "conv_bias": True}, {}, ["conv_bias", "True", "False"]),
        ("gated_deltanet", {"num_heads": 2, "activation": "identity"}, {}, ["activation"]),
        ("gated_deltanet", {"num_heads": 2, "output_norm": "none"}, {}, ["output_norm", "'heads'"]),
        ("mamba2", {"num_heads": 2}, {"mlp_width": 0}, ["output_norm", "'gated_groups'"]),
        ("mamba2", {"num_heads": 2, "output_norm": "none"}, {}, ["mlp_width", "20"]),
        (
            "mamba2",
            {"num_heads": 2, "output_norm": "none", "conv_size": 0},
            {"mlp_width": 0},
            ["conv_size", "0", "4"],
        ),
    ],
)
def test_what_fla_has_no_key_for_is_named(mixer, options, changes, words, tmp_path):
    config = ModelConfig(**BASE | {"mixers": (mixer,), "mixer_options": {mixer: options}} | changes)
    with pytest.raises(ValueError) as error:
        save_fla(tmp_path / "out", config, {})
    for word in words:
        assert word in str(error.value)
    assert not list(tmp_path.iterdir())


def test_layers_of_one_mixer_may_have_labels(tmp_path):
    names = ("gla/a", "gla/b")
    same = {name: {"num_heads": 2} for name in names}
    config = ModelConfig(**BASE | {"mixers": names, "mixer_options": same})
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = jax.jit(LanguageModel(config).init)(jax.random.key(0), tokens)["params"]
    save_fla(tmp_path / "out", config, params)  # boxed parameters too
    assert load_fla(tmp_path / "out").config.mixers == ("gla",)
    other = same | {"gla/b": {"num_heads": 2, "expand_k": 0.5}}
    config = ModelConfig(**BASE | {"mixers": names, "mixer_options": other})
    with pytest.raises(ValueError, match="key_dim of layer 1"):
        save_fla(tmp_path / "other", config, params)
