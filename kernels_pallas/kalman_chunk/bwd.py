"""The reverse of both chains, as products over all chunks at once.

Backward too, only two things go from chunk to chunk, and both by the chunk's transition F alone:

    M_ = F^T M'_ + (its own reads)          P_ = F^T P'_ F + (its own reads)

The second holds because P' = min over K of Joseph's form: at the gain that the chunk has, P' has no
derivative by K. So no pivot and no factorization lies on the way back. An underscore or `_ct` marks
a cotangent; README.md beside this file derives each line.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kernels_pallas.kalman_chunk.algebra import (
    Factors,
    Terms,
    carried,
    gains,
    grouped,
    innovations,
    own_noise,
    product,
    transpose,
)

Dot = Callable[[jax.Array, jax.Array], jax.Array]

Walk = Callable[[jax.Array, jax.Array, jax.Array, bool, Dot], tuple[jax.Array, jax.Array]]
"""`walk_back`, or what does the same."""


class Cotangents(NamedTuple):
    """Of what the forward pass returns; None where nothing depends on an output."""

    reads: jax.Array  # [N, B, H, G, L, m]
    mean: jax.Array  # [B, H, G, D, m], of the last mean
    cov: jax.Array  # [B, H, G, D, D], of the last covariance
    writes: jax.Array | None  # [N, B, H, G, L, D]
    entry_cov: jax.Array | None  # [N, B, H, G, D, D], of P at chunk entries


class Chunks(NamedTuple):
    """The forward pass of all chunks, as the reverse reads it."""

    terms: Terms
    factors: Factors
    mean: jax.Array  # [N, B, H, G, D, m], M at chunk entries
    gain: jax.Array  # [N, B, H, G, L, D]
    transition: jax.Array  # [N, B, H, G, D, D], F
    precision: jax.lax.PrecisionLike
    walk: Walk

    def dot(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Returns the matrix product of `x` [..., I, J] and `y` [..., J, K]."""
        return product(x, y, self.precision)

    def column(self, x: jax.Array) -> jax.Array:
        """Brings per-token numbers [N, B, H, L] to [N, B, H, 1, L, 1]."""
        return grouped(x, 1)[..., None]


def _rows(x: jax.Array) -> jax.Array:
    """Sums [N, B, H, G, L, K] over the last axis and over groups: [N, B, H, L]."""
    return jnp.sum(x, axis=(-1, -3))


def _symmetric(x: jax.Array) -> jax.Array:
    return 0.5 * (x + transpose(x))


def walk_back(
    transition: jax.Array, own: jax.Array, last: jax.Array, both: bool, dot: Dot
) -> tuple[jax.Array, jax.Array]:
    """Carries a cotangent from the last chunk to the first: X = F^T X' + own, or F^T X' F + own.

    Args:
      transition: [N, B, H, G, D, D], F.
      own: [N, B, H, G, D, K], what each chunk adds.
      last: [B, H, G, D, K], after the last chunk.
      both: whether F stands on both sides; then K = D.
      dot: the matrix product.

    Returns:
      The cotangent before the first chunk, and those [N, B, H, G, D, K] at chunk exits.
    """

    def step(at_exit, chunk):
        transition, own = chunk
        right = dot(at_exit, transition) if both else at_exit
        return dot(transpose(transition), right) + own, at_exit

    return jax.lax.scan(step, last, (transition, own), reverse=True)


