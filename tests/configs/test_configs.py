"""Every config and variant builds; parameter counts are pinned; a key that nothing reads fails."""

import importlib
import itertools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import configs
from bayesmem.data.mqar import MqarTask
from bayesmem.models import ModelConfig, parameter_counts
from bayesmem.train.loop import fit
from bayesmem.train.parts import build_model, build_parts
from bayesmem.train.settings import MeshSettings, OptimizerSettings, Settings, TrainSettings
from bayesmem.train.sharding import make_mesh, parameter_shardings
from configs import common, lm, mqar, pretrain

# Parameters of every model, by config and variant. A change here is a change of the experiments.
PINNED: dict[str, int] = {
    "lm:tiny,bayesian": 405_472,
    "lm:tiny,deltanet": 373_440,
    "lm:tiny,gated_deltanet": 407_248,
    "lm:tiny,kda": 422_856,
    "lm:tiny,linear_attention": 402_112,
    "lm:tiny,retnet": 402_112,
    "lm:tiny,gla": 410_560,
    "lm:tiny,gsa": 451_776,
    "lm:tiny,mamba2": 372_440,
    "lm:tiny,ramnet": 379_224,
    "lm:tiny,attention": 369_280,
    "lm:small,bayesian": 5_315_808,
    "lm:small,deltanet": 4_927_104,
    "lm:small,gated_deltanet": 5_326_512,
    "lm:small,kda": 5_518_488,
    "lm:small,linear_attention": 5_295_744,
    "lm:small,retnet": 5_295_744,
    "lm:small,gla": 5_346_432,
    "lm:small,gsa": 5_493_888,
    "lm:small,mamba2": 4_721_352,
    "lm:small,ramnet": 4_763_976,
    "lm:small,attention": 4_902_144,
    "mqar:bayesian": 50_320,
    "mqar:deltanet": 51_200,
    "mqar:gated_deltanet": 59_656,
    "mqar:kda": 67_716,
    "mqar:linear_attention": 57_600,
    "mqar:retnet": 57_600,
    "mqar:gla": 61_824,
    "mqar:gsa": 82_432,
    "mqar:mamba2": 59_404,
    "mqar:ramnet": 64_504,
    "mqar:attention": 49_344,
    "mqar:bayesian,base": 50_320,
    "mqar:bayesian,update": 50_320,
    "mqar:bayesian,block": 50_320,
    "pretrain:small,bayesian": 44_328_192,
    "pretrain:small,deltanet": 42_165_248,
    "pretrain:small,gated_deltanet": 44_295_296,
    "pretrain:small,kda": 44_790_848,
    "pretrain:small,linear_attention": 44_180_480,
    "pretrain:small,retnet": 44_180_480,
    "pretrain:small,gla": 44_315_648,
    "pretrain:small,gsa": 44_708_864,
    "pretrain:small,mamba2": 40_563_904,
    "pretrain:small,attention": 42_082_816,
    "pretrain:small,ramnet": 42_683_520,
    "pretrain:tiny,bayesian": 5_024_160,
    "pretrain:tiny,deltanet": 4_956_544,
    "pretrain:tiny,gated_deltanet": 5_023_120,
    "pretrain:tiny,kda": 5_088_136,
    "pretrain:tiny,linear_attention": 5_014_912,
    "pretrain:tiny,retnet": 5_014_912,
    "pretrain:tiny,gla": 5_031_808,
    "pretrain:tiny,gsa": 5_080_960,
    "pretrain:tiny,mamba2": 4_954_520,
    "pretrain:tiny,attention": 4_949_120,
    "pretrain:tiny,ramnet": 4_969_008,
    "pretrain:340m,bayesian": 367_153_920,
    "pretrain:340m,deltanet": 341_594_112,
    "pretrain:340m,gated_deltanet": 366_956_928,
    "pretrain:340m,kda": 373_076_160,
    "pretrain:340m,linear_attention": 366_268_416,
    "pretrain:340m,retnet": 366_268_416,
    "pretrain:340m,gla": 367_079_424,
    "pretrain:340m,gsa": 368_640_000,
    "pretrain:340m,mamba2": 319_390_272,
    "pretrain:340m,attention": 341_099_520,
    "pretrain:340m,ramnet": 348_241_920,
    "pretrain:1_3b,bayesian": 1_402_378_752,
    "pretrain:1_3b,deltanet": 1_300_141_056,
    "pretrain:1_3b,gated_deltanet": 1_401_591_552,
    "pretrain:1_3b,kda": 1_413_436_800,
    "pretrain:1_3b,linear_attention": 1_399_428_096,
    "pretrain:1_3b,retnet": 1_399_428_096,
    "pretrain:1_3b,gla": 1_401_050_112,
    "pretrain:1_3b,gsa": 1_404_171_264,
    "pretrain:1_3b,mamba2": 1_205_389_440,
    "pretrain:1_3b,attention": 1_298_761_728,
    "pretrain:1_3b,ramnet": 1_327_201_536,
    **{f"ramnet_340m:{k}": 341_725_824 for k in pretrain.TOP_K},
    **{f"ramnet_1_3b:{k}": 1_301_127_648 for k in pretrain.TOP_K},
}

