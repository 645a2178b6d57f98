"""docs/RESULTS.md: every section of a folder of result files, in one order."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bayesmem.evaluate.collision_report import comparison, markdown_section
from bayesmem.evaluate.comparison_report import comparison_section
from bayesmem.evaluate.markdown import origins, table
from bayesmem.evaluate.model_table import model_section
from bayesmem.evaluate.speed_table import Row, speed_section
from bayesmem.evaluate.sweep_report import Shipped, counts, reduced, runs, sweep_section, title
from bayesmem.evaluate.sweep_summary import Sweep, summarise
from bayesmem.train.sweep_file import read_sweep

COLLISION = "collision.json"
_TASKS = ("collision", "random_keys", "mqar")
_VARIANTS = ("", "base", "update", "block")
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError)

_TOP = """\
# Results

Made by `python -m launch.report` from the result files of [{folder}]({folder}) alone.
Experiments are those of [arXiv 2605.31163](https://arxiv.org/abs/2605.31163); what it prints stands
beside ours, with the rule by which a claim counts as reproduced. n is the number of seeds; ± is the
sample standard deviation over them. "failed" is a value that was not finite.
"""


class Files(NamedTuple):
    """Result files by their name, of a folder.

    Attributes:
      folder: where they are.
      collision: contents of `collision.json`; None without one.
      sweeps: in the order of the page.
      notes: what is said of a sweep, the text of the file of its name that ends in .md.
      benches: rows of `launch.bench_ops`.
      comparisons: contents of `comparison_NAME.json` of `launch.compare`.
      models: contents of `bench_model_NAME.json` of `launch.bench_model`.
    """

    folder: Path
    collision: Mapping[str, Any] | None
    sweeps: Mapping[str, Sweep]
    notes: Mapping[str, str]
    benches: Mapping[str, Sequence[Row]]
    comparisons: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]


def read_files(folder: Path) -> Files:
    """Reads all result files.

    Raises:
      FileNotFoundError: there is none.
      ValueError: one cannot be read; names it.
    """
    sweeps = {path.name: _read_sweep(path) for path in sorted(folder.glob("sweep*.json"))}
    benches = {path.name: read_rows(path) for path in sorted(folder.glob("*bench_ops*.json"))}
    comparisons = {
        path.name: _read_comparison(path) for path in sorted(folder.glob("comparison_*.json"))
    }
    models = {path.name: _read_models(path) for path in sorted(folder.glob("bench_model*.json"))}
    path = folder / COLLISION
    collision = _read_collision(path) if path.is_file() else None
    if not (sweeps or benches or comparisons or models or collision):
        raise FileNotFoundError(
            f"--results: {folder} holds no {COLLISION}, no sweep*.json, no comparison_*.json, no "
            f"bench_model*.json and no *bench_ops*.json"
        )
    names = sorted(sweeps, key=lambda name: (*_place(sweeps[name]), name))
    notes = {name: (folder / name).with_suffix(".md") for name in (*names, *comparisons)}
    return Files(
        folder,
        collision,
        {name: sweeps[name] for name in names},
        {name: note.read_text() for name, note in notes.items() if note.is_file()},
        benches,
        comparisons,
        models,
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Reads one file of `launch.bench_ops`.

    Raises:
      ValueError: it does not hold rows of the benchmark.
    """
    try:
        rows = json.loads(path.read_text())
        speed_section({path.name: rows}, "")
    except _UNREADABLE as error:
        raise ValueError(
            f"{path}: found no rows of launch.bench_ops ({type(error).__name__}: {error})"
        ) from error
    if not rows:
        raise ValueError(f"{path}: found no rows, wanted those of launch.bench_ops")
    return rows


def results_page(
    files: Files,
    link: Callable[[Path], str],
    figures: Mapping[str, Sequence[Path]],
    shipped: Shipped,
) -> str:
    """Returns the page.

    Args:
      files: what it is made of.
      link: a path as the page writes it.
      figures: name of a file to its figures; "mqar" to those of all MQAR files.
      shipped: see `bayesmem.evaluate.sweep_command.command`.
    """
    folder = link(files.folder)
    parts = [_TOP.format(folder=folder), _contents(files, folder, shipped)]
    if files.collision is not None:
        links = [link(path) for path in figures[COLLISION]]
        parts.append(markdown_section(files.collision, f"{folder}/{COLLISION}", links))
    if files.sweeps:
        parts.append("## Learned experiments\n")
    drawn = False
    for name, sweep in files.sweeps.items():
        if sweep.task == "mqar" and not drawn:
            parts += [f"![MQAR, all forms and sizes]({link(path)})\n" for path in figures["mqar"]]
            drawn = True
        links = [link(path) for path in figures[name]]
        note = files.notes.get(name, "")
        parts.append(sweep_section(f"{folder}/{name}", sweep, links, shipped, note))
    if files.comparisons:
        parts.append("## Language models\n")
    for name, compared in files.comparisons.items():
        links, note = [link(path) for path in figures[name]], files.notes.get(name, "")
        parts.append(
            comparison_section(f"{folder}/{name}", _comparison(name), compared, links, note)
        )
    if files.models:
        parts.append(model_section(files.models, folder))
    if files.benches:
        parts.append(speed_section(files.benches, folder))
    return "\n".join(parts)


def _contents(files: Files, folder: str, shipped: Shipped) -> str:
    """The table of what was run."""
    rows = []
    if files.collision is not None:
        found = comparison(dict(files.collision))
        agree = f"{sum(row.matches for row in found)} of {len(found)} numbers"
        device, _, commit = origins([files.collision])
        text = "Deterministic collision"
        rows.append((f"[{text}]({folder}/{COLLISION})", "no training", device, commit, agree))
    for name, sweep in files.sweeps.items():
        device, _, commit = origins(sweep.results)
        claims = counts(sweep) + (", at a smaller size" if reduced(sweep, shipped) else "")
        rows.append((f"[{title(sweep)}]({folder}/{name})", runs(sweep), device, commit, claims))
    for name, compared in files.comparisons.items():
        of_tasks = compared["tasks"].values()
        done = [found["provenance"] for by_run in of_tasks for found in by_run.values()]
        device, _, commit = origins(done) if done else ("-", "", "-")
        what = f"{len(compared['runs'])} runs, {len(of_tasks)} tasks"
        rows.append((f"[{_comparison(name)}]({folder}/{name})", what, device, commit, "-"))
    for name, speeds in files.models.items():
        device, _, commit = origins([speeds])
        what = f"{len(speeds['rows'])} timings of size {speeds['size']}"
        rows.append((f"[Language models' speed]({folder}/{name})", what, device, commit, "-"))
    if files.benches:
        timings = [row for bench in files.benches.values() for row in bench]
        devices = ", ".join(sorted({row["device"] for row in timings}))
        what = f"{len(timings)} timings in {len(files.benches)} files"
        rows.append(("Speed, memory and error of the ops", what, devices, "-", "-"))
    return table(("experiment", "what was run", "device", "commit", "reproduced"), rows) + "\n"


def _comparison(name: str) -> str:
    """Title of a comparison, from its file's name."""
    return Path(name).stem.removeprefix("comparison_").replace("_", " ").capitalize()


def _read_comparison(path: Path) -> dict[str, Any]:
    """A comparison; all that its section needs is there."""
    try:
        found = json.loads(path.read_text())
        comparison_section(path.name, "", found, [])
    except _UNREADABLE as error:
        raise ValueError(
            f"{path}: found no results of launch.compare ({type(error).__name__}: {error})"
        ) from error
    return found


def _read_models(path: Path) -> dict[str, Any]:
    """Speeds of language models; all that their section needs is there."""
    try:
        found = json.loads(path.read_text())
        model_section({path.name: found}, "")
    except _UNREADABLE as error:
        raise ValueError(
            f"{path}: found no results of launch.bench_model ({type(error).__name__}: {error})"
        ) from error
    return found


def _read_sweep(path: Path) -> Sweep:
    """One sweep; all that its section needs is there."""
    found = read_sweep(path)
    try:
        sweep = summarise(found)
        sweep_section(path.name, sweep, [], lambda file, variant: {})
    except _UNREADABLE as error:
        raise ValueError(
            f"{path}: found no results of launch.sweep ({type(error).__name__}: {error})"
        ) from error
    return sweep


def _read_collision(path: Path) -> dict[str, Any]:
    """The deterministic experiment."""
    try:
        found = json.loads(path.read_text())
        markdown_section(found, path.name, [])
    except _UNREADABLE as error:
        raise ValueError(
            f"{path}: found no results of launch.collision ({type(error).__name__}: {error})"
        ) from error
    return found


def _place(sweep: Sweep) -> tuple[int, int, int]:
    """Where a sweep's section comes: by task, form and length."""
    length = sweep.config["data"].get("seq_len", 0)
    return _TASKS.index(sweep.task), _VARIANTS.index(sweep.variant), length
