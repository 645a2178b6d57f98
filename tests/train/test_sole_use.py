"""Two processes in one run: the second is told of the first, and a killed one holds nothing."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayesmem.train.grid import groups_left
from bayesmem.train.sole_use import sole_use
from bayesmem.train.sweep import sweep
from bayesmem.train.sweep_config import checked
from tests.train.toys import sweep_config

HOLDER = """
import sys
from pathlib import Path
from bayesmem.train.sole_use import sole_use
with sole_use(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held(workdir, part=""):
    """A process that holds a run; the block may kill it."""
    command = [sys.executable, "-c", HOLDER, str(workdir), part]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    workdir = tmp_path / "a" / "run"
    with held(workdir) as process:
        wanted = f"found process {process.pid} on .* at work in {workdir}; wanted one process"
        with pytest.raises(BlockingIOError, match=wanted), sole_use(workdir):
            pass
        with sole_use(workdir, "part"):
            pass
        process.kill()
        process.wait()
        with sole_use(workdir):
            text = (workdir / ".lock").read_text()
    assert text.startswith(f"process {os.getpid()} on ")


def test_a_part_is_held_alone(tmp_path):
    with held(tmp_path, "gla-w64"):
        with pytest.raises(BlockingIOError), sole_use(tmp_path, "gla-w64"):
            pass
        with sole_use(tmp_path, "gla-w128"), sole_use(tmp_path):
            pass


def test_a_file_is_no_workdir(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="found a file at"), sole_use(tmp_path / "file"):
        pass


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.lockf", refuse)
    with sole_use(tmp_path):
        assert "start one process at a time" in caplog.text


def test_a_run_that_trains_is_not_trained_twice(tmp_path):
    command = [sys.executable, "-m", "launch.train", "--config=configs/lm.py:tiny,gla"]
    with held(tmp_path / "run"):
        found = subprocess.run(
            [*command, f"--workdir={tmp_path / 'run'}"],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            check=False,
        )
    assert found.returncode == 1
    assert "at work in" in found.stderr and "Traceback" not in found.stderr
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_sweep_leaves_out_what_another_process_trains(tmp_path, caplog):
    _, grid = checked(sweep_config())
    (group,) = groups_left(grid, (), {})
    with held(tmp_path, group.name):
        found = sweep(sweep_config(), tmp_path)
    assert found == {
        "done": 0, "left": 4, "failed": [], "elsewhere": [group.name], "stopped": None,
    }  # fmt: skip
    assert f"{group.name} is left out: workdir: found process" in caplog.text
    assert sweep(sweep_config(), tmp_path)["done"] == 4
