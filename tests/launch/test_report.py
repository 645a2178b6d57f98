"""`python -m launch.report` from end to end."""

import re
import subprocess
import sys
from pathlib import Path

from tests import sweep_files as files

ROOT = Path(__file__).resolve().parents[2]


def launch(folder, *flags):
    """Runs the command on the folder's `results`; returns the finished process."""
    paths = [f"--{name}={folder / own}" for name, own in PLACES.items()]
    command = [sys.executable, "-m", "launch.report", *paths, *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


PLACES = {"results": "results", "output": "RESULTS.md", "figures": "figures"}


def figures_of(page):
    return [Path(link) for link in re.findall(r"!\[.*?\]\((.*?)\)", page.read_text())]


def test_the_page_is_that_of_the_committed_files(tmp_path):
    (tmp_path / "results").symlink_to(ROOT / "docs" / "results")
    done = launch(tmp_path)
    assert done.returncode == 0, done.stderr
    page = tmp_path / "RESULTS.md"
    assert page.read_text() == (ROOT / "docs" / "RESULTS.md").read_text()
    assert Path("figures/collision.svg") in figures_of(page)
    for link in figures_of(page):
        assert (tmp_path / link).is_file() and (ROOT / "docs" / link).is_file()
        assert (ROOT / "docs" / link).with_suffix(".png").is_file()


def test_figures_and_page_of_sweeps(tmp_path):
    files.write(tmp_path / "results" / "sweep_one.json", files.collision_sweep())
    found = files.mqar_of("update,64x4", {("bayesian", 64): 0.9, ("gla", 64): 0.2})
    files.write(tmp_path / "results" / "sweep_two.json", found)
    done = launch(tmp_path)
    assert done.returncode == 0, done.stderr
    names = ["mqar_width", "mqar_state", "sweep_two_curves", "sweep_one", "sweep_one_curves"]
    assert {link.stem for link in figures_of(tmp_path / "RESULTS.md")} == set(names)
    written = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert written == set(names) and "2 result files, 5 figures" in done.stdout


def test_an_unreadable_file_is_one_line_and_leaves_the_page(tmp_path):
    files.write(tmp_path / "results" / "sweep_one.json", {"config": {}})
    page = tmp_path / "RESULTS.md"
    page.write_text("earlier")
    done = launch(tmp_path)
    assert done.returncode == 1 and "sweep_one.json: found no results" in done.stderr
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
    assert page.read_text() == "earlier" and not (tmp_path / "figures").exists()
    (tmp_path / "results" / "sweep_one.json").unlink()
    done = launch(tmp_path)
    assert done.returncode == 1 and "holds no collision.json" in done.stderr
