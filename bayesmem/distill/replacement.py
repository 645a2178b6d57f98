"""The student of a teacher: the same model with some layers' mixers of another kind.

Both are brought to one form: blocks scanned in turns (`ModelConfig.scan_layers`), each turn with
replaced layers at the same places. Layers {5, 11, 17, 23} of 24 are place 5 of four turns of six.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from flax import linen as nn

from bayesmem.distill.settings import StudentSettings
from bayesmem.layers import DeltaNet, GatedDeltaNet
from bayesmem.models import ModelConfig
from bayesmem.models.parameters import stack_params, unroll_params

PyTree = Any
NEW = "bayesian/student"
"""Name of the replaced layers' mixer in the student's config."""
SCALE = 1e-3
"""c of a close start, see `initial`: the variance along a key that r^2 is chosen for, and p0."""


class Pair(NamedTuple):
    """A teacher and its student, in turns.

    Attributes:
      teacher: its configuration, with a name for every place of a turn.
      student: the same with `NEW` at the replaced places.
      places: of the replaced layers in a turn, rising.
    """

    teacher: ModelConfig
    student: ModelConfig
    places: tuple[int, ...]

    @property
    def period(self) -> int:
        """Layers a turn."""
        return len(self.teacher.mixers)

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the replaced layers, rising."""
        starts = range(0, self.teacher.num_layers, self.period)
        return tuple(start + place for start in starts for place in self.places)

    def trains(self, name: str) -> bool:
        """Says whether a parameter is trained: one of a replaced layer's mixer."""
        return any(name.startswith(f"layers/block_{place}/mixer/") for place in self.places)


def make_pair(teacher: ModelConfig, settings: StudentSettings) -> Pair:
    """Returns teacher and student.

    Args:
      teacher: configuration of a trained model.
      settings: what is replaced.

    Raises:
      ValueError: a layer does not exist, or is of a kind that is not replaced; or num_groups does
        not divide its value dimension.
    """
    period = turn_length(teacher, settings.layers)
    names = tuple(map(teacher.mixer_name, range(period)))
    places = tuple(sorted({layer % period for layer in settings.layers}))
    options = dict(teacher.mixer_options.items())
    # A name with options that no layer has would be an error.
    options = {name: options[name] for name in options if name in names}
    in_turns = dataclasses.replace(teacher, mixers=names, mixer_options=options, scan_layers=True)
    for place in places:
        found = _options(teacher.build_mixer(place, parent=None), place, settings)
        if options.setdefault(NEW, found) != found:
            raise ValueError(
                f"config student.layers: found layers {settings.layers} of different heads, "
                f"wanted replaced layers that are alike"
            )
    mixers = tuple(NEW if place in places else name for place, name in enumerate(names))
    remat = teacher.remat if settings.remat is None else settings.remat
    options = {name: options[name] for name in options if name in mixers}
    student = dataclasses.replace(in_turns, mixers=mixers, mixer_options=options, remat=remat)
    return Pair(in_turns, student, places)


def turn_length(teacher: ModelConfig, layers: Sequence[int]) -> int:
    """The least number of layers after which mixers and replaced layers repeat, to the last layer.

    Raises:
      ValueError: a layer does not exist.
    """
    count = teacher.num_layers
    if wrong := [layer for layer in layers if not 0 <= layer < count]:
        raise ValueError(
            f"config student.layers: found {wrong}, wanted layers of the teacher: 0 to {count - 1}"
        )
    kinds = [(teacher.mixer_name(layer), layer in layers) for layer in range(count)]
    return next(
        n for n in range(1, count + 1) if count % n == 0 and kinds == kinds[:n] * (count // n)
    )


def in_turns(config: ModelConfig, params: PyTree, period: int) -> PyTree:
    """Returns a model's parameters, unboxed, in turns of `period` layers."""
    return stack_params(unroll_params(params) if config.scan_layers else params, period)


def _options(mixer: nn.Module, layer: int, settings: StudentSettings) -> dict[str, Any]:
    """Options of the Bayesian Layer that has the heads of a layer of the teacher."""
    if not isinstance(mixer, GatedDeltaNet | DeltaNet):
        raise ValueError(
            f"config student.layers: found a {type(mixer).__name__} at layer {layer}, wanted "
            f"layers of GatedDeltaNet or DeltaNet"
        )
    if settings.initial == "close" and mixer.negative_eigenvalues:
        raise ValueError(
            f"config student.initial: found 'close' for layer {layer} with negative_eigenvalues, "
            f"wanted 'scratch': a filter's gain is at most 1"
        )
    if settings.initial == "close" and mixer.options.output_norm == "none":
        raise ValueError(
            f"config student.initial: found 'close' for layer {layer} with output_norm 'none', "
            f"wanted 'scratch': without a norm the scale of the reads is not the teacher's"
        )
    layout = mixer.layout
    if layout.value_dim % settings.num_groups:
        raise ValueError(
            f"config student.num_groups: found {settings.num_groups}, wanted a divisor of the "
            f"value dimension {layout.value_dim}"
        )
    options = dataclasses.asdict(mixer.options)
    del options["dtype"], options["implementation"]
    # The teacher's queries are scaled by D^-1/2 and ours are not: the reads are D^1/2 as large.
    options["norm_eps"] *= layout.key_dim
    if settings.initial == "close":
        options["prior_var"] = SCALE
    return options | {
        "num_heads": layout.key_heads,
        "num_value_heads": layout.value_heads,
        "head_dim": layout.key_dim,
        "value_dim": layout.value_dim,
        "num_groups": settings.num_groups,
        "transition": "scalar" if isinstance(mixer, GatedDeltaNet) else "identity",
    }