VARIANTS = {
    "lm": [",".join(parts) for parts in itertools.product(lm.SIZES, common.MIXERS)],
    "mqar": [*common.MIXERS, *(f"bayesian,{task}" for task in mqar.TASKS)],
    "pretrain": [",".join(parts) for parts in itertools.product(pretrain.SIZES, common.MIXERS)],
    "ramnet_340m": pretrain.TOP_K,
    "ramnet_1_3b": pretrain.TOP_K,
}
CHOICES = {name: "bayesian, deltanet" for name in ("lm", "mqar", "pretrain")}
ALL = [f"{name}:{variant}" for name, variants in VARIANTS.items() for variant in variants]


def load(config):
    name, variant = config.split(":")
    return importlib.import_module(f"configs.{name}").get_config(variant)


def test_every_config_file_is_in_these_tests():
    folder = Path(configs.__file__).parent
    paths = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py"))
    # These are in test_NAME.py.
    apart = ("ablations", "sweeps", "distill", "of_run")
    files = {path.as_posix() for path in paths if path.parts[0] not in apart}
    assert files - {"__init__", "common"} == set(VARIANTS)
    assert set(PINNED) == set(ALL)


@pytest.mark.parametrize("config", ALL)
def test_config_builds_with_its_pinned_parameters(config):
    values = load(config)
    assert values.is_locked
    Settings.from_config(values)
    model = build_model(values)
    boxed = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    assert parameter_counts(boxed["params"])["total"] == PINNED[config]
    parameter_shardings(make_mesh(MeshSettings(), jax.devices()[:1]), boxed["params"])


@pytest.mark.parametrize("name", VARIANTS)
def test_default_variant_and_unknown_variant(name):
    module = importlib.import_module(f"configs.{name}")
    assert module.get_config() == module.get_config("")
    with pytest.raises(ValueError, match=f"banana.*{CHOICES.get(name, 'top8, top16')}"):
        module.get_config("banana")
    assert f"--config=configs/{name}.py" in module.__doc__


@pytest.mark.parametrize("name", CHOICES)
def test_key_that_nothing_reads_is_an_error_in_every_section(name):
    base = importlib.import_module(f"configs.{name}").get_config().to_dict()
    base["data"] |= {"path": __file__} if name == "lm" else {"train_examples": 128}
    for section in ("model", "data", "optimizer", "train", "mesh"):
        changed = base | {section: base[section] | {"unread": 1}}
        with pytest.raises(ValueError, match="unread"):
            build_parts(changed, Settings.from_config(changed))
    with pytest.raises(ValueError, match="unread"):
        Settings.from_config(base | {"unread": 1})
    mixer = base["model"]["mixers"][0]
    options = {mixer: {"num_heads": 2, "unread": 1}}
    with pytest.raises(ValueError, match="unread"):
        ModelConfig.from_dict(base["model"] | {"mixer_options": options})


def small_mqar(task):
    """The MQAR config at sizes that train in a second."""
    config = mqar.get_config(f"attention,{task}").unlock()
    config.model.width, config.model.num_layers, config.model.mlp_width = 16, 1, 16
    config.model.remat = True
    config.optimizer.warmup_steps = 1
    config.train.update({"steps": 2, "batch_size": 2, "eval_batches": 1})
    config.data.update({"train_examples": 4, "valid_examples": 4, "num_pairs": 2, "seq_len": 16})
    return config


def test_every_parsed_key_is_read_by_a_run(tmp_path, monkeypatch):
    """Parsing and validating a key is not reading it: a run has to."""
    kinds = (OptimizerSettings, TrainSettings, MeshSettings, ModelConfig, MqarTask)
    own = ("__init__", "__post_init__", "__eq__", "__hash__", "__repr__")
    read = set()

    def record(self, name):
        if sys._getframe(1).f_code.co_name not in own:
            read.add((type(self), name))
        return object.__getattribute__(self, name)

    for kind in kinds:
        monkeypatch.setattr(kind, "__getattribute__", record, raising=False)
    for task in mqar.TASKS:
        config = small_mqar(task)
        settings = Settings.from_config(config)
        parts = build_parts(config, settings)
    fit(parts, settings, tmp_path)
    fields = {(kind, name) for kind in kinds for name in kind.__dataclass_fields__}
    assert fields - read == set()
