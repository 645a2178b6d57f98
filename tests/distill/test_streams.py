"""The shared forward against both models run one by one, blocks and all."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.distill.streams import match_layers, match_streams
from bayesmem.models import LanguageModel, unroll_params
from bayesmem.train.trained_part import merge, split
from tests.distill.cases import QUICK_BUILD, SUMMED, batch, case, flat
from tests.tolerances import assert_close

# Teacher, replaced layers and documents: one turn, whose first two layers are shared; four turns;
# and two turns of two kinds.
CASES = [
    ("wide", (2, 3), True),
    ("scanned", (0, 1, 2, 3), False),
    ("hybrid", (1, 3), True),
]


def one_by_one(config, params, rows):
    """Final activations, and what each module of the blocks gave, of a model without a scan."""
    model = LanguageModel(dataclasses.replace(config, scan_layers=False, remat=False))
    params = unroll_params(params) if "layers" in params else params
    (hidden, _), sown = model.apply(
        {"params": params},
        rows["inputs"],
        segment_ids=rows.get("segment_ids"),
        capture_intermediates=True,
        mutable=["intermediates"],
        method="hidden_states",
    )
    return hidden, sown["intermediates"], params


def both(own, params, rows):
    """`one_by_one` of teacher and student."""
    return (
        one_by_one(own.teacher, own.params, rows),
        one_by_one(own.pair.student, params, rows),
    )


def sums(student, teacher, rows):
    """Error, total and square over valid tokens, in float64."""
    ids = np.asarray(rows.get("segment_ids", rows["inputs"]))
    student, teacher = (np.asarray(x, np.float64)[ids >= 0] for x in (student, teacher))
    return ((student - teacher) ** 2).sum(), teacher.sum(), (teacher**2).sum()


def block_output(found, layer):
    return found[f"blocks_{layer}"]["__call__"][0][0]


def mixed(config, params, inner, layer, rows):
    """Output of a mixer on what the teacher's mixer has read."""
    read = inner[f"blocks_{layer}"]["mixer_norm"]["__call__"][0]
    tree = {"params": params[f"blocks_{layer}"]["mixer"]}
    mixer = config.build_mixer(layer, parent=None)
    return mixer.apply(tree, read, segment_ids=rows.get("segment_ids"))[0]


def assert_matches(found, wanted):
    for field, values in zip(found, np.transpose(wanted), strict=True):
        assert_close(field, values, "float32", length=SUMMED)


def ways(own, params, rows):
    """What both functions give, both models, and the mixers' outputs (student's, teacher's)."""
    theirs, ours = both(own, params, rows)
    configs = (own.pair.student, ours[2]), (own.teacher, theirs[2])
    outputs = [
        [mixed(*which, theirs[1], layer, rows) for which in configs] for layer in own.pair.layers
    ]
    alone = match_layers(own.pair, params, own.given, rows)
    return alone, match_streams(own.pair, params, own.given, rows), (theirs, ours), outputs


@pytest.mark.parametrize(("name", "layers", "documents"), CASES)
def test_sums_and_activations_are_those_of_the_models_one_by_one(name, layers, documents):
    own, rows = case(name, layers, anywhere=True), batch(documents)
    run = jax.jit(partial(ways, own), compiler_options=QUICK_BUILD)
    alone, (teacher, student, found), (theirs, ours), outputs = run(own.student, rows)
    assert alone.error.shape == (len(layers),) and (alone.error > 0).all()
    assert_matches(alone, [sums(*pair, rows) for pair in outputs])
    assert_close(teacher, theirs[0], "float32", length=SUMMED)
    assert_close(student, ours[0], "float32", length=SUMMED)
    assert np.abs(student - teacher).max() > 0.01
    wanted = [sums(*(block_output(x[1], n) for x in (ours, theirs)), rows) for n in layers]
    assert_matches(found, wanted)


def test_tokens_at_padding_change_nothing():
    own, rows = case("wide", anywhere=True), batch()
    match = jax.jit(partial(match_streams, own.pair), compiler_options=QUICK_BUILD)
    first = match(own.student, own.given, rows)
    padding = rows["segment_ids"] < 0
    table = own.student["embedding"]["table"]
    # The rows beyond the vocabulary belong to no token.
    poisoned = own.student | {"embedding": {"table": table.at[-1].set(jnp.nan)}}
    tokens = jnp.where(padding, table.shape[0] - 1, rows["inputs"])
    again = match(poisoned, own.given, rows | {"inputs": tokens})
    jax.tree.map(np.testing.assert_array_equal, again[2], first[2])
    for found, wanted in zip(again[:2], first[:2], strict=True):
        np.testing.assert_array_equal(found, wanted)


def loss(own, part, rest, rows):
    params = merge(part, rest)
    alone = match_layers(own.pair, params, own.given, rows)
    _, student, found = match_streams(own.pair, params, own.given, rows)
    parts = (found.error / found.square, alone.error / alone.square, jnp.sin(student))
    return sum(map(jnp.sum, parts))


def loss_one_by_one(own, part, rest, rows):
    theirs, ours = both(own, merge(part, rest), rows)
    valid, total = rows["segment_ids"][..., None] >= 0, jnp.sum(jnp.sin(ours[0]))
    configs = (own.pair.student, ours[2]), (own.teacher, theirs[2])
    for layer in own.pair.layers:
        streams = (block_output(x[1], layer) for x in (ours, theirs))
        outputs = (mixed(*which, theirs[1], layer, rows) for which in configs)
        for one, two in (streams, outputs):
            far, square = jnp.square(one - two), jnp.square(two)
            total += jnp.sum(far, where=valid) / jnp.sum(square, where=valid)
    return total


def gradients(loss, own, rows):
    part, rest = split(own.student, own.pair.trains)
    grad = jax.jit(jax.grad(partial(loss, own)), compiler_options=QUICK_BUILD)
    return flat(grad(part, rest, rows))


def test_gradients_are_those_of_the_models_one_by_one_with_and_without_remat():
    own, rows = case("deltanet", anywhere=True), batch()
    expected = gradients(loss_one_by_one, own, rows)
    assert set(expected) == {name for name in flat(own.student) if own.pair.trains(name)}
    for remat in (False, True):
        found = gradients(loss, case("deltanet", anywhere=True, remat=remat), rows)
        assert set(found) == set(expected)
        for name, value in expected.items():
            scale = float(np.abs(value).max())
            assert scale > 0, name
            assert_close(found[name] / scale, value / scale, "float32", "gradient", SUMMED)
