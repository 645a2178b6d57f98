"""Arrays that pass between the public function and the forms of the Kalman recurrence."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.array_types import Covariance, Memory

OBS_VAR_FLOOR = 1e-6
"""Smallest observation variance r^2: smaller ones are raised to it.

For unit keys and p0 = 1 this is where float32 still keeps the covariance positive definite."""


class KalmanState(NamedTuple):
    """Belief over the memory: vec(S) ~ N(vec(mean), I (x) cov), one cov a noise group."""

    mean: Memory  # [B, H, D, M]
    cov: Covariance  # [B, H, G, D, D]


class KalmanInputs(NamedTuple):
    """Checked inputs of a form: one compute dtype, all heads spelled out, padding neutral."""

    q: jax.Array  # [B, T, H, D]
    k: jax.Array  # [B, T, H, D]
    v: jax.Array  # [B, T, H, G, M/G]
    log_decay: jax.Array  # [B, T, H, C], C = 1 or D
    angle: jax.Array | None  # [B, T, H, D/2]
    process_var: jax.Array  # [B, T, H]
    obs_var: jax.Array  # [B, T, H, G]
    prior_var: jax.Array  # [H]
    starts: jax.Array | None  # [B, T] bool
    mean: jax.Array  # [B, H, G, D, M/G]
    cov: jax.Array  # [B, H, G, D, D]


class KalmanOutputs(NamedTuple):
    """What every form returns."""

    y: jax.Array  # [B, T, H, G, M/G] mean of the read, M_t^T q_t
    var: jax.Array  # [B, T, H, G] variance of the read, q_t^T P_t q_t
    mean: jax.Array  # [B, H, G, D, M/G]
    cov: jax.Array  # [B, H, G, D, D]


def rotate(x: jax.Array, angle: jax.Array) -> jax.Array:
    """Rotates the interleaved (real, imaginary) pairs of the last axis: x [..., D], R(angle) x.

    Args:
      x: [..., D].
      angle: [..., D/2], radians; (re, im) -> (re cos - im sin, re sin + im cos).
    """
    re, im = x[..., ::2], x[..., 1::2]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([re * cos - im * sin, re * sin + im * cos], axis=-1).reshape(
        *jnp.broadcast_shapes(re.shape, cos.shape)[:-1], x.shape[-1]
    )


def rotate_rows(x: jax.Array, angle: jax.Array) -> jax.Array:
    """Rotates the pairs of rows: x [..., D, M], R(angle) x with angle [..., D/2]."""
    return jnp.swapaxes(rotate(jnp.swapaxes(x, -1, -2), angle[..., None, :]), -1, -2)


def rotate_both(x: jax.Array, angle: jax.Array) -> jax.Array:
    """Rotates rows and columns: x [..., D, D], R(angle) x R(angle)^T."""
    return rotate(rotate_rows(x, angle), angle[..., None, :])
