"""The config of a distillation: every value that cannot be used is named."""

import copy

import pytest

from bayesmem.distill.settings import PHASES, DistillSettings
from bayesmem.train.workdir import as_json
from configs import distill

BASE = as_json(distill.get_config()) | {"teacher": "runs/teacher"}


def changed(path, value):
    """The config with one key changed; a key may be new."""
    config = copy.deepcopy(BASE)
    *sections, key = path.split(".")
    inner = config
    for section in sections:
        inner = inner[section]
    inner[key] = value
    return config


def test_sections_are_read():
    settings = DistillSettings.from_config(BASE)
    assert settings.phases == PHASES and settings.student.layers == (3, 7)
    assert [settings.runs[name].seed for name in PHASES] == [0, 1, 2]
    assert [settings.runs[name].train.steps for name in PHASES] == [250, 750, 1000]
    assert settings.joint.temperature == 1.0


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("unread", 1, r"unknown keys \['unread'\]"),
        ("teacher", "", "config teacher: found ''"),
        ("teacher", None, "config teacher: found None"),
        ("seed", True, "config seed: found True; wanted an int"),
        ("seed", 2**31, "seed: found 2147483648"),
        ("phases", [], r"config phases: found \(\)"),
        ("phases", ["phase_a", "phase_a"], "config phases: found"),
        ("phases", ["control", "phase_a"], "config phases: found.*wanted the order"),
        ("student.layers", [], r"student\.layers: found \(\)"),
        ("student.layers", [1, 1], r"student\.layers: found \(1, 1\)"),
        ("student.layers", [-1], r"student\.layers: found \(-1,\)"),
        ("student.layers", [True], r"student\.layers: found \(True,\)"),
        ("student.initial", "near", r"student\.initial: found 'near'; wanted one of"),
        ("student.process_ratio", 0.0, r"student\.process_ratio: found 0\.0"),
        ("student.process_ratio", float("inf"), r"student\.process_ratio: found inf"),
        ("student.num_groups", 0, r"student\.num_groups: found 0; wanted >= 1"),
        ("student.num_groups", 1.0, r"student\.num_groups: found 1\.0; wanted an int"),
        ("student.remat", 1, r"student\.remat: found 1"),
        ("student.unread", 1, r"config student: found \['unread'\]"),
        ("phase_a.unread", 1, "config phase_a: found .*unread"),
        ("phase_a.loss", {}, "config phase_a: found .*loss"),
        ("phase_a.train.unread", 1, r"phase_a\.train: found unknown keys \['unread'\]"),
        ("phase_b.optimizer.learning_rate", -1.0, r"optimizer\.learning_rate: found -1\.0"),
        ("phase_b.optimizer.warmup_steps", 750, r"config phase_b: .*warmup_steps: found 750"),
        ("phase_b.loss.temperature", 0.0, r"phase_b\.loss\.temperature: found 0\.0"),
        ("phase_b.loss.temperature", 1e3, r"temperature: found 1000\.0; wanted .* in 0\.1\.\.20"),
        ("phase_b.loss.kl_weight", 1e39, r"phase_b\.loss\.kl_weight: found 1e\+39"),
        ("student.process_ratio", 1e39, r"student\.process_ratio: found 1e\+39"),
        ("seed", 2**31 - 2, r"config seed: found 2147483646; wanted an int from 0 to"),
        ("seed", -1, "config seed: found -1"),
        ("phase_b.loss.kl_weight", -1.0, r"phase_b\.loss\.kl_weight: found -1\.0"),
        ("phase_b.loss.boundary_weight", float("nan"), r"boundary_weight: found nan"),
        ("phase_b.loss.unread", 1, r"phase_b\.loss: found unknown keys"),
        ("phase_a.train.z_loss", 0.1, r"phase_a\.train\.z_loss: found 0\.1; wanted 0"),
        ("phase_b.train.z_loss", 0.1, r"phase_b\.train\.z_loss: found 0\.1; wanted 0"),
        ("mesh.data", 0, r"mesh\.data: found 0"),
    ],
)
def test_values_that_cannot_be_used(path, value, words):
    with pytest.raises(ValueError, match=words):
        DistillSettings.from_config(changed(path, value))


def test_the_control_may_have_a_z_loss():
    assert DistillSettings.from_config(changed("control.train.z_loss", 0.1))


def test_missing_keys():
    config = copy.deepcopy(BASE)
    del config["student"]
    with pytest.raises(ValueError, match=r"missing keys \['student'\]"):
        DistillSettings.from_config(config)
