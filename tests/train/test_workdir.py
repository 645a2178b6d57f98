"""The workdir: its config, who may continue it, and atomic files."""

import json

import ml_collections
import pytest

from bayesmem.train.records import append_row, read_rows, start_metrics, write_json
from bayesmem.train.workdir import claim_workdir, read_config, read_run

CONFIG = {
    "seed": 0,
    "model": {"mixers": ("bayesian", "attention"), "mixer_options": {}},
    "train": {"steps": 10, "log_every": 1},
    "mesh": {"data": 8},
}


def changed(section, **values):
    return CONFIG | {section: CONFIG[section] | values}


def test_config_is_written_once_and_read_back(tmp_path):
    workdir = tmp_path / "a" / "b"
    claim_workdir(workdir, CONFIG)
    assert read_config(workdir)["model"]["mixers"] == ["bayesian", "attention"]
    before = (workdir / "config.json").read_bytes()
    claim_workdir(workdir, ml_collections.ConfigDict(CONFIG))
    claim_workdir(workdir, changed("train", log_every=5))
    claim_workdir(workdir, changed("mesh", data=-1, fsdp=2))
    assert (workdir / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (changed("train", steps=20), "train.steps: 10 there, 20 asked"),
        (CONFIG | {"seed": 1}, "seed: 0 there, 1 asked"),
        (changed("model", mixers=("kda",)), "model.mixers.*kda"),
        (changed("model", mixer_options={"kda": {"heads": 2}}), "mixer_options.kda.heads"),
        ({key: CONFIG[key] for key in ("seed", "train", "mesh")}, "model.mixers.*'nothing' asked"),
    ],
)
def test_other_config_is_refused_by_key(tmp_path, config, words):
    claim_workdir(tmp_path, CONFIG)
    (tmp_path / "checkpoints" / "step_00000001").mkdir(parents=True)
    with pytest.raises(ValueError, match=words):
        claim_workdir(tmp_path, config)


def test_a_key_that_earlier_versions_did_not_have_means_what_they_did(tmp_path):
    claim_workdir(tmp_path, CONFIG)
    (tmp_path / "checkpoints" / "step_00000001").mkdir(parents=True)
    claim_workdir(tmp_path, CONFIG | {"data": {"tokenizer": "bytes"}})
    with pytest.raises(ValueError, match=r"data\.tokenizer: 'bytes' there, 'x\.json' asked"):
        claim_workdir(tmp_path, CONFIG | {"data": {"tokenizer": "x.json"}})


def test_other_config_replaces_one_that_saved_nothing(tmp_path, caplog):
    claim_workdir(tmp_path, CONFIG)
    for number, steps in enumerate((20, 30)):
        claim_workdir(tmp_path, changed("train", steps=steps))
        assert read_config(tmp_path)["train"]["steps"] == steps
        assert f"config.superseded-{number}.json" in caplog.text
    kept = json.loads((tmp_path / "config.superseded-0.json").read_text())
    assert kept["train"]["steps"] == 10


def test_workdir_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError, match="found a file"):
            claim_workdir(path, CONFIG)


def test_no_run_and_no_json(tmp_path):
    with pytest.raises(FileNotFoundError, match="no config.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json.*not JSON"):
        read_config(tmp_path)


def test_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})

    def full(_):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}


def test_rows_after_the_step_move(tmp_path):
    path = start_metrics(tmp_path, 0)
    for step in (1, 2, 3):
        append_row(path, {"step": step, "split": "train", "loss": float("nan")})
    start_metrics(tmp_path, 3)
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3]
    start_metrics(tmp_path, 1)
    assert read_rows(path) == [{"step": 1, "split": "train", "loss": None}]
    moved = read_rows(tmp_path / "metrics_superseded.jsonl")
    assert [row["step"] for row in moved] == [2, 3]


def test_a_sweep_and_a_distillation_are_no_run_of_one_model(tmp_path):
    run = CONFIG | {"data": {}, "optimizer": {}}
    write_json(tmp_path / "config.json", run)
    assert read_run(tmp_path)["seed"] == 0
    write_json(tmp_path / "config.json", run | {"sweep": {}})
    with pytest.raises(ValueError, match="found a sweep in .*wanted a run of one model"):
        read_run(tmp_path)
    write_json(tmp_path / "config.json", {"student": {}, "data": {}})
    with pytest.raises(ValueError, match="found no model, optimizer, train in the config"):
        read_run(tmp_path)
