"""Case C17: a CPU-only machine with neither torch nor triton trains, and is told so once."""

import subprocess
import sys
from pathlib import Path

from tests.train.no_gpu_worker import FORBIDDEN

ROOT = Path(__file__).parents[2]


def test_two_steps_without_torch_and_triton(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.no_gpu_worker", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"blocked: {', '.join(FORBIDDEN)}", "steps: 2"]
    passed_over = [line for line in done.stderr.splitlines() if "passed over" in line]
    assert passed_over and len(passed_over) == len(set(passed_over))
    assert all("'cpu'" in line for line in passed_over)
