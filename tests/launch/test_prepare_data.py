"""`launch.prepare_data` as a user runs it, kills included, and training on what it made."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data import tiny_tokenizers as tiny

ROOT = Path(__file__).parents[2]
SHARDS = 150
# What a shell runs in the background ignores Ctrl-C, and so do the tests' processes then.
HEED = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def start(module, *flags):
    return subprocess.Popen(
        [sys.executable, "-c", HEED, sys.executable, "-m", f"launch.{module}", *flags],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process, status=0):
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, err
    return out, err


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for split, count in (("train", SHARDS), ("valid", 1), ("test", 1)):
        lines = tiny.sentences(count, seed=count)
        (folder / f"{split}.txt").write_text("\n\f\n".join(lines) + "\n")
    return folder


def command(corpus, output, tokenizer):
    return [
        f"--path={corpus}",
        f"--output={output}",
        f"--tokenizer={tokenizer}",
        "--shard_mb=0.00001",
        "--processes=2",
    ]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def children(process):
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def deaf_to_interrupts(pid):
    """Whether a process blocks or ignores Ctrl-C."""
    text = Path(f"/proc/{pid}/status").read_text()
    status = dict(line.split(":", 1) for line in text.splitlines())
    held = int(status["SigBlk"], 16) | int(status["SigIgn"], 16)
    return bool(held >> (signal.SIGINT - 1) & 1)


def alive(pid):
    """Whether a process runs; a zombie that nobody waits for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# Sent once so many shards are done; at 0, while the processes that tokenize are starting.
@pytest.mark.parametrize("sent,done", [(signal.SIGKILL, 3), (signal.SIGINT, 3), (signal.SIGINT, 0)])
def test_killed_and_continued_it_makes_the_same_files(corpus, tmp_path, sent, done):
    tokenizer = tiny.save_json(tmp_path / "tokenizer.json")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    out, err = finish(start("prepare_data", *command(corpus, whole, tokenizer)))
    counts = json.loads(out)
    assert counts["train"]["documents"] == counts["train"]["shards"] == SHARDS
    assert "tokens" in err and "100%" in err

    process = start("prepare_data", *command(corpus, killed, tokenizer))
    while len(list(killed.glob("*.array_record.json"))) < done or len(children(process)) < 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)
    workers = children(process)
    assert all(map(deaf_to_interrupts, workers))
    # Ctrl-C reaches every process of a terminal, a kill only one.
    (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
    _, err = process.communicate(timeout=300)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGINT: 1}[sent] and workers
    assert ("interrupted: the same command continues" in err) == (sent == signal.SIGINT)
    assert "Traceback" not in err
    left = [path.name for path in killed.glob("*.array_record.json")]
    assert len(left) < SHARDS + 2 and not (killed / "manifest.json").exists()
    deadline = time.monotonic() + 60
    while any(map(alive, workers)):
        assert time.monotonic() < deadline, "workers outlive the process that started them"
        time.sleep(0.05)

    out, _ = finish(start("prepare_data", *command(corpus, killed, tokenizer)))
    assert json.loads(out) == {**counts, "output": str(killed)}
    assert files(killed) == files(whole)


def test_training_on_a_prepared_folder_and_its_errors(corpus, tmp_path):
    tokenizer = tiny.save_model(tmp_path / "tokenizer.model")
    prepared = tmp_path / "prepared"
    finish(start("prepare_data", *command(corpus, prepared, tokenizer)))
    flags = [
        "--config=configs/lm.py:tiny,attention",
        f"--config.data.path={prepared}",
        f"--config.data.tokenizer={tokenizer}",
        "--config.data.seq_len=16",
        "--config.model.vocab_size=330",
        "--config.model.width=16",
        "--config.model.mlp_width=16",
        "--config.model.num_layers=1",
        "--config.optimizer.warmup_steps=1",
        "--config.train.steps=2",
        "--config.train.batch_size=4",
    ]
    out, _ = finish(start("train", *flags, f"--workdir={tmp_path}/run"))
    assert json.loads(out)["step"] == 2
    for change, words in (
        ("--config.model.vocab_size=329", "error: config model.vocab_size: found 329; wanted"),
        ("--config.data.tokenizer=bytes", "error: data.tokenizer: found 'bytes'"),
        ("--config.data.tokenizer=gone.json", "error: tokenizer: found nothing at 'gone.json'"),
        (f"--config.data.path={tmp_path}/gone", "error: path: found nothing"),
    ):
        _, err = finish(start("train", *flags, change, f"--workdir={tmp_path}/new"), 1)
        assert words in err and "Traceback" not in err
    _, err = finish(start("prepare_data", *command(corpus, prepared, "bytes")), 1)
    assert "holds another preparation" in err and "Traceback" not in err
