"""What `linalg` does on a GPU only, as far as a CPU can run it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.ops import linalg
from tests.tolerances import assert_close


@pytest.fixture(autouse=True)
def few_pivots(monkeypatch):
    monkeypatch.setattr(linalg, "_PIVOTS", 3)  # a CPU takes minutes to compile steps of 8


@pytest.mark.parametrize("size", (1, 3, 4, 11))
def test_elimination_equals_the_factorization(x64, size):
    rng = np.random.default_rng(size)
    root = rng.standard_normal((2, 3, size, size))
    matrix = root @ np.swapaxes(root, -1, -2) + 0.1 * np.eye(size)
    rows = rng.standard_normal((2, 3, size, 5))
    inverse, solution = jax.jit(linalg._eliminate)(matrix, np.full((2, 3, size), 0.1), rows)
    assert_close(inverse, np.linalg.inv(np.linalg.cholesky(matrix)), np.float64)
    np.testing.assert_array_equal(np.triu(inverse, 1), 0)
    assert_close(solution, np.linalg.solve(matrix, rows), np.float64)


def test_elimination_of_a_singular_matrix_holds_to_the_floor():
    row = np.array([1.0, 2.0, -1.0, 0.5, 3.0, 1.0, 1.0], np.float32)
    matrix = row[:, None] * row
    floor = np.full(7, 1e-4, np.float32)
    inverse, solution = jax.jit(linalg._eliminate)(matrix, floor, np.eye(7, dtype=np.float32))
    assert np.isfinite(inverse).all()
    assert np.isfinite(solution).all()
    assert np.abs(np.diagonal(inverse)).max() <= 1.01e2


def test_a_gpu_and_a_cpu_find_the_same_inverse_and_solution(x64, monkeypatch):
    rng = np.random.default_rng(0)
    root = rng.standard_normal((2, 9, 9))
    matrix = root @ np.swapaxes(root, -1, -2) + 0.1 * np.eye(9)
    given = matrix, np.full((2, 9), 0.1), rng.standard_normal((2, 9, 4))
    on_cpu = jax.jit(linalg.inverse_and_solution)(*given)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(linalg, "_splits", lambda backend: False)
    on_gpu = jax.jit(lambda *given: linalg.inverse_and_solution(*given))(*given)
    inverse = jax.jit(lambda *given: linalg.inverse_cholesky(*given))(*given[:2])
    for found, wanted in zip(on_gpu, on_cpu, strict=True):
        assert_close(found, wanted, np.float64)
    assert_close(inverse, on_gpu[0], np.float64)


def precisions(a, b):
    equations = jax.make_jaxpr(linalg.matmul)(a, b).eqns
    return [e.params["precision"] for e in equations if e.primitive.name == "dot_general"]


def test_products_are_split_where_tensor_cores_take_them(monkeypatch):
    monkeypatch.setattr(linalg, "_splits", lambda backend: True)
    a = jnp.ones((2, 32, 16))
    assert precisions(a, jnp.ones((16, 64))) == [linalg.SPLIT]
    full = (linalg.PRECISION, linalg.PRECISION)
    assert precisions(a, jnp.ones((16, 1))) == [full]
    assert precisions(a[:, :4], jnp.ones((16, 64))) == [full]
    assert precisions(a.astype(jnp.bfloat16), jnp.ones((16, 64), jnp.bfloat16)) == [full]


def test_products_are_not_split_on_a_cpu():
    assert linalg._splits("cpu") is False
    a = jnp.ones((32, 32))
    assert precisions(a, a) == [(linalg.PRECISION, linalg.PRECISION)]
    split = jnp.matmul(a / 3, a / 7, precision=linalg.SPLIT)
    assert_close(split, np.full((32, 32), 32 / 21), np.float32, length=32)
