"""The two small factorizations of the chunk forms, with cheap and exact derivatives.

Both return the inverse of a triangular matrix, since everything that follows then is a matrix
product. Their derivatives need only that inverse, and are products too, in both modes.
"""

import functools

import jax
import jax.numpy as jnp

PRECISION = jax.lax.Precision.HIGHEST
"""Products of states, covariances and Gram matrices: float32 on every device, never tf32."""

SPLIT = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X6
"""The same accuracy on tensor cores: each float32 is the sum of three bfloat16, and of their nine
products the six that a float32 can see are summed in float32."""

_SPLIT_FROM = 16  # smallest side that XLA gives to tensor cores and not to a loop in bfloat16

einsum = functools.partial(jnp.einsum, precision=PRECISION)


@functools.cache
def _splits(backend: str) -> bool:
    """Whether products are faster split: on NVIDIA GPUs that multiply bfloat16."""
    if backend != "gpu":
        return False
    capability = str(getattr(jax.devices(backend)[0], "compute_capability", ""))
    return capability.replace(".", "", 1).isdigit() and float(capability) >= 8.0


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns the product of stacks of matrices, a [..., I, K] and b [..., K, J], in full accuracy.

    A float32 product on a GPU goes to the tensor cores by `SPLIT`, where no side is so short that
    it would not get there; all others are `PRECISION`.
    """
    sides = *a.shape[-2:], b.shape[-1]
    fits = jnp.result_type(a, b) == jnp.float32 and min(sides) >= _SPLIT_FROM
    split = fits and _splits(jax.default_backend())
    return jnp.matmul(a, b, precision=SPLIT if split else PRECISION)


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


_PIVOTS = 5  # in one kernel of `_eliminate`; XLA makes two of it from 6 on


def _eliminate(matrix: jax.Array, floor: jax.Array) -> jax.Array:
    """Returns Lc^{-1} by elimination in place, each `_PIVOTS` pivots in one kernel of a GPU.

    Of [matrix | I] only the columns that are not yet known to be 0 or 1 are kept, so that the
    columns of pivots done hold the inverse and all others what remains of the matrix. There are
    many small matrices and so few elements that a kernel costs its start: every element finds the
    pivots and multipliers that it needs by itself.
    """
    size = matrix.shape[-1]
    row, column = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    for start in range(0, size, _PIVOTS):
        end = min(start + _PIVOTS, size)
        matrix = jax.lax.optimization_barrier(
            _eliminate_pivots(matrix, floor, start, end, row, column)
        )
    return matrix


def _eliminate_pivots(
    rest: jax.Array, floor: jax.Array, start: int, end: int, row: jax.Array, column: jax.Array
) -> jax.Array:
    """Eliminates the pivots `start` to `end`, exclusive; `row` and `column` are indices."""
    pivots = range(end - start)
    # Only numbers that differ between the elements of a matrix stay in their kernel.
    done = row < start
    inside = (column >= start) & (column < end)

    def everywhere(x: jax.Array) -> jax.Array:
        return jnp.where(done, 1.0, jnp.broadcast_to(x[..., None, None], rest.shape))

    block = [[everywhere(rest[..., start + i, start + j]) for j in range(i + 1)] for i in pivots]
    rows: list[jax.Array] = []  # [k]: row k of the block, scaled, at the element's column
    multipliers: list[jax.Array] = []  # [k]: row k of the block, scaled, at the element's row
    for k in pivots:
        scale = jax.lax.rsqrt(jnp.maximum(block[k][k], everywhere(floor[..., start + k])))
        above = jnp.broadcast_to(rest[..., start + k, None, :], rest.shape)
        above = jnp.where(inside, (column == start + k).astype(rest.dtype), above)
        beside = jnp.broadcast_to(rest[..., start + k, :, None], rest.shape)
        for j in range(k):
            above = above - block[k][j] * rows[j]
            beside = beside - block[k][j] * multipliers[j]
        rows.append(above * scale)
        multipliers.append(beside * scale)
        for i in range(k + 1, end - start):
            block[i][k] = block[i][k] * scale
        for i in range(k + 1, end - start):
            for j in range(k + 1, i + 1):
                block[i][j] = block[i][j] - block[i][k] * block[j][k]
    lower = jnp.where(inside, 0.0, rest)
    for k in pivots:
        lower = lower - multipliers[k] * rows[k]
    pivot_rows = jnp.zeros_like(rest)
    for k in pivots:
        pivot_rows = jnp.where((row == start + k) & (column < end), rows[k], pivot_rows)
    return jnp.where(row >= end, lower, jnp.where(row >= start, pivot_rows, rest))


@jax.custom_jvp
def inverse_cholesky(matrix: jax.Array, floor: jax.Array) -> jax.Array:
    """Returns T = Lc^{-1} [..., L, L], lower triangular, where `matrix` = Lc Lc^T.

    Args:
      matrix: [..., L, L], symmetric positive definite.
      floor: [..., L], a positive lower bound of each squared pivot that holds in exact arithmetic:
        the own noise of a reading for the covariance of readings. Keeps rounding from a negative
        pivot where the matrix is close to singular; has no derivative.

    The derivative is `d_inverse_cholesky`.
    """
    if jax.default_backend() == "gpu":
        return _eliminate(matrix, floor)
    return _cholesky_blocks(matrix, floor)[1]


def d_inverse_cholesky(inverse: jax.Array, d_matrix: jax.Array) -> jax.Array:
    """Returns dT = -half(T dS T^T) T, of T = `inverse` and dS = `d_matrix`, both [..., L, L].

    half keeps the lower triangle and half of the diagonal.
    """
    inner = matmul(matmul(inverse, d_matrix), transpose(inverse))
    eye = jnp.eye(inner.shape[-1], dtype=inner.dtype)
    return -matmul(jnp.tril(inner, -1) + 0.5 * inner * eye, inverse)


@inverse_cholesky.defjvp
def _inverse_cholesky_jvp(primals, tangents):
    (matrix, floor), (d_matrix, _) = primals, tangents
    inverse = inverse_cholesky(matrix, floor)
    return inverse, d_inverse_cholesky(inverse, d_matrix)


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
