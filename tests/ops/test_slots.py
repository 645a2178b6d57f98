"""Values of the slot memory, for every form."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests import oracles
from tests.ops import cases, slot_memories
from tests.ops.slot_memories import every_form
from tests.tolerances import assert_close


def assert_values(found, wanted, dtype, length=1):
    for x, right in zip(found, wanted, strict=True):
        assert_close(x, right, dtype, length=length)


@every_form
@pytest.mark.parametrize("packed,steps", [(True, n) for n in cases.LENGTHS] + [(False, 64)])
def test_values_equal_oracle_at_every_length(x64, packed, steps, form):
    case = cases.slots(steps, steps, packed=packed)
    found = slot_memories.run(case, form)
    assert_values(found, oracles.slots(**case, num_slots=16), np.float64)


@every_form
@pytest.mark.parametrize("num_slots,k", ((1, 1), (5, 5), (5, 1), (70, 3)))
def test_values_equal_oracle_for_every_number_of_slots(x64, num_slots, k, form):
    case = cases.slots(3, 33, packed=True, stateful=False, num_slots=num_slots, k=k)
    found = slot_memories.run(case, form, num_slots)
    assert_values(found, oracles.slots(**case, num_slots=num_slots), np.float64)


@every_form
def test_pdma_equals_oracle(x64, form):
    case = cases.slots(3, 33, packed=True)
    case["forget"] = np.abs(case["forget"])
    found = slot_memories.run(case, form, 16, "pdma")
    right = oracles.slots(**case, num_slots=16, retention="pdma")
    assert_values(found, right, np.float64)
    assert not np.allclose(found[0], oracles.slots(**case, num_slots=16)[0])


@every_form
def test_split_anywhere_equals_whole(x64, form):
    case = cases.slots(4, 24, packed=True)
    whole = slot_memories.run(case, form)
    for at in (0, 1, 7, 12, 23, 24):
        o1, *middle = slot_memories.run(cases.cut(case, 0, at), form)
        state = _restarted(middle, case["segment_ids"], at)
        o2, *end = slot_memories.run(cases.cut(case, at, 24, state), form)
        assert_values((jnp.concatenate([o1, o2], 1), *end), whole, np.float64)


def _restarted(state, segment_ids, at):
    """The state for a part from `at` on: the start for rows where a new document begins there."""
    content, mass = (np.array(x) for x in state)
    for row, ids in enumerate(segment_ids):
        before, after = ids[:at][ids[:at] >= 0], ids[at:][ids[at:] >= 0]
        if len(before) and len(after) and before[-1] != after[0]:
            content[row], mass[row] = 0.0, 1 / mass.shape[-1]
    return content, mass


@every_form
def test_packed_documents_equal_documents_alone(x64, form):
    case = cases.slots(5, 20, stateful=False, batch=1)
    for at in range(21):
        ids = np.repeat([[3, 8]], [at, 20 - at], axis=1).astype(np.int32)
        found = slot_memories.run(case | {"segment_ids": ids}, form)
        first = oracles.slots(**cases.cut(case, 0, at), num_slots=16)
        second = oracles.slots(**cases.cut(case, at, 20), num_slots=16)
        assert_close(found[0], np.concatenate([first[0], second[0]], 1), np.float64)
        assert_values(found[1:], second[1:] if at < 20 else first[1:], np.float64)


@every_form
def test_first_document_continues_from_the_state_and_the_second_does_not(x64, form):
    case = cases.slots(6, 40)
    case["segment_ids"] = np.repeat([[3, 8]] * 2, [20, 20], axis=1).astype(np.int32)
    o, *state = slot_memories.run(case, form)
    content, mass = case["state"]
    o_fresh, *state_fresh = slot_memories.run(case | {"state": (content + 1, mass)}, form)
    assert not np.allclose(o[:, :20], o_fresh[:, :20])
    np.testing.assert_array_equal(o[:, 20:], o_fresh[:, 20:])
    chex.assert_trees_all_equal(state, state_fresh)


@every_form
def test_causal_and_a_token_reads_what_it_wrote(x64, form):
    case = cases.slots(6, 60)
    o, *_ = slot_memories.run(case, form)
    rng = np.random.default_rng(0)
    changed = case | {name: case[name].copy() for name in case.keys() - {"state"}}
    for name in case.keys() - {"state"}:
        changed[name][:, 30:] = rng.permuted(changed[name][:, 30:], axis=1)
        if name.endswith("_ids"):
            changed[name][:, 30:] = np.flip(case[name][:, 30:], axis=1)
    later, *_ = slot_memories.run(changed, form)
    assert_close(later[:, :30], o[:, :30], np.float64)
    assert not np.allclose(later[:, 30:], o[:, 30:])

    case["v"][:, 30] += 1
    case["read_ids"][:, 30, :, :4] = case["write_ids"][:, 30]
    case["read_ids"][:, 30, :, 4] = case["write_ids"][:, 30, :, 0]
    case["read_weights"][:, 30] = 1.0
    case["forget"][:, 30] = 300.0
    found, *_ = slot_memories.run(case, form)
    assert_close(found[:, 30], 5 * case["v"][:, 30], np.float32)


@every_form
def test_padding_is_not_seen_even_where_it_is_nan(form):
    case = slot_memories.cast(cases.slots(8, 50, packed=True), jnp.float32)
    padded = np.asarray(case["segment_ids"]) < 0
    assert padded.any() and not padded.all()
    poisoned = dict(case)
    for name in case.keys() - {"state", "segment_ids"}:
        mask = padded.reshape(*padded.shape, *(1,) * (case[name].ndim - 2))
        poison = -7 if name in slot_memories.INTEGERS else np.nan
        poisoned[name] = jnp.asarray(np.where(mask, poison, case[name]), case[name].dtype)
    found = slot_memories.run(poisoned, form)
    chex.assert_trees_all_equal(found, slot_memories.run(case, form))
    chex.assert_tree_all_finite(found)
    assert not np.any(np.asarray(found[0])[padded])
    chex.assert_trees_all_equal_shapes(found, slot_memories.call(poisoned, form))

    ones = jax.tree.map(jnp.ones_like, found)
    slopes = slot_memories.gradients(poisoned, ones, form)
    chex.assert_trees_all_equal(slopes, slot_memories.gradients(case, ones, form))
    chex.assert_tree_all_finite(slopes)
    for name in slopes.keys() - {"state"}:
        assert not np.any(np.asarray(slopes[name])[padded]), name
        assert np.any(slopes[name]), name


@every_form
@pytest.mark.parametrize("steps", (0, 1, 20))
def test_only_padding_leaves_the_state(form, steps):
    case = cases.slots(8, steps) | {"segment_ids": np.full((2, steps), -1, np.int32)}
    case = slot_memories.cast(case, jnp.float32)
    o, *state = slot_memories.run(case, form)
    np.testing.assert_array_equal(o, np.zeros((2, steps, 2, 3), np.float32))
    chex.assert_trees_all_equal(tuple(state), case["state"])


@every_form
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_low_precision_stays_within_the_table(dtype, form):
    case = slot_memories.cast(cases.slots(9, 130, packed=True), dtype)
    found = slot_memories.run(case, form)
    wanted = oracles.slots(**slot_memories.exact(case), num_slots=16)
    assert [x.dtype for x in found] == [dtype, jnp.float32, jnp.float32]
    assert_close(found[0], wanted[0], dtype, length=130)
    assert_values(found[1:], wanted[1:], np.float32, length=130)


@every_form
def test_a_nan_that_is_written_stays_in_its_slot(form):
    case = slot_memories.cast(cases.slots(9, 30), jnp.float32)
    case["v"] = case["v"].at[0, 3, 0].set(jnp.nan)
    _, content, mass = slot_memories.run(case, form)
    bad = np.isnan(np.asarray(content)).any(axis=-1)
    assert set(np.argwhere(bad)[:, 2]) == set(np.asarray(case["write_ids"])[0, 3, 0].tolist())
    assert not bad[1:].any() and not bad[:, 1:].any() and np.isfinite(mass).all()


def test_decoding_equals_prefill():
    case = slot_memories.cast(cases.slots(1, 20), jnp.float32)
    o, *state = slot_memories.run(case, "segmented")
    carried = case["state"]
    for t in range(20):
        token = cases.cut(case, t, t + 1, carried)
        one, *carried = slot_memories.run(token, "auto")
        assert_close(one, o[:, t : t + 1], np.float32, length=20)
    assert_values(carried, state, np.float32, length=20)


def test_auto_is_the_recurrence_for_few_tokens_and_its_own_reverse_pass_for_many():
    for steps, form in ((8, "recurrent"), (9, "touched")):
        case = slot_memories.cast(cases.slots(0, steps), jnp.float32)
        found = jax.make_jaxpr(slot_memories.call, static_argnums=1)(case, "auto")
        wanted = jax.make_jaxpr(slot_memories.call, static_argnums=1)(case, form)
        assert ("custom_vjp" in str(found)) == ("custom_vjp" in str(wanted)) == (steps == 9)
        chex.assert_trees_all_equal(slot_memories.run(case, "auto"), slot_memories.run(case, form))


@every_form
def test_under_vmap(form):
    case = slot_memories.cast(cases.slots(2, 12, packed=True, batch=3), jnp.float32)
    rows = jax.tree.map(lambda x: x[:, None], case)
    found = jax.vmap(lambda row: slot_memories.call(row, form))(rows)
    whole = slot_memories.run(case, form)
    assert_values([x[:, 0] for x in found], whole, np.float32)


def test_state_none_is_the_start():
    case = slot_memories.cast(cases.slots(2, 12, stateful=False), jnp.float32)
    start = ops.SlotState(jnp.zeros((2, 2, 16, 3)), jnp.full((2, 2, 16), 1 / 16))
    chex.assert_trees_all_equal(
        slot_memories.run(case, "auto"), slot_memories.run(case | {"state": start}, "auto")
    )
