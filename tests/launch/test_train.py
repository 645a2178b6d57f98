"""`launch.train`, `launch.evaluate` and `launch.plot` as a user runs them, kills included."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from bayesmem.train.checkpoint import newest_usable_step, step_path

ROOT = Path(__file__).parents[2]
STEPS = 120
SMALL = [
    "--config=configs/mqar.py:bayesian",
    f"--config.train.steps={STEPS}",
    "--config.train.batch_size=4",
    "--config.train.log_every=20",
    "--config.train.eval_every=60",
    "--config.train.checkpoint_every=5",
    "--config.train.keep_checkpoints=0",
    "--config.optimizer.warmup_steps=10",
    "--config.model.width=16",
    "--config.model.mlp_width=16",
    "--config.model.num_layers=1",
    "--config.data.seq_len=16",
    "--config.data.num_pairs=2",
    "--config.data.vocab_size=32",
    "--config.data.train_examples=256",
    "--config.data.valid_examples=16",
    "--config.data.test_examples=18",
]


def start(module, *flags):
    return subprocess.Popen(
        [sys.executable, "-m", f"launch.{module}", *flags],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, status=0):
    """Waits for a process; returns what it printed and what it logged."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, err
    return out, err


def wait_for(process, condition):
    """Waits until something has happened; the process must still run then."""
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)


def parameters(workdir, step):
    """Every saved array of a step, by name."""
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        items = ocp.args.Composite(
            params=ocp.args.StandardRestore(), training=ocp.args.StandardRestore()
        )
        restored = checkpointer.restore(step_path(workdir / "checkpoints", step), args=items)
    return {"params": restored["params"], "training": restored["training"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupts, with what it printed and logged."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, *finish(start("train", *SMALL, f"--workdir={workdir}"))


def test_whole_run_prints_its_result_and_progress(whole):
    workdir, out, err = whole
    result = json.loads(out)
    assert result == json.loads((workdir / "train_result.json").read_text())
    assert result["step"] == STEPS and np.isfinite(result["train"]["loss"])
    assert f"{STEPS}/{STEPS}" in err and "loss=" in err and "tok/s=" in err


def test_killed_and_terminated_it_ends_bit_for_bit_the_same(whole, tmp_path):
    checkpoints = tmp_path / "checkpoints"
    command = [*SMALL, f"--workdir={tmp_path}"]

    # kill -9 while Orbax is writing, after some step is safe.
    process = start("train", *command)
    wait_for(process, lambda: newest_usable_step(checkpoints) is not None)
    wait_for(process, lambda: list(checkpoints.glob("*.orbax-checkpoint-tmp")))
    process.kill()
    finish(process, -signal.SIGKILL)
    first = newest_usable_step(checkpoints)
    assert first < STEPS

    # SIGTERM somewhere behind it.
    process = start("train", *command)
    wait_for(process, lambda: newest_usable_step(checkpoints) > first + 7)
    process.terminate()
    stopped = json.loads(finish(process)[0])
    assert stopped["stopped"] == "SIGTERM" and first < stopped["step"] < STEPS
    assert newest_usable_step(checkpoints) == stopped["step"]
    assert not (tmp_path / "train_result.json").exists()

    out, err = finish(start("train", *command))
    assert f"continuing from step {stopped['step']}" in err
    uninterrupted, ended = json.loads(whole[1]), json.loads(out)
    for result in (uninterrupted, ended):
        del result["train"]["tokens_per_second"]
    assert ended == uninterrupted
    wanted, found = parameters(whole[0], STEPS), parameters(tmp_path, STEPS)
    assert_trees_equal(found, wanted)


def assert_trees_equal(found, wanted):
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert_trees_equal(found[name], wanted[name])
    else:
        np.testing.assert_array_equal(found, wanted)


def test_evaluate_and_plot(whole):
    workdir, *_ = whole
    out, _ = finish(start("evaluate", f"--workdir={workdir}"))
    evaluation = json.loads((workdir / "evaluation.json").read_text())
    assert json.loads(out[: out.index("\n\nWritten")]) == evaluation
    assert evaluation["step"] == STEPS and evaluation["task"] == "mqar"
    assert evaluation["rows"] == 18 and evaluation["queries"] == 36
    assert evaluation["accuracy"] == evaluation["correct"] / 36
    out, _ = finish(start("plot", f"--workdir={workdir}"))
    figures = [Path(line) for line in out.splitlines()]
    assert {figure.name for figure in figures} == {
        "loss.png", "loss.svg", "accuracy.png", "accuracy.svg",
    }  # fmt: skip
    assert all(figure.stat().st_size > 1000 for figure in figures)


@pytest.mark.parametrize(
    ("module", "flags", "words"),
    [
        ("train", ["--config=configs/nothing.py", "--workdir={}/new"], "configs/nothing.py"),
        ("train", ["--config=configs/mqar.py:banana", "--workdir={}/new"], "banana"),
        (
            "train",
            ["--config=configs/mqar.py", "--workdir={}/file"],
            "error: workdir: found a file",
        ),
        ("train", [*SMALL, "--config.train.step=3", "--workdir={}/new"], 'Did you mean "steps"'),
        ("train", [*SMALL, "--config.train.batch_size=0", "--workdir={}/new"], "train.batch_size"),
        ("evaluate", ["--workdir={}"], "error: workdir: found no config.json"),
        ("plot", ["--workdir={}"], "error: workdir: found no metrics.jsonl"),
    ],
)
def test_errors_a_user_can_act_on(tmp_path, module, flags, words):
    (tmp_path / "file").write_text("")
    process = start(module, *(flag.format(tmp_path) for flag in flags))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1 and words in err
    assert "banana" in words or "Traceback" not in err
    assert not (tmp_path / "new").exists()
