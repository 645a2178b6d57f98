"""The grid of a sweep: which runs it has, which of them are done, which are trained together."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bayesmem.train.records import write_json
from bayesmem.train.workdir import RESULTS

BEGUN = "runs.json"
"""File beside a group's checkpoints that says which runs they are of."""


class Run(NamedTuple):
    """One training run of a sweep.

    Attributes:
      mixer: name of a mixer, label included, see `bayesmem.models.ModelConfig.mixers`.
      width: W.
      learning_rate: peak.
      seed: of the initial parameters and of the order of examples.
    """

    mixer: str
    width: int
    learning_rate: float
    seed: int


class Group(NamedTuple):
    """Runs that are trained together: they differ in learning rate and seed only."""

    mixer: str
    width: int
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """Name of its files: the same for the same runs."""
        listed = json.dumps([run[2:] for run in self.runs]).encode()
        return f"{self.mixer.replace('/', '-')}-w{self.width}-{zlib.crc32(listed):08x}"


@dataclass(frozen=True)
class SweepSettings:
    """The section `sweep` of a config.

    Attributes:
      mixers: names of mixers; options of each are in `model.mixer_options`.
      widths: of the residual stream.
      learning_rates: peaks.
      seeds: of initial parameters and order.
      together: the most runs that are trained at once; they share the device's memory.
    """

    mixers: tuple[str, ...]
    widths: tuple[int, ...]
    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    together: int

    def __post_init__(self) -> None:
        """Raises ValueError naming the key whose value cannot be used."""
        kinds = {"mixers": str, "widths": int, "learning_rates": float, "seeds": int}
        for name, kind in kinds.items():
            values = getattr(self, name)
            fits = (isinstance(x, kind) and not isinstance(x, bool) for x in values)
            if not values or len(set(values)) < len(values) or not all(fits):
                raise ValueError(
                    f"config sweep.{name}: found {values!r}; wanted one {kind.__name__} or more, "
                    "each once"
                )
        for name, low in {"widths": 1, "seeds": 0}.items():
            found = getattr(self, name)
            if not all(low <= x < 2**31 for x in found):
                raise ValueError(f"config sweep.{name}: found {found!r}; wanted >= {low}")
        if not all(0 < x < math.inf for x in self.learning_rates):
            found = self.learning_rates
            raise ValueError(f"config sweep.learning_rates: found {found!r}; wanted > 0 and finite")
        if isinstance(self.together, bool) or self.together < 1:
            raise ValueError(f"config sweep.together: found {self.together!r}; wanted >= 1")

    @classmethod
    def from_config(cls, section: Mapping[str, Any]) -> SweepSettings:
        """Parses the section; ValueError for keys that are missing or that nothing reads."""
        wanted = set(cls.__dataclass_fields__)
        unknown, missing = sorted(set(section) - wanted), sorted(wanted - set(section))
        if unknown or missing:
            raise ValueError(
                f"config section sweep: found unknown keys {unknown}, missing keys {missing}; "
                f"wanted exactly {', '.join(sorted(wanted))}"
            )
        values = {key: section[key] for key in section}
        together = values.pop("together")
        if not isinstance(together, int):
            raise ValueError(f"config sweep.together: found {together!r}; wanted an int")
        for key, value in values.items():
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise ValueError(f"config sweep.{key}: found {value!r}; wanted a tuple")
            values[key] = tuple(value)
        rates = values["learning_rates"]
        values["learning_rates"] = tuple(float(x) if isinstance(x, int) else x for x in rates)
        return cls(together=together, **values)

    def runs(self) -> list[Run]:
        """All runs, those that can be trained together next to each other."""
        return [
            Run(mixer, width, rate, seed)
            for mixer in self.mixers
            for width in self.widths
            for rate in self.learning_rates
            for seed in self.seeds
        ]


def mark_begun(directory: Path, group: Group) -> None:
    """Writes which runs the checkpoints in a directory are of."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / BEGUN, [list(run) for run in group.runs])


def begun_groups(checkpoints: Path) -> list[Group]:
    """Returns the groups that have checkpoints, finished or not.

    Raises:
      ValueError: a file does not say which runs they are; names it.
    """
    groups = []
    for path in sorted(checkpoints.glob(f"*/{BEGUN}")):
        if any(path.parent.glob("step_*")):
            try:
                runs = tuple(Run(*run) for run in json.loads(path.read_text()))
                groups.append(Group(runs[0].mixer, runs[0].width, runs))
            except (ValueError, TypeError, IndexError, KeyError) as error:
                raise ValueError(
                    f"{path}: found no list of runs ({type(error).__name__}: {error}); without its "
                    "folder they are trained again"
                ) from error
    return groups


def groups_left(
    settings: SweepSettings, done: Iterable[Run], begun: Iterable[Group] = ()
) -> list[Group]:
    """Returns what is still to be trained.

    Args:
      settings: the grid.
      done: runs that have results.
      begun: groups with checkpoints. Those that are wanted whole go on as they are, and first; the
        rest of the grid is grouped anew.
    """
    waiting, left = dict[tuple[str, int], list[Run]](), list[Group]()
    missing = dict.fromkeys(run for run in settings.runs() if run not in set(done))
    for group in begun:
        if len(group.runs) <= settings.together and all(run in missing for run in group.runs):
            left.append(group)
            for run in group.runs:
                del missing[run]
    for run in missing:
        waiting.setdefault((run.mixer, run.width), []).append(run)
    return left + [
        Group(*key, tuple(runs[start : start + settings.together]))
        for key, runs in waiting.items()
        for start in range(0, len(runs), settings.together)
    ]


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Reads the result files of a sweep's workdir, in the order of their names.

    Raises:
      ValueError: a file is no result of a sweep; names it.
    """
    found = []
    for path in sorted((folder / RESULTS).glob("*.json")):
        try:
            result = json.loads(path.read_text())
            set(runs_of(result))
            for run in result["runs"]:
                dict(run["tests"]), dict(run["curve"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path}: found no result of a sweep ({type(error).__name__}: {error}); without "
                "the file its runs are tested again, from their checkpoint"
            ) from error
        found.append(result)
    return found


def runs_of(result: Mapping[str, Any]) -> list[Run]:
    """The runs that a result file is of."""
    return [
        Run(result["mixer"], result["width"], run["learning_rate"], run["seed"])
        for run in result["runs"]
    ]


def within(results: Sequence[Mapping[str, Any]], runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Returns results of these runs alone, each run's first one.

    An earlier grid may have had others, and two processes of different grids may both have trained
    a run.
    """
    wanted, found = set(runs), []
    for result in results:
        kept = []
        for run, own in zip(runs_of(result), result["runs"], strict=True):
            if run in wanted:
                wanted.discard(run)
                kept.append(own)
        found += [dict(result) | {"runs": kept}] if kept else []
    return found


def done_runs(results: Sequence[Mapping[str, Any]]) -> list[Run]:
    """The runs that result files are of."""
    return [run for result in results for run in runs_of(result)]
