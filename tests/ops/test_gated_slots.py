"""Gated slot attention: every form against NumPy, documents, padding, gradients, errors."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests import oracles
from tests.tolerances import assert_close

SIZES = {"batch": 2, "heads": 4, "key_heads": 2, "dim": 3, "value_dim": 5, "slots": 6}
every_form = pytest.mark.parametrize("form", ("recurrent", "chunked"))


def case(steps, seed=0, packed=False, stateful=True, decay=1.0):
    """Float64 arguments; rows with several documents, and with padding, where packed."""
    rng = np.random.default_rng(seed)
    b, h, hk, d, m, s = SIZES.values()
    found = {
        "q": 2 * rng.standard_normal((b, steps, hk, d)),
        "k": rng.standard_normal((b, steps, hk, d)),
        "v": rng.standard_normal((b, steps, h, m)),
        "log_decay": -decay * rng.exponential(size=(b, steps, h, s)),
    }
    if stateful:
        found["state"] = rng.standard_normal((b, h, s, d)), rng.standard_normal((b, h, s, m))
    if packed:
        ids = np.sort(rng.integers(0, 4, (b, steps)), axis=1)
        found["segment_ids"] = np.where(rng.random((b, steps)) < 0.2, -1, ids)
    return found


@functools.partial(jax.jit, static_argnums=(1, 2))
def run(given, form, chunk_size=64):
    given = dict(given)
    if "state" in given:
        given["state"] = ops.GatedSlots(*given["state"])
    return ops.gated_slot_attention(**given, implementation=form, chunk_size=chunk_size)


def flat(found):
    y, slots = found
    return y, *slots


@every_form
@pytest.mark.parametrize("packed", (False, True))
@pytest.mark.parametrize("steps", (0, 1, 2, 15, 16, 17, 40))
def test_values_equal_oracle(x64, steps, packed, form):
    given = case(steps, steps, packed)
    for found, wanted in zip(flat(run(given, form)), oracles.gated_slots(**given), strict=True):
        assert_close(found, wanted, np.float64)


@pytest.mark.parametrize("chunk_size", (1, 5, 16, 64))
def test_chunks_of_any_size_without_a_state(x64, chunk_size):
    given = case(37, 1, packed=True, stateful=False)
    found = flat(run(given, "chunked", chunk_size))
    for one, wanted in zip(found, oracles.gated_slots(**given), strict=True):
        assert_close(one, wanted, np.float64)


@every_form
def test_split_anywhere_equals_whole(x64, form):
    given = case(33, 2)
    whole = flat(run(given, form))
    for at in (1, 16, 20, 32):
        parts = [
            {n: x if n == "state" else x[:, cut] for n, x in given.items()}
            for cut in (slice(at), slice(at, None))
        ]
        y, state = run(parts[0], form)
        second = run(parts[1] | {"state": state}, form)
        assert_close(jnp.concatenate([y, second[0]], 1), whole[0], np.float64)
        for one, wanted in zip(second[1], whole[1:], strict=True):
            assert_close(one, wanted, np.float64)
        chex.assert_trees_all_equal(second, run(parts[1] | {"state": state}, form))


@every_form
@pytest.mark.parametrize("decay", (1e-6, 1.0, 1e4))
def test_gradients_are_finite_and_those_of_the_oracle(x64, form, decay):
    given = case(21, 3, packed=True, decay=decay)
    rng = np.random.default_rng(0)
    shapes = [x.shape for x in oracles.gated_slots(**given)]
    cotangents = [rng.standard_normal(shape) for shape in shapes]

    def loss(varied):
        found = flat(run(given | varied, form))
        return sum(jnp.sum(c * x) for c, x in zip(cotangents, found, strict=True))

    varied = {name: x for name, x in given.items() if name != "segment_ids"}
    grads = jax.jit(jax.grad(loss))(varied)
    chex.assert_tree_all_finite(grads)
    if decay > 1:  # clamped: what is forgotten within a step has no slope
        return
    for name, value in varied.items():
        direction = jax.tree.map(lambda x: rng.standard_normal(x.shape), value)
        wanted = oracles.directional_derivative(
            oracles.gated_slots, given, name, direction, cotangents
        )
        found = sum(
            float(jnp.sum(g * d))
            for g, d in zip(*map(jax.tree.leaves, (grads[name], direction)), strict=True)
        )
        assert_close(found, wanted, np.float64, "gradient")


@every_form
def test_strong_decay_keeps_the_last_token_and_none_keeps_all(form):
    given = case(20, 4, stateful=False)
    _, slots = run(given | {"log_decay": np.full_like(given["log_decay"], -1e9)}, form)
    last = np.repeat(given["k"][:, -1], 2, axis=1)[:, :, None]
    assert_close(slots.keys, np.broadcast_to(last, slots.keys.shape), np.float32)
    y, slots = run(given | {"log_decay": np.zeros_like(given["log_decay"])}, form)
    assert not np.any(slots.values) and not np.any(y)  # nothing is ever written


@every_form
def test_padding_reads_zero_and_changes_nothing_whatever_it_holds(form):
    given = case(18, 5, packed=True)
    hole = given["segment_ids"] < 0
    assert hole.any()
    clean = run(given, form)
    assert not np.any(np.asarray(clean[0])[hole])
    dirty = dict(given)
    for name in ("q", "k", "v"):
        dirty[name] = np.where(hole[..., None, None], np.nan, given[name])
    chex.assert_trees_all_equal(run(dirty, form), clean)


def test_narrow_inputs_keep_float32_slots():
    given = {n: jnp.asarray(x, jnp.bfloat16) for n, x in case(9, stateful=False).items()}
    y, slots = ops.gated_slot_attention(**given)
    assert y.dtype == jnp.bfloat16
    assert {slots.keys.dtype, slots.values.dtype} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    "change,words",
    [
        ({"log_decay": np.ones((2, 4, 4, 6))}, ["log_decay", "<= 0"]),
        ({"log_decay": np.zeros((2, 4, 3, 6))}, ["log_decay", "(2, 4, 3, 6)", "H=4"]),
        ({"log_decay": np.zeros((2, 4, 4, 0))}, ["log_decay", "S=0"]),
        ({"state": np.zeros((2, 4, 6, 3))}, ["state", "GatedSlots"]),
        ({"state": (np.zeros((2, 4, 6, 3)), np.zeros((2, 4, 6, 3)))}, ["state.values", "M=5"]),
        ({"chunk_size": 0}, ["chunk_size", "0"]),
        ({"implementation": "pallas"}, ["implementation", "pallas", "chunked"]),
        ({"v": np.zeros((2, 4, 3, 5))}, ["v", "3 heads"]),
    ],
)
def test_bad_arguments_are_named(change, words):
    given = case(4, stateful=False) | change
    with pytest.raises(ValueError) as error:
        ops.gated_slot_attention(**given)
    assert all(word in str(error.value) for word in words), error.value
