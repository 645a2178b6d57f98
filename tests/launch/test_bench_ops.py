import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayesmem.evaluate.speed import bench_ops
from bayesmem.evaluate.speed_inputs import KERNELS, OPS
from bayesmem.evaluate.speed_options import Options
from kernels_pallas.shapes import SUITES, Shape
from tests.tolerances import tolerance

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "launch.bench_ops", "--suite=quick", "--repeats=2"]


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **options)


def test_rows_of_the_quick_suite(tmp_path):
    output = tmp_path / "deep" / "bench.json"
    # Chunks of 16, which compile faster than those that suit the suite.
    done = run(*COMMAND, "--chunk_size=16", f"--output={output}")
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())
    forms = [form for _, of_op in OPS.values() for form in of_op if form not in KERNELS]
    assert len(rows) == 2 * len(forms) + 1  # a step is a matter of the token recurrence alone
    for row in rows:
        assert row["wall_ms"] > 0 and row["gpu_ms"] is row["roofline"] is row["note"] is None
        assert 0 < row["relative_error"] < tolerance(row["dtype"], length=row["T"])["rtol"]
        assert row["peak_bytes"] > row["temp_bytes"] and row["flops"] > row["bytes"] / 100
        assert row["implementation"] in done.stdout
    again = run(*COMMAND, f"--output={output}")
    assert again.returncode != 0
    assert "exists already" in again.stderr
    assert json.loads(output.read_text()) == rows


def test_bfloat16_and_errors_of_gradients():
    chosen = {"ops": ["delta_rule", "slot_memory"], "forms": ["chunked", "touched"]}
    options = Options(1, dtype="bfloat16", gradient_errors=True, **chosen)
    rows = list(bench_ops("quick", options))
    modes = ["fwd", "fwd+bwd"] * 2
    assert [row["mode"] for row in rows] == modes
    for row in rows:
        assert row["dtype"] == "bfloat16"
        limits = tolerance("bfloat16")["rtol"], tolerance("bfloat16", "gradient")["rtol"]
        assert limits[0] / 100 < row["relative_error"] < limits[0]
        if row["mode"] == "fwd+bwd":
            assert limits[1] / 100 < row["gradient_error"] < limits[1]
            errors = row["gradient_errors"]
            assert "v" in errors and max(errors.values()) == row["gradient_error"]
        else:
            assert row["gradient_error"] is row["gradient_errors"] is None


@pytest.mark.parametrize(
    ("suite", "options", "match"),
    [
        ("none", Options(), "suite.*'cpu'"),
        ("quick", Options(repeats=0), "repeats"),
        ("quick", Options(chunk_size=0), "chunk_size"),
        ("quick", Options(dtype="float16"), "dtype: found 'float16', wanted 'bfloat16' or"),
        ("quick", Options(ops=["slots"]), "ops: found 'slots', wanted some of .*slot_memory"),
        ("quick", Options(ops=["mesa_net"]), "ops: found 'mesa_net'"),
        ("quick", Options(forms=["fast"]), "forms: found 'fast', wanted some of .*touched"),
        ("gpu", Options(dims=[64, 96]), "dims: found 96, wanted some of 64, 128, 256"),
        ("decode", Options(dims=[64]), "dims: found 64, wanted none, for no shape of suite"),
        ("quick", Options(modes=["bwd"]), "modes: found 'bwd', wanted some of fwd, fwd.bwd, step"),
        ("quick", Options(peers=["mamba"]), "peers: found 'mamba', wanted some of fla"),
    ],
)
def test_what_cannot_be_timed_is_named(suite, options, match):
    with pytest.raises(ValueError, match=match):
        next(bench_ops(suite, options))


def test_only_some_dims(monkeypatch):
    shapes = Shape(1, 8, 1, 4, 4), Shape(1, 8, 1, 8, 8)
    monkeypatch.setitem(SUITES, "quick", shapes)
    options = Options(1, forms=["recurrent"], dims=[8])
    found = [(row["op"], row["D"]) for row in bench_ops("quick", options)]
    memories = "kalman_memory", "delta_rule", "linear_attention"
    assert found == [(op, 8) for _ in range(2) for op in memories]  # and no slots
    forward = list(bench_ops("quick", options._replace(modes=["fwd"])))
    assert [(row["op"], row["mode"]) for row in forward] == [(op, "fwd") for op in memories]


def test_only_some_ops_and_forms(caplog):
    options = Options(2, ops=["slot_memory"], forms=["recurrent", "pallas"])
    rows = list(bench_ops("decode", options))
    assert [(row["S"], row["mode"]) for row in rows] == [(s, "step") for s in (256, 1024, 4096)]
    assert {row["implementation"] for row in rows} == {"recurrent"}
    assert "slot_memory pallas step is left out: " in caplog.text


def test_a_missing_peer_is_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = run(*COMMAND, "--peers=fla", env=os.environ | {"PYTHONPATH": paths})
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "error: peers: fla cannot be imported (No module named 'torch'); install it by "
        "pip install -e '.[peers]'"
    )


def test_ops_and_forms_that_do_not_meet(tmp_path):
    output = tmp_path / "none.json"
    done = run(*COMMAND, "--ops=slot_memory", "--forms=chunked", f"--output={output}")
    assert done.returncode == 1 and done.stderr.startswith(
        "error: --ops, --forms, --dims, --modes: no form"
    )
    assert not output.exists()