def mean_reverse(
    chunks: Chunks, reads_ct: jax.Array, mean_ct: jax.Array
) -> tuple[Terms, jax.Array, jax.Array, jax.Array]:
    """Reverses reads and mean chain.

    Args:
      chunks: the forward pass.
      reads_ct: [N, B, H, G, L, m].
      mean_ct: [B, H, G, D, m], of the last mean.

    Returns:
      The terms' cotangents as far as they come from here (gram and noise: none), those of
      `Factors.inverse` and `Factors.writes`, and that of the first mean.
    """
    terms, factors, dot = chunks.terms, chunks.factors, chunks.dot
    queries, keys, ratio = (
        grouped(terms.queries, 2),
        grouped(terms.keys, 2),
        grouped(terms.ratio, 2),
    )
    entry, to_end = chunks.column(terms.entry), chunks.column(terms.to_end)
    surprise, errors = innovations(terms, factors, chunks.mean, chunks.precision)
    overlap = dot(queries, transpose(factors.writes))
    weighted = dot(transpose(overlap * ratio), reads_ct)
    surprise_ct = dot(transpose(factors.inverse), weighted)
    own = dot(transpose(entry * queries), reads_ct) - dot(transpose(entry * keys), surprise_ct)
    first_ct, exit_ct = chunks.walk(chunks.transition, own, mean_ct, False, dot)
    surprise_ct = surprise_ct + dot(chunks.gain, exit_ct)
    carried_on = dot(factors.writes, exit_ct)
    errors_ct = weighted + to_end * carried_on
    weights_ct = dot(reads_ct, transpose(errors))
    overlap_ct = weights_ct * ratio
    through_mean = dot(reads_ct, transpose(chunks.mean))
    through_keys = dot(surprise_ct, transpose(chunks.mean))
    writes_ct = dot(transpose(overlap_ct), queries)
    writes_ct = writes_ct + dot(to_end * errors, transpose(exit_ct))
    lower = jnp.tril(jnp.ones(ratio.shape[-2:], ratio.dtype))
    terms_ct = Terms(
        queries=jnp.sum(entry * through_mean + dot(overlap_ct, factors.writes), axis=-3),
        keys=-jnp.sum(entry * through_keys, axis=-3),
        values=surprise_ct,
        ratio=jnp.sum(weights_ct * overlap * lower, axis=-3),
        entry=_rows(through_mean * queries - through_keys * keys),
        to_end=_rows(errors * carried_on),
        total=jnp.sum(chunks.mean * exit_ct, axis=(-1, -2, -3)),
        noise=jnp.zeros_like(terms.noise),
        gram=jnp.zeros_like(terms.gram),
        obs_var=jnp.zeros_like(terms.obs_var),
    )
    return terms_ct, dot(errors_ct, transpose(surprise)), writes_ct, first_ct


def _joint_cotangent(chunks: Chunks, inverse_ct: jax.Array) -> jax.Array:
    """Returns the cotangent of S from that of T = chol(S)^{-1}, both [N, B, H, G, L, L].

    dT = -half(T dS T^T) T, where half keeps the lower triangle and half of the diagonal.
    """
    inverse, dot = chunks.factors.inverse, chunks.dot
    size = inverse.shape[-1]
    half = jnp.tril(jnp.ones((size, size), inverse.dtype)) - 0.5 * jnp.eye(
        size, dtype=inverse.dtype
    )
    inner = _symmetric(half * dot(inverse_ct, transpose(inverse)))
    return -dot(transpose(inverse), dot(inner, inverse))


