"""What must hold of the gated slot update whatever the numbers, for every form."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import cases, slot_memories
from tests.ops.slot_memories import every_form
from tests.tolerances import assert_close, tolerance


def one_slot(gamma, steps=40, form="recurrent", num_slots=4):
    """Writes to slot 1 only; returns weights [T], values [T, M] and what each token reads."""
    rng = np.random.default_rng(3)
    w = rng.uniform(0.05, 0.9, steps)
    v = rng.standard_normal((steps, 3))
    ones = np.ones((1, steps, 1, 1))
    case = {
        "write_ids": ones.astype(np.int32),
        "write_weights": w.reshape(ones.shape),
        "read_ids": ones.astype(np.int32),
        "read_weights": ones,
        "v": v[None, :, None],
        "forget": np.full((1, steps, 1), float(gamma)),
    }
    o, content, mass = slot_memories.run(case, form, num_slots)
    assert_close(content[0, 0, 1], o[0, -1, 0], np.float64)
    return w, v, np.asarray(o)[0, :, 0], float(mass[0, 0, 1])


@every_form
def test_nothing_forgotten_is_the_running_weighted_mean(x64, form):
    """gamma -> -inf: s = sum w v / (m_0 + sum w), the start counting as m_0 = 1/S of zeros."""
    w, v, o, mass = one_slot(-1e4, form=form)
    wanted = np.cumsum(w[:, None] * v, axis=0) / (1 / 4 + np.cumsum(w))[:, None]
    assert_close(o, wanted, np.float64)
    assert_close(mass, 1 / 4 + w.sum(), np.float64)


@every_form
def test_gamma_zero_is_the_bias_corrected_moving_average(x64, form):
    """lambda = 1 - w: the average and its correction both decay by 1 - w and gain by w."""
    w, v, o, mass = one_slot(0.0, form=form)
    average, correction, wanted = np.zeros(3), 1 / 4, []
    for weight, value in zip(w, v, strict=True):
        average = (1 - weight) * average + weight * value
        correction = (1 - weight) * correction + weight
        wanted.append(average / correction)
    assert_close(o, np.stack(wanted), np.float64)
    assert_close(mass, correction, np.float64)


@every_form
def test_all_forgotten_is_an_overwrite(x64, form):
    """gamma -> +inf: m = w, s = v."""
    w, v, o, mass = one_slot(1e4, form=form)
    assert_close(o, v, np.float64)
    assert_close(mass, w[-1], np.float64)


@every_form
def test_unnormalised_form(x64, form):
    """s = S / z with S = lambda S + w v and z = lambda z + w, from z_0 = 1/S."""
    w, v, o, mass = one_slot(0.7, form=form)
    keep = 1 / (1 + w / (1 - w) * np.exp(0.7))
    total, z, wanted = np.zeros(3), 1 / 4, []
    for weight, value, left in zip(w, v, keep, strict=True):
        total, z = left * total + weight * value, left * z + weight
        wanted.append(total / z)
    assert_close(o, np.stack(wanted), np.float64)
    assert_close(mass, z, np.float64)


@every_form
def test_slots_that_are_not_written_or_with_weight_zero_stay_bit_for_bit(form):
    case = slot_memories.cast(cases.slots(4, 60, num_slots=40, packed=False), jnp.float32)
    case["write_weights"] = case["write_weights"].at[..., ::2].set(0.0)
    content, mass = case["state"]
    _, after, mass_after = slot_memories.run(case, form, 40)
    written = np.zeros((2, 2, 40), bool)
    for (b, t, h, k), a in np.ndenumerate(case["write_ids"]):
        written[b, h, a] |= float(case["write_weights"][b, t, h, k]) > 0
    assert 0.1 < written.mean() < 0.99
    np.testing.assert_array_equal(np.asarray(after)[~written], np.asarray(content)[~written])
    np.testing.assert_array_equal(np.asarray(mass_after)[~written], np.asarray(mass)[~written])
    assert np.all(np.asarray(mass_after)[written] != np.asarray(mass)[written])

    nothing = case | {"write_weights": jnp.zeros_like(case["write_weights"])}
    _, *state = slot_memories.run(nothing, form, 40)
    chex.assert_trees_all_equal(tuple(state), case["state"])


@every_form
def test_content_stays_within_what_was_written(x64, form):
    """Each channel of a slot is between the least and the largest of its values and s_0."""
    case = cases.slots(5, 80)
    content, _ = case["state"]
    _, after, mass = slot_memories.run(case, form)
    low, high = content.copy(), content.copy()
    for (b, t, h, _), a in np.ndenumerate(case["write_ids"]):
        low[b, h, a] = np.minimum(low[b, h, a], case["v"][b, t, h])
        high[b, h, a] = np.maximum(high[b, h, a], case["v"][b, t, h])
    slack = tolerance(np.float64)["atol"]
    assert np.all((low - slack <= after) & (after <= high + slack))
    assert np.all(np.asarray(mass) > 0)


@every_form
@pytest.mark.parametrize("gamma", (-30.0, 0.0, 5.0))
def test_a_write_moves_a_slot_by_less_than_the_whole_way(x64, gamma, form):
    """eta in [0, 1), read off as the part of the way to v that one write goes."""
    case = cases.slots(6, 1, batch=1, heads=1, num_slots=8, k=8, value_dim=1)
    case["forget"] = np.full((1, 1, 1), gamma)
    case["write_weights"] = np.geomspace(1e-6, 0.999, 8).reshape(1, 1, 1, 8)
    content, mass = case["state"]
    case["state"] = np.zeros_like(content), mass
    case["v"] = np.ones((1, 1, 1, 1))
    _, eta, _ = slot_memories.run(case, form, 8)
    assert np.all((np.asarray(eta) > 0) & (np.asarray(eta) < 1))
    case["write_weights"] = np.zeros((1, 1, 1, 8))
    _, eta, _ = slot_memories.run(case, form, 8)
    np.testing.assert_array_equal(eta, np.zeros((1, 1, 8, 1)))


@every_form
def test_permuting_slots_permutes_the_state(x64, form):
    case = cases.slots(7, 50, packed=True)
    order = np.random.default_rng(0).permutation(16)
    renamed = dict(case)
    for name in ("write_ids", "read_ids"):
        renamed[name] = order[case[name]].astype(np.int32)
    # Slot order[a] of the renamed memory is slot a.
    back = np.argsort(order)
    renamed["state"] = tuple(x[:, :, back] for x in case["state"])
    o, content, mass = slot_memories.run(case, form)
    o2, content2, mass2 = slot_memories.run(renamed, form)
    assert_close(o2, o, np.float64)
    assert_close(np.asarray(content2)[:, :, order], content, np.float64)
    assert_close(np.asarray(mass2)[:, :, order], mass, np.float64)


@every_form
def test_order_of_the_addressed_slots_does_not_matter(x64, form):
    case = cases.slots(8, 30)
    turned = dict(case)
    for name in ("write_ids", "write_weights", "read_ids", "read_weights"):
        turned[name] = np.flip(case[name], axis=-1)
    found, wanted = slot_memories.run(turned, form), slot_memories.run(case, form)
    for x, right in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert_close(x, right, np.float64)
