import json
import subprocess
import sys

import pytest

from bayesmem.evaluate import speed
from tests.tolerances import tolerance


def test_rows_of_the_quick_suite(tmp_path):
    output = tmp_path / "deep" / "bench.json"
    command = [sys.executable, "-m", "launch.bench_ops", "--suite=quick", "--repeats=2"]
    done = subprocess.run([*command, f"--output={output}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())
    assert len(rows) == 2 * sum(len(forms) for _, forms in speed.OPS.values())
    for row in rows:
        assert row["wall_ms"] > 0
        assert 0 < row["relative_error"] < tolerance(row["dtype"], length=row["T"])["rtol"]
        assert row["implementation"] in done.stdout
    again = subprocess.run([*command, f"--output={output}"], capture_output=True, text=True)
    assert again.returncode != 0
    assert "exists already" in again.stderr
    assert json.loads(output.read_text()) == rows


def test_unknown_suite_and_no_repeats():
    with pytest.raises(ValueError, match="suite.*'cpu'"):
        next(speed.bench_ops("none"))
    with pytest.raises(ValueError, match="repeats"):
        next(speed.bench_ops("quick", 0))
