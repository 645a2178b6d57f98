"""Config sections: strict parsing, and errors that name the key."""

import pytest

from bayesmem.train.settings import MeshSettings, OptimizerSettings, Settings, TrainSettings

OPTIMIZER = {"learning_rate": 1e-2, "warmup_steps": 2, "weight_decay": 0.1}
TRAIN = {"steps": 10, "batch_size": 8}


def config(**changes):
    sections = {
        "seed": 0, "model": {}, "data": {}, "optimizer": OPTIMIZER, "train": TRAIN, "mesh": {},
    }  # fmt: skip
    return sections | changes


def test_whole_config_parses():
    settings = Settings.from_config(config())
    assert settings.train.batch_size == 8
    assert settings.optimizer.learning_rate == 1e-2
    assert settings.mesh == MeshSettings(data=-1, fsdp=1, tensor=1, sequence=1)


@pytest.mark.parametrize(
    ("kind", "values", "name"),
    [
        (OptimizerSettings, OPTIMIZER | {"learning_rate": 0.0}, "optimizer.learning_rate"),
        (OptimizerSettings, OPTIMIZER | {"learning_rate": float("nan")}, "optimizer.learning_rate"),
        (OptimizerSettings, OPTIMIZER | {"learning_rate": float("inf")}, "optimizer.learning_rate"),
        (OptimizerSettings, OPTIMIZER | {"weight_decay": float("inf")}, "optimizer.weight_decay"),
        (OptimizerSettings, OPTIMIZER | {"warmup_steps": -1}, "optimizer.warmup_steps"),
        (OptimizerSettings, OPTIMIZER | {"weight_decay": -0.1}, "optimizer.weight_decay"),
        (OptimizerSettings, OPTIMIZER | {"beta1": 1.0}, "optimizer.beta1"),
        (OptimizerSettings, OPTIMIZER | {"beta2": -0.1}, "optimizer.beta2"),
        (OptimizerSettings, OPTIMIZER | {"clip_norm": -1.0}, "optimizer.clip_norm"),
        (OptimizerSettings, OPTIMIZER | {"end_fraction": 1.5}, "optimizer.end_fraction"),
        (OptimizerSettings, OPTIMIZER | {"schedule": "step"}, "optimizer.schedule"),
        (TrainSettings, TRAIN | {"steps": 0}, "train.steps"),
        (TrainSettings, TRAIN | {"batch_size": 0}, "train.batch_size"),
        (TrainSettings, TRAIN | {"grad_accumulation": 3}, "train.grad_accumulation"),
        (TrainSettings, TRAIN | {"log_every": 0}, "train.log_every"),
        (TrainSettings, TRAIN | {"checkpoint_every": -1}, "train.checkpoint_every"),
        (MeshSettings, {"data": 0}, "mesh.data"),
        (MeshSettings, {"fsdp": -1}, "mesh.fsdp"),
    ],
)
def test_value_out_of_range_names_the_key(kind, values, name):
    with pytest.raises(ValueError, match=name):
        kind(**values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": OPTIMIZER | {"learning_rat": 1.0}}, "optimizer.*learning_rat"),
        ({"train": {"steps": 3}}, "train.*batch_size"),
        ({"train": TRAIN | {"steps": 2.5}}, "train.steps.*2.5.*int"),
        ({"train": TRAIN | {"steps": True}}, "train.steps"),
        ({"optimizer": OPTIMIZER | {"learning_rate": "1e-3"}}, "learning_rate.*str.*float"),
        ({"optimizer": OPTIMIZER | {"warmup_steps": 10}}, "warmup_steps.*below train.steps = 10"),
        ({"trian": {}}, "unknown keys.*trian"),
        ({"seed": "0"}, "seed"),
        ({"seed": 10**20}, r"seed.*10{20}.*2\^31"),
    ],
)
def test_bad_config_names_the_key(changes, words):
    with pytest.raises(ValueError, match=words):
        Settings.from_config(config(**changes))


def test_missing_section_is_named():
    broken = config()
    del broken["mesh"]
    with pytest.raises(ValueError, match="missing keys.*mesh"):
        Settings.from_config(broken)
