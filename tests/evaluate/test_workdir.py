"""Evaluation from the files of a run, and what happens to an earlier evaluation."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bayesmem.evaluate.workdir import evaluate_workdir, write_evaluation
from bayesmem.train.loop import train
from configs import lm


def text_config(path, **train_values):
    config = lm.get_config("linear_attention").unlock()
    config.data.path, config.data.seq_len = str(path), 32
    config.model.width, config.model.num_layers, config.model.mlp_width = 16, 1, 16
    config.optimizer.warmup_steps = 1
    config.train.update(
        {"steps": 4, "batch_size": 4, "eval_batches": 1, "checkpoint_every": 2} | train_values
    )
    return config.lock()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run on a few text files."""
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    for split in ("train", "valid", "test"):
        words = rng.choice(["memory ", "filter ", "state ", "gain "], 300)
        (folder / f"{split}.txt").write_text("".join(words))
    workdir = tmp_path_factory.mktemp("run")
    train(text_config(folder), workdir)
    return workdir


def test_text_run_is_measured_on_its_whole_test_split(run):
    result = evaluate_workdir(run)
    assert (result["step"], result["task"], result["split"]) == (4, "text", "test")
    config = json.loads((run / "config.json").read_text())
    text = (Path(config["data"]["path"]) / "test.txt").read_bytes()
    assert result["bytes"] == len(text) and result["tokens"] == len(text) + 1
    assert sum(row["tokens"] for row in result["by_position"]) == result["tokens"]
    assert 0 < result["bits_per_byte"] < 9
    few = evaluate_workdir(run, max_batches=2)
    assert few["tokens"] == 2 * 4 * 32 and few["max_batches"] == 2


def test_damaged_newest_checkpoint_falls_back(run, tmp_path, caplog):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "checkpoints" / "step_00000004" / "COMMIT.json").unlink()
    assert evaluate_workdir(copy, max_batches=1)["step"] == 2
    assert "step_00000004 is skipped" in caplog.text


def test_run_without_a_checkpoint(run, tmp_path):
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    with pytest.raises(FileNotFoundError, match="no usable checkpoint"):
        evaluate_workdir(tmp_path)


def test_checkpoint_that_does_not_fit_the_config(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    config = json.loads((copy / "config.json").read_text())
    config["model"]["mlp_width"] = 24
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"params/blocks_0/mlp/\S+: found float32.*wanted float32"):
        evaluate_workdir(copy)


def test_mesh_of_another_machine_falls_back(run, tmp_path, caplog):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    config = json.loads((copy / "config.json").read_text())
    config["mesh"]["fsdp"] = 64
    (copy / "config.json").write_text(json.dumps(config))
    assert evaluate_workdir(copy, max_batches=1)["step"] == 4
    assert "fsdp = 64" in caplog.text


def test_evaluation_of_another_step_is_kept(tmp_path):
    path = write_evaluation(tmp_path, {"step": 3, "loss": 1.5})
    write_evaluation(tmp_path, {"step": 3, "loss": 1.5})
    assert [file.name for file in tmp_path.iterdir()] == ["evaluation.json"]
    write_evaluation(tmp_path, {"step": 9, "loss": 1.0})
    assert json.loads(path.read_text())["step"] == 9
    kept = json.loads((tmp_path / "evaluation_step_00000003.json").read_text())
    assert kept == {"step": 3, "loss": 1.5}


def test_no_evaluation_is_lost(tmp_path):
    path = tmp_path / "evaluation.json"
    for found in ("", "[]", '{"step": "x"}'):
        path.write_text(found)
        write_evaluation(tmp_path, {"step": 1, "max_batches": None})
    write_evaluation(tmp_path, {"step": 1, "max_batches": 2})
    write_evaluation(tmp_path, {"step": 1, "max_batches": 3})
    assert json.loads(path.read_text())["max_batches"] == 3
    stored = [file.read_text() for file in tmp_path.iterdir()]
    assert {"", "[]", '{"step": "x"}'} <= set(stored)
    assert {json.loads(x)["max_batches"] for x in stored if "max_batches" in x} == {None, 2, 3}
