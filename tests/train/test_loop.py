"""The loop on the toy model: exact resume, rows, result, and errors."""

import json
import logging
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.train.checkpoint import all_steps, restore_params
from bayesmem.train.loop import fit
from bayesmem.train.parts import Parts
from bayesmem.train.settings import Settings
from bayesmem.train.sharding import make_mesh
from bayesmem.train.step import abstract_params
from tests.train.toys import ToyLoader, ToyModel, batch_at

STEPS = 8


def settings(**train):
    options = {"steps": STEPS, "batch_size": 8, "log_every": 2, "eval_every": 4}
    options |= {"checkpoint_every": 3, "keep_checkpoints": 0} | train
    return Settings.from_config(
        {
            "seed": 0, "model": {}, "data": {}, "train": options, "mesh": {},
            "optimizer": {"learning_rate": 0.05, "warmup_steps": 2, "weight_decay": 0.1},
        }
    )  # fmt: skip


class StoppingLoader(ToyLoader):
    """Does something before it hands out one of its batches."""

    def __init__(self, at, action):
        super().__init__()
        self.at, self.action = at, action

    def __next__(self):
        if self.position == self.at:
            self.action()
        return super().__next__()


class Killed(Exception):
    """Stands for a kill: nothing after it runs."""


def kill():
    raise Killed


def run(workdir, loader=None, **train):
    parts = Parts(ToyModel(), loader or ToyLoader(), [batch_at(1000), batch_at(1001)])
    return fit(parts, settings(**train), workdir)


def parameters(workdir):
    target = abstract_params(ToyModel(), make_mesh(settings().mesh))
    return restore_params(workdir / "checkpoints", target)


def rows(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    kept = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in kept]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory and the result of a run that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, run(workdir)


def test_result_rows_and_checkpoints_of_a_whole_run(whole):
    workdir, result = whole
    assert result["step"] == STEPS
    assert result == json.loads((workdir / "train_result.json").read_text())
    assert result["parameters"] == 11 * 8 + 8 * 16 + 16 + 16 * 11
    assert result["valid"]["bits_per_token"] == pytest.approx(result["valid"]["loss"] / np.log(2))
    found = [(row["step"], row["split"]) for row in rows(workdir)]
    assert found == [
        (2, "train"), (4, "train"), (4, "valid"), (6, "train"), (8, "train"), (8, "valid"),
    ]  # fmt: skip
    assert all_steps(workdir / "checkpoints") == [3, 6, 8]
    assert list((workdir / "tensorboard").iterdir())


def assert_same_run(workdir, whole):
    assert rows(workdir) == rows(whole[0])
    (step, found), (_, wanted) = parameters(workdir), parameters(whole[0])
    assert step == STEPS
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize("at", [0, 2, 3, 5, 6, 7])
def test_killed_anywhere_it_ends_where_the_whole_run_ended(tmp_path, whole, at):
    with pytest.raises(Killed):
        run(tmp_path, StoppingLoader(at, kill))
    result = run(tmp_path)
    assert_same_run(tmp_path, whole)
    assert result["valid"] == whole[1]["valid"]


def test_killed_twice_and_with_a_torn_row(tmp_path, whole):
    for at in (5, 7):
        with pytest.raises(Killed):
            run(tmp_path, StoppingLoader(at, kill))
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 8, "spl')
    run(tmp_path)
    assert_same_run(tmp_path, whole)
    superseded = (tmp_path / "metrics_superseded.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in superseded[:-1]] == [4, 4]
    assert superseded[-1] == '{"step": 8, "spl'


def test_no_checkpoints_but_the_last_starts_again(tmp_path, whole):
    with pytest.raises(Killed):
        run(tmp_path, StoppingLoader(6, kill), checkpoint_every=0)
    run(tmp_path, checkpoint_every=0)
    assert_same_run(tmp_path, whole)
    assert all_steps(tmp_path / "checkpoints") == [8]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_and_stops(tmp_path, whole, number):
    before = signal.getsignal(number)
    stopped = run(tmp_path, StoppingLoader(4, lambda: os.kill(os.getpid(), number)))
    assert stopped == {"step": 5, "stopped": number.name}
    assert signal.getsignal(number) is before
    assert all_steps(tmp_path / "checkpoints") == [3, 5]
    assert not (tmp_path / "train_result.json").exists()
    run(tmp_path)
    assert_same_run(tmp_path, whole)


def test_finished_run_is_left_as_it_is(tmp_path):
    run(tmp_path)
    files = {
        f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file() and "tfevents" not in f.name
    }
    again = run(tmp_path)
    assert again == json.loads((tmp_path / "train_result.json").read_text())
    for file, content in files.items():
        assert file.read_bytes() == content, file


def test_keep_checkpoints(tmp_path):
    run(tmp_path, checkpoint_every=1, keep_checkpoints=2)
    assert all_steps(tmp_path / "checkpoints") == [7, 8]


def test_damaged_checkpoint_costs_only_its_steps(tmp_path, whole, caplog):
    with pytest.raises(Killed):
        run(tmp_path, StoppingLoader(7, kill))
    newest = tmp_path / "checkpoints" / "step_00000006"
    for file in newest.rglob("d/*"):
        file.write_bytes(b"")
    run(tmp_path)
    assert_same_run(tmp_path, whole)
    assert "step_00000006 is skipped" in caplog.text
    assert (tmp_path / "checkpoints" / "step_00000006.unusable-0").is_dir()


def test_loader_that_ends_early_names_the_step(tmp_path):
    with pytest.raises(ValueError, match="before step 4; wanted 8 batches"):
        run(tmp_path, ToyLoader(end=3))


def test_rows_of_a_skipped_step_are_json_that_every_reader_takes(tmp_path):
    class Diverging(ToyModel):
        def logits(self, hidden):
            return super().logits(hidden) * jnp.inf

    parts = Parts(Diverging(), ToyLoader(), [batch_at(1000)])
    result = fit(parts, settings(), tmp_path)
    assert result["train"]["loss"] is None and result["train"]["skipped"] == STEPS


def test_two_devices_batch_that_does_not_split(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    with pytest.raises(ValueError, match="train.batch_size: found 8.*3 processes"):
        run(tmp_path)


def test_wandb_without_the_package(tmp_path):
    with pytest.raises(ImportError, match="train.wandb_project: found 'memory'.*pip install"):
        run(tmp_path, wandb_project="memory")


def test_log_line_says_where_it_continues(tmp_path, caplog):
    with pytest.raises(Killed):
        run(tmp_path, StoppingLoader(4, kill))
    with caplog.at_level(logging.INFO):
        run(tmp_path)
    assert "continuing from step 3" in caplog.text
