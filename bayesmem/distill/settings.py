"""The config of a distillation, parsed and checked."""

from __future__ import annotations

import dataclasses
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
        _within("student.process_ratio", self.process_ratio, 1e-6, 1e6)
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
      temperature: of both distributions in the divergence, 0.1 to 20.
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
        # Beyond, float32 has too few digits of a divergence that goes with 1 / temperature^2.
        _within("phase_b.loss.temperature", self.temperature, 0.1, 20.0)
        for name in ("kl_weight", "boundary_weight"):
            _within(f"phase_b.loss.{name}", getattr(self, name), 0.0, 1e6)
        if not self.kl_weight and not self.boundary_weight:
            raise ValueError("config phase_b.loss: found two weights of 0; wanted one above 0")


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
        seed = config["seed"]
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31 - 2:
            raise ValueError(f"config seed: found {seed!r}; wanted an int from 0 to 2^31 - 3")
        runs = {name: _run(config, name, number) for number, name in enumerate(PHASES)}
        student = dict(config["student"])
        known = [field.name for field in dataclasses.fields(StudentSettings)]
        if wrong := sorted(set(student) ^ set(known)):
            raise ValueError(f"config student: found {wrong} unknown or missing; wanted {known}")
        student["layers"] = tuple(student["layers"])
        joint = parse_section(JointSettings, config["phase_b"]["loss"], "phase_b.loss")
        return cls(seed, config["teacher"], phases, StudentSettings(**student), runs, joint)


def _run(config: Mapping[str, Any], name: str, number: int) -> Settings:
    """The settings of a phase; each has an order of the rows of its own."""
    section = config[name]
    wanted = {"optimizer", "train"} | ({"loss"} if name == "phase_b" else set())
    if set(section) != wanted:
        raise ValueError(f"config {name}: found {sorted(section)}; wanted {sorted(wanted)}")
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


def _within(name: str, value: float, least: float, most: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise ValueError(f"config {name}: found {value!r}; wanted a number in {least:g}..{most:g}")
