"""Values of the Kalman op, for every form."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.ops import linalg
from tests import oracles
from tests.ops import cases
from tests.ops.filters import FORMS, cast, predict
from tests.tolerances import assert_close

KINDS = ("identity", "scalar", "diagonal")


def assert_values(found, wanted, dtype, length=1):
    for x, right in zip(found, wanted, strict=True):
        assert_close(x, right, dtype, length=length)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "packed,steps",
    (*((True, steps) for steps in cases.LENGTHS), *((False, steps) for steps in (0, 1, 64, 65))),
)
def test_values_equal_oracle_at_every_length(x64, packed, steps, form):
    case = cases.kalman(steps, steps, "scalar", groups=2, packed=packed)
    assert_values(predict(case, form), oracles.kalman(**case), np.float64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rotating", (False, True), ids=("still", "rotating"))
@pytest.mark.parametrize("kind", KINDS)
def test_values_equal_oracle_for_every_transition(x64, kind, rotating, form):
    case = cases.kalman(3, 75, kind, rotating=rotating, groups=3, packed=True)
    chunk_size = 40 if rotating else 16
    assert_values(predict(case, form, chunk_size), oracles.kalman(**case), np.float64)


def test_terms_of_all_chunks_at_once(x64, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(linalg, "_PIVOTS", 2)  # a CPU takes minutes to compile steps of 8
    case = cases.kalman(3, 75, "diagonal", rotating=True, groups=3, packed=True)
    # No other test has this chunk size, so the program is made here.
    assert_values(predict(case, "chunked", 19), oracles.kalman(**case), np.float64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_low_precision_stays_within_the_table(dtype, form):
    case = cast(cases.kalman(9, 130, "diagonal", packed=True, dim=8), dtype)
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), case)
    exact["segment_ids"] = np.asarray(case["segment_ids"])
    found, wanted = predict(case, form, 32), oracles.kalman(**exact)
    assert found[0].dtype == dtype
    assert {x.dtype for x in found[1:]} == {jnp.dtype(jnp.float32)}
    assert_close(found[0], wanted[0], dtype, length=130)
    for low, right in zip(found[1:], wanted[1:], strict=True):
        assert_close(low, right, np.float32, length=130)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps,cuts", ((32, (1, 15, 16, 17, 31)), (33, (2, 31))))
def test_split_equals_whole(x64, steps, cuts, form):
    case = cases.kalman(4, steps, "diagonal", groups=2)
    y, var, mean, cov = predict(case, form, 16)
    for at in cuts:
        y1, var1, *middle = predict(cases.cut(case, 0, at), form, 16)
        part = cases.cut(case, at, steps, tuple(middle))
        y2, var2, *end = predict(part, form, 16)
        assert_close(jnp.concatenate([y1, y2], 1), y, np.float64)
        assert_close(jnp.concatenate([var1, var2], 1), var, np.float64)
        assert_values(end, (mean, cov), np.float64)
        chex.assert_trees_all_equal((y2, var2, *end), predict(part, form, 16))


@pytest.mark.parametrize("form", FORMS)
def test_packed_documents_equal_documents_alone(x64, form):
    case = cases.kalman(3, 40, "scalar", stateful=False, batch=1)
    for at in range(0, 40, 3):
        ids = np.repeat([[3, 8]], [at, 40 - at], axis=1).astype(np.int32)
        found = predict(case | {"segment_ids": ids}, form, 16)
        first = oracles.kalman(**cases.cut(case, 0, at))
        second = oracles.kalman(**cases.cut(case, at, 40))
        reads = [np.concatenate([first[i], second[i]], 1) for i in range(2)]
        assert_values(found, (*reads, *second[2:]), np.float64)


@pytest.mark.parametrize("form", FORMS)
def test_causal(x64, form):
    case = cases.kalman(6, 90, "diagonal")
    y, *_ = predict(case, form, 32)
    rng = np.random.default_rng(0)
    for name in ("q", "k", "v", "process_var", "obs_var", "log_decay"):
        case[name] = case[name].copy()
        case[name][:, 50:] = rng.permuted(case[name][:, 50:], axis=1)
    changed, *_ = predict(case, form, 32)
    assert_close(changed[:, :50], y[:, :50], np.float64)
    assert not np.allclose(changed[:, 50:], y[:, 50:])


@pytest.mark.parametrize("form", FORMS)
def test_padding_is_not_seen_even_where_it_is_nan(form):
    case = cast(cases.kalman(8, 50, "diagonal", rotating=True, packed=True), jnp.float32)
    padded = np.asarray(case["segment_ids"]) < 0
    assert padded.any()
    poisoned = dict(case)
    for name in ("q", "k", "v", "log_decay", "angle", "process_var", "obs_var"):
        x = np.array(case[name])
        x[padded] = np.nan
        poisoned[name] = jnp.asarray(x)

    @jax.jit
    def run(case):
        return jax.value_and_grad(
            lambda c: sum(
                jnp.sum(x) for x in predict(c | {"segment_ids": case["segment_ids"]}, form, 16)
            ),
        )({name: x for name, x in case.items() if name != "segment_ids"})

    value, gradients = run(poisoned)
    chex.assert_trees_all_equal((value, gradients), run(case))
    chex.assert_tree_all_finite((value, gradients))
    for name in ("q", "k", "v"):
        assert not np.any(np.asarray(gradients[name])[padded])


def test_more_value_heads_than_key_heads_equal_explicit_repeat(x64):
    case = cases.kalman(1, 20, "diagonal", key_heads=2, heads=4)
    spelled = case | {name: np.repeat(case[name], 2, axis=2) for name in ("q", "k")}
    for form in FORMS:
        chex.assert_trees_all_equal(predict(case, form), predict(spelled, form))
    assert_close(predict(case, "auto")[0], oracles.kalman(**case)[0], np.float64)
