"""What is read of a config.json, and what is said of the values that cannot be expressed."""

import json
import logging

import pytest

from bayesmem.interop.architectures import ARCHITECTURES, read_config
from tests.interop.fixture_models import FOLDER, NAMES


def config_of(name, **changes):
    return json.loads((FOLDER / name / "config.json").read_text()) | changes


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gla", {"model_type": "llama"}, ["model_type", "'llama'", *map(repr, ARCHITECTURES)]),
        ("gla", {"model_type": None}, ["model_type", "None", "'gla'"]),
        ("gla", {"attn": {"layers": [0], "num_heads": 2}}, ["attn", "layers", "null"]),
        ("gla", {"attnres_block_size": 2}, ["attnres_block_size", "2", "null"]),
        ("gla", {"hidden_act": "powlu"}, ["hidden_act", "'powlu'", '"swish"']),
        ("gla", {"num_kv_heads": 1}, ["num_kv_heads", "1", "num_heads"]),
        ("gla", {"feature_map": "relu"}, ["feature_map", "'relu'", "null"]),
        ("gla", {"clamp_min": -1.0}, ["clamp_min", "-1.0", "null"]),
        ("gla", {"elementwise_affine": False}, ["elementwise_affine", "False", "true"]),
        ("gla", {"expand_k": 0.3}, ["expand_k", "24", "0.3", "whole number"]),
        ("gla", {"vocab_size": 2**40}, ["vocab_size", str(2**40), "whole number"]),
        ("gla", {"hidden_size": "24"}, ["hidden_size", "'24'", "whole number"]),
        ("gla", {"num_heads": 0}, ["num_heads", "0", ">= 1"]),
        ("gla", {"norm_eps": 0}, ["norm_eps", "0", "> 0"]),
        ("gla", {"use_short_conv": 1}, ["use_short_conv", "1", "true or false"]),
        ("gla", {"feature_map": "relu", "clamp_min": 0}, ["feature_map", "clamp_min"]),
        ("delta_net", {"qk_norm": "sum"}, ["qk_norm", "'sum'", '"l2"']),
        ("delta_net", {"qk_activation": "elu"}, ["qk_activation", "'elu'", '"silu"']),
        ("delta_net", {"use_beta": False, "allow_neg_eigval": True}, ["negative_eigenvalues"]),
        ("gated_deltanet", {"output_gate_activation": "relu"}, ["output_gate_activation"]),
        ("gated_deltanet", {"num_v_heads": 3}, ["3", "multiple", "2"]),
        ("gated_deltanet", {"expand_v": 1.3}, ["expand_v", "1.3", "whole number"]),
        ("mamba2", {"hidden_act": "gelu"}, ["hidden_act", "'gelu'", '"silu"']),
        ("mamba2", {"D_has_hdim": True}, ["D_has_hdim", "True", "false"]),
        ("mamba2", {"use_bias": True}, ["use_bias", "True", "false"]),
        ("mamba2", {"norm_before_gate": True}, ["norm_before_gate", "True", "false"]),
        ("mamba2", {"dt_limit": [0.001, 0.1]}, ["dt_limit", "0.001", "[0.0, Infinity]"]),
        ("mamba2", {"dt_limit": [0.0, {"__float__": "NaN"}]}, ["dt_limit", "NaN", "Infinity"]),
        ("mamba2", {"layer_norm_epsilon": 1e-6}, ["layer_norm_epsilon", "1e-06", "null"]),
        ("mamba2", {"num_heads": 5}, ["head_dim", "12", "5", "48"]),
        ("mamba2", {"head_dim": 11}, ["head_dim", "11", "48"]),
    ],
)
def test_values_that_cannot_be_expressed_are_named(name, changes, words):
    with pytest.raises(ValueError) as error:
        read_config(config_of(name, **changes))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_that_fla_writes_is_known(name, caplog):
    with caplog.at_level(logging.WARNING, "bayesmem"):
        read_config(config_of(name))
        assert not caplog.records
        read_config(config_of(name, norm_first=True, torch_dtype="bfloat16"))
    (record,) = caplog.records
    assert "norm_first" in record.getMessage() and "torch_dtype" not in record.getMessage()


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"intermediate_size": 40}, 40),
        ({"hidden_size": 2048}, 5632),  # 2/3 of 4 * 2048, up to a multiple of 256
        ({"hidden_size": 1024, "hidden_ratio": None}, 2816),
        ({"hidden_size": 96, "hidden_ratio": 4}, 256),
    ],
)
def test_size_of_the_mlp(changes, size):
    *_, config = read_config(config_of("gla", **{"intermediate_size": None} | changes))
    assert config.mlp_width == size


def test_a_limit_of_infinity_may_be_written_in_two_ways():
    for limit in ([0.0, float("inf")], [0, {"__float__": "Infinity"}]):
        read_config(config_of("mamba2", dt_limit=limit))


def test_an_absent_key_has_flas_default():
    *_, config = read_config({"model_type": "gated_deltanet"})
    assert (config.width, config.num_layers, config.vocab_size) == (2048, 21, 32000)
    assert config.mixer_options["gated_deltanet"]["head_dim"] == 256
    *_, config = read_config({"model_type": "mamba2"})
    assert (config.num_layers, config.norm_eps, config.mlp_width) == (48, 1e-5, 0)
