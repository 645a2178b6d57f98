"""The two small factorizations of the chunk forms, with cheap and exact derivatives.

Both return the inverse of a triangular matrix, since everything that follows then is a matrix
product. Their derivatives need only that inverse, and are products too, in both modes.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

PRECISION = jax.lax.Precision.HIGHEST
"""Products of states, covariances and Gram matrices: float32 on every device, never tf32."""

SPLIT = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X6
"""The same accuracy on tensor cores: each float32 is the sum of three bfloat16, and of their nine
products the six that a float32 can see are summed in float32."""

_SPLIT_FROM = 16  # smallest side that XLA gives to tensor cores and not to a loop in bfloat16

INVERSE = "unit_lower_inverse"
"""Name of what `inverse_unit_lower` returns, for the policies of `jax.checkpoint`."""

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


_PIVOTS = 8
"""In one step of `_eliminate`, which is two kernels; compile time grows as its third power."""


def _eliminate(matrix: jax.Array, floor: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns Lc^{-1} and `matrix`^{-1} `rows` by elimination, for GPUs: few and short kernels.

    Of [matrix | I] only the columns that are not yet known to be 0 or 1 are kept, so that the
    columns of pivots done hold the inverse and all others what remains of the matrix. The columns
    of `rows` [..., L, D] are eliminated with them. Of Z = Lc^{-1} rows each step finds `_PIVOTS`
    rows, and adds their part of the sum Lc^{-T} Z to the rows that are done.
    """
    size = matrix.shape[-1]
    rest = jnp.concatenate([matrix, rows], axis=-1)
    found: list[jax.Array] = []
    for start in range(0, size, _PIVOTS):
        end = min(start + _PIVOTS, size)
        # The barriers are the borders of the kernels.
        pivot_rows = jax.lax.optimization_barrier(_pivot_rows(rest, floor, start, end))
        rest = jax.lax.optimization_barrier(_less_pivots(rest, pivot_rows, start, end))
        found += pivot_rows
    inverse = jnp.stack([row[..., :size] for row in found], axis=-2)
    return jnp.tril(inverse), rest


def _pivot_rows(rest: jax.Array, floor: jax.Array, start: int, end: int) -> list[jax.Array]:
    """Rows `start` to `end`, exclusive, each [..., L + D], eliminated by each other and scaled.

    All numbers of a step are found again for every column: so they need no kernel of their own.
    """
    pivots = range(end - start)
    column = jnp.arange(rest.shape[-1])
    inside = (column >= start) & (column < end)
    # XLA finds a number that is the same in all columns once, in a kernel before this one, which
    # costs more than to find it everywhere. So it must not know that all columns are alike. All
    # steps share what hides it: a mask for each has a kernel of its own, in place of one for all.
    everything = column < rest.shape[-1]

    def everywhere(x: jax.Array) -> jax.Array:
        return jnp.where(everything, x[..., None], 1.0)

    block = [[everywhere(rest[..., start + i, start + j]) for j in range(i + 1)] for i in pivots]
    rows: list[jax.Array] = []
    for k in pivots:
        scale = jax.lax.rsqrt(jnp.maximum(block[k][k], everywhere(floor[..., start + k])))
        row = jnp.where(inside, (column == start + k).astype(rest.dtype), rest[..., start + k, :])
        for j in range(k):
            row = row - block[k][j] * rows[j]
        rows.append(row * scale)
        for i in range(k + 1, end - start):
            block[i][k] = block[i][k] * scale
        for i in range(k + 1, end - start):
            for j in range(k + 1, i + 1):
                block[i][j] = block[i][j] - block[i][k] * block[j][k]
    return rows


def _less_pivots(rest: jax.Array, rows: list[jax.Array], start: int, end: int) -> jax.Array:
    """Takes pivot rows from all rows below, and adds their part of the solution to those above.

    By symmetry the multipliers are the pivot rows themselves, which are rows of Lc^T where the
    matrix is not yet eliminated and of Lc^{-1} where it is. Rows above are right in the columns of
    the solution only; nothing reads their others. The last step returns the solution alone.
    """
    size = rest.shape[-2]
    multipliers = [x[..., :size, None] for x in rows]
    row, column = jnp.arange(size)[:, None], jnp.arange(rest.shape[-1])
    if end == size:
        rest, column, rows = rest[..., size:], column[size:], [x[..., size:] for x in rows]
    new = ((row >= start) & (row < end)) | ((column >= start) & (column < end))
    taken = sum(a * x[..., None, :] for a, x in zip(multipliers, rows, strict=True))
    kept = jnp.where(new, 0.0, rest)
    return jnp.where(row >= end, kept - taken, kept + taken)


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
        return _eliminate(matrix, floor, matrix[..., :0])[0]
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


def solve(inverse: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns S^{-1} rows, [..., L, D], by `inverse`, T; of Cov(S_j) k_j it is the gain K^T."""
    return matmul(transpose(inverse), matmul(inverse, rows))


def inverse_and_solution(
    matrix: jax.Array, floor: jax.Array, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns T as `inverse_cholesky` does, and `matrix`^{-1} `rows`, [..., L, D].

    A GPU finds both in one elimination, which saves it two products that wait for T.

    Args:
      matrix: [..., L, L], symmetric up to rounding. A GPU takes the lower triangle of blocks of
        pivots, and the upper one of the rest.
      floor: [..., L], least squared pivots.
      rows: [..., L, D].
    """
    if jax.default_backend() == "gpu":
        return _eliminate(matrix, floor, rows)
    inverse = inverse_cholesky(matrix, floor)
    return inverse, solve(inverse, rows)


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
    inverse = checkpoint_name(inverse_unit_lower(strict_lower), INVERSE)
    return inverse, -matmul(matmul(inverse, jnp.tril(d_strict_lower, -1)), inverse)
