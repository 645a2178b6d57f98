"""What a sweep's file says: means over seeds, at the learning rate that training chooses.

The learning rate of a mixer and width is the one with the highest training accuracy at the last
point of the curve, as a mean over its seeds; tests have no part in that choice.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bayesmem.models.sizes import state_size
from bayesmem.train.task_data import MAIN_TEST
from bayesmem.train.tasks import model_of

MEASURES = ("accuracy", "loss", "margin")


class Stat(NamedTuple):
    """A number over seeds.

    Attributes:
      mean: of the finite values; None without one.
      std: sample standard deviation; None for fewer than two.
      finite: how many values are finite.
      failed: how many are not.
    """

    mean: float | None
    std: float | None
    finite: int
    failed: int


class Cell(NamedTuple):
    """One mixer and width at the learning rate chosen.

    Attributes:
      mixer, width, learning_rate: which.
      seeds: of the runs; missing: seeds of the grid without a run.
      parameters: of the model; state: numbers its memories hold for a sequence, None where the
        task gives the addresses.
      skipped: steps whose gradient was not finite, over all seeds.
      trained: training accuracy at the last point of the curves.
      tests: test to measure to its values; measures that no run has are left out.
      steps: [P] of the curves; curve: [P] training accuracy at each.
    """

    mixer: str
    width: int
    learning_rate: float
    seeds: tuple[int, ...]
    missing: tuple[int, ...]
    parameters: int
    state: int | None
    skipped: int
    trained: Stat
    tests: dict[str, dict[str, Stat]]
    steps: tuple[int, ...]
    curve: tuple[Stat, ...]


class Place(NamedTuple):
    """A test on the axis of a figure."""

    at: float
    label: str
    test: str


class Axis(NamedTuple):
    """Tests that differ in one thing.

    Attributes:
      label: what that is.
      places: the tests in order, that of the training distribution first.
      trained: range of values trained on; None for places that are no numbers.
    """

    label: str
    places: tuple[Place, ...]
    trained: tuple[float, float] | None


class Sweep(NamedTuple):
    """One file, summed up; `config` and `results` are the file's own."""

    config: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    cells: tuple[Cell, ...]
    axes: tuple[Axis, ...]

    @property
    def task(self) -> str:
        """Name of the task in the config."""
        return self.config["data"]["task"]

    @property
    def variant(self) -> str:
        """Form of MQAR; "" for other tasks."""
        return self.config["data"]["variant"] if self.task == "mqar" else ""

    @property
    def widths(self) -> tuple[int, ...]:
        """Those of the cells, in order."""
        return tuple(sorted({cell.width for cell in self.cells}))

    def cell(self, mixer: str, width: int) -> Cell | None:
        """The cell of a mixer and width, None where there is none."""
        return next((c for c in self.cells if (c.mixer, c.width) == (mixer, width)), None)


def stat(values: Iterable[float | None]) -> Stat:
    """Sums up values over seeds; None is a value that was not finite."""
    found = list(values)
    numbers = [x for x in found if x is not None]
    mean = statistics.fmean(numbers) if numbers else None
    std = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Stat(mean, std, len(numbers), len(found) - len(numbers))


def summarise(found: Mapping[str, Any]) -> Sweep:
    """Sums up a sweep.

    Args:
      found: what `bayesmem.train.sweep_file.read_sweep` returns.

    Raises:
      ValueError: a task that has no page.
      KeyError, TypeError: a result lacks a key or a value is of another kind.
    """
    config, results = found["config"], found["results"]
    if config["data"]["task"] not in ("collision", "random_keys", "mqar"):
        raise ValueError(
            f"task: found {config['data']['task']!r}; wanted collision, random_keys or mqar"
        )
    by_cell: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for result in results:
        by_cell.setdefault((result["mixer"], result["width"]), []).append(result)
    order = [*config["sweep"]["mixers"], *sorted({mixer for mixer, _ in by_cell})]
    keys = sorted(by_cell, key=lambda key: (order.index(key[0]), key[1]))
    cells = tuple(_cell(config, *key, by_cell[key]) for key in keys)
    return Sweep(config, results, cells, _axes(config))


