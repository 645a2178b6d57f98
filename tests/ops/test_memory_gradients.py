"""Gradients of the delta rule and of linear attention, for every form."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import oracles
from tests.ops import cases, memories
from tests.ops.memories import OPS, every_form, every_op
from tests.tolerances import assert_close


@every_op
@pytest.mark.parametrize(
    "form,kind", (("recurrent", "diagonal"), *(("chunked", kind) for kind in memories.KINDS))
)
def test_gradients_equal_complex_step_through_oracle(x64, kind, form, op):
    case = cases.memory(5, 37, OPS[op].strength, kind, packed=True)
    cotangents = memories.cotangents(case)
    slopes = memories.gradients(case, cotangents, op, form, 16)
    rng = np.random.default_rng(11)
    for name, slope in slopes.items():
        direction = rng.standard_normal(np.shape(case[name]))
        wanted = oracles.directional_derivative(OPS[op].oracle, case, name, direction, cotangents)
        assert abs(wanted) > 0, name
        assert_close(jnp.vdot(slope, direction), wanted, np.float64, "gradient")


@every_op
@pytest.mark.parametrize(
    "kind,packed,steps",
    (
        *(("diagonal", True, steps) for steps in cases.LENGTHS),
        *(("scalar", False, steps) for steps in (1, 65)),
    ),
)
def test_gradients_equal_those_of_the_recurrence(x64, kind, packed, steps, op):
    case = cases.memory(steps, steps, OPS[op].strength, kind, packed=packed)
    cotangents = memories.cotangents(case)
    found = memories.gradients(case, cotangents, op, "chunked")
    wanted = memories.reference_gradients(case, cotangents, op, cases.LENGTHS[-1])
    assert set(found) == set(case) - {"segment_ids"}
    for name in found:
        assert_close(found[name], wanted[name], np.float64, "gradient")


@every_op
@every_form
@pytest.mark.parametrize("steps", (1, 2))
def test_numerical_gradients(x64, steps, form, op):
    case = cases.memory(
        2, steps, OPS[op].strength, "diagonal", batch=1, key_heads=1, heads=1, dim=2, value_dim=2
    )
    flat, tree = jax.tree.flatten(case)

    @jax.jit
    def loss(*flat):
        outputs = memories.run(jax.tree.unflatten(tree, flat), op, form)
        return sum(jnp.sum(jnp.sin(y)) for y in outputs)

    chex.assert_numerical_grads(loss, [jnp.asarray(x) for x in flat], order=1)


@every_op
@every_form
def test_gradients_are_causal(x64, form, op):
    """What a token reads depends on no later token; what the state holds, on no query."""
    case = cases.memory(7, 70, OPS[op].strength, "diagonal")
    of_y, of_state = memories.cotangents(case)
    early = of_y.copy()
    early[:, 33:] = 0
    slopes = memories.gradients(case, (early, 0 * of_state), op, form, 32)
    for name in slopes.keys() - {"state"}:
        # The compiler may sum an exact zero with rounding of others, no more.
        assert_close(slopes[name][:, 33:], 0 * slopes[name][:, 33:], np.float64, "gradient")
        assert np.any(np.asarray(slopes[name])[:, :33]), name
    slopes = memories.gradients(case, (0 * of_y, of_state), op, form, 32)
    assert not np.any(slopes["q"])


@every_op
@every_form
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_low_precision_gradients_stay_within_the_table(dtype, form, op):
    case = cases.memory(13, 100, OPS[op].strength, "scalar", dim=8)
    low = memories.cast(case, dtype)
    cotangents = memories.cotangents(case)
    found = memories.gradients(
        low, tuple(jnp.asarray(c, jnp.float32) for c in cotangents), op, form
    )
    exact = memories.exact(low)
    jax.config.update("jax_enable_x64", True)
    try:
        wanted = memories.gradients(exact, cotangents, op, "recurrent")
        wanted = {name: np.asarray(x) for name, x in wanted.items()}
    finally:
        jax.config.update("jax_enable_x64", False)
    for name in found:
        assert found[name].dtype == low[name].dtype
        scale = np.abs(wanted[name]).max()
        held = np.asarray(found[name], np.float64) / scale
        assert_close(held, wanted[name] / scale, dtype, "gradient", length=100)
