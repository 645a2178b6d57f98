"""The student of a teacher: turns, parameters in turns, and what is not replaced."""

import dataclasses

import jax
import numpy as np
import pytest

from bayesmem.distill.replacement import NEW, in_turns, make_pair, turn_length
from bayesmem.distill.settings import StudentSettings
from bayesmem.layers import BayesianLayer
from bayesmem.models import LanguageModel, ModelConfig
from tests.distill.cases import (
    HEADS,
    SUMMED,
    batch,
    parameters,
    teacher_config,
)
from tests.tolerances import assert_close


def deep(layers, mixers=("gated_deltanet",), **options):
    own = {name: HEADS | options for name in mixers if name == "gated_deltanet"}
    own |= {name: {"num_heads": 2} for name in mixers if name != "gated_deltanet"}
    return ModelConfig(13, 16, layers, mixers, own)


@pytest.mark.parametrize(
    ("count", "mixers", "layers", "period"),
    [
        (24, ("gated_deltanet",), (5, 11, 17, 23), 6),
        (24, ("gated_deltanet",), (23, 11, 5, 17), 6),
        (8, ("gated_deltanet",), (3, 7), 4),
        (4, ("gated_deltanet",), (0,), 4),
        (4, ("gated_deltanet",), (0, 1, 2, 3), 1),
        (6, ("gated_deltanet",), (0, 5), 6),
        (6, ("attention", "gated_deltanet"), (1, 3, 5), 2),
        (12, ("attention", "gated_deltanet", "retnet"), (1, 7), 6),
        (8, ("attention", "gated_deltanet"), (3, 7), 4),
    ],
)
def test_turns(count, mixers, layers, period):
    teacher = deep(count, mixers)
    assert turn_length(teacher, layers) == period
    pair = make_pair(teacher, StudentSettings(layers))
    assert pair.period == period and pair.layers == tuple(sorted(layers))
    for layer in range(count):
        own = pair.student.build_mixer(layer, parent=None)
        if layer in layers:
            assert isinstance(own, BayesianLayer)
        else:
            assert own == teacher.build_mixer(layer, parent=None)
        assert pair.teacher.build_mixer(layer, parent=None) == teacher.build_mixer(
            layer, parent=None
        )
    assert pair.trains(f"layers/block_{pair.places[0]}/mixer/beta/gate/kernel")
    assert not pair.trains(f"layers/block_{pair.places[0]}/mlp/up/kernel")
    others = set(range(period)) - set(pair.places)
    assert not any(pair.trains(f"layers/block_{place}/mixer/x") for place in others)


def test_block_1_is_not_block_11():
    pair = make_pair(deep(13), StudentSettings((1,)))
    assert pair.trains("layers/block_1/mixer/x") and not pair.trains("layers/block_11/mixer/x")


@pytest.mark.parametrize("layers", [(4,), (1, 99)])
def test_layers_that_do_not_exist(layers):
    with pytest.raises(ValueError, match=rf"student\.layers: found \[{layers[-1]}\].*0 to 3"):
        make_pair(deep(4), StudentSettings(layers))


@pytest.mark.parametrize(
    ("name", "layers"), [("wide", (3,)), ("scanned", (1, 3)), ("hybrid", (1, 3))]
)
def test_teacher_in_turns_has_the_same_logits(name, layers):
    teacher = teacher_config(name)
    pair, params = make_pair(teacher, StudentSettings(layers)), parameters(teacher)
    own, tokens = in_turns(teacher, params, pair.period), batch()
    found, wanted = (
        jax.jit(
            lambda p, c=config: LanguageModel(c).apply(
                {"params": p}, tokens["inputs"], segment_ids=tokens["segment_ids"]
            )[0]
        )(p)
        for config, p in ((pair.teacher, own), (teacher, params))
    )
    assert_close(found, wanted, "float32", length=SUMMED)
    again = in_turns(pair.teacher, own, pair.period)
    jax.tree.map(np.testing.assert_array_equal, again, own)


def test_student_has_the_heads_of_the_teachers_layer():
    teacher = teacher_config("wide")
    pair = make_pair(teacher, StudentSettings((1, 3), num_groups=3, remat=True))
    old, new = (config.build_mixer(1, parent=None) for config in (pair.teacher, pair.student))
    assert new.layout == old.layout and new.num_groups == 3 and new.transition == "scalar"
    assert (new.layout.key_heads, new.layout.value_heads, new.layout.value_dim) == (2, 4, 6)
    # Reads are D^1/2 as large as the teacher's, whose queries are scaled: so is epsilon's root.
    scaled = dataclasses.replace(old.options, norm_eps=4 * old.options.norm_eps)
    assert new.options == scaled
    assert pair.student.remat and not pair.teacher.remat
    same = {"mixers": pair.teacher.mixers, "remat": False}
    same |= {"mixer_options": pair.teacher.mixer_options}
    assert dataclasses.replace(pair.student, **same) == pair.teacher
    plain = make_pair(teacher_config("deltanet"), StudentSettings((1,)))
    assert plain.student.mixer_options[NEW]["transition"] == "identity"


def test_options_of_mixers_that_no_layer_has_are_left_out():
    few = deep(1, ("gated_deltanet", "attention"))
    assert make_pair(few, StudentSettings((0,))).student.mixers == (NEW,)
    every = make_pair(deep(4, ("attention", "gated_deltanet")), StudentSettings((1, 3)))
    assert set(every.student.mixer_options) == {"attention", NEW}


def test_layers_of_different_heads():
    options = {"gated_deltanet/a": HEADS, "gated_deltanet/b": HEADS | {"num_heads": 4}}
    teacher = ModelConfig(13, 16, 4, tuple(options), options)
    with pytest.raises(ValueError, match=r"layers \(0, 1\) of different heads, wanted"):
        make_pair(teacher, StudentSettings((0, 1)))
    assert make_pair(teacher, StudentSettings((0, 2))).places == (0,)


@pytest.mark.parametrize(
    ("teacher", "student", "words"),
    [
        (deep(4, ("attention",)), {}, r"layers: found a Attention at layer 1, wanted.*DeltaNet"),
        (
            deep(4, negative_eigenvalues=True),
            {},
            r"initial: found 'close' for layer 1 with negative_eigenvalues, wanted 'scratch'",
        ),
        (
            deep(4, output_norm="none"),
            {},
            r"initial: found 'close' for layer 1 with output_norm 'none', wanted 'scratch'",
        ),
        (deep(4), {"num_groups": 3}, r"num_groups: found 3, wanted a divisor of.* 4"),
    ],
)
def test_what_is_not_replaced(teacher, student, words):
    with pytest.raises(ValueError, match=rf"config student\.{words}"):
        make_pair(teacher, StudentSettings((1,), **student))


@pytest.mark.parametrize("options", [{"negative_eigenvalues": True}, {"output_norm": "none"}])
def test_from_scratch_they_are(options):
    make_pair(deep(4, **options), StudentSettings((1,), initial="scratch"))
