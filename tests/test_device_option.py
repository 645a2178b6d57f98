import subprocess
import sys
from pathlib import Path

import jax
import pytest


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
@pytest.mark.parametrize("option", (["--device=gpu"], ["--device", "gpu"]))
def test_a_gpu_that_is_not_there_is_named(option):
    command = [sys.executable, "-m", "pytest", *option, "--collect-only", __file__]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=120
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--device=gpu: JAX finds no GPU" in done.stderr
