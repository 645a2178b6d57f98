"""The one list of requirements, and what setup.py makes of it."""

import ast
import re
import sys
import types
from pathlib import Path

import pytest

import bayesmem

ROOT = Path(__file__).parents[1]
PACKAGES = ("bayesmem", "kernels_pallas")
OURS = (*PACKAGES, "configs", "launch", "tests")
# Where the name that is imported is not the name that is installed.
DISTRIBUTIONS = {"absl": "absl-py", "orbax": "orbax-checkpoint", "lm_eval": "lm-eval"}
# Required without an import of ours yet: what the GPU kernels stand on, and tools.
NOT_IMPORTED = {"jax-triton", "pytest-xdist", "ruff", "mypy"}


@pytest.fixture
def arguments(monkeypatch):
    """What setup.py gives to setuptools."""
    found = {}
    tools = types.ModuleType("setuptools")
    tools.setup = found.update
    tools.find_packages = lambda include: include
    monkeypatch.setitem(sys.modules, "setuptools", tools)
    path = ROOT / "setup.py"
    exec(compile(path.read_text(), path, "exec"), {"__file__": str(path), "__name__": "setup"})
    return found


def project_name(requirement):
    return re.match(r"[\w-]+", requirement)[0].lower()


def imported(*folders):
    """Top-level names that the Python files of folders import, ours and Python's own left out."""
    names = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module.split(".")[0])
    foreign = names - set(OURS) - set(sys.stdlib_module_names) - {"setuptools"}
    return {DISTRIBUTIONS.get(name, name).lower() for name in foreign}


def test_setup_states_name_version_and_the_two_packages(arguments):
    assert arguments["name"] == "bayesmem"
    assert arguments["version"] == bayesmem.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", bayesmem.__version__)
    assert arguments["packages"] == [f"{name}*" for name in PACKAGES]
    assert arguments["python_requires"] == ">=3.11"
    assert arguments["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_setup_reads_the_one_list(arguments):
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    extras = arguments["extras_require"]
    assert set(extras) == {"test", "gpu", "wandb", "data", "peers", "harness"}
    assert listed == arguments["install_requires"] + [r for found in extras.values() for r in found]


def test_every_requirement_has_a_range(arguments):
    extras = arguments["extras_require"].values()
    for line in arguments["install_requires"] + [r for found in extras for r in found]:
        wanted = r'[\w-]+(\[\w+\])?>=[\d.]+,<[\d.]+(; sys_platform == "linux")?'
        assert re.fullmatch(wanted, line), line


def test_requirements_are_what_is_imported(arguments):
    core = {project_name(line) for line in arguments["install_requires"]}
    extras = arguments["extras_require"]
    test = {project_name(line) for line in extras["test"]}
    names = ("gpu", "wandb", "data", "harness")
    optional = {project_name(line) for name in names for line in extras[name]}
    used = imported(*PACKAGES, "configs", "launch")
    assert used <= core | optional
    assert imported("tests") <= core | test | {"lm-eval"}  # skipped where it is not installed
    assert core | test <= used | imported("tests") | NOT_IMPORTED


def test_source_distributions_hold_what_setup_reads():
    assert "requirements.txt" in (ROOT / "MANIFEST.in").read_text()


def test_every_folder_of_code_is_a_package():
    for name in PACKAGES:
        folders = {path.parent for path in (ROOT / name).rglob("*.py")}
        assert folders
        for folder in folders:
            assert (folder / "__init__.py").is_file(), folder
