"""`python -m launch.describe` from end to end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayesmem.layers import MIXERS

ROOT = Path(__file__).parents[2]
RAMNET = "--config=configs/ramnet_340m.py:top8"
HYBRID = """
from configs import lm

def get_config():
    config = lm.get_config("ramnet+retnet").unlock()
    config.model.mixers = ("ramnet/moving", "retnet")
    config.model.mixer_options = {"ramnet/moving": {"cape_share": 1.0}}
    return config.lock()
"""


def launch(*flags):
    """Runs the command; returns the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "launch.describe", *flags],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def table(process):
    """The printed numbers of each model: parameters, state, active, FLOPs a token."""
    assert process.returncode == 0, process.stderr
    head, *lines = process.stdout.splitlines()
    assert head.split() == ["model", "parameters", "state", "active", "FLOPs/token"]
    return {line[:24].rstrip(): line[24:].split() for line in lines}


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """What was printed for the published model, and where its numbers were written."""
    output = tmp_path_factory.mktemp("describe") / "deep" / "sizes.json"
    return table(launch(RAMNET, f"--output={output}")), output


def test_prints_the_published_sizes_beside_every_other_mixer(described):
    rows, _ = described
    parameters, state, active, _ = rows["this config"]
    assert (parameters, state, active) == ("341.7M", "26.2M", "0.4M")
    assert list(rows) == ["this config", *(name for name in MIXERS if name != "ramnet")]
    for name, (_, state, active, _) in rows.items():
        assert name == "this config" or active == state  # only slots are left unread
    # 25 layers of 8 heads of 128 x 128.
    assert rows["gated_deltanet"][1] == "3.3M"


def test_output_holds_the_printed_numbers(described):
    rows, output = described
    written = json.loads(output.read_text())
    assert list(written) == list(rows)
    assert written["this config"]["state"] == 26_214_400
    assert written["this config"]["active"] == 409_600
    for name, numbers in written.items():
        parameters, state, active, flops = numbers.values()
        millions = [f"{number / 1e6:.1f}M" for number in (parameters, state, active)]
        assert rows[name] == [*millions, f"{flops / 1e9:.2f}G"]


def test_an_existing_output_is_left_as_it_is(tmp_path):
    path = tmp_path / "sizes.json"
    path.write_text("earlier")
    process = launch(RAMNET, f"--output={path}")
    assert process.returncode == 1 and process.stdout == ""
    assert process.stderr == f"error: --output: {path} exists already and is left as it is\n"
    assert path.read_text() == "earlier"


def test_mixers_of_the_config_are_no_baselines_whatever_their_labels(tmp_path):
    path = tmp_path / "hybrid.py"
    path.write_text(HYBRID)
    rows = table(launch(f"--config={path}"))
    assert list(rows) == ["this config", *(n for n in MIXERS if n not in ("ramnet", "retnet"))]
    assert list(table(launch(f"--config={path}", "--nobaselines"))) == ["this config"]


@pytest.mark.parametrize(
    ("flags", "words", "lines"),
    [
        (["--config=configs/lm.py", "--config.model.width=33"], "error: head_dim: width 33", 1),
        (["--config=configs/lm.py", "--config.model.widths=8"], 'Did you mean "width"', 2),
        (["--config=configs/nothing.py"], "configs/nothing.py", 4),
    ],
)
def test_errors_a_user_can_act_on(flags, words, lines):
    process = launch(*flags)
    assert process.returncode == 1 and process.stdout == ""
    assert process.stderr.startswith("error: ") and words in process.stderr
    assert len(process.stderr.splitlines()) <= lines, process.stderr


def test_arguments_that_are_no_flags_and_variants_that_do_not_exist(tmp_path):
    output = f"--output={tmp_path / 'sizes.json'}"
    for flags, words in (([RAMNET, "extra"], "extra"), ([f"{RAMNET}9"], "top89")):
        process = launch(*flags, output)
        assert process.returncode == 1
        assert words in process.stdout + process.stderr
    assert not any(tmp_path.iterdir())
