"""Sizes of models, counted without making them."""

import importlib

import pytest

from bayesmem.models import ModelConfig
from bayesmem.models.sizes import model_sizes, size_table, state_size


@pytest.mark.parametrize(
    ("name", "variant", "parameters", "state", "active"),
    [
        # L H d_v S and 2 K L H d_v of arXiv 2602.11958v2: 26.2M / 0.4M, 0.8M, 1.6M at 340M
        # parameters, 52.4M / 0.8M, 1.6M at 1.3B.
        ("ramnet_340m", "top8", 341_725_824, 26_214_400, 409_600),
        ("ramnet_340m", "top16", 341_725_824, 26_214_400, 819_200),
        ("ramnet_340m", "top32", 341_725_824, 26_214_400, 1_638_400),
        ("ramnet_1_3b", "top8", 1_301_127_648, 52_428_800, 819_200),
        ("ramnet_1_3b", "top16", 1_301_127_648, 52_428_800, 1_638_400),
    ],
)
def test_published_sizes_of_ramnet(name, variant, parameters, state, active):
    config = importlib.import_module(f"configs.{name}").get_config(variant)
    found = model_sizes(ModelConfig.from_dict(config.model))
    assert found[:3] == (parameters, state, active)


SMALL = {"vocab_size": 10, "width": 8, "num_layers": 1, "max_length": 16}


@pytest.mark.parametrize(
    ("mixer", "options", "parameters", "state", "flops"),
    [
        # Head 80; q, k, v, out of 8 x 8 and no more; the memory of two heads of 4 x 4.
        ("linear_attention", {"output_gate": "none"}, 80 + 256 + 20, 32, 2 * (80 + 256) + 6 * 32),
        # Gates 8 x 2 with their biases; mean and covariance.
        (
            "bayesian",
            {"output_gate": "none"},
            80 + 256 + 20 + 2 * 18,
            64,
            2 * (80 + 256 + 32) + 18 * 32,
        ),
        # Keys and values of 16 tokens.
        ("attention", {}, 80 + 256 + 16, 256, 2 * (80 + 256) + 2 * 256),
    ],
)
def test_numbers_of_a_small_model(mixer, options, parameters, state, flops):
    options = {mixer: {"num_heads": 2} | options}
    config = ModelConfig(**SMALL, mixers=(mixer,), mixer_options=options, tie_embeddings=True)
    assert model_sizes(config) == (parameters, state, state, flops)
    assert state_size(config) == state


def test_an_untied_head_is_counted_once_and_the_table_names_all():
    tied = model_sizes(ModelConfig(**SMALL, mixers=("retnet",), tie_embeddings=True))
    untied = model_sizes(ModelConfig(**SMALL, mixers=("retnet",)))
    assert untied.parameters == tied.parameters + 80
    assert untied.flops == tied.flops
    assert "retnet" in size_table({"retnet": tied})
