"""The config of a distillation, parsed and checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from bayesmem.train.settings import (
    MeshSettings,
    OptimizerSettings,
    Settings,
    TrainSettings,
    check_lengths,
    parse_section,
)

PHASES = ("phase_a", "phase_b", "control")
"""The output of each layer alone; the model as a whole; the teacher trained on instead."""
INITIAL = ("close", "scratch")
KEYS = ("seed", "teacher", "phases", "student", "data", "mesh", *PHASES)


@dataclasses.dataclass(frozen=True)
class StudentSettings:
    """Which layers are replaced, and by what.

    Attributes:
      layers: indices of the layers whose mixers are replaced.
      initial: "close": the parameters of the teacher's layer, with noises that make the filter
        start near its delta rule; "scratch": those of a new layer.
      process_ratio: ell^2 of a close start in units of what keeps the covariance at the variance
        that r^2 is chosen for (see `initial`): with more, the filter forgets sooner what it knew
        about a key, as the delta rule does at once.
      num_groups: G, observation-noise groups of the new layers.
      remat: whether the backward pass makes activations of the student's blocks again; None: as in
        the teacher's config.
    """

    layers: tuple[int, ...]
    initial: str = "close"
    process_ratio: float = 1.0
    num_groups: int = 1
    remat: bool | None = None

    def __post_init__(self) -> None:
        """Raises ValueError naming the first key whose value cannot be used."""
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in self.layers)
        if not self.layers or not whole or len(set(self.layers)) < len(self.layers):
            raise ValueError(
                f"config student.layers: found {self.layers!r}; wanted different indices >= 0"
            )
        if self.initial not in INITIAL:
            raise ValueError(
                f"config student.initial: found {self.initial!r}; wanted one of {INITIAL}"
            )
        _positive("student.process_ratio", self.process_ratio)
        if isinstance(self.num_groups, bool) or not isinstance(self.num_groups, int):
            raise ValueError(f"config student.num_groups: found {self.num_groups!r}; wanted an int")
        if self.num_groups < 1:
            raise ValueError(f"config student.num_groups: found {self.num_groups}; wanted >= 1")
        if not isinstance(self.remat, bool | None):
            raise ValueError(f"config student.remat: found {self.remat!r}; wanted a bool or None")


@dataclasses.dataclass(frozen=True)
class JointSettings:
    """What phase B descends.

    Attributes:
      temperature: of both distributions in the divergence.
      kl_weight: of the divergence of the student's next token from the teacher's, in nats, times
        the square of the temperature.
      boundary_weight: of the mean squared difference of the streams after each replaced layer,
        over the teacher's variance there.
    """

    temperature: float = 1.0
    kl_weight: float = 1.0
    boundary_weight: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError naming the first key whose value cannot be used."""
        _positive("phase_b.loss.temperature", self.temperature)
        for name in ("kl_weight", "boundary_weight"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"config phase_b.loss.{name}: found {value!r}; wanted >= 0")


@dataclasses.dataclass(frozen=True)
class DistillSettings:
    """A whole config.

    Attributes:
      seed: of new parameters and of the order of the rows.
      teacher: workdir of the teacher.
      phases: which phases are run, in this order.
      student: what is replaced.
      runs: optimizer, train and mesh sections of each phase.
      joint: what phase B descends.
    """

    seed: int
    teacher: str
    phases: tuple[str, ...]
    student: StudentSettings
    runs: dict[str, Settings]
    joint: JointSettings

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DistillSettings:
        """Parses a config.

        Raises:
          ValueError: a missing or unknown key, or a value that cannot be used; names it.
        """
        unknown, missing = sorted(set(config) - set(KEYS)), sorted(set(KEYS) - set(config))
        if unknown or missing:
            raise ValueError(
                f"config: found unknown keys {unknown}, missing keys {missing}; "
                f"wanted exactly {', '.join(KEYS)}"
            )
        phases = tuple(config["phases"])
        if not phases or any(phases.count(name) > 1 or name not in PHASES for name in phases):
            raise ValueError(f"config phases: found {phases!r}; wanted some of {PHASES}")
        if phases != tuple(name for name in PHASES if name in phases):
            raise ValueError(f"config phases: found {phases!r}; wanted the order {PHASES}")
        if not isinstance(config["teacher"], str) or not config["teacher"]:
            raise ValueError(
                f"config teacher: found {config['teacher']!r}; wanted the workdir of a run"
            )
        runs = {name: _run(config, name, number) for number, name in enumerate(PHASES)}
        student = dict(config["student"])
        known = [field.name for field in dataclasses.fields(StudentSettings)]
        if wrong := sorted(set(student) ^ set(known)):
            raise ValueError(f"config student: found {wrong} unknown or missing; wanted {known}")
        student["layers"] = tuple(student["layers"])
        joint = parse_section(JointSettings, config["phase_b"]["loss"], "phase_b.loss")
        seed, teacher = runs[PHASES[0]].seed, config["teacher"]
        return cls(seed, teacher, phases, StudentSettings(**student), runs, joint)


def _run(config: Mapping[str, Any], name: str, number: int) -> Settings:
    """The settings of a phase; each has an order of the rows of its own."""
    section = config[name]
    wanted = {"optimizer", "train"} | ({"loss"} if name == "phase_b" else set())
    if set(section) != wanted:
        raise ValueError(f"config {name}: found {sorted(section)}; wanted {sorted(wanted)}")
    if isinstance(config["seed"], bool) or not isinstance(config["seed"], int):
        raise ValueError(f"config seed: found {config['seed']!r}; wanted an int")
    settings = Settings(
        seed=config["seed"] + number,
        optimizer=parse_section(OptimizerSettings, section["optimizer"], f"{name}.optimizer"),
        train=parse_section(TrainSettings, section["train"], f"{name}.train"),
        mesh=parse_section(MeshSettings, config["mesh"], "mesh"),
    )
    if name != "control" and settings.train.z_loss:
        raise ValueError(
            f"config {name}.train.z_loss: found {settings.train.z_loss}; wanted 0: the phase "
            f"descends no cross-entropy"
        )
    try:
        check_lengths(settings)
    except ValueError as error:
        raise ValueError(f"config {name}: {error}") from error
    return settings


def _positive(name: str, value: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ValueError(f"config {name}: found {value!r}; wanted a finite number > 0")
