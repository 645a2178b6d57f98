"""Cases C1, C2, C6, C7 and C19 for the delta rule and linear attention."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests.ops import cases, memories
from tests.ops.memories import OPS, every_form, every_op
from tests.tolerances import assert_close


def awkward(steps, strength):
    """C1's input: decays anywhere in (-20, 0), a random state."""
    case = cases.memory(steps, steps, strength, "scalar", dim=8, value_dim=8)
    rng = np.random.default_rng(steps)
    case["log_decay"] = rng.uniform(-20.0, 0.0, case["log_decay"].shape)
    return memories.cast(case, jnp.float32)


@every_op
@pytest.mark.parametrize("steps", (0, 1, 2, 15, 63, 64, 65, 127))
def test_awkward_lengths(steps, op):
    case = awkward(steps, OPS[op].strength)
    found, wanted = (memories.run(case, op, form) for form in ("chunked", "recurrent"))
    assert found[0].shape == case["v"].shape
    for x, right in zip(found, wanted, strict=True):
        assert_close(x, right, np.float32, length=max(steps, 1))
    cotangents = tuple(jnp.asarray(c, jnp.float32) for c in memories.cotangents(case))
    slopes = memories.gradients(case, cotangents, op, "chunked")
    right = memories.reference_gradients(case, cotangents, op, 127)
    for name in case:
        assert_close(slopes[name], right[name], np.float32, "gradient", length=max(steps, 1))


@every_op
@every_form
def test_no_tokens_leave_the_state(form, op):
    case = awkward(0, OPS[op].strength)
    y, state = memories.run(case, op, form)
    assert y.shape == (2, 0, 2, 8)
    np.testing.assert_array_equal(state, case["state"])
    cotangents = tuple(jnp.asarray(c, jnp.float32) for c in memories.cotangents(case))
    slopes = memories.gradients(case, cotangents, op, form)
    np.testing.assert_array_equal(slopes["state"], cotangents[1])
    del case["state"]
    np.testing.assert_array_equal(memories.run(case, op, form)[1], np.zeros((2, 2, 8, 8)))


@every_op
@every_form
def test_zero_keys_write_nothing(form, op):
    case = cases.memory(1, 30, OPS[op].strength, "scalar")
    case["k"][0] = 0
    case["k"][1, 5] = 0
    case["v"][1, 5] = 7
    case = memories.cast(case, jnp.float32)
    y, state = memories.run(case, op, form, 16)
    decay = np.exp(np.cumsum(np.asarray(case["log_decay"][0], np.float64), axis=0))
    memory = decay[..., None, None] * np.asarray(case["state"][0], np.float64)
    assert_close(state[0], memory[-1], np.float32, length=30)
    read = np.einsum("thdm,thd->thm", memory, np.asarray(case["q"][0], np.float64))
    assert_close(y[0], read, np.float32, length=30)
    unseen = case | {"v": case["v"].at[1, 5].set(-1e3)}
    chex.assert_trees_all_equal(memories.run(unseen, op, form, 16), (y, state))
    slopes = memories.gradients(case, (jnp.ones_like(y), jnp.ones_like(state)), op, form, 16)
    chex.assert_tree_all_finite((y, state, slopes))

    fresh = {name: x for name, x in case.items() if name != "state"}
    y, state = memories.run(fresh, op, form, 16)
    np.testing.assert_array_equal(y[0], np.zeros_like(y[0]))
    np.testing.assert_array_equal(state[0], np.zeros_like(state[0]))


@every_op
@every_form
def test_a_step_that_does_nothing_leaves_the_state(form, op):
    strength = OPS[op].strength
    case = memories.cast(cases.memory(1, 20, strength, "diagonal"), jnp.float32)
    quiet = {name: jnp.zeros_like(case[name]) for name in (strength, "log_decay")}
    _, state = memories.run(case | quiet, op, form, 16)
    np.testing.assert_array_equal(state, case["state"])


@every_op
@every_form
@pytest.mark.parametrize("strength", (-1.3, -1.5, -20.0, -1e4))
@pytest.mark.parametrize("kind", ("scalar", "diagonal"))
def test_strong_decay_is_finite_and_right(kind, strength, form, op):
    case = cases.memory(0, 64, OPS[op].strength, kind, dim=8)
    case["log_decay"] = np.full_like(case["log_decay"], strength)
    # One weak stretch among strong ones: sums over long spans must not cost it its digits.
    case["log_decay"][:, 40:44] = -1e-3
    case = memories.cast(case, jnp.float32)
    y, state = memories.run(case, op, form)
    right, memory = OPS[op].oracle(**memories.exact(case))
    assert_close(y, right, np.float32, length=64)
    assert_close(state, memory, np.float32, length=64)
    ones = jnp.ones_like(y), jnp.ones_like(state)
    slopes = memories.gradients(case, ones, op, form)
    chex.assert_tree_all_finite(slopes)
    for name, wanted in memories.gradients(case, ones, op, "recurrent").items():
        assert_close(slopes[name], wanted, np.float32, "gradient", length=64)


@every_op
@pytest.mark.parametrize("chunk_size", (16, 32, 64, 128))
def test_chunk_size_does_not_matter(chunk_size, op):
    case = cases.memory(3, 150, OPS[op].strength, "diagonal")
    case = memories.cast(case, jnp.float32)
    y, state = memories.run(case, op, "chunked", chunk_size)
    right, memory = OPS[op].oracle(**memories.exact(case))
    assert_close(y, right, np.float32, length=150)
    assert_close(state, memory, np.float32, length=150)


@every_form
def test_a_sum_of_bfloat16_ones_reaches_a_thousand(form):
    """Case C7: a bfloat16 running sum would stop at 256."""
    one = jnp.ones((1, 1000, 1, 1), jnp.bfloat16)
    y, state = memories.run({"q": one, "k": one, "v": one}, "additive", form)
    assert (y.dtype, state.dtype) == (jnp.bfloat16, jnp.float32)
    assert float(y[0, -1, 0, 0]) == 1000.0
    assert float(state[0, 0, 0, 0]) == 1000.0
    y, state = ops.delta_rule(one, one, one, beta=one[..., 0], implementation=form)
    assert (y.dtype, state.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_array_equal(np.asarray(y, np.float32), 1.0)


@every_op
@pytest.mark.parametrize(
    "form,dim",
    (
        *(("chunked", dim) for dim in (1, 16, 80, 96, 100, 256)),
        *(("recurrent", dim) for dim in (1, 100)),
    ),
)
def test_odd_head_dims_and_grouped_values(dim, form, op):
    sizes = {"dim": dim, "value_dim": dim, "batch": 1, "key_heads": 1, "heads": 2}
    case = memories.cast(cases.memory(dim, 9, OPS[op].strength, "scalar", **sizes), jnp.float32)
    y, state = memories.run(case, op, form, 4)
    right, memory = OPS[op].oracle(**memories.exact(case))
    assert_close(y, right, np.float32, length=dim)
    assert_close(state, memory, np.float32, length=dim)
