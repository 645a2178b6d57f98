import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests import oracles
from tests.ops import cases
from tests.tolerances import assert_close

FORMS = ("recurrent", "chunked", "associative")
FAST_FORMS = ("chunked", "associative")
KINDS = ("identity", "scalar", "diagonal")
NAMES = ("y", "var", "mean", "cov")


@functools.partial(jax.jit, static_argnums=(1, 2))
def predict(case, implementation, chunk_size=64):
    y, var, state = ops.kalman_predict(**case, implementation=implementation, chunk_size=chunk_size)
    return y, var, state.mean, state.cov


def cast(case, dtype):
    """Casts all but integers; the state and the noise keep float32 at least."""

    def one(name, x):
        if name == "segment_ids":
            return jnp.asarray(x)
        low = name in ("q", "k", "v")
        return jax.tree.map(lambda a: jnp.asarray(a, dtype if low else jnp.float32), x)

    return {name: one(name, x) for name, x in case.items()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", (False, True), ids=("one", "packed"))
@pytest.mark.parametrize("steps", cases.LENGTHS)
def test_values_equal_oracle_at_every_length(x64, steps, packed, form):
    case = cases.kalman(steps, steps, "scalar", groups=2, packed=packed)
    for name, found, wanted in zip(NAMES, predict(case, form), oracles.kalman(**case), strict=True):
        assert_close(found, wanted, np.float64), name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rotating", (False, True), ids=("still", "rotating"))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_size", (16, 40))
def test_values_equal_oracle_for_every_transition(x64, chunk_size, kind, rotating, form):
    case = cases.kalman(3, 75, kind, rotating=rotating, groups=3, packed=True)
    wanted = oracles.kalman(**case)
    for found, right in zip(predict(case, form, chunk_size), wanted, strict=True):
        assert_close(found, right, np.float64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "kind,rotating",
    (("identity", False), ("scalar", True), ("diagonal", True), ("diagonal", False)),
)
def test_gradients_equal_complex_step_through_oracle(x64, kind, rotating, form):
    case = cases.kalman(5, 37, kind, rotating=rotating, groups=2, packed=True)
    rng = np.random.default_rng(11)
    cotangents = [rng.standard_normal(y.shape) for y in oracles.kalman(**case)]
    varied = {name: x for name, x in case.items() if name != "segment_ids"}

    def loss(varied):
        outputs = predict(case | varied, form, chunk_size=16)
        return sum(jnp.sum(c * y) for c, y in zip(cotangents, outputs, strict=True))

    gradients = jax.jit(jax.grad(loss))(varied)
    for name, value in varied.items():
        direction = jax.tree.map(lambda x: rng.standard_normal(np.shape(x)), value)
        if name == "state":
            direction = direction[0], direction[1] + np.swapaxes(direction[1], -1, -2)
        if name == "log_decay" and rotating and kind == "diagonal":
            direction[..., 1::2] = direction[..., ::2]
        wanted = oracles.directional_derivative(oracles.kalman, case, name, direction, cotangents)
        found = sum(
            jnp.vdot(g, d)
            for g, d in zip(
                jax.tree.leaves(gradients[name]), jax.tree.leaves(direction), strict=True
            )
        )
        assert_close(found, wanted, np.float64, "gradient")


@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("steps", (1, 15, 64, 130))
def test_gradients_equal_those_of_the_reference(x64, steps, form):
    case = cases.kalman(steps, steps, "diagonal", packed=True)
    rng = np.random.default_rng(7)
    cotangents = [rng.standard_normal(y.shape) for y in predict(case, "recurrent")]
    segment_ids = case.pop("segment_ids")

    def loss(case, form):
        outputs = predict(case | {"segment_ids": segment_ids}, form)
        return sum(jnp.sum(c * y) for c, y in zip(cotangents, outputs, strict=True))

    gradients = {}
    for name in ("recurrent", form):
        gradient = jax.jit(jax.grad(loss), static_argnums=1)(case, name)
        # Covariances are symmetric: only that part of their gradient has a meaning.
        mean, cov = gradient.pop("state")
        gradients[name] = gradient | {"state": (mean, cov + jnp.swapaxes(cov, -1, -2))}
    chex.assert_trees_all_equal_shapes(*gradients.values())
    for found, wanted in zip(*(jax.tree.leaves(g) for g in gradients.values()), strict=True):
        assert_close(found, wanted, np.float64, "gradient")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", (1, 2))
