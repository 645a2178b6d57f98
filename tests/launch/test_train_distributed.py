"""Two processes under jax.distributed: the losses of one process, and one can go on for two."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from bayesmem.train.records import read_rows
from tests.tolerances import tolerance

ROOT = Path(__file__).parents[2]
STEPS, COMPARED = 400, 20
FLAGS = [
    "--config=configs/mqar.py:linear_attention",
    f"--config.train.steps={STEPS}",
    "--config.train.batch_size=4",
    "--config.train.log_every=5",
    "--config.train.eval_batches=2",
    "--config.train.checkpoint_every=0",
    "--config.optimizer.warmup_steps=5",
    "--config.model.width=16",
    "--config.model.mlp_width=16",
    "--config.model.num_layers=1",
    "--config.data.seq_len=16",
    "--config.data.num_pairs=2",
    "--config.data.vocab_size=32",
    "--config.data.train_examples=256",
    "--config.data.valid_examples=16",
]


def start(*flags):
    return subprocess.Popen(
        [sys.executable, "-m", "launch.train", *FLAGS, *flags],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def losses(workdir):
    rows = read_rows(workdir / "metrics.jsonl")
    return {row["step"]: row["loss"] for row in rows if row["split"] == "train"}


def test_two_processes_stop_together_and_one_continues(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    whole = start(f"--workdir={one}")
    out, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err

    coordinator = f"--coordinator=localhost:{free_port()}"
    shared = ["--distributed", coordinator, "--num_processes=2", f"--workdir={two}"]
    processes = [start(*shared, f"--process_id={i}") for i in range(2)]
    while not (two / "metrics.jsonl").exists():
        assert all(process.poll() is None for process in processes), processes[0].communicate()[1]
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGTERM)
    (printed, err), (silent, other) = [p.communicate(timeout=300) for p in processes]
    assert [process.returncode for process in processes] == [0, 0], err + other
    # Gloo prints a line of its own before the result of the first process.
    stopped = json.loads(printed[printed.index("{") :])
    assert "{" not in silent and 0 < stopped["step"] < STEPS
    state = json.loads(
        (two / f"checkpoints/step_{stopped['step']:08d}/loader/metadata").read_text()
    )
    assert len(state["processes"]) == 1

    last = start(f"--workdir={two}")
    out, err = last.communicate(timeout=300)
    assert last.returncode == 0 and f"continuing from step {stopped['step']}" in err, err
    wanted, found = losses(one), losses(two)
    assert list(found) == list(wanted) and found.keys() >= {5, COMPARED, STEPS}
    # Two processes add in another order; Adam makes that grow until, much later, runs part.
    early = [step for step in wanted if step <= COMPARED]
    np.testing.assert_allclose(
        [found[step] for step in early],
        [wanted[step] for step in early],
        **tolerance(jnp.float32, "gradient", COMPARED),
    )
