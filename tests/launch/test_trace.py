"""`python -m launch.trace` from end to end, on a model of two RAM-Net layers among others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bayesmem.train.loop import train
from configs import lm

ROOT = Path(__file__).parents[2]
TEXT = "memory filter"
HEADS, SLOTS, TOP_K = 2, 8, 3
OPTIONS = {"num_heads": HEADS, "digits": 3, "base": 2, "top_k": TOP_K}
NAMES = ["accesses.npz"] + [f"access_layer_{n}.{kind}" for n in (0, 2) for kind in ("png", "svg")]


def launch(workdir, *flags):
    """Runs the command; returns the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "launch.trace", f"--workdir={workdir}", *flags],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def written(process):
    """The paths that a finished process says it has written."""
    assert process.returncode == 0, process.stderr
    return [Path(line) for line in process.stdout.splitlines()]


def files(workdir):
    """Contents of all files of a trace."""
    paths = [workdir / "accesses.npz", *sorted((workdir / "figures").iterdir())]
    return {path.name: path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The workdir of two steps of training."""
    folder = tmp_path_factory.mktemp("trace")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("memory filter state gain " * 20)
    config = lm.get_config("ramnet").unlock()
    config.data.path, config.data.seq_len = str(folder), 32
    config.model.width, config.model.num_layers, config.model.mlp_width = 16, 3, 16
    config.model.mixers = ("ramnet/moving", "linear_attention", "ramnet/still")
    config.model.mixer_options = {
        "ramnet/moving": OPTIONS | {"cape_share": 1.0},
        "ramnet/still": OPTIONS | {"cape_share": 0.0},
        "linear_attention": {"num_heads": 2},
    }
    config.optimizer.warmup_steps = 1
    config.train.update({"steps": 2, "batch_size": 2, "eval_batches": 1})
    train(config.lock(), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def traced(run):
    """The same workdir, traced, with the paths printed."""
    return run, written(launch(run, f"--text={TEXT}"))


def test_every_ramnet_layer_is_stored_and_drawn(traced):
    run, paths = traced
    assert [path.name for path in paths] == NAMES
    assert paths[0].parent == run and {path.parent for path in paths[1:]} == {run / "figures"}
    for path in paths[1:]:
        start = path.read_bytes()[:5]
        assert start == (b"<?xml" if path.suffix == ".svg" else b"\x89PNG\r")
        assert path.stat().st_size > 1000
    with np.load(paths[0]) as stored:
        assert {name.split("/")[0] for name in stored} == {"layer_0", "layer_2"}
        for layer, moving in (("layer_0", HEADS), ("layer_2", 0)):
            assert stored[f"{layer}/num_slots"] == SLOTS
            assert stored[f"{layer}/cape_heads"] == moving
            for kind in ("write", "read"):
                ids, weights = stored[f"{layer}/{kind}_ids"], stored[f"{layer}/{kind}_weights"]
                # The mark of a document stands before the text.
                assert ids.shape == weights.shape == (1 + len(TEXT), HEADS, TOP_K)
                assert ids.min() >= 0 and ids.max() < SLOTS and weights.min() > 0


def test_a_trace_is_replaced_only_when_told(traced, tmp_path):
    run, _ = traced
    before = files(run)
    refused = launch(run, "--text=other")
    assert refused.returncode == 1 and refused.stdout == ""
    start = f"error: {run / 'accesses.npz'} exists already"
    assert refused.stderr.startswith(start) and "--overwrite" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert files(run) == before
    (run / "accesses.npz").rename(tmp_path / "moved.npz")  # the figures are kept too
    refused = launch(run, "--text=other")
    assert refused.returncode == 1 and "access_layer_0.png exists already" in refused.stderr
    (tmp_path / "moved.npz").rename(run / "accesses.npz")
    assert files(run) == before

    text = tmp_path / "text.txt"
    text.write_bytes("Ä".encode() * 10)
    again = written(launch(run, f"--text_file={text}", "--max_bytes=5", "--overwrite"))
    assert [path.name for path in again] == NAMES
    after = files(run)
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in NAMES)
    with np.load(again[0]) as stored:
        assert stored["layer_2/read_ids"].shape == (1 + 5, HEADS, TOP_K)


def copied(run, folder, **model):
    """A workdir with the config of a run, some keys of its model changed, and no checkpoint."""
    config = json.loads((run / "config.json").read_text())
    config["model"] |= model
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--text, --text_file: wanted exactly one"),
        (["--text=a", "--text_file=README.md"], "--text, --text_file: wanted exactly one"),
        (["--text="], "text: found an empty text"),
        (["--text_file=nothing.txt"], "nothing.txt"),
        (["--text=a", "--workdir={}/none"], "found no config.json"),
        (["--text=a", "--workdir={}/untrained"], "found no usable checkpoint"),
        (
            ["--text=a", "--workdir={}/other"],
            "found the mixers linear_attention, wanted a 'ramnet'",
        ),
    ],
)
def test_errors_a_user_can_act_on(run, tmp_path, flags, words):
    copied(run, tmp_path / "untrained")
    copied(run, tmp_path / "other", mixers=["linear_attention"], mixer_options={})
    process = launch(tmp_path / "untrained", *(flag.format(tmp_path) for flag in flags))
    assert process.returncode == 1 and process.stdout == ""
    assert process.stderr.startswith("error: ") and words in process.stderr, process.stderr
    assert len(process.stderr.splitlines()) == 1
    for folder in ("untrained", "other"):
        assert [path.name for path in (tmp_path / folder).iterdir()] == ["config.json"]
