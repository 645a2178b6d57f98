"""The sections of a config that training reads, as validated frozen dataclasses.

A section is parsed strictly: a key that no field reads, or a missing key without a default, is a
ValueError, so a misspelt key in a config file or on the command line never passes unnoticed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

Section = TypeVar("Section")

SECTIONS = ("model", "data", "optimizer", "train", "mesh")
SCHEDULES = ("cosine", "linear", "constant")


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and its learning-rate schedule.

    Attributes:
      learning_rate: peak learning rate, > 0.
      warmup_steps: updates of linear warm-up from 0 to the peak, >= 0 and below the total.
      weight_decay: decoupled decay of the matrices, per unit of learning rate, >= 0.
      beta1: decay of the first moment, in [0, 1).
      beta2: decay of the second moment, in [0, 1).
      clip_norm: global norm the gradient is clipped to, > 0; 0 switches clipping off.
      end_fraction: learning rate of the last update as a fraction of the peak, in [0, 1].
      schedule: what follows the warm-up: "cosine", "linear" or "constant".
    """

    learning_rate: float
    warmup_steps: int
    weight_decay: float
    beta1: float = 0.9
    beta2: float = 0.999
    clip_norm: float = 1.0
    end_fraction: float = 0.1
    schedule: str = "cosine"

    def __post_init__(self) -> None:
        """Raises ValueError naming the first key whose value cannot be used."""
        finite = 0 < self.learning_rate < math.inf
        _need("optimizer.learning_rate", self.learning_rate, "> 0 and finite", finite)
        _need("optimizer.warmup_steps", self.warmup_steps, ">= 0", self.warmup_steps >= 0)
        finite = 0 <= self.weight_decay < math.inf
        _need("optimizer.weight_decay", self.weight_decay, ">= 0 and finite", finite)
        _need("optimizer.beta1", self.beta1, "in [0, 1)", 0 <= self.beta1 < 1)
        _need("optimizer.beta2", self.beta2, "in [0, 1)", 0 <= self.beta2 < 1)
        _need("optimizer.clip_norm", self.clip_norm, ">= 0 (0: no clipping)", self.clip_norm >= 0)
        in_unit = 0 <= self.end_fraction <= 1
        _need("optimizer.end_fraction", self.end_fraction, "in [0, 1]", in_unit)
        known = self.schedule in SCHEDULES
        _need("optimizer.schedule", self.schedule, f"one of {', '.join(SCHEDULES)}", known)


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Length, batch and cadence of a training run.

    Attributes:
      steps: batches to train on, >= 1.
      batch_size: sequences a step, over all devices and microbatches, >= 1.
      grad_accumulation: microbatches a step; must divide batch_size.
      loss_tokens: tokens of each row whose logits are held at once; 0: all.
      z_loss: weight of the squared log normaliser in what is descended, >= 0.
      log_every: steps between two training rows of metrics.jsonl, >= 1.
      eval_every: steps between two evaluations on the validation split; 0: only at the end.
      eval_batches: batches of one evaluation, >= 1.
      checkpoint_every: steps between two checkpoints; 0: only at the end or on a signal.
      keep_checkpoints: newest checkpoints a process keeps of those it wrote; 0: all.
      wandb_project: Weights & Biases project; "": off.
    """

    steps: int
    batch_size: int
    grad_accumulation: int = 1
    loss_tokens: int = 0
    z_loss: float = 0.0
    log_every: int = 10
    eval_every: int = 0
    eval_batches: int = 1
    checkpoint_every: int = 0
    keep_checkpoints: int = 3
    wandb_project: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError naming the first key whose value cannot be used."""
        for name in ("steps", "batch_size", "grad_accumulation", "log_every", "eval_batches"):
            value = getattr(self, name)
            _need(f"train.{name}", value, ">= 1", value >= 1)
        for name in ("eval_every", "checkpoint_every", "keep_checkpoints", "loss_tokens", "z_loss"):
            value = getattr(self, name)
            _need(f"train.{name}", value, ">= 0", value >= 0)
        divides = self.batch_size % self.grad_accumulation == 0
        wanted = f"a divisor of train.batch_size = {self.batch_size}"
        _need("train.grad_accumulation", self.grad_accumulation, wanted, divides)