def test_numerical_gradients(x64, steps, form):
    case = cases.kalman(2, steps, "scalar", batch=1, key_heads=1, heads=1, dim=2, value_dim=2)

    flat, tree = jax.tree.flatten(case)

    def loss(*flat):
        return sum(jnp.sum(jnp.sin(y)) for y in predict(jax.tree.unflatten(tree, flat), form))

    chex.assert_numerical_grads(loss, [jnp.asarray(x) for x in flat], order=1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_low_precision_stays_within_the_table(dtype, form):
    case = cast(cases.kalman(9, 130, "diagonal", packed=True, dim=8), dtype)
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), case)
    exact["segment_ids"] = np.asarray(case["segment_ids"])
    found, wanted = predict(case, form), oracles.kalman(**exact)
    assert found[0].dtype == dtype
    assert {x.dtype for x in found[1:]} == {jnp.dtype(jnp.float32)}
    assert_close(found[0], wanted[0], dtype, length=130)
    for low, right in zip(found[1:], wanted[1:], strict=True):
        assert_close(low, right, np.float32, length=130)


@pytest.mark.parametrize("form", FAST_FORMS)
@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_low_precision_gradients_stay_within_the_table(dtype, form):
    case = cases.kalman(13, 100, "scalar", dim=8)
    low = cast(case, dtype)
    rng = np.random.default_rng(1)
    cotangent = rng.standard_normal(case["v"].shape)

    def loss(case, form):
        return jnp.sum(cotangent * ops.kalman_memory(**case, implementation=form)[0])

    found = jax.jit(jax.grad(loss), static_argnums=1)(low, form)
    jax.config.update("jax_enable_x64", True)
    try:
        exact = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), low)
        wanted = jax.jit(jax.grad(loss), static_argnums=1)(exact, "recurrent")
        for name in found:
            for g, w in zip(
                jax.tree.leaves(found[name]), jax.tree.leaves(wanted[name]), strict=True
            ):
                scale = float(jnp.abs(w).max())
                assert_close(g / scale, w / scale, dtype, "gradient", length=100)
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at", (1, 2, 3, 63, 64, 65, 129))
def test_split_equals_whole(x64, at, form):
    case = cases.kalman(4, 130, "diagonal", groups=2)
    y, var, state = ops.kalman_predict(**case, implementation=form)
    y1, var1, middle = ops.kalman_predict(**cases.cut(case, 0, at), implementation=form)
    part = cases.cut(case, at, 130, middle)
    y2, var2, end = ops.kalman_predict(**part, implementation=form)
    assert_close(jnp.concatenate([y1, y2], 1), y, np.float64)
    assert_close(jnp.concatenate([var1, var2], 1), var, np.float64)
    chex.assert_trees_all_close(end, state, rtol=1e-10, atol=1e-10)
    again = ops.kalman_predict(**part, implementation=form)
    chex.assert_trees_all_equal((y2, var2, end), again)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at", range(0, 40, 3))
def test_packed_documents_equal_documents_alone(x64, at, form):
    case = cases.kalman(at, 40, "scalar", stateful=False, batch=1)
    case["segment_ids"] = np.repeat([[3, 8]], [at, 40 - at], axis=1).astype(np.int32)
    y, var, state = ops.kalman_predict(**case, implementation=form, chunk_size=16)
    del case["segment_ids"]
    first = ops.kalman_predict(**cases.cut(case, 0, at), implementation=form)
    second = ops.kalman_predict(**cases.cut(case, at, 40), implementation=form)
    assert_close(y, jnp.concatenate([first[0], second[0]], 1), np.float64)
    assert_close(var, jnp.concatenate([first[1], second[1]], 1), np.float64)
    assert_close(state.cov, second[2].cov, np.float64)


@pytest.mark.parametrize("form", FORMS)
def test_causal(x64, form):
    case = cases.kalman(6, 90, "diagonal")
    y, _ = ops.kalman_memory(**case, implementation=form, chunk_size=32)
    rng = np.random.default_rng(0)
    for name in ("q", "k", "v", "process_var", "obs_var", "log_decay"):
        case[name] = case[name].copy()
        case[name][:, 50:] = rng.permuted(case[name][:, 50:], axis=1)
    changed, _ = ops.kalman_memory(**case, implementation=form, chunk_size=32)
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
                jnp.sum(x) for x in predict(c | {"segment_ids": case["segment_ids"]}, form)
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
