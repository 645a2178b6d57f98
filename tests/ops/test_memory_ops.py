"""Values of the delta rule and of linear attention, for every form."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests.ops import cases, memories
from tests.ops.memories import OPS, every_form, every_op
from tests.tolerances import assert_close


def assert_values(found, wanted, dtype, length=1):
    for x, right in zip(found, wanted, strict=True):
        assert_close(x, right, dtype, length=length)


@every_op
@every_form
@pytest.mark.parametrize(
    "kind,packed,steps",
    (
        *(("diagonal", True, steps) for steps in cases.LENGTHS),
        *(("scalar", False, steps) for steps in (0, 1, 64, 200)),
    ),
)
def test_values_equal_oracle_at_every_length(x64, kind, packed, steps, form, op):
    case = cases.memory(steps, steps, OPS[op].strength, kind, packed=packed)
    assert_values(memories.run(case, op, form), OPS[op].oracle(**case), np.float64)


@every_op
@every_form
@pytest.mark.parametrize("kind", memories.KINDS)
def test_values_equal_oracle_for_every_transition(x64, kind, form, op):
    for chunk_size, stateful in ((1, True), (16, True), (40, False)):
        if form == "recurrent" and chunk_size == 1:
            continue
        case = cases.memory(3, 75, OPS[op].strength, kind, packed=True, stateful=stateful)
        found = memories.run(case, op, form, chunk_size)
        assert_values(found, OPS[op].oracle(**case), np.float64)


@every_form
def test_no_gain_is_a_gain_of_one(form):
    case = memories.cast(cases.memory(2, 30, "gain", "scalar"), jnp.float32)
    case["gain"] = jnp.ones_like(case["gain"])
    spelled = memories.run(case, "additive", form)
    del case["gain"]
    chex.assert_trees_all_equal(memories.run(case, "additive", form), spelled)


@every_op
@every_form
@pytest.mark.parametrize("steps,cuts", ((128, (1, 63, 64, 65, 127)), (129, (2, 127))))
def test_split_anywhere_equals_whole(x64, steps, cuts, form, op):
    case = cases.memory(4, steps, OPS[op].strength, "diagonal", packed=True)
    y, state = memories.run(case, op, form)
    for at in cuts:
        y1, middle = memories.run(cases.cut(case, 0, at), op, form)
        second = cases.cut(case, at, steps, _restarted(middle, case["segment_ids"], at))
        y2, end = memories.run(second, op, form)
        assert_close(jnp.concatenate([y1, y2], 1), y, np.float64)
        assert_close(end, state, np.float64)
        chex.assert_trees_all_equal((y2, end), memories.run(second, op, form))


def _restarted(state, segment_ids, at):
    """The state for a part from `at` on: zero for rows where a new document begins there."""
    keep = []
    for row in segment_ids:
        before, after = row[:at][row[:at] >= 0], row[at:][row[at:] >= 0]
        keep.append(not len(before) or not len(after) or before[-1] == after[0])
    return jnp.where(np.array(keep)[:, None, None, None], state, 0.0)


@every_op
@every_form
def test_packed_documents_equal_documents_alone(x64, form, op):
    case = cases.memory(5, 40, OPS[op].strength, "diagonal", stateful=False, batch=1)
    for at in range(41):
        ids = np.repeat([[3, 8]], [at, 40 - at], axis=1).astype(np.int32)
        y, state = memories.run(case | {"segment_ids": ids}, op, form, 16)
        first, _ = OPS[op].oracle(**cases.cut(case, 0, at))
        second, alone = OPS[op].oracle(**cases.cut(case, at, 40))
        assert_close(y, np.concatenate([first, second], 1), np.float64)
        if at < 40:
            assert_close(state, alone, np.float64)


@every_op
@every_form
def test_first_document_continues_from_the_state_and_the_second_does_not(x64, form, op):
    case = cases.memory(6, 40, OPS[op].strength, "scalar")
    case["segment_ids"] = np.repeat([[3, 8]] * 2, [20, 20], axis=1).astype(np.int32)
    y, state = memories.run(case, op, form, 16)
    fresh = case | {"state": np.zeros_like(case["state"])}
    y_fresh, state_fresh = memories.run(fresh, op, form, 16)
    assert not np.allclose(y[:, :20], y_fresh[:, :20])
    np.testing.assert_array_equal(y[:, 20:], y_fresh[:, 20:])
    np.testing.assert_array_equal(state, state_fresh)


@every_op
@every_form
def test_causal(x64, form, op):
    case = cases.memory(6, 90, OPS[op].strength, "diagonal")
    y, _ = memories.run(case, op, form, 32)
    rng = np.random.default_rng(0)
    for name in case.keys() - {"state"}:
        case[name] = case[name].copy()
        case[name][:, 50:] = rng.permuted(case[name][:, 50:], axis=1)
    changed, _ = memories.run(case, op, form, 32)
    assert_close(changed[:, :50], y[:, :50], np.float64)
    assert not np.allclose(changed[:, 50:], y[:, 50:])


@every_op
@every_form
def test_padding_is_not_seen_even_where_it_is_nan(form, op):
    case = cases.memory(8, 50, OPS[op].strength, "diagonal", packed=True)
    case = memories.cast(case, jnp.float32)
    padded = np.asarray(case["segment_ids"]) < 0
    assert padded.any() and not padded.all()
    poisoned = dict(case)
    for name in case.keys() - {"state", "segment_ids"}:
        poisoned[name] = jnp.asarray(np.where(_as_mask(padded, case[name]), np.nan, case[name]))
    found = memories.run(poisoned, op, form)
    chex.assert_trees_all_equal(found, memories.run(case, op, form))
    chex.assert_tree_all_finite(found)
    assert not np.any(np.asarray(found[0])[padded])

    ones = jax.tree.map(jnp.ones_like, found)
    slopes = memories.gradients(poisoned, ones, op, form)
    chex.assert_trees_all_equal(slopes, memories.gradients(case, ones, op, form))
    chex.assert_tree_all_finite(slopes)
    for name in slopes.keys() - {"state"}:
        assert not np.any(np.asarray(slopes[name])[padded]), name
        assert np.any(slopes[name]), name


def _as_mask(padded, x):
    return padded.reshape(*padded.shape, *(1,) * (x.ndim - 2))


@every_op
@every_form
def test_only_padding_leaves_the_state(form, op):
    case = cases.memory(8, 20, OPS[op].strength, "scalar")
    case = memories.cast(case | {"segment_ids": np.full((2, 20), -1, np.int32)}, jnp.float32)
    y, state = memories.run(case, op, form, 16)
    np.testing.assert_array_equal(y, np.zeros_like(y))
    np.testing.assert_array_equal(state, case["state"])


@every_op
@every_form
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_low_precision_stays_within_the_table(dtype, form, op):
    case = cases.memory(9, 130, OPS[op].strength, "diagonal", packed=True, dim=8)
    case = memories.cast(case, dtype)
    y, state = memories.run(case, op, form)
    wanted = OPS[op].oracle(**memories.exact(case))
    assert (y.dtype, state.dtype) == (dtype, jnp.float32)
    assert_close(y, wanted[0], dtype, length=130)
    assert_close(state, wanted[1], np.float32, length=130)


@every_op
def test_one_token_equals_the_decode_step_and_decoding_equals_prefill(op):
    case = cases.memory(1, 20, OPS[op].strength, "diagonal", dim=8)
    case = memories.cast(case, jnp.float32)
    y, state = memories.run(case, op, "chunked", 16)
    carried = case["state"]
    for t in range(20):
        token = cases.cut(case, t, t + 1, carried)
        one, carried = memories.run(token, op, "auto")
        assert_close(one, y[:, t : t + 1], np.float32, length=20)
        in_chunks = memories.run(token, op, "chunked")
        assert_values(in_chunks, (one, carried), np.float32)
    assert_close(carried, state, np.float32, length=20)


@every_op
@every_form
def test_more_value_heads_than_key_heads_equal_explicit_repeat(x64, form, op):
    """Case C19: heads of q, k and of gates with as few heads as they have are repeated."""
    strength = OPS[op].strength
    case = cases.memory(1, 20, strength, "diagonal", key_heads=2, heads=4)
    spelled = case | {name: np.repeat(case[name], 2, axis=2) for name in ("q", "k")}
    found = memories.run(case, op, form, 16)
    chex.assert_trees_all_equal(found, memories.run(spelled, op, form, 16))
    assert_values(found, OPS[op].oracle(**case), np.float64)

    gates = (strength, "log_decay")
    few = case | {name: case[name][:, :, :2] for name in gates}
    many = case | {name: np.repeat(few[name], 2, axis=2) for name in gates}
    found = memories.run(few, op, form, 16)
    chex.assert_trees_all_equal(found, memories.run(many, op, form, 16))
    assert_values(found, OPS[op].oracle(**few), np.float64)


@every_op
def test_strided_and_transposed_inputs(op):
    """Case C19: views give what their contiguous copies give."""
    case = cases.memory(2, 40, OPS[op].strength, "diagonal")
    case = {name: np.asarray(x, np.float32) for name, x in case.items()}
    views = {}
    for name, x in case.items():
        order = (*range(2), *range(x.ndim - 1, 1, -1))
        transposed = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
        views[name] = np.repeat(transposed, 2, axis=1)[:, ::2]
        assert not views[name].flags.c_contiguous
    function = OPS[op].function
    wanted = function(**case, chunk_size=16)
    chex.assert_trees_all_equal(function(**views, chunk_size=16), wanted)

    @jax.jit
    def turned(case):
        batch_last = {name: jnp.moveaxis(x, 0, -1) for name, x in case.items()}
        return function(
            **{name: jnp.moveaxis(x, -1, 0) for name, x in batch_last.items()}, chunk_size=16
        )

    assert_values(turned(case), wanted, np.float32)


def test_auto_is_the_recurrence_for_few_tokens_and_the_chunk_form_for_many():
    for steps, form in ((8, "recurrent"), (9, "chunked")):
        case = memories.cast(cases.memory(0, steps, "beta", "scalar"), jnp.float32)
        wanted = ops.delta_rule(**case, implementation=form)
        chex.assert_trees_all_equal(ops.delta_rule(**case), wanted)
