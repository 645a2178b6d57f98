"""The section of a sweep on the results page: what was run, its numbers, and the paper's claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesmem.evaluate.markdown import origins, table
from bayesmem.evaluate.sweep_claims import SOURCE, number, percent, verdicts
from bayesmem.evaluate.sweep_command import command, origin
from bayesmem.evaluate.sweep_summary import Cell, Sweep
from bayesmem.train.task_data import MAIN_TEST

CHOICE = (
    "The learning rate of each mixer and width is that of the highest mean training accuracy at "
    "the last point of the curve; no test has a part in the choice."
)
_PAPER = {"collision": "Figure 3 c, d", "random_keys": "Figure 7", "mqar": "Figure 4"}
_TITLES = {"collision": "Learned collision", "random_keys": "Random-key crowding", "mqar": "MQAR"}
_STATE = (
    "State is what the memories of all layers hold for a sequence, in float32 numbers: means and "
    "covariances, slots, keys and values of as many tokens as the rows trained on have; windows of "
    "convolutions are left out."
)
_VERDICTS = {True: "yes", False: "**no**", None: "not run"}

Shipped = Callable[[str, str], Mapping[str, Any]]


_SIZES = (
    ("train", "steps"),
    ("train", "batch_size"),
    ("data", "train_examples"),
    ("data", "test_examples"),
    ("sweep", "seeds"),
    ("sweep", "mixers"),
    ("sweep", "widths"),
    ("sweep", "learning_rates"),
)
"""Sections and keys that say how large a sweep is."""


def title(sweep: Sweep) -> str:
    """Name of an experiment; of MQAR with its form, length and pairs."""
    data, name = sweep.config["data"], _TITLES[sweep.task]
    if sweep.task != "mqar":
        return name
    return f"{name}, {sweep.variant}, length {data['seq_len']}, {data['num_pairs']} pairs"


def sweep_section(
    name: str, sweep: Sweep, figures: Sequence[str], shipped: Shipped, note: str = ""
) -> str:
    """Returns the Markdown section of one file.

    Args:
      name: link to the file, relative to the page.
      sweep: the file, summed up.
      figures: links to its figures.
      shipped: see `bayesmem.evaluate.sweep_command.command`.
      note: what its people say of it; "" for nothing.
    """
    data = sweep.config["data"]
    heading = (
        f"### {title(sweep)}\n\n{_PAPER[sweep.task]} of {SOURCE}; [{Path(name).name}]({name})."
    )
    told = [key for key in sorted(data) if key != "task" and data[key] is not None]
    setting = ", ".join(f"{key} {_plain(data[key])}" for key in told)
    parts = [heading, f"Data: {setting}.", _budget(sweep), _made(sweep, shipped)]
    if less := reduced(sweep, shipped):
        parts.append(f"**Smaller than the protocol:** {less}. Verdicts are of this size.")
    if absent := unfinished(sweep):
        parts.append(f"**Not finished:** no result yet of {absent}.")
    parts += [f"![{title(sweep)}]({link})" for link in figures]
    if found := verdicts(sweep):
        rows = [
            (c.figure, c.text, c.printed, finding.ours, c.rule, _VERDICTS[finding.holds])
            for c, finding in found
        ]
        head = ("paper", "claim", "printed", "ours", "counts as reproduced if", "reproduced")
        parts.append(table(head, rows))
    parts += ["Tests:", _tests(sweep)]
    if sweep.task == "mqar":
        parts.append(_STATE)
    for measure, label in (("accuracy", "Accuracy, %"), ("loss", "Query cross-entropy, nats")):
        parts += [f"{label} (mean ± sample standard deviation):", _measure(sweep, measure)]
    if any("margin" in own for cell in sweep.cells for own in cell.tests.values()):
        text = "Margin p(B) - p(A) (mean ± sample standard deviation):"
        parts += [text, _measure(sweep, "margin")]
    return "\n\n".join([*parts, note.strip()] if note.strip() else parts) + "\n"


def counts(sweep: Sweep) -> str:
    """How many of the claims are reproduced, and how many were not run."""
    found = [finding.holds for _, finding in verdicts(sweep)]
    text = f"{sum(holds is True for holds in found)} of {len(found)} claims"
    left = found.count(None)
    return f"{text}, {left} not run" if left else text


def reduced(sweep: Sweep, shipped: Shipped) -> str:
    """What of a sweep is smaller than its protocol, the shipped config; "" for nothing."""
    file, variant, _ = origin(sweep.config)
    wanted, less = shipped(file, variant), []
    for section, key in _SIZES:
        own, full = (x.get(section, {}).get(key) for x in (sweep.config, wanted))
        sizes = [len(x) if isinstance(x, list | tuple) else x for x in (own, full)]
        if None not in sizes and sizes[0] < sizes[1]:
            less.append(f"{key.replace('_', ' ')} {sizes[0]:,} of {sizes[1]:,}")
    return ", ".join(less)


def unfinished(sweep: Sweep) -> str:
    """Mixers and widths of the grid that have no result; "" for none."""
    grid, left = sweep.config["sweep"], []
    for mixer in grid["mixers"]:
        widths = [width for width in grid["widths"] if sweep.cell(mixer, width) is None]
        if widths:
            every = len(widths) == len(grid["widths"])
            left.append(f"`{mixer}`" + ("" if every else f" W={_plain(widths)}"))
    return ", ".join(left)


def runs(sweep: Sweep) -> str:
    """How many runs a sweep has, and of what."""
    count = sum(len(result["runs"]) for result in sweep.results)
    mixers = len({cell.mixer for cell in sweep.cells})
    seeds = sorted({run["seed"] for result in sweep.results for run in result["runs"]})
    return (
        f"{count} runs: {mixers} mixers, widths {_plain(sweep.widths)}, "
        f"learning rates {_plain(_rates(sweep))}, seeds {_plain(seeds)}"
    )


def _budget(sweep: Sweep) -> str:
    """Runs, steps and time."""
    data, first = sweep.config["data"], sweep.results[0]
    steps = _plain(sorted({result["steps"] for result in sweep.results}))
    text = f"{runs(sweep)}. Each: {steps} steps of {first['batch_size']} sequences"
    text += f", activations in {sweep.config['model']['dtype']}"
    if "train_examples" in data:
        epochs = first["steps"] * first["batch_size"] / data["train_examples"]
        text += f", {epochs:.3g} epochs of {data['train_examples']:,} rows"
    minutes = sum(result["seconds"] for result in sweep.results) / 60
    text += f"; {minutes:.1f} minutes of training in all, compilation included. {CHOICE}"
    rivals = [f"{cell.mixer} W={cell.width}" for cell in sweep.cells if cell.missing]
    if rivals:
        text += f" Without all seeds of the grid: {', '.join(rivals)}."
    return text


def _made(sweep: Sweep, shipped: Shipped) -> str:
    """Command, device, versions and commit."""
    line, left = command(sweep.config, shipped)
    devices, versions, commits = origins(sweep.results)
    other = f"\n\nOf the config also differ, by no flag: {', '.join(left)}." if left else ""
    return f"On {devices}; {versions}; commit {commits}:\n\n```bash\n{line}\n```{other}"


def _tests(sweep: Sweep) -> str:
    """What the tests are, and on how many queries."""
    rows = []
    tested = sweep.results[0]["runs"][0]["tests"]
    for name in sweep.cells[0].tests:
        changed = sweep.config["tests"].get(name, {})
        differs = ", ".join(f"{key} {_plain(x)}" for key, x in changed.items())
        if name == MAIN_TEST:
            differs = "nothing: the distribution of training"
        rows.append((name, differs, f"{tested[name]['queries']:,}", _order(sweep, name)))
    best = "mixers by mean accuracy" + (f", W={sweep.widths[-1]}" if sweep.task == "mqar" else "")
    return table(("test", "differs from training in", "queries", best), rows)


def _order(sweep: Sweep, test: str) -> str:
    """Mixers at the largest width from the best to the worst."""
    cells = [cell for cell in sweep.cells if cell.width == sweep.widths[-1]]
    found = {cell.mixer: cell.tests[test]["accuracy"].mean for cell in cells}
    return ", ".join(sorted(found, key=lambda mixer: -(found[mixer] or 0.0)))


def _measure(sweep: Sweep, measure: str) -> str:
    """One measure of all tests, a row a mixer and width."""
    show = percent if measure == "accuracy" else number
    names = list(sweep.cells[0].tests)
    columns: dict[str, Callable[[Cell], str]] = {"mixer": lambda cell: f"`{cell.mixer}`"}
    if len(sweep.widths) > 1 or sweep.task == "mqar":
        columns["width"] = lambda cell: str(cell.width)
    if measure == "accuracy":
        columns["parameters"] = lambda cell: f"{cell.parameters:,}"
        if sweep.task == "mqar":
            columns["state"] = lambda cell: f"{cell.state:,}"
    columns["learning rate"] = lambda cell: f"{cell.learning_rate:g}"
    columns["n"] = lambda cell: str(len(cell.seeds))
    if measure == "accuracy":
        columns["training"] = lambda cell: percent(cell.trained)
        if any(cell.skipped for cell in sweep.cells):
            columns["steps skipped"] = lambda cell: str(cell.skipped)
    rows = []
    for cell in sweep.cells:
        tests = (cell.tests[name].get(measure) for name in names)
        found = ["-" if stat is None else show(stat) for stat in tests]
        rows.append([*(of(cell) for of in columns.values()), *found])
    return table([*columns, *names], rows)


def _rates(sweep: Sweep) -> list[float]:
    return sorted({run["learning_rate"] for result in sweep.results for run in result["runs"]})


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) if len(value) != 1 else _plain(value[0])
    return f"{value:g}" if isinstance(value, float) else str(value)