@dataclasses.dataclass(frozen=True)
class MeshSettings:
    """Sizes of the mesh axes; their product is the number of devices.

    Attributes:
      data: copies of the parameters, each with its part of the batch; -1: all remaining devices.
      fsdp: shards of every parameter's "embed" axis; the batch is split over these as well.
      tensor: shards of the "heads", "mlp" and "vocab" axes.
      sequence: shards of the batch's time axis.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError naming the first axis whose size cannot be used."""
        _need(
            "mesh.data",
            self.data,
            ">= 1, or -1 for all remaining devices",
            self.data >= 1 or self.data == -1,
        )
        for name in ("fsdp", "tensor", "sequence"):
            value = getattr(self, name)
            _need(f"mesh.{name}", value, ">= 1", value >= 1)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Every section that training itself reads; model and data have their own readers."""

    seed: int
    optimizer: OptimizerSettings
    train: TrainSettings
    mesh: MeshSettings

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Parses a whole config.

        Args:
          config: mapping with the keys `seed`, `model`, `data`, `optimizer`, `train`, `mesh`.

        Returns:
          The parsed settings.

        Raises:
          ValueError: a missing or unknown key, or a value out of range; the message names it.
        """
        known = ("seed", *SECTIONS)
        unknown = sorted(set(config) - set(known))
        missing = [key for key in known if key not in config]
        if unknown or missing:
            raise ValueError(
                f"config: found unknown keys {unknown}, missing keys {missing}; "
                f"wanted exactly {', '.join(known)}"
            )
        settings = cls(
            seed=_typed("seed", config["seed"], "int"),
            optimizer=parse_section(OptimizerSettings, config["optimizer"], "optimizer"),
            train=parse_section(TrainSettings, config["train"], "train"),
            mesh=parse_section(MeshSettings, config["mesh"], "mesh"),
        )
        check_lengths(settings)
        return settings


def check_lengths(settings: Settings) -> None:
    """Raises ValueError where a seed is too large, or a warm-up too long for its run."""
    fits = -(2**31) <= settings.seed < 2**31
    _need("seed", settings.seed, "-2^31 to 2^31 - 1", fits)
    warmup, steps = settings.optimizer.warmup_steps, settings.train.steps
    wanted = f"below train.steps = {steps}: for a short run, set both"
    _need("optimizer.warmup_steps", warmup, wanted, warmup < steps)


def parse_section(kind: type[Section], values: Mapping[str, Any], name: str) -> Section:
    """Builds a settings dataclass from a mapping, strictly.

    Args:
      kind: the dataclass, its fields annotated with int, float or str.
      values: the section's keys and values.
      name: the section's name, for messages.

    Returns:
      An instance of `kind`.

    Raises:
      ValueError: a missing or unknown key, a value of another type or out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ValueError(
            f"config section {name}: found unknown keys {unknown}; nothing reads them; "
            f"wanted keys out of {', '.join(fields)}"
        )
    missing = [
        key
        for key, field in fields.items()
        if field.default is dataclasses.MISSING and key not in values
    ]
    if missing:
        raise ValueError(f"config section {name}: wanted keys {missing}, found them missing")
    return kind(
        **{key: _typed(f"{name}.{key}", values[key], str(fields[key].type)) for key in values}
    )


def _typed(name: str, value: Any, wanted: str) -> Any:
    """Returns `value` as the annotated type `wanted`, or raises ValueError naming it."""
    kinds = {"int": int, "float": float, "str": str}
    fits = isinstance(value, kinds[wanted]) or (wanted == "float" and isinstance(value, int))
    if not fits or isinstance(value, bool):
        raise ValueError(
            f"config {name}: found {value!r} ({type(value).__name__}); wanted {wanted}"
        )
    return kinds[wanted](value)


def _need(name: str, value: Any, wanted: str, holds: bool) -> None:
    """Raises ValueError naming the config key unless `holds` (NaN makes every bound fail)."""
    if not holds:
        raise ValueError(f"config {name}: found {value!r}; wanted {wanted}")
