"""The model's configuration: strict, immutable, hashable."""

import dataclasses

import jax
import ml_collections
import pytest

from bayesmem.layers import MIXERS
from bayesmem.models import LanguageModel, ModelConfig

SMALL = {"vocab_size": 10, "width": 8}


def test_from_a_config_dict_and_hashable():
    given = ml_collections.ConfigDict(SMALL)
    given.mixers = ("kda", "attention")
    given.mixer_options = ml_collections.ConfigDict({"kda": {"num_heads": 2}})
    config = ModelConfig.from_dict(given)
    assert config == ModelConfig(
        **SMALL, mixers=["kda", "attention"], mixer_options={"kda": {"num_heads": 2}}
    )
    assert hash(config) == hash(ModelConfig.from_dict(given))
    assert hash(LanguageModel(config)) == hash(LanguageModel(config))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.width = 9


def test_mixers_repeat_over_the_layers():
    config = ModelConfig(**SMALL, num_layers=5, mixers=("kda", "gla"))
    names = [config.mixer_name(layer) for layer in range(5)]
    assert names == ["kda", "gla", "kda", "gla", "kda"]
    assert isinstance(config.build_mixer(3), MIXERS["gla"])


def test_attention_caches_take_the_models_length_unless_told_otherwise():
    config = ModelConfig(**SMALL, mixers=("attention",), max_length=77)
    assert config.build_mixer(0).max_length == 77
    told = dataclasses.replace(config, mixer_options={"attention": {"max_length": 5}})
    assert told.build_mixer(0).max_length == 5
    assert jax.tree.leaves(LanguageModel(told).init_state(3))[0].shape == (3, 5, 4, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"widht": 8}, ["widht", "width", "vocab_multiple"]),
        ({"vocab_size": 0}, ["vocab_size", "0"]),
        ({"mlp_width": -1}, ["mlp_width", "-1"]),
        ({"dtype": "float16"}, ["dtype", "float16", "bfloat16"]),
        ({"mixers": ()}, ["mixers"]),
        ({"mixers": ("kda", "rwkv")}, ["rwkv", "bayesian"]),
        ({"mixer_options": {"gla": {}}}, ["mixer_options", "gla", "bayesian"]),
        ({"mixer_options": {"bayesian": {"heads": 2}}}, ["heads", "num_heads"]),
        ({"mixer_options": {"bayesian": {"num_heads": 3}}}, ["8", "3"]),
    ],
)
def test_what_does_not_fit_raises_and_names_what_does(changes, words):
    with pytest.raises(ValueError) as error:
        ModelConfig.from_dict(SMALL | changes)
    for word in words:
        assert word in str(error.value)


def test_required_keys_are_named():
    with pytest.raises(ValueError, match="vocab_size and no width"):
        ModelConfig.from_dict({})


def test_a_label_gives_layers_of_one_kind_options_of_their_own():
    options = {"ramnet/moving": {"cape_share": 1.0}, "ramnet/still": {"cape_share": 0.0}}
    mixers = ("ramnet/moving", "ramnet/still")
    config = ModelConfig(**SMALL | {"num_layers": 3}, mixers=mixers, mixer_options=options)
    assert [config.build_mixer(layer).cape_share for layer in range(3)] == [1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="ramnet/other"):
        ModelConfig(**SMALL, mixers=mixers, mixer_options={"ramnet/other": {}})
