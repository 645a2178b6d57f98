"""Gradients of the slot memory, for every form."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests import oracles
from tests.ops import cases, slot_memories
from tests.ops.slot_memories import every_form
from tests.tolerances import assert_close


def leaves_close(found, wanted, dtype, length=1):
    assert set(found) == set(wanted)
    for name in found:
        pairs = zip(jax.tree.leaves(found[name]), jax.tree.leaves(wanted[name]), strict=True)
        for x, right in pairs:
            scale = max(np.abs(right).max(initial=0.0), 1e-300)
            assert_close(x / scale, right / scale, dtype, "gradient", length)


@every_form
@pytest.mark.parametrize("retention", ("gsu", "pdma"))
def test_gradients_equal_complex_step_through_oracle(x64, retention, form):
    case = cases.slots(5, 37, packed=True)
    if retention == "pdma":
        case["forget"] = np.abs(case["forget"])
    cotangents = slot_memories.cotangents(case)
    slopes = slot_memories.gradients(case, cotangents, form, 16, retention)
    assert set(slopes) == {"v", "forget", "write_weights", "read_weights", "state"}
    rng = np.random.default_rng(11)
    static = {"num_slots": 16, "retention": retention}
    for name, slope in slopes.items():
        direction = jax.tree.map(lambda x: rng.standard_normal(np.shape(x)), case[name])
        wanted = oracles.directional_derivative(
            oracles.slots, case | static, name, direction, cotangents
        )
        assert abs(wanted) > 0, name
        pairs = zip(jax.tree.leaves(slope), jax.tree.leaves(direction), strict=True)
        found = sum(jnp.vdot(g, d) for g, d in pairs)
        assert_close(found, wanted, np.float64, "gradient")


@pytest.mark.parametrize("form", ("touched", "segmented"))
@pytest.mark.parametrize("steps", (0, 1, 2, 15, 64, 127))
def test_gradients_equal_those_of_the_recurrence(x64, steps, form):
    case = cases.slots(steps, steps, packed=True)
    cotangents = slot_memories.cotangents(case)
    wanted = slot_memories.gradients(case, cotangents, "recurrent")
    leaves_close(slot_memories.gradients(case, cotangents, form), wanted, np.float64)


@every_form
def test_gradients_where_a_slot_is_read_twice_in_one_token(x64, form):
    """No public address names a slot twice, but an addition of two rows must not lose one."""
    case = cases.slots(3, 12)
    case["read_ids"][..., 1] = case["read_ids"][..., 0]
    cotangents = slot_memories.cotangents(case)
    slopes = slot_memories.gradients(case, cotangents, form)
    direction = np.random.default_rng(1).standard_normal(case["v"].shape)
    wanted = oracles.directional_derivative(
        oracles.slots, case | {"num_slots": 16}, "v", direction, cotangents
    )
    assert_close(jnp.vdot(slopes["v"], direction), wanted, np.float64, "gradient")


@every_form
@pytest.mark.parametrize("steps", (1, 2))
def test_numerical_gradients(x64, steps, form):
    case = cases.slots(2, steps, batch=1, heads=1, num_slots=3, k=2, value_dim=2)
    fixed = {name: case.pop(name) for name in ("write_ids", "read_ids")}
    flat, tree = jax.tree.flatten(case)

    @jax.jit
    def loss(*flat):
        outputs = slot_memories.call(jax.tree.unflatten(tree, flat) | fixed, form, 3)
        return sum(jnp.sum(jnp.sin(x)) for x in outputs)

    # The forms with a reverse pass of their own have no forward mode.
    modes = ("fwd", "rev") if form == "recurrent" else ("rev",)
    check_grads(loss, [jnp.asarray(x) for x in flat], order=1, modes=modes)


@every_form
def test_gradients_are_causal(x64, form):
    """What a token reads depends on no later token; what the state holds, on no read."""
    case = cases.slots(7, 40)
    of_o, *of_state = slot_memories.cotangents(case)
    early = of_o.copy()
    early[:, 20:] = 0
    slopes = slot_memories.gradients(case, (early, *(0 * c for c in of_state)), form)
    for name in slopes.keys() - {"state"}:
        assert not np.any(np.asarray(slopes[name])[:, 20:]), name
        assert np.any(np.asarray(slopes[name])[:, :20]), name
    slopes = slot_memories.gradients(case, (0 * of_o, *of_state), form)
    assert not np.any(slopes["read_weights"])


@every_form
@pytest.mark.parametrize("gamma", (-1e4, -90.0, 90.0, 1e4))
def test_gradients_stay_finite_at_the_limits_of_forgetting_and_of_weights(gamma, form):
    case = slot_memories.cast(cases.slots(7, 20, packed=True), jnp.float32)
    case["forget"] = jnp.full_like(case["forget"], gamma)
    edges = jnp.array([0.0, 1e-38, 1e-12, 1.0], jnp.float32)
    case["write_weights"] = jnp.broadcast_to(edges, case["write_weights"].shape)
    chex.assert_tree_all_finite(slot_memories.run(case, form))
    cotangents = tuple(jnp.asarray(c, jnp.float32) for c in slot_memories.cotangents(case))
    slopes = slot_memories.gradients(case, cotangents, form)
    chex.assert_tree_all_finite({name: slopes[name] for name in ("v", "forget", "state")})


@every_form
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_low_precision_gradients_stay_within_the_table(dtype, form):
    low = slot_memories.cast(cases.slots(13, 100), dtype)
    cotangents = slot_memories.cotangents(low)
    found = slot_memories.gradients(
        low, tuple(jnp.asarray(c, jnp.float32) for c in cotangents), form
    )
    jax.config.update("jax_enable_x64", True)
    try:
        wanted = slot_memories.gradients(slot_memories.exact(low), cotangents, "recurrent")
        wanted = jax.tree.map(np.asarray, wanted)
    finally:
        jax.config.update("jax_enable_x64", False)
    assert found["v"].dtype == dtype
    leaves_close(jax.tree.map(lambda x: np.asarray(x, np.float64), found), wanted, dtype, 100)