def best_rate(runs: Sequence[Mapping[str, Any]]) -> float:
    """Returns the learning rate whose runs end with the highest mean training accuracy.

    Only rates with the most seeds are compared. A value that is not finite counts as 0; of equal
    rates the lower one is taken.
    """
    last: dict[float, list[float]] = {}
    for run in runs:
        last.setdefault(run["learning_rate"], []).append(run["curve"]["accuracy"][-1] or 0.0)
    most = max(map(len, last.values()))
    whole = sorted(rate for rate, found in last.items() if len(found) == most)
    return max(whole, key=lambda rate: statistics.fmean(last[rate]))


def _cell(
    config: Mapping[str, Any], mixer: str, width: int, results: Sequence[Mapping[str, Any]]
) -> Cell:
    """Sums up the runs of one mixer and width."""
    runs = [run for result in results for run in result["runs"]]
    rate = best_rate(runs)
    runs = sorted((r for r in runs if r["learning_rate"] == rate), key=lambda run: run["seed"])
    seeds = tuple(run["seed"] for run in runs)
    curves = [dict(zip(r["curve"]["step"], r["curve"]["accuracy"], strict=True)) for r in runs]
    steps = tuple(sorted(set.intersection(*(set(curve) for curve in curves))))
    return Cell(
        mixer,
        width,
        rate,
        seeds,
        tuple(sorted(set(config["sweep"]["seeds"]) - set(seeds))),
        results[0]["parameters"],
        _state(config, mixer, width) if config["data"]["task"] == "mqar" else None,
        sum(run["skipped"] for run in runs),
        stat(run["curve"]["accuracy"][-1] for run in runs),
        {name: _measures([r["tests"][name] for r in runs]) for name in _order(runs[0]["tests"])},
        steps,
        tuple(stat(curve[step] for curve in curves) for step in steps),
    )


def _order(tests: Iterable[str]) -> list[str]:
    """Names of tests: the main one, then those with numbers by these."""

    def place(name: str) -> tuple[bool, list[tuple[bool, int, str]]]:
        parts = re.findall(r"\d+|\D+", name)
        return name != MAIN_TEST, [(p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts]

    return sorted(tests, key=place)


def _measures(tests: Sequence[Mapping[str, Any]]) -> dict[str, Stat]:
    """Measures of one test; a margin that no run has is of a task without rivals."""
    found = {name: stat(test[name] for test in tests) for name in MEASURES}
    return {name: x for name, x in found.items() if x.finite or name != "margin"}


def _state(config: Mapping[str, Any], mixer: str, width: int) -> int:
    """Numbers that the memories of a language model of this mixer hold.

    Caches of attention are taken as long as the rows trained on; longer tests have longer ones.
    """
    length = config["data"]["seq_len"]
    return state_size(dataclasses.replace(model_of(config, mixer, width), max_length=length))


def _axes(config: Mapping[str, Any]) -> tuple[Axis, ...]:
    """The axes of an address task's figures."""
    data, tests = config["data"], config["tests"]
    if data["task"] == "random_keys":
        label = "n / D, keys a dimension of the addresses"
        return (_numbers(label, "writes", data["writes"], tests, data["dims"]),)
    if data["task"] == "collision":
        floods = _numbers(r"$n_f$, flood writes of each A", "floods", data["floods"], tests, 1)
        swept = [name for name, own in tests.items() if "overlap" in own]
        names = {MAIN_TEST: {"overlap": data["overlap"]}} | {name: tests[name] for name in swept}
        places = [Place(at, _overlap(own), name) for at, (name, own) in enumerate(names.items())]
        return floods, Axis(r"$\rho$, overlap of a pair's keys", tuple(places), None)
    return ()


def _numbers(
    label: str, key: str, trained: Sequence[int], tests: Mapping[str, Any], unit: int
) -> Axis:
    """The axis of tests that differ in a count; the training mixture is at its geometric mean."""
    low, high = min(trained) / unit, max(trained) / unit
    middle = math.exp(statistics.fmean(math.log(x / unit) for x in trained))
    places = [Place(middle, f"{low:g}-{high:g}", MAIN_TEST)]
    for name, own in tests.items():
        if set(own) == {key} and len(own[key]) == 1:
            value = own[key][0] / unit
            places.append(Place(value, f"{value:g}", name))
    return Axis(label, tuple(sorted(places)), (low, high))


def _overlap(own: Mapping[str, Any]) -> str:
    low, high = own["overlap"]
    text = f"{low:.2f}-{high:.2f}"
    return text + "".join(f"\n$n_f$ = {flood}" for flood in own.get("floods", ()))