def _covariance_reverse(
    chunks: Chunks,
    inverse_ct: jax.Array,
    writes_ct: jax.Array,
    cov_ct: jax.Array,
    entry_cov_ct: jax.Array | None,
) -> tuple[Terms, jax.Array]:
    """Reverses the covariance chain.

    Args:
      chunks: the forward pass.
      inverse_ct: [N, B, H, G, L, L]; what it has above the diagonal is left out.
      writes_ct: [N, B, H, G, L, D].
      cov_ct: [B, H, G, D, D], of the last covariance.
      entry_cov_ct: [N, B, H, G, D, D] or None, of the covariances at chunk entries.

    Returns:
      The terms' cotangents as far as they come from here (queries and values: none), and that of
      the first covariance.
    """
    terms, factors, dot = chunks.terms, chunks.factors, chunks.dot
    keys, ratio = grouped(terms.keys, 2), grouped(terms.ratio, 2)
    entry, to_end = chunks.column(terms.entry), chunks.column(terms.to_end)
    key_cov = dot(keys, factors.cov)
    rows = carried(terms, key_cov)
    aged_ct = dot(writes_ct, transpose(rows))
    joint_ct = _joint_cotangent(chunks, jnp.tril(inverse_ct + aged_ct * ratio))
    rows_ct = dot(transpose(factors.inverse * ratio), writes_ct)

    def key_cotangents(joint_ct, rows_ct):
        spread = dot(joint_ct * transpose(entry), keys)
        return spread, entry * spread + entry * entry * rows_ct

    own = _symmetric(dot(transpose(keys), key_cotangents(joint_ct, rows_ct)[1]))
    if entry_cov_ct is not None:
        own = own + _symmetric(entry_cov_ct)
    last_ct = _symmetric(cov_ct)
    first_ct, exit_ct = chunks.walk(chunks.transition, own, last_ct, True, dot)
    gain_ct = dot(chunks.gain, exit_ct)
    joint_ct = joint_ct + dot(gain_ct, transpose(chunks.gain))
    at_end_ct = -2.0 * gain_ct
    rows_ct = rows_ct + to_end * at_end_ct
    spread, key_cov_ct = key_cotangents(joint_ct, rows_ct)
    noise_ct = _rows(rows_ct * keys)
    trace = jnp.sum(jnp.trace(exit_ct, axis1=-2, axis2=-1), axis=-1)
    keys_ct = dot(entry * spread + key_cov_ct, factors.cov) + chunks.column(terms.noise) * rows_ct
    passed = jnp.sum(factors.cov * exit_ct, axis=(-1, -2, -3))
    own_ct = jnp.diagonal(joint_ct, axis1=-2, axis2=-1)
    return Terms(
        queries=jnp.zeros_like(terms.queries),
        keys=jnp.sum(keys_ct, axis=-3),
        values=jnp.zeros_like(terms.values),
        ratio=jnp.sum(aged_ct * factors.inverse, axis=-3),
        entry=2.0 * _rows(key_cov * (spread + entry * rows_ct)),
        to_end=_rows(at_end_ct * rows),
        total=2.0 * terms.total * passed,
        noise=noise_ct.at[..., -1].add(trace),
        gram=joint_ct,
        obs_var=jnp.where(_raised(terms, key_cov), -own_ct, 0.0),
    ), first_ct


def _raised(terms: Terms, key_cov: jax.Array) -> jax.Array:
    """Whether the own noise of a reading was raised, [N, B, H, G, L]: then r^2 has no part in S."""
    variances = grouped(terms.entry, 1) ** 2 * jnp.sum(key_cov * grouped(terms.keys, 2), axis=-1)
    variances = variances + jnp.diagonal(terms.gram, axis1=-2, axis2=-1)
    eye = jnp.eye(variances.shape[-1], dtype=variances.dtype)
    return own_noise(variances[..., None] * eye, terms.obs_var) > terms.obs_var


def backward(
    terms: Terms,
    factors: Factors,
    mean: jax.Array,
    cotangents: Cotangents,
    precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST,
    walk: Walk = walk_back,
) -> tuple[Terms, jax.Array, jax.Array]:
    """Reverses covariance chain, mean chain and reads.

    Args:
      terms: of all chunks.
      factors: of all chunks.
      mean: [N, B, H, G, D, m], at chunk entries.
      cotangents: of what the forward pass returns.
      precision: of the products.
      walk: carries a cotangent from chunk to chunk.

    Returns:
      The cotangents of `terms`, of the first covariance [B, H, G, D, D] (symmetric) and of the
      first mean [B, H, G, D, m].
    """
    gain, transition = gains(terms, factors, precision)
    chunks = Chunks(terms, factors, mean, gain, transition, precision, walk)
    from_mean, inverse_ct, writes_ct, mean_ct = mean_reverse(
        chunks, cotangents.reads, cotangents.mean
    )
    if cotangents.writes is not None:
        writes_ct = writes_ct + cotangents.writes
    from_cov, cov_ct = _covariance_reverse(
        chunks, inverse_ct, writes_ct, cotangents.cov, cotangents.entry_cov
    )
    return jax.tree.map(jnp.add, from_mean, from_cov), cov_ct, mean_ct
