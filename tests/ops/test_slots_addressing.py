"""Product softmax with exact top-K, and the cyclic shift."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests.tolerances import assert_close

topk = jax.jit(ops.product_topk, static_argnums=(1, 2))


def products(logits, base, temperature=1.0):
    """Every weight of every slot, [..., S], by the outer product of all digits; float64."""
    if not isinstance(base, int):
        table, first = np.ones((*logits.shape[:-1], 1)), 0
        for values in base:
            digit = products(logits[..., first : first + values], values)
            table = (digit[..., :, None] * table[..., None, :]).reshape(*table.shape[:-1], -1)
            first += values
        return table
    scores = np.asarray(logits, np.float64)
    scores = scores.reshape(*scores.shape[:-1], -1, base)
    scores = scores / np.asarray(temperature, np.float64)[..., None]
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    table = np.ones((*p.shape[:-2], 1))
    for digit in range(p.shape[-2]):
        # A later digit is more significant, so its values vary more slowly.
        table = (p[..., digit, :, None] * table[..., None, :]).reshape(*p.shape[:-2], -1)
    return table


def best(scores, k):
    """The k largest of the last axis, largest first, the smaller number first among equals."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :k]


@pytest.mark.parametrize("digits,base", ((5, 4), (1, 1024), (2, 32), (10, 2)))
@pytest.mark.parametrize("k", (1, 8, 32, 1024))
def test_topk_equals_brute_force_over_all_products(x64, k, digits, base):
    logits = np.random.default_rng(k).standard_normal((2, 2, 2, digits * base))
    address = topk(logits, base, k)
    table = products(logits, base)
    np.testing.assert_array_equal(address.ids, best(table, k))
    assert address.ids.dtype == jnp.int32
    assert_close(address.weights, np.take_along_axis(table, best(table, k), -1), np.float64)


@pytest.mark.parametrize("digits,base,k", ((5, 4, 8), (5, 4, 1), (5, 4, 1024), (3, 5, 31)))
def test_equal_weights_go_to_the_smaller_slot(digits, base, k):
    """Small whole numbers: sums are exact, and many slots have the same."""
    logits = np.random.default_rng(1).integers(0, 3, (1, 40, 2, digits * base))
    scores = logits.reshape(1, 40, 2, digits, base)
    total = np.zeros((1, 40, 2, 1), int)
    for digit in range(digits):
        total = (scores[..., digit, :, None] + total[..., None, :]).reshape(1, 40, 2, -1)
    ordered = np.sort(total, axis=-1)
    assert k == base**digits or np.mean(ordered[..., -k] == ordered[..., -k - 1]) > 0.5
    found = topk(jnp.asarray(logits, jnp.float32), base, k).ids
    np.testing.assert_array_equal(found, best(total, k))


@pytest.mark.parametrize("bases", ((8, 8, 16), (16, 2, 2, 2, 8), (3, 5)))
@pytest.mark.parametrize("k", (1, 8, 15))
def test_a_base_for_each_digit(x64, k, bases):
    logits = np.random.default_rng(k).standard_normal((2, 3, 2, sum(bases)))
    address, table = topk(logits, bases, k), products(logits, bases)
    np.testing.assert_array_equal(address.ids, best(table, k))
    assert_close(address.weights, np.take_along_axis(table, best(table, k), -1), np.float64)


def test_no_preference_addresses_the_first_slots():
    address = topk(jnp.zeros((1, 1, 1, 20)), 4, 8)
    np.testing.assert_array_equal(address.ids[0, 0, 0], np.arange(8))
    assert_close(address.weights, np.full((1, 1, 1, 8), 1 / 1024), np.float32)


def test_all_slots_have_a_weight_of_one_together_and_fewer_keep_theirs():
    logits = jnp.asarray(np.random.default_rng(2).standard_normal((1, 6, 2, 6)), jnp.float32)
    whole = topk(logits, 2, 8)
    assert_close(jnp.sum(whole.weights, -1), np.ones((1, 6, 2)), np.float32, length=8)
    few = topk(logits, 2, 3)
    np.testing.assert_array_equal(few.ids, whole.ids[..., :3])
    assert_close(few.weights, whole.weights[..., :3], np.float32)


def test_bfloat16_scores_are_scored_in_float32():
    """Sums of five bfloat16 scores of very different size: bfloat16 sums would tie."""
    rng = np.random.default_rng(3)
    logits = jnp.asarray(rng.standard_normal((2, 30, 2, 20)), jnp.bfloat16)
    logits = logits.at[..., 16:].multiply(100)
    address = topk(logits, 4, 8)
    table = products(np.asarray(logits, np.float64), 4)
    np.testing.assert_array_equal(address.ids, best(table, 8))
    assert address.weights.dtype == jnp.float32
    wanted = np.take_along_axis(table, best(table, 8), -1)
    assert_close(address.weights, wanted, np.float32, length=100)


