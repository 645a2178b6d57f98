"""The two small factorizations of the chunk forms, with cheap and exact derivatives.

Both return the inverse of a triangular matrix, since everything that follows then is a matrix
product. Their derivatives need only that inverse, and are products too, in both modes.
"""

import functools

import jax
import jax.numpy as jnp

PRECISION = jax.lax.Precision.HIGHEST
"""Products of states, covariances and Gram matrices: float32 on every device, never tf32."""

matmul = functools.partial(jnp.matmul, precision=PRECISION)
einsum = functools.partial(jnp.einsum, precision=PRECISION)


def transpose(x: jax.Array) -> jax.Array:
    """Returns `x` [..., I, J] with its last two axes swapped."""
    return jnp.swapaxes(x, -1, -2)


def _inverse_lower(lower: jax.Array, unit_diagonal: bool) -> jax.Array:
    eye = jnp.broadcast_to(jnp.eye(lower.shape[-1], dtype=lower.dtype), lower.shape)
    return jax.lax.linalg.triangular_solve(
        lower, eye, left_side=True, lower=True, unit_diagonal=unit_diagonal
    )


@jax.custom_jvp
def inverse_cholesky(matrix: jax.Array) -> jax.Array:
    """Returns T = Lc^{-1} [..., L, L], lower triangular, where `matrix` = Lc Lc^T.

    Args:
      matrix: [..., L, L], symmetric positive definite.

    The derivative is dT = -half(T dS T^T) T, where half keeps the lower triangle and half of the
    diagonal.
    """
    return _inverse_lower(jax.lax.linalg.cholesky(matrix, symmetrize_input=False), False)


@inverse_cholesky.defjvp
def _inverse_cholesky_jvp(primals, tangents):
    (matrix,), (d_matrix,) = primals, tangents
    inverse = inverse_cholesky(matrix)
    inner = matmul(matmul(inverse, d_matrix), transpose(inverse))
    size = matrix.shape[-1]
    half = jnp.tril(inner, -1) + 0.5 * inner * jnp.eye(size, dtype=inner.dtype)
    return inverse, -matmul(half, inverse)


@jax.custom_jvp
def inverse_unit_lower(strict_lower: jax.Array) -> jax.Array:
    """Returns T = (I + X)^{-1} [..., L, L] for a strictly lower triangular X = `strict_lower`.

    The derivative is dT = -T dX T.
    """
    return _inverse_lower(strict_lower, True)


@inverse_unit_lower.defjvp
def _inverse_unit_lower_jvp(primals, tangents):
    (strict_lower,), (d_strict_lower,) = primals, tangents
    inverse = inverse_unit_lower(strict_lower)
    return inverse, -matmul(matmul(inverse, jnp.tril(d_strict_lower, -1)), inverse)
