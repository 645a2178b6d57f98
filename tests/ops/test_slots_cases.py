"""Cases C14 and C15, and what `slot_memory` says of arguments that do not fit."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests.ops import cases, slot_memories
from tests.ops.slot_memories import every_form
from tests.tolerances import assert_close

topk = jax.jit(ops.product_topk, static_argnums=(1, 2))


def scores(*values, dtype=jnp.float32):
    return jnp.asarray(values, dtype).reshape(1, 1, 1, -1)


@every_form
def test_as_many_addressed_slots_as_there_are_equal_dense_reads_and_writes(form):
    """Case C14, K = S = 8."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.standard_normal((2, 1, 40, 1, 6)), jnp.float32)
    write, read = ops.product_topk(logits[0], 2, 8), ops.product_topk(logits[1], 2, 8)
    v = jnp.asarray(rng.standard_normal((1, 40, 1, 5)), jnp.float32)
    forget = jnp.asarray(rng.standard_normal((1, 40, 1)), jnp.float32)
    o, state = ops.slot_memory(write, read, v, forget, num_slots=8, implementation=form)

    def dense(logits):
        p = np.exp(np.asarray(logits, np.float64).reshape(40, 3, 2))
        p = p / p.sum(-1, keepdims=True)
        return np.einsum("tc,tb,ta->tcba", p[:, 2], p[:, 1], p[:, 0]).reshape(40, 8)

    mass, content, wanted = np.full(8, 1 / 8), np.zeros((8, 5)), []
    for t, (w, r) in enumerate(zip(dense(logits[0]), dense(logits[1]), strict=True)):
        mass = mass / (1 + w / (1 - w) * np.exp(float(forget[0, t, 0]))) + w
        content += (w / mass)[:, None] * (np.asarray(v[0, t, 0], np.float64) - content)
        wanted.append(r @ content)
    assert_close(o[0, :, 0], np.stack(wanted), np.float32, length=8)
    assert_close(state.content[0, 0], content, np.float32, length=8)
    assert_close(state.mass[0, 0], mass, np.float32, length=8)


@pytest.mark.parametrize("k", (0, 9))
def test_no_addressed_slot_and_more_than_there_are(k):
    """Case C14: an error that names both numbers, before anything is traced."""
    pattern = "k: found 0, wanted" if k == 0 else "k: found 9 .* the 8 slots"
    with pytest.raises(ValueError, match=f"^{pattern}"):
        ops.product_topk(jnp.zeros((1, 1, 1, 6)), 2, k)
    case = cases.slots(0, 3, num_slots=9, k=max(k, 1), stateful=False)
    case |= {name: case[name][..., :k] for name in ("write_ids", "write_weights")}
    for call in (slot_memories.call, slot_memories.run):
        with pytest.raises(ValueError, match=f"^write.ids: found K={k} .* num_slots=8"):
            call(case, "auto", 8)


def test_ties():
    """Case C15: the smaller number first, eager as jit; one score raised flips the choice."""
    tied = scores(1.0, 3.0, 3.0, 2.0, 3.0)
    for function in (ops.product_topk, topk):
        np.testing.assert_array_equal(function(tied, 5, 2).ids.ravel(), [1, 2])
        raised = tied.at[..., 4].add(1e-6)
        assert raised[0, 0, 0, 4] > 3
        np.testing.assert_array_equal(function(raised, 5, 2).ids.ravel(), [4, 1])


def test_gradients_at_ties():
    """Case C15: each score that was taken has the whole gradient, the equal one not taken none."""

    def sum_of_scores(logits):
        logs = jnp.log(ops.product_topk(logits, 5, 2).weights)
        return jnp.sum(logs + jax.nn.logsumexp(logits))

    slope = jax.grad(sum_of_scores)(scores(1.0, 3.0, 3.0, 2.0, 3.0))
    assert_close(slope.ravel(), [0, 1, 1, 0, 0], np.float32, "gradient")


def test_scores_made_in_float32():
    """Case C15: in bfloat16 the three would be equal, and the first would win."""
    made = scores(1.001, 1.002, 1.003)
    assert topk(made, 3, 1).ids.item() == 2
    assert topk(made.astype(jnp.bfloat16), 3, 1).ids.item() == 0
    coarse = scores(1.0, 1.0, 1.0, dtype=jnp.bfloat16)
    # Divided by the temperature in float32, not in bfloat16.
    weights = topk(coarse, 3, 3, 2.2).weights
    assert weights.dtype == jnp.float32
    assert_close(weights.ravel(), [1 / 3] * 3, np.float32)


def test_minus_zero_equals_zero():
    """Case C15: `top_k` by itself puts +0 before -0."""
    np.testing.assert_array_equal(topk(scores(-0.0, 0.0), 2, 1).ids.ravel(), [0])
    np.testing.assert_array_equal(topk(scores(0.0, -0.0), 2, 1).ids.ravel(), [0])


