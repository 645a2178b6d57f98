"""Every ablation builds, and differs from its setting in the options it names and no other."""

import importlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import configs
from bayesmem.models import ModelConfig, parameter_counts
from bayesmem.train.parts import build_model
from bayesmem.train.settings import Settings
from configs import lm, mqar, ramnet_340m
from configs.ablations import digits, setting

RECIPE = 341_725_824  # parameters of configs/ramnet_340m.py

# Ablation -> the RAM-Net options it sets, and its parameters in the setting "340m".
ABLATIONS: dict[str, tuple[dict, int]] = {
    "top_k:k8": ({"top_k": 8}, RECIPE),
    "top_k:k16": ({"top_k": 16}, RECIPE),
    "top_k:k32": ({"top_k": 32}, RECIPE),
    "output_norm": ({"output_norm": False}, RECIPE - 25 * 32),  # a scale of 32 a layer
    "nope_only": ({"cape_share": 0.0}, RECIPE),
    "renormalise": ({"renormalise": True}, RECIPE),
    "balance": ({"balance": 0.01}, RECIPE),
    "digits:u1": ({"digits": 1, "base": 1_024}, 1_988_279_424),
    "digits:u2": ({"digits": 2, "base": 32}, 413_881_024),
    "digits:u3": ({"digits": 3, "base": (8, 8, 16)}, 361_402_624),
    "digits:u4": ({"digits": 4, "base": (4, 4, 8, 8)}, 348_284_224),
    "digits:u5": ({"digits": 5, "base": 4}, RECIPE),
    "retention:gsu": ({"retention": "gsu"}, RECIPE),
    "retention:pdma": ({"retention": "pdma"}, RECIPE),
}
FILES = tuple(dict.fromkeys(ablation.partition(":")[0] for ablation in ABLATIONS))
DEFAULTS = {"top_k": "k8", "digits": "u5", "retention": "gsu"}
PUBLISHED = {"top_k": "26.23", "output_norm": "28.87", "nope_only": "28.04"}
PUBLISHED |= {"renormalise": "26.83", "balance": "27.10"}
SETTINGS = {
    "340m": lambda: ramnet_340m.get_config("top8"),
    "lm": lambda: lm.get_config("small,ramnet"),
    "mqar": lambda: mqar.get_config("ramnet"),
}


def module(name):
    return importlib.import_module(f"configs.ablations.{name}")


def load(ablation, *parts):
    name, _, version = ablation.partition(":")
    return module(name).get_config(",".join(filter(None, (version, *parts))))


def parameters(config):
    """The model's parameters, none of them made."""
    model = build_model(config)
    boxed = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    return parameter_counts(boxed["params"])["total"]


def test_every_file_and_version_is_in_these_tests():
    folder = Path(configs.__file__).parent / "ablations"
    files = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py")}
    assert files - {"__init__", "setting"} == set(FILES)
    found = set()
    for name in FILES:
        versions = getattr(module(name), "VERSIONS", None)
        found |= {f"{name}:{version}" for version in versions} if versions else {name}
    assert found == set(ABLATIONS)
    assert set(setting.SETTINGS) == set(SETTINGS)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_ablation_has_its_pinned_parameters(ablation):
    config = load(ablation).unlock()
    config.model.scan_layers = True  # as many, and 25 equal layers are traced once
    assert parameters(config) == ABLATIONS[ablation][1]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_ablation_changes_the_named_options_alone(ablation, name):
    config = load(ablation, name)
    assert config.is_locked
    Settings.from_config(config)
    ModelConfig.from_dict(config.model)
    expected = SETTINGS[name]().to_dict()
    options = expected["model"]["mixer_options"]
    for mixer in expected["model"]["mixers"]:
        assert mixer.partition("/")[0] == "ramnet"
        options[mixer] = options.get(mixer, {}) | ABLATIONS[ablation][0]
    assert config.to_dict() == expected


@pytest.mark.parametrize("name", ("lm", "mqar"))
@pytest.mark.parametrize("file", FILES)
def test_ablation_builds_in_the_other_settings(file, name):
    for ablation in ABLATIONS:
        if ablation.partition(":")[0] == file:
            assert parameters(load(ablation, name)) > 0


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("version", digits.VERSIONS)
def test_addresses_of_any_digits_have_1024_slots_a_head(version, name):
    model = ModelConfig.from_dict(load(f"digits:{version}", name).model)
    for layer in range(model.num_layers):
        mixer = model.build_mixer(layer, parent=None)
        assert (mixer.digits, mixer.num_slots) == (int(version.removeprefix("u")), 1_024)


@pytest.mark.parametrize("version", digits.VERSIONS)
def test_config_of_a_workdir_gives_the_same_model(version):
    config = load(f"digits:{version}", "mqar")
    restored = build_model(json.loads(json.dumps(config.to_dict())))
    assert hash(restored) == hash(build_model(config))
    assert restored == build_model(config)


def test_every_ramnet_mixer_is_changed_and_no_other(monkeypatch):
    config = mqar.get_config("ramnet").unlock()
    config.model.mixers = ("ramnet/moving", "attention", "ramnet", "ramnet/still")
    options = {"attention": {"num_heads": 2}, "ramnet/moving": {"num_heads": 2, "base": 2}}
    config.model.mixer_options = {**options, "ramnet": {"cape_share": 1.0}}
    monkeypatch.setattr(mqar, "get_config", lambda variant: config.lock())
    changed = load("digits:u3", "mqar")
    assert changed.is_locked and changed.model.mixer_options.is_locked
    new = {"digits": 3, "base": (8, 8, 16)}
    assert changed.model.mixer_options.to_dict() == {
        "attention": {"num_heads": 2},
        "ramnet/moving": {"num_heads": 2} | new,
        "ramnet": {"cape_share": 1.0} | new,
        "ramnet/still": new,
    }


@pytest.mark.parametrize("file", FILES)
def test_default_unknown_variant_and_docstring(file):
    versions = getattr(module(file), "VERSIONS", ())
    default = ",".join(filter(None, (DEFAULTS.get(file), "340m")))
    assert module(file).get_config() == module(file).get_config(default)
    exist = "setting: 340m, lm, mqar"
    if file in DEFAULTS:
        exist = f"version: {', '.join(versions)}; {exist}"
    with pytest.raises(ValueError, match=f"banana.*{exist}"):
        module(file).get_config("banana")
    with pytest.raises(ValueError, match="lm,mqar"):
        module(file).get_config("lm,mqar")
    text = module(file).__doc__
    assert f"python -m launch.train --config=configs/ablations/{file}.py" in text
    for part in (*versions, *SETTINGS):
        assert f'"{part}"' in text
    if file in PUBLISHED:
        assert "Published at 340M" in text and PUBLISHED[file] in text
        assert "have not reproduced" in " ".join(text.split())


def test_unknown_setting_is_an_error():
    with pytest.raises(ValueError, match="setting: found 'banana', wanted one of 340m, lm, mqar"):
        setting.ablate("banana", top_k=4)
