"""`python -m launch.collision` from end to end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def launch(workdir, *flags):
    """Runs the command; returns the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "launch.collision", f"--workdir={workdir}", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A workdir that held a result already; the run that was refused, and the one that was not."""
    workdir = tmp_path_factory.mktemp("collision")
    path = workdir / "results.json"
    path.write_text("earlier")
    refused = launch(workdir)
    assert path.read_text() == "earlier"
    return workdir, refused, launch(workdir, "--overwrite")


def test_writes_results_and_figures_and_prints_the_table(runs):
    workdir, _, process = runs
    assert process.returncode == 0, process.stderr
    names = sorted(path.name for path in workdir.iterdir())
    assert names == ["collision.png", "collision.svg", "results.json"]
    results = json.loads((workdir / "results.json").read_text())
    assert set(results["limits"]) == {
        "boost",
        "bayesian_flood",
        "reset_flood",
        "gain_floor",
        "onset_gain",
        "cross_growth",
    }
    assert {case["rho"] for case in results["fixed_prior_sweep"]} == {0.92, 0.99}
    assert set(results["fixed_prior_sweep"][0]) == {"rho", "c", "gain", "margin", "zero_crossing"}
    assert set(results["overlap_sweep"][0]) == {"rho", "bayesian", "reset"}
    assert "bayesian_flood" in process.stdout and "0.72309" in process.stdout
    assert "only with rho = 0.99" in process.stdout


def test_refuses_to_replace_results_unless_told(runs):
    workdir, refused, _ = runs
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    assert str(workdir / "results.json") in said
    assert "--overwrite" in said


def test_an_unknown_argument_is_an_error(tmp_path):
    process = launch(tmp_path / "new", "extra")
    assert process.returncode != 0
    assert "extra" in process.stdout + process.stderr
    assert not (tmp_path / "new").exists()