def test_a_nan_score_is_reported():
    """Case C15: at once outside of jit, under `debug_checks` inside; never weighed as a slot."""
    bad = scores(1.0, np.nan, 2.0, 0.5)
    with pytest.raises(ValueError, match=r"^logits: found nan at \(0, 0, 0, 1\) \(1 of 4"):
        ops.product_topk(bad, 2, 2)
    assert np.isnan(topk(bad, 2, 2).weights).all()
    with ops.debug_checks(), pytest.raises((ValueError, jax.errors.JaxRuntimeError)) as caught:
        jax.block_until_ready(jax.jit(lambda x: ops.product_topk(x, 2, 2))(bad))
        jax.effects_barrier()
    assert "logits: found nan" in str(caught.value)


def valid():
    return slot_memories.cast(
        cases.slots(1, 3) | {"segment_ids": np.zeros((2, 3), np.int32)}, jnp.float32
    )


@pytest.mark.parametrize("call", (slot_memories.call, slot_memories.run), ids=("eager", "jit"))
def test_wrong_shapes_and_dtypes(call):
    names = ("write_ids", "write_weights", "read_ids", "read_weights", "forget", "segment_ids")
    for name in names:
        case = valid()
        shown = re.escape(name.replace("_", ".")) if name != "segment_ids" else name
        for shape in (case[name].shape[1:], (*case[name].shape, 1), (3, *case[name].shape[1:])):
            wrong = case | {name: jnp.ones(shape, case[name].dtype)}
            with pytest.raises(ValueError, match=f"^{shown}: found shape {re.escape(str(shape))}"):
                call(wrong, "auto")
        dtype = jnp.float32 if name in slot_memories.INTEGERS else jnp.int32
        with pytest.raises(ValueError, match=f"^{shown}: found dtype {dtype.__name__}"):
            call(case | {name: case[name].astype(dtype)}, "auto")
    content, mass = valid()["state"]
    for name, state in (("content", (content[:, :, 1:], mass)), ("mass", (content, mass[:, 1:]))):
        with pytest.raises(ValueError, match=rf"^state.{name}: found shape .*S=16"):
            call(valid() | {"state": state}, "auto")
    with pytest.raises(ValueError, match=r"^v: found shape"):
        call(valid() | {"v": valid()["v"][0]}, "auto")
    with pytest.raises(ValueError, match=r"^v: found M=0"):
        call(valid() | {"v": valid()["v"][..., :0]}, "auto")


def test_arguments_of_another_kind():
    with pytest.raises(ValueError, match=r"^state: found a .*, wanted SlotState\(content"):
        slot_memories.call(valid() | {"state": valid()["state"][0]}, "auto")
    address = ops.SlotAddress(valid()["write_ids"], valid()["write_weights"])
    with pytest.raises(ValueError, match=r"^read: found a .*, wanted SlotAddress\(ids"):
        ops.slot_memory(address, address.ids, valid()["v"], valid()["forget"], num_slots=16)
    with pytest.raises(ValueError, match="^implementation: found 'chunked', wanted 'auto' or one"):
        slot_memories.call(valid(), "chunked")
    with pytest.raises(ValueError, match="^retention: found 'lstm', wanted 'gsu' or 'pdma'"):
        slot_memories.call(valid(), "auto", 16, "lstm")
    for found in (0, 2.0, True, 2**31):
        with pytest.raises(ValueError, match=f"^num_slots: found {found}, wanted an integer in 1"):
            slot_memories.call(valid(), "auto", found)
    with pytest.raises(NotImplementedError, match="'pallas' was asked for.*'touched'"):
        slot_memories.call(valid(), "pallas")


@pytest.mark.parametrize(
    "name,value,wanted",
    (
        ("write_ids", 16, "0 <= slot < num_slots=16"),
        ("read_ids", -1, "0 <= slot < num_slots=16"),
        ("write_weights", 1.5, "0 <= weight <= 1"),
        ("read_weights", np.nan, "0 <= weight <= 1"),
        ("forget", np.nan, "a number, not NaN"),
    ),
)
def test_illegal_values(name, value, wanted):
    case = valid()
    case[name] = case[name].at[(-1,) * case[name].ndim].set(value)
    pattern = f"{name.replace('_', '.')}: found .*, wanted {re.escape(wanted)}"
    with pytest.raises(ValueError, match=f"^{pattern}"):
        slot_memories.call(case, "auto")
    jax.block_until_ready(slot_memories.run(case, "auto"))
    with ops.debug_checks(), pytest.raises((ValueError, jax.errors.JaxRuntimeError)) as caught:
        jax.block_until_ready(jax.jit(lambda case: slot_memories.call(case, "auto"))(case))
        jax.effects_barrier()
    assert re.search(pattern, str(caught.value))
    # The same in padding is not seen.
    case["segment_ids"] = case["segment_ids"].at[-1, -1].set(-1)
    slot_memories.call(case, "auto")


@pytest.mark.parametrize("name", ("write_ids", "read_ids"))
def test_a_slot_that_is_named_twice_in_one_token(name):
    case = valid()
    case[name] = case[name].at[1, 2, 1, 3].set(case[name][1, 2, 1, 0])
    with pytest.raises(ValueError, match=f"^{name.replace('_', '.')}: .* no slot twice"):
        slot_memories.call(case, "auto")


def test_pdma_takes_no_negative_forgetting():
    with pytest.raises(ValueError, match="^forget: found .*, wanted 0 <= forget < inf for 'pdma'"):
        slot_memories.call(valid(), "auto", 16, "pdma")