@pytest.mark.parametrize("shape", ((), (3,), (3, 4)))
def test_temperature_of_all_of_a_head_and_of_a_digit(x64, shape):
    rng = np.random.default_rng(4)
    logits, temperature = rng.standard_normal((2, 5, 3, 8)), rng.uniform(0.5, 3.0, shape)
    address = topk(logits, 2, 4, temperature)
    spelled = np.broadcast_to(temperature.reshape(*shape, *(1,) * (2 - len(shape))), (3, 4))
    table = products(logits, 2, spelled)
    np.testing.assert_array_equal(address.ids, best(table, 4))
    assert_close(address.weights, np.take_along_axis(table, best(table, 4), -1), np.float64)


def test_gradients_flow_through_the_kept_weights_and_the_softmax(x64):
    rng = np.random.default_rng(5)
    logits, temperature = rng.standard_normal((1, 4, 2, 15)), rng.uniform(0.5, 3.0, (2, 3))
    cotangent = rng.standard_normal((1, 4, 2, 6))

    def loss(logits, temperature):
        return jnp.sum(cotangent * topk(logits, 5, 6, temperature).weights)

    def dense(logits, temperature, ids):
        p = jax.nn.softmax(logits.reshape(1, 4, 2, 3, 5) / temperature[..., None], axis=-1)
        table = jnp.einsum("bthc,bthd,bthe->bthedc", *jnp.moveaxis(p, 3, 0)).reshape(1, 4, 2, -1)
        return jnp.sum(cotangent * jnp.take_along_axis(table, ids, axis=-1))

    ids = topk(logits, 5, 6, temperature).ids
    found = jax.jit(jax.grad(loss, (0, 1)))(logits, temperature)
    wanted = jax.jit(jax.grad(dense, (0, 1)))(logits, temperature, ids)
    for x, right in zip(found, wanted, strict=True):
        assert np.any(right)
        assert_close(x, right, np.float64, "gradient")


def test_eager_jit_and_vmap_agree():
    logits = jnp.asarray(np.random.default_rng(6).standard_normal((3, 4, 2, 12)), jnp.float32)
    eager = ops.product_topk(logits, 4, 5)
    mapped = jax.vmap(lambda row: ops.product_topk(row, 4, 5))(logits[:, None])
    for found in (topk(logits, 4, 5), jax.tree.map(lambda x: x[:, 0], mapped)):
        np.testing.assert_array_equal(found.ids, eager.ids)
        assert_close(found.weights, eager.weights, np.float32)


def test_no_array_has_an_axis_of_all_slots():
    """With S = 2^30 slots, one such array of float32 would take 4 GiB."""
    logits = jnp.asarray(np.random.default_rng(7).standard_normal((1, 2, 1, 60)), jnp.float32)
    program = jax.jit(functools.partial(ops.product_topk, base=2, k=4)).lower(logits).compile()
    assert program.memory_analysis().temp_size_in_bytes < 2**20
    largest = np.asarray(logits).reshape(2, 30, 2).argmax(-1) @ 2 ** np.arange(30)
    np.testing.assert_array_equal(program(logits).ids[0, :, 0, 0], largest)


@pytest.mark.parametrize("num_slots", (7, 1024, 2**31 - 1))
def test_cyclic_shift(num_slots):
    ids = np.array([0, 1, 5, num_slots - 1], np.int32).reshape(1, 1, 1, 4)
    ids = np.repeat(ids, 6, axis=1)
    positions = np.array([[0, 1, 2, 6, 7, 2**31 - 1]], np.int32)
    address = ops.SlotAddress(jnp.asarray(ids), jnp.ones(ids.shape))
    found = jax.jit(ops.cyclic_shift, static_argnums=2)(address, positions, num_slots)
    wanted = (ids.astype(np.int64) - positions[:, :, None, None].astype(np.int64)) % num_slots
    np.testing.assert_array_equal(found.ids, wanted)
    assert found.ids.dtype == jnp.int32
    np.testing.assert_array_equal(found.weights, address.weights)


@pytest.mark.parametrize("dtype", (np.int8, np.uint8, np.int16, np.uint32))
def test_cyclic_shift_of_narrow_and_unsigned_integers(dtype):
    ids, positions = np.array([[[[0, 1, 99]]]]), np.array([[100]])
    address = ops.SlotAddress(jnp.asarray(ids.astype(dtype)), jnp.ones(ids.shape))
    found = ops.cyclic_shift(address, jnp.asarray(positions.astype(dtype)), 1000)
    np.testing.assert_array_equal(found.ids, (ids - 100) % 1000)


