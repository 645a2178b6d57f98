"""The grid of a sweep: which runs it has, which of them are done, which are trained together."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = "results"
"""Folder of the result files in a sweep's workdir, one for each set of runs trained together."""


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


def groups_left(settings: SweepSettings, done: Iterable[Run]) -> list[Group]:
    """Returns what is still to be trained.

    Args:
      settings: the grid.
      done: runs that have results.
    """
    finished, waiting = set(done), dict[tuple[str, int], list[Run]]()
    for run in settings.runs():
        if run not in finished:
            waiting.setdefault((run.mixer, run.width), []).append(run)
    return [
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
            runs_of(result)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path}: found no result of a sweep ({type(error).__name__}: {error})"
            ) from error
        found.append(result)
    return found


def runs_of(result: Mapping[str, Any]) -> list[Run]:
    """The runs that a result file is of."""
    return [
        Run(result["mixer"], result["width"], run["learning_rate"], run["seed"])
        for run in result["runs"]
    ]


def done_runs(results: Sequence[Mapping[str, Any]]) -> list[Run]:
    """The runs that result files are of."""
    return [run for result in results for run in runs_of(result)]
