"""Rows of a table whose gradient is summed in one order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.models.rows import sum_rows, take_rows
from tests.tolerances import assert_close

# Under jit: one by one, the steps of a scan are a program each.
jit_sum_rows = functools.partial(jax.jit, static_argnums=2)(sum_rows)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("n", [1, 2, 7, 64, 100])
def test_sums_are_numpys(rng, n):
    values, rows = rng.standard_normal((n, 3)), rng.integers(0, 5, n)
    wanted = np.zeros((6, 3))
    np.add.at(wanted, rows, values)
    found = jit_sum_rows(jnp.asarray(values, jnp.float32), jnp.asarray(rows), 6)
    assert_close(found, wanted, jnp.float32, length=n)


def test_rows_beyond_the_table_are_left_out():
    found = jit_sum_rows(jnp.ones((3, 2)), jnp.array([1, 4, 9]), 4)
    np.testing.assert_array_equal(found, [[0, 0], [1, 1], [0, 0], [0, 0]])


def test_sums_of_narrow_values_are_float32():
    # 1 + 2^-9 has no bfloat16.
    found = jit_sum_rows(jnp.asarray([[1.0], [2.0**-9]], jnp.bfloat16), jnp.array([0, 0]), 1)
    assert found.dtype == jnp.float32
    assert found[0, 0] == 1 + 2.0**-9


def test_gradient_is_that_of_an_indexed_read(rng):
    table = jnp.asarray(rng.standard_normal((11, 4)), jnp.float32)
    rows = jnp.asarray(rng.integers(0, 11, (3, 2, 9)))
    weight = jnp.asarray(rng.standard_normal((3, 2, 9, 4)), jnp.float32)

    def loss(read, table, rows, weight):
        return jnp.sum(jnp.sin(read(table, rows)) * weight)

    for run in (lambda f: f, lambda f: jax.vmap(f, in_axes=(None, 0, 0))):
        own = jax.jit(run(jax.grad(lambda *x: loss(take_rows, *x))))(table, rows, weight)
        plain = jax.jit(run(jax.grad(lambda *x: loss(lambda t, r: t[r], *x))))(table, rows, weight)
        assert_close(own, plain, jnp.float32, "gradient")


@pytest.mark.parametrize("rows", [[-1, 4, 4], [4, -1, -5, 0], [-6, 5, 2], []])
def test_numbers_from_the_end_beyond_it_and_none_are_as_in_an_indexed_read(rng, rows):
    table = jnp.asarray(rng.standard_normal((5, 3)), jnp.float32)
    rows = jnp.asarray(rows, jnp.int32)
    cotangent = jnp.asarray(rng.standard_normal((*rows.shape, 3)), jnp.float32)

    def pulled(read):
        found, pull = jax.vjp(lambda t: read(t, rows), table)
        return found, *pull(cotangent)

    found, own = jax.jit(pulled, static_argnums=0)(take_rows)
    wanted, plain = jax.jit(pulled, static_argnums=0)(functools.partial(jnp.take, axis=0))
    np.testing.assert_array_equal(found, wanted)
    assert_close(own, plain, jnp.float32, "gradient")


@pytest.mark.parametrize("tied", [True, False])
def test_model_is_the_same_function(rng, tied):
    tokens = jnp.asarray(rng.integers(0, 9, (2, 8)))
    grads = []
    for repeatable in (True, False):
        config = ModelConfig(9, 8, 1, ("linear_attention",), tie_embeddings=tied,
                             repeatable=repeatable)  # fmt: skip
        model = LanguageModel(config)
        params = jax.jit(model.init)(jax.random.key(0), tokens)

        def loss(params, model=model):
            return jnp.sum(jax.nn.log_softmax(model.apply(params, tokens)[0])[..., 3])

        grads.append(jax.jit(jax.grad(loss))(params))
    jax.tree.map(lambda a, b: assert_close(a, b, jnp.float32, "gradient"), *grads)