@pytest.mark.parametrize("scale", (1e-3, 1.0, 3e38))
@pytest.mark.parametrize("temperature", (1e-40, 1e-20, 0.5, 1e20))
def test_gradients_are_finite_at_any_scale_inside_jit(scale, temperature):
    logits = np.random.default_rng(8).uniform(-1, 1, (1, 3, 2, 8)).astype(np.float32) * scale

    def loss(logits, temperature):
        return jnp.sum(ops.product_topk(logits, 2, 3, temperature).weights ** 2)

    found = jax.jit(jax.value_and_grad(loss, (0, 1)))(logits, jnp.float32(temperature))
    for x in jax.tree.leaves(found):
        assert np.isfinite(x).all()


@pytest.mark.parametrize("jit", (False, True))
@pytest.mark.parametrize(
    "width,base,k,pattern",
    (
        (20, 4, 0, "k: found 0, wanted an integer >= 1"),
        (20, 4, 1025, "k: found 1025 .* at most the 1024 slots of 5 digits of base 4"),
        (20, 4, 2.0, "k: found 2.0"),
        (21, 4, 8, "logits: found width 21, wanted a multiple of base=4"),
        (0, 4, 8, "logits: found width 0"),
        (20, 1, 8, "base: found 1, wanted an integer >= 2"),
        (64, 4, 8, "logits: found 16 digits of base 4, .* 2147483647"),
        (9, (4, 4), 8, r"logits: found width 9, wanted 8, sum of base=\(4, 4\)"),
        (8, (4, 4), 17, r"k: found 17 .* at most the 16 slots of 2 digits of base \(4, 4\)"),
        (8, (7, 1), 2, "base: found 1, wanted an integer >= 2"),
        (0, (), 2, "logits: found width 0"),
        (8, 4.0, 2, "base: found 4.0, wanted an integer >= 2"),
        (8, None, 2, "base: found None, wanted an integer >= 2"),
        (8, "44", 2, "base: found '44', wanted an integer >= 2"),
        (62, 2, 8, "logits: found 31 digits of base 2, .* 2147483647"),
    ),
)
def test_numbers_that_do_not_fit(width, base, k, pattern, jit):
    function = functools.partial(ops.product_topk, base=base, k=k)
    with pytest.raises(ValueError, match=f"^{pattern}"):
        (jax.jit(function) if jit else function)(jnp.zeros((1, 2, 1, width)))


def test_arguments_that_do_not_fit():
    logits = jnp.zeros((1, 2, 3, 8))
    address = ops.SlotAddress(jnp.zeros((1, 2, 3, 4), jnp.int32), jnp.ones((1, 2, 3, 4)))
    for pattern, call in (
        ("logits: found shape (2, 3, 8)", lambda: ops.product_topk(logits[0], 2, 2)),
        ("logits: found dtype int32", lambda: ops.product_topk(logits.astype(int), 2, 2)),
        (
            "temperature: found shape (4,), wanted [] or [H=3] or [H=3, U=4]",
            lambda: ops.product_topk(logits, 2, 2, jnp.ones(4)),
        ),
        (
            "logits: found -inf at (0, 0, 0, 0)",
            lambda: ops.product_topk(logits.at[0, 0, 0, 0].set(-jnp.inf), 2, 2),
        ),
        ("temperature: found inf", lambda: ops.product_topk(logits, 2, 2, float("inf"))),
        ("temperature: found 9.99", lambda: ops.product_topk(logits, 2, 2, 1e-8)),
        (
            "positions: found the id 4294967296",
            lambda: ops.cyclic_shift(address, np.array([[0, 2**32]]), 4),
        ),
        ("address: found a NoneType", lambda: ops.cyclic_shift(None, jnp.zeros((1, 2), int), 4)),
        ("temperature: found 0.0 at ()", lambda: ops.product_topk(logits, 2, 2, 0.0)),
        ("temperature: found nan", lambda: ops.product_topk(logits, 2, 2, float("nan"))),
        ("num_slots: found 0", lambda: ops.cyclic_shift(address, jnp.zeros((1, 2), int), 0)),
        ("num_slots: found 2.0", lambda: ops.cyclic_shift(address, jnp.zeros((1, 2), int), 2.0)),
        ("positions: found shape (2,)", lambda: ops.cyclic_shift(address, jnp.zeros(2, int), 4)),
        ("positions: found dtype", lambda: ops.cyclic_shift(address, jnp.zeros((1, 2)), 4)),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(pattern)):
            call()


def test_backward_pass_is_given_logits_and_slots_alone():
    logits = jax.ShapeDtypeStruct((2, 9, 3, 5 * 4), jnp.float32)
    address = jax.eval_shape(lambda logits: ops.product_topk(logits, 4, 16), logits)

    def weights(logits):
        return ops.product_topk(logits, 4, 16).weights

    kept = jax.tree.leaves(jax.eval_shape(lambda logits: jax.vjp(weights, logits)[1], logits))
    sizes = sum(leaf.size for leaf in kept)
    assert sizes <= logits.size + 2 * address.ids.size + 3 * 5  # and the temperatures
