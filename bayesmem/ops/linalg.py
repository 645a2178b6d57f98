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


_BASE = 8  # below this size, pivots or powers; above it, halves


def join_lower(upper: jax.Array, lower_left: jax.Array, lower: jax.Array) -> jax.Array:
    """Returns the lower triangular [[upper, 0], [lower_left, lower]]."""
    zeros = jnp.zeros_like(transpose(lower_left))
    top = jnp.concatenate([upper, zeros], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([lower_left, lower], axis=-1)], axis=-2)


def _cholesky_blocks(matrix: jax.Array, floor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns Lc and Lc^{-1} by halves: many small matrices at once, as products."""
    size = matrix.shape[-1]
    if size <= _BASE:
        return _cholesky_pivots(matrix, floor)
    half = _BASE * -(-size // (2 * _BASE))
    factor, inverse = _cholesky_blocks(matrix[..., :half, :half], floor[..., :half])
    cross = matrix[..., half:, :half]
    panel = matmul(cross, transpose(inverse))
    # A product with an inverse is not backward stable; one step of refinement makes it so.
    panel = panel + matmul(cross - matmul(panel, transpose(factor)), transpose(inverse))
    rest = matrix[..., half:, half:] - matmul(panel, transpose(panel))
    lower_factor, lower = _cholesky_blocks(rest, floor[..., half:])
    return (
        join_lower(factor, panel, lower_factor),
        join_lower(inverse, -matmul(lower, matmul(panel, inverse)), lower),
    )


def _cholesky_pivots(matrix: jax.Array, floor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`_cholesky_blocks` pivot by pivot: elimination on [matrix | I], each row scaled."""
    size = matrix.shape[-1]
    rest = jnp.concatenate(
        [matrix, jnp.broadcast_to(jnp.eye(size, dtype=matrix.dtype), matrix.shape)], axis=-1
    )
    rows = []
    for pivot in range(size):
        scale = jax.lax.rsqrt(jnp.maximum(rest[..., 0, pivot], floor[..., pivot]))
        row = rest[..., 0, :] * scale[..., None]
        rows.append(row)
        rest = rest[..., 1:, :] - row[..., pivot + 1 : size, None] * row[..., None, :]
    joined = jnp.stack(rows, axis=-2)
    return jnp.tril(transpose(joined[..., :size])), joined[..., size:]


@jax.custom_jvp
def inverse_cholesky(matrix: jax.Array, floor: jax.Array) -> jax.Array:
    """Returns T = Lc^{-1} [..., L, L], lower triangular, where `matrix` = Lc Lc^T.

    Args:
      matrix: [..., L, L], symmetric positive definite.
      floor: [..., L], a positive lower bound of each squared pivot that holds in exact arithmetic:
        the own noise of a reading for the covariance of readings. Keeps rounding from a negative
        pivot where the matrix is close to singular; has no derivative.

    The derivative is dT = -half(T dS T^T) T, where half keeps the lower triangle and half of the
    diagonal.
    """
    return _cholesky_blocks(matrix, floor)[1]


@inverse_cholesky.defjvp
def _inverse_cholesky_jvp(primals, tangents):
    (matrix, floor), (d_matrix, _) = primals, tangents
    inverse = inverse_cholesky(matrix, floor)
    inner = matmul(matmul(inverse, d_matrix), transpose(inverse))
    size = matrix.shape[-1]
    half = jnp.tril(inner, -1) + 0.5 * inner * jnp.eye(size, dtype=inner.dtype)
    return inverse, -matmul(half, inverse)


@jax.custom_jvp
def inverse_unit_lower(strict_lower: jax.Array) -> jax.Array:
    """Returns T = (I + X)^{-1} [..., L, L] for a strictly lower triangular X = `strict_lower`.

    The derivative is dT = -T dX T.
    """
    size = strict_lower.shape[-1]
    if size <= _BASE:
        power, inverse = -strict_lower, jnp.eye(size, dtype=strict_lower.dtype) - strict_lower
        for _ in range(max(size - 1, 1).bit_length() - 1):
            power = matmul(power, power)
            inverse = inverse + matmul(inverse, power)
        return inverse
    half = _BASE * -(-size // (2 * _BASE))
    upper = inverse_unit_lower(strict_lower[..., :half, :half])
    lower = inverse_unit_lower(strict_lower[..., half:, half:])
    return join_lower(upper, -matmul(lower, matmul(strict_lower[..., half:, :half], upper)), lower)


@inverse_unit_lower.defjvp
def _inverse_unit_lower_jvp(primals, tangents):
    (strict_lower,), (d_strict_lower,) = primals, tangents
    inverse = inverse_unit_lower(strict_lower)
    return inverse, -matmul(matmul(inverse, jnp.tril(d_strict_lower, -1)), inverse)
