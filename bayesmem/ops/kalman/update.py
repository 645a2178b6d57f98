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
from bayesmem.ops.linalg import matmul, transpose

NOISE_FLOOR = 128.0
"""Smallest own noise of a reading, in units of the rounding of its variance; see `distinct`."""


class Readings(NamedTuple):
    """What the values of a chunk are before they are read."""

    kp: jax.Array  # [..., L, D] Kt P
    joint: jax.Array  # [..., L, L] their covariance S, own noise included
    carried: jax.Array  # [..., L, D] their covariance B with the memory at the exit
    floor: jax.Array  # [..., L] their own noise, a lower bound of the pivots of S


def distinct(joint: jax.Array, obs_var: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Makes readings of a chunk distinct to the dtype: returns their joint covariance and noise.

    A reading whose own noise is below the rounding of its variance cannot be told from a linear
    combination of others, and the factorization would divide by that rounding. Its noise is raised
    to `NOISE_FLOOR` eps of its variance; in float64 that changes nothing that could be seen.

    Args:
      joint: [..., L, L], covariance of the readings, own noise included.
      obs_var: [..., L], the own noise.
    """
    eye = jnp.eye(joint.shape[-1], dtype=joint.dtype)
    variances = jax.lax.stop_gradient(jnp.diagonal(joint, axis1=-2, axis2=-1))
    raised = jnp.maximum(obs_var, NOISE_FLOOR * jnp.finfo(joint.dtype).eps * variances)
    return joint + (raised - obs_var)[..., None] * eye, raised


def readings(chunk: ChunkTerms, cov: jax.Array) -> Readings:
    """Predicts the values of a chunk from the belief at its entry."""
    kp = matmul(chunk.keys, cov)
    joint = matmul(kp, transpose(chunk.keys)) + chunk.noise_gram
    joint, floor = distinct(joint, chunk.obs_var)
    return Readings(kp, joint, kp * chunk.total + chunk.exit_rows, floor)


def solve(inverse: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns S^{-1} rows, [..., L, D], by `inverse`, T; of `carried` it is the gain K^T."""
    return matmul(transpose(inverse), matmul(inverse, rows))


def surprise(chunk: ChunkTerms, mean: jax.Array) -> jax.Array:
    """Returns V - Kt M [..., L, M/G]."""
    return chunk.values - matmul(chunk.keys, mean)


def exit_mean(
    chunk: ChunkTerms, mean: jax.Array, surprise: jax.Array, gain: jax.Array
) -> jax.Array:
    """Returns the mean at the exit; gain [..., L, D] is K^T."""
    mean = transpose(chunk.total) * mean + matmul(transpose(gain), surprise)
    return mean if chunk.exit_angle is None else rotate_rows(mean, chunk.exit_angle)


def exit_cov(chunk: ChunkTerms, cov: jax.Array, read: Readings, gain: jax.Array) -> jax.Array:
    """Returns the covariance at the exit; gain [..., L, D] is K^T, or any other gain.

    Joseph's form of the whole chunk, X - K B - (K B)^T + K S K^T, and not X - Z^T Z: an error of
    the gain enters it in second order only. The two halves make it exactly symmetric.
    """
    half = matmul(transpose(gain), 0.5 * matmul(read.joint, gain) - read.carried)
    noise = chunk.exit_noise.matrix(cov.shape[-1])
    # What rounding may have taken from each diagonal entry is put back on it: eps |K B|.
    rounding = jnp.finfo(cov.dtype).eps * jnp.sum(jnp.abs(gain * read.carried), axis=-2)
    eye = jnp.eye(cov.shape[-1], dtype=cov.dtype)
    noise = noise + jax.lax.stop_gradient(rounding)[..., None] * eye
    cov = transpose(chunk.total) * cov * chunk.total + noise + (half + transpose(half))
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
