"""`launch.distill` as a user runs it: stopped, continued, and told what is wrong in one line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bayesmem.train.checkpoint import newest_usable_step
from tests.distill.runs import PHASES, make_teacher, restored

ROOT = Path(__file__).parents[2]
STEPS = {"phase_a": 4, "phase_b": 200, "control": 2}
SMALL = [
    "--config=configs/distill.py:tiny",
    *(f"--config.{name}.train.steps={steps}" for name, steps in STEPS.items()),
    *(f"--config.{name}.train.batch_size=4" for name in PHASES),
    *(f"--config.{name}.train.eval_batches=1" for name in PHASES),
    *(f"--config.{name}.train.eval_every=0" for name in PHASES),
    *(f"--config.{name}.train.checkpoint_every=20" for name in PHASES),
    *(f"--config.{name}.optimizer.warmup_steps=0" for name in PHASES),
]


def start(*flags):
    return subprocess.Popen(
        [sys.executable, "-m", "launch.distill", *SMALL, *flags],
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


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return make_teacher(tmp_path_factory.mktemp("teacher"))


def test_terminated_it_continues(teacher, tmp_path):
    command = ["--config.student.layers=(1,)", f"--config.teacher={teacher}"]
    command.append(f"--workdir={tmp_path}")
    process = start(*command)
    saved = tmp_path / "phase_b" / "checkpoints"
    while newest_usable_step(saved) is None:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = finish(process)
    stopped = json.loads(out)
    assert stopped["phase"] == "phase_b" and stopped["stopped"] == "SIGTERM"
    assert stopped["step"] < STEPS["phase_b"] and newest_usable_step(saved) == stopped["step"]
    assert "layers/block_1/mixer" in err and "trained" in err

    out, err = finish(start(*command))
    assert f"continuing from step {stopped['step']} of" in err
    result = json.loads(out)
    assert result == json.loads((tmp_path / "distill_result.json").read_text())
    for name, steps in STEPS.items():
        assert result[name]["step"] == steps == restored(tmp_path / name)[0]


def other_task(teacher, folder):
    """A teacher that was trained on pairs of keys and values."""
    copy = folder / "mqar"
    shutil.copytree(teacher, copy)
    config = json.loads((copy / "config.json").read_text())
    config["data"] = {"task": "mqar"}
    (copy / "config.json").write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config.teacher=nowhere"], "error: config teacher: found no config.json in nowhere"),
        (["--config.teacher={mqar}"], "error: config teacher: found a run of data.task = 'mqar'"),
        (
            ["--config.teacher={teacher}", "--config.student.layers=(1,99)"],
            "error: config student.layers: found [99], wanted layers of the teacher: 0 to 1",
        ),
        ([], "error: config teacher: found ''; wanted the workdir of a run"),
    ],
)
def test_errors_are_one_line(teacher, tmp_path, flags, words):
    folders = {"teacher": teacher, "mqar": other_task(teacher, tmp_path)}
    workdir = tmp_path / "student"
    flags = [flag.format(**folders) for flag in flags]
    out, err = finish(start(*flags, f"--workdir={workdir}"), status=1)
    assert out == "" and words in err and "Traceback" not in err
    assert len(err.strip().splitlines()) == 1 and not workdir.exists()
