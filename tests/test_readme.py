"""The README: its Python runs, its commands name modules, flags and configs that exist."""

import importlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bayesmem.distill.settings import DistillSettings
from bayesmem.layers import MIXERS
from bayesmem.train.parts import build_model
from bayesmem.train.tasks import model_of

ROOT = Path(__file__).parents[1]
PAGES = [
    path
    for path in (ROOT / "README.md", *ROOT.glob("*/**/*.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
]
TEXT = (ROOT / "README.md").read_text()
START = "\n".join(TEXT.splitlines()[:40])
TESTS_COMMAND = (
    "python3 -m venv .venv && .venv/bin/python -m pip install -q -e '.[test]' && "
    ".venv/bin/python -m pytest -n auto --dist loadfile tests"
)


def blocks(language, text=TEXT):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands():
    """Every command line of the README's bash blocks, and of the quickstart."""
    lines = [line for block in blocks("bash") for line in block.splitlines() if line.strip()]
    script = (ROOT / "launch" / "quickstart.sh").read_text().splitlines()
    return lines + [line for line in script if "python -m launch." in line]


LAUNCHES = [line for line in commands() if "-m launch." in line]


def test_first_lines_hold_a_sentence_an_example_and_both_commands():
    lines = [line for line in TEXT.splitlines() if line]
    assert lines[0] == "# bayesmem" and not lines[1].startswith(("#", "`"))
    (example,) = blocks("python", START)
    assert len(example.splitlines()) <= 10
    assert blocks("bash", START) == ["bash launch/quickstart.sh\n", TESTS_COMMAND + "\n"]


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.split("\n")[-2])
def test_python_runs_and_prints_what_it_says(code, capsys):
    exec(compile(code, "README.md", "exec"), {})
    said = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == said


@pytest.mark.parametrize("line", LAUNCHES)
def test_launch_command_has_an_existing_module_and_flags(line):
    words = shlex.split(line)
    module = words[words.index("-m") + 1]
    path = ROOT / (module.replace(".", "/") + ".py")
    assert path.is_file()
    source = path.read_text()
    defined = set(re.findall(r"flags\.DEFINE_\w+\(\s*\"(\w+)\"", source))
    for word in words[words.index("-m") + 2 :]:
        flag = re.fullmatch(r"--(\w+)((?:\.\w+)*)(=.+)?", word)
        assert flag and flag[1] in defined, word
        assert not flag[2] or flag[1] == "config", word


@pytest.mark.parametrize("line", [line for line in LAUNCHES if "--config=" in line])
def test_config_of_a_command_builds(line):
    words = shlex.split(line)
    (chosen,) = [word for word in words if word.startswith("--config=")]
    path, _, variant = chosen.removeprefix("--config=").partition(":")
    assert (ROOT / path).is_file()
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    config = module.get_config(*filter(None, [variant]))
    if "teacher" in config:  # the model is that of a run
        config.teacher = "runs/teacher"
        DistillSettings.from_config(config)
        return
    if "sweep" not in config:
        build_model(config)
        return
    for mixer, width in itertools.product(config.sweep.mixers, config.sweep.widths):
        model_of(config, mixer, width)


def has(config, key):
    for part in key.split("."):
        if part not in config:
            return False
        config = config[part]
    return True


def test_every_config_key_named_in_the_text_exists():
    names = "lm", "mqar", "distill", "sweeps.collision", "sweeps.mqar"
    configs = [importlib.import_module(f"configs.{name}").get_config() for name in names]
    for key in re.findall(r"--config\.([\w.]+)=", TEXT):
        assert any(has(config, key) for config in configs), key


def test_commands_of_other_kinds_are_known():
    known = (TESTS_COMMAND, "bash launch/quickstart.sh")
    assert [line for line in commands() if line not in LAUNCHES and line not in known] == []
    assert (ROOT / "launch" / "quickstart.sh").is_file()


def test_continuous_integration_runs_the_same_tests():
    script = (ROOT / ".ci" / "run").read_text()
    assert "--dist loadfile tests" in script and os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_tables_name_every_mixer_and_every_folder_named_exists():
    assert set(re.findall(r"^\| `(\w+)` \| `\w+` \|", TEXT, re.MULTILINE)) >= set(MIXERS)
    for path in re.findall(r"`((?:bayesmem|configs|launch|tests|docs)/[\w./]+)`", TEXT):
        assert (ROOT / path).exists(), path


def test_quickstart_is_short_and_says_which_python_it_wants(tmp_path):
    script = ROOT / "launch" / "quickstart.sh"
    assert len(script.read_text().splitlines()) <= 15
    copy = tmp_path / "launch" / "quickstart.sh"
    copy.parent.mkdir()
    copy.write_text(script.read_text())
    old = tmp_path / "python"
    # Runs the script's check with a version of its own.
    old.write_text(
        f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "
        "\"import sys; sys.version_info = (3, 9, 1); sys.version = '3.9.1 (old)'; $2\"\n"
    )
    old.chmod(0o755)
    done = subprocess.run(
        ["bash", str(copy)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHON": str(old)},
    )
    assert done.returncode == 1
    assert "found Python 3.9.1, wanted 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()
