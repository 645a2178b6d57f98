"""The algebra of one chunk and the belief at its entry, or of many chunks and theirs at once.

Derivation: README.md beside this file. Everywhere `chunk` has the leading axes of the belief, as
`terms.by_group` or `terms.heads_and_groups` give them, and beliefs are mean [..., D, M/G] and
cov [..., D, D]. Symbols: S the covariance of the chunk's values, T = chol(S)^{-1}, E whitened
innovations, W read weights, K the gain of the whole chunk.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.ops.kalman.terms import ChunkTerms
from bayesmem.ops.kalman.types import rotate_both, rotate_rows
from bayesmem.ops.linalg import einsum, matmul, transpose

NOISE_FLOOR = 128.0
"""Smallest own noise of a reading, in units of the rounding of its variance; see `distinct`."""

SUM_FLOOR = 8.0
"""The same, in units of the rounding of the sum k^T P k that its variance may be a small rest of:
below `OBS_VAR_FLOOR` for unit keys and p0 = 1, whose noise is therefore never raised by it."""


def _diagonal(matrix: jax.Array) -> jax.Array:
    """By a stride: `jnp.diagonal` is a gather, which costs a CPU as much as a product here."""
    size = matrix.shape[-1]
    return matrix.reshape(*matrix.shape[:-2], size * size)[..., :: size + 1]


class Readings(NamedTuple):
    """What the values of a chunk are before they are read."""

    kp: jax.Array  # [..., L, D] Kt P
    joint: jax.Array  # [..., L, L] their covariance S, own noise included
    carried: jax.Array  # [..., L, D] their covariance B with the memory at the exit
    floor: jax.Array  # [..., L] their own noise, a lower bound of the pivots of S


def distinct(
    joint: jax.Array, obs_var: jax.Array, sums: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Makes readings of a chunk distinct to the dtype: returns their joint covariance and noise.

    A reading whose own noise is below the rounding of its variance cannot be told from a linear
    combination of others, and the factorization would divide by that rounding. Its noise is raised
    to `NOISE_FLOOR` eps of its variance, and to `SUM_FLOOR` eps of the terms that were summed to
    it; in float64 that changes nothing that could be seen.

    Args:
      joint: [..., L, L], covariance of the readings, own noise included.
      obs_var: [..., L], the own noise.
      sums: [..., L], size of the terms whose sums the variances are, where they may cancel.
    """
    eye = jnp.eye(joint.shape[-1], dtype=joint.dtype)
    least = NOISE_FLOOR * _diagonal(joint)
    if sums is not None:
        least = jnp.maximum(least, SUM_FLOOR * sums)
    least = jax.lax.stop_gradient(jnp.finfo(joint.dtype).eps * least)
    raised = jnp.maximum(obs_var, least)
    return joint + (raised - obs_var)[..., None] * eye, raised


def readings(chunk: ChunkTerms, cov: jax.Array) -> Readings:
    """Predicts the values of a chunk from the belief at its entry."""
    kp = matmul(chunk.keys, cov)
    joint = matmul(kp, transpose(chunk.keys)) + chunk.noise_gram
    sums = einsum("...ld,...d->...l", chunk.keys * chunk.keys, _diagonal(cov))
    joint, floor = distinct(joint, chunk.obs_var, sums)
    return Readings(kp, joint, kp * chunk.total + chunk.exit_rows, floor)


def surprise(chunk: ChunkTerms, mean: jax.Array) -> jax.Array:
    """Returns V - Kt M [..., L, M/G]."""
    return chunk.values - matmul(chunk.keys, mean)


def exit_mean(
    chunk: ChunkTerms, mean: jax.Array, surprise: jax.Array, gain: jax.Array
) -> jax.Array:
    """Returns the mean at the exit; gain [..., L, D] is K^T."""
    mean = transpose(chunk.total) * mean + matmul(transpose(gain), surprise)
    return mean if chunk.exit_angle is None else rotate_rows(mean, chunk.exit_angle)


def _rounding(chunk: ChunkTerms, prior: jax.Array, read: Readings, gain: jax.Array) -> jax.Array:
    """Returns what rounding may take from each diagonal entry of P', [..., D], as README.md has it.

    Args:
      chunk: its keys.
      prior: [..., D, D], P' without the readings.
      read: the readings.
      gain: [..., L, D].
    """
    eps = jnp.finfo(prior.dtype).eps
    prior = _diagonal(prior)
    change = jnp.sum(jnp.abs(gain * read.carried), axis=-2)
    variances = _diagonal(read.joint)
    information = einsum("...ld,...l->...d", chunk.keys * chunk.keys, 1.0 / variances)
    return eps * (change + prior * jnp.minimum(1.0, NOISE_FLOOR * eps * prior * information))


def exit_cov(chunk: ChunkTerms, cov: jax.Array, read: Readings, gain: jax.Array) -> jax.Array:
    """Returns the covariance at the exit; gain [..., L, D] is K^T, or any other gain.

    Joseph's form of the whole chunk, X - K B - (K B)^T + K S K^T, and not X - Z^T Z: an error of
    the gain enters it in second order only. The two halves make it exactly symmetric.
    """
    # S as its transpose: XLA then needs no transposed copy of it for the product.
    half = matmul(transpose(gain), 0.5 * matmul(transpose(read.joint), gain) - read.carried)
    prior = transpose(chunk.total) * cov * chunk.total + chunk.exit_noise.matrix(cov.shape[-1])
    lost = jax.lax.stop_gradient(_rounding(chunk, prior, read, gain))
    eye = jnp.eye(cov.shape[-1], dtype=cov.dtype)
    cov = prior + (lost[..., None] * eye + (half + transpose(half)))
    if chunk.exit_angle is not None:
        cov = rotate_both(cov, chunk.exit_angle)
        cov = 0.5 * (cov + transpose(cov))
    return cov


def transition(chunk: ChunkTerms, gain: jax.Array) -> jax.Array:
    """Returns F = A_{L:1} - K Kt, [..., D, D]: what a small change of the entry mean becomes."""
    eye = jnp.eye(gain.shape[-1], dtype=gain.dtype)
    change = chunk.total * eye - matmul(transpose(gain), chunk.keys)
    return change if chunk.exit_angle is None else rotate_rows(change, chunk.exit_angle)


def reads(
    chunk: ChunkTerms,
    mean: jax.Array,
    cov: jax.Array,
    kp: jax.Array,
    surprise: jax.Array,
    inverse: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Reads at every token of a chunk.

    Args:
      chunk: of the tokens.
      mean: [..., D, M/G], at the entry.
      cov: [..., D, D].
      kp: [..., L, D], as in `Readings`.
      surprise: [..., L, M/G].
      inverse: [..., L, L], T.

    Returns:
      y [..., L, M/G] and its variance [..., L].
    """
    read = matmul(chunk.queries, transpose(kp)) + chunk.noise_read
    weights = jnp.tril(matmul(read, transpose(inverse)))
    y = matmul(chunk.queries, mean) + matmul(weights, matmul(inverse, surprise))
    var = jnp.sum(matmul(chunk.queries, cov) * chunk.queries, -1) + chunk.noise_var
    return y, jnp.maximum(var - jnp.sum(weights * weights, -1), 0.0)
