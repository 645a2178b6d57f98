"""The exact chunk form: one L x L factorization a chunk, everything else matrix products.

Derivation: README.md beside this file. Symbols there and here: kt, qt keys and queries carried back
to the chunk entry, N_j the noise gathered since, S the covariance of the chunk's values,
T = chol(S)^{-1}, E whitened innovations, W read weights, K the gain of the whole chunk.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.ops import chunking
from bayesmem.ops.kalman.noise import ChunkNoise, chunk_noise
from bayesmem.ops.kalman.types import (
    KalmanInputs,
    KalmanOutputs,
    rotate,
    rotate_both,
    rotate_rows,
)
from bayesmem.ops.linalg import inverse_cholesky, matmul, transpose

NOISE_FLOOR = 128.0
"""Smallest own noise of a reading, in units of the rounding of its variance; see `distinct`."""


class ChunkTerms(NamedTuple):
    """All that a chunk needs and that does not depend on its entry belief.

    With angles, everything is seen in the frame that turns with the memory, where A is diagonal;
    `exit_angle` turns the belief at the exit back.
    """

    keys: jax.Array  # [N, B, H, L, D] kt_i = Phi_i^T k_i
    queries: jax.Array  # [N, B, H, L, D] qt_i = Phi_i^T q_i
    values: jax.Array  # [N, B, H, G, L, M/G]
    obs_var: jax.Array  # [N, B, H, G, L]
    noise_gram: jax.Array  # [N, B, H, G, L, L] k_i^T A_{i:j+1} N_j k_j + r_i^2 [i = j], symmetric
    noise_read: jax.Array  # [N, B, H, L, L] q_i^T A_{i:j+1} N_j k_j, j <= i
    noise_var: jax.Array  # [N, B, H, L] q_i^T N_i q_i
    exit_rows: jax.Array  # [N, B, H, L, D] A_{L:j+1} N_j k_j
    total: jax.Array  # [N, B, H, C] Phi_L
    exit_noise: ChunkNoise  # [N, B, H, ...] N_L
    exit_angle: jax.Array | None  # [N, B, H, D/2]


def cut(inputs: KalmanInputs, length: int) -> KalmanInputs:
    """Cuts the tokens of `inputs` into chunks: [B, T, ...] -> [N, B, L, ...], without a belief."""
    tokens = inputs._replace(prior_var=None, mean=None, cov=None)  # type: ignore[arg-type]
    chunks = jax.tree.map(functools.partial(chunking.cut, length=length), tokens)
    return chunks._replace(obs_var=chunking.cut(inputs.obs_var, length, fill=1.0))


def chunk_terms(chunks: KalmanInputs, prior_var: jax.Array) -> ChunkTerms:
    """Prepares chunks, all at once or (without the axis N) one.

    Args:
      chunks: tokens cut into chunks, as `cut` returns them.
      prior_var: [H], p0.
    """
    tokens = chunks.k.ndim - 3  # the axis L

    def by_head(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x, tokens, tokens + 1)

    q, k = by_head(chunks.q), by_head(chunks.k)
    starts = None if chunks.starts is None else jnp.expand_dims(chunks.starts, tokens)
    decay = chunking.chunk_decay(by_head(chunks.log_decay), starts)
    angle = None
    if chunks.angle is not None:
        angle = jnp.cumsum(by_head(chunks.angle), axis=-2)
        q, k = rotate(q, -angle), rotate(k, -angle)
    noise = chunk_noise(by_head(chunks.process_var), prior_var, decay, starts, angle)
    noisy_k = noise.apply(k)
    lower = chunking.decayed_products(k, noisy_k, decay)
    obs_var = jnp.moveaxis(chunks.obs_var, tokens, -1)
    gram = lower + transpose(jnp.tril(lower, -1))
    gram = gram[..., None, :, :] + obs_var[..., None] * jnp.eye(k.shape[-2], dtype=k.dtype)
    return ChunkTerms(
        keys=decay.from_entry * k,
        queries=decay.from_entry * q,
        values=jnp.moveaxis(chunks.v, tokens, -2),
        obs_var=obs_var,
        noise_gram=gram,
        noise_read=chunking.decayed_products(q, noisy_k, decay),
        noise_var=jnp.sum(q * noise.apply(q), axis=-1),
        exit_rows=decay.to_end * noisy_k,
        total=decay.total,
        exit_noise=noise.at_end(),
        exit_angle=None if angle is None else angle[..., -1, :],
    )


def distinct(joint: jax.Array, obs_var: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Makes readings of a chunk distinct to the dtype: returns the joint covariance and its T.

    A reading whose own noise is below the rounding of its variance cannot be told from a linear
    combination of others, and the factorization would divide by that rounding. Its noise is raised
    to `NOISE_FLOOR` eps of its variance; in float64 that changes nothing that could be seen.

    Args:
      joint: [..., L, L], covariance of the readings, own noise included.
      obs_var: [..., L], the own noise.
    """
    eye = jnp.eye(joint.shape[-1], dtype=joint.dtype)
    variances = jax.lax.stop_gradient(jnp.diagonal(joint, axis1=-2, axis2=-1))
    floor = NOISE_FLOOR * jnp.finfo(joint.dtype).eps * variances
    raised = jnp.maximum(obs_var, floor)
    joint = joint + (raised - obs_var)[..., None] * eye
    return joint, inverse_cholesky(joint, raised)


def chunk_step(
    mean: jax.Array, cov: jax.Array, chunk: ChunkTerms
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Filters one chunk (or, with more leading axes, many at once) from its entry belief.

    Args:
      mean: [..., H, G, D, M/G].
      cov: [..., H, G, D, D].
      chunk: the chunk's terms, with the same leading axes.

    Returns:
      ((mean, cov) at the exit, (y [..., L, H, G, M/G], var [..., L, H, G])).
    """
    keys, queries = chunk.keys[..., None, :, :], chunk.queries[..., None, :, :]
    exit_rows, total = chunk.exit_rows[..., None, :, :], chunk.total[..., None, None, :]
    kp = matmul(keys, cov)
    joint = matmul(kp, transpose(keys)) + chunk.noise_gram
    joint, inverse = distinct(joint, chunk.obs_var)
    surprise = chunk.values - matmul(keys, mean)
    errors = matmul(inverse, surprise)
    read = matmul(queries, transpose(kp)) + chunk.noise_read[..., None, :, :]
    weights = jnp.tril(matmul(read, transpose(inverse)))
    y = matmul(queries, mean) + matmul(weights, errors)
    var = jnp.sum(matmul(queries, cov) * queries, -1) + chunk.noise_var[..., None, :]
    var = jnp.maximum(var - jnp.sum(weights * weights, -1), 0.0)

    carried = kp * total + exit_rows
    gain = matmul(transpose(inverse), matmul(inverse, carried))
    mean = transpose(total) * mean + matmul(transpose(gain), surprise)
    # Joseph's form of the whole chunk, X - K B - (K B)^T + K S K^T, and not X - Z^T Z: an error of
    # the gain enters it in second order only. The two halves make it exactly symmetric.
    half = matmul(transpose(gain), 0.5 * matmul(joint, gain) - carried)
    noise = chunk.exit_noise.matrix(cov.shape[-1])[..., None, :, :]
    # What rounding may have taken from each diagonal entry is put back on it: eps |K B|.
    rounding = jnp.finfo(cov.dtype).eps * jnp.sum(jnp.abs(gain * carried), axis=-2)
    eye = jnp.eye(cov.shape[-1], dtype=cov.dtype)
    noise = noise + jax.lax.stop_gradient(rounding)[..., None] * eye
    cov = transpose(total) * cov * total + noise + (half + transpose(half))
    if chunk.exit_angle is not None:
        mean = rotate_rows(mean, chunk.exit_angle[..., None, :])
        cov = rotate_both(cov, chunk.exit_angle[..., None, :])
        cov = 0.5 * (cov + transpose(cov))
    return (mean, cov), (jnp.moveaxis(y, -2, -4), jnp.moveaxis(var, -1, -3))


def chunked(inputs: KalmanInputs, chunk_size: int, at_once: bool | None = None) -> KalmanOutputs:
    """Filters chunk after chunk; the backward pass keeps beliefs at chunk entries only.

    Args:
      inputs: of the op.
      chunk_size: tokens in a chunk.
      at_once: whether the terms of all chunks are prepared at once, which fills an accelerator,
        or each in its turn, which stays in the cache of a CPU. None: by the default backend.
    """
    steps = inputs.k.shape[1]
    prepare = functools.partial(chunk_terms, prior_var=inputs.prior_var)
    chunks = cut(inputs, min(chunk_size, steps))
    if at_once is None:
        at_once = jax.default_backend() != "cpu"
    early, late = (prepare, lambda terms: terms) if at_once else (lambda chunks: chunks, prepare)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(belief: tuple[jax.Array, jax.Array], chunk):
        return chunk_step(*belief, late(chunk))

    (mean, cov), (y, var) = jax.lax.scan(step, (inputs.mean, inputs.cov), early(chunks))
    return KalmanOutputs(chunking.join(y, steps), chunking.join(var, steps), mean, cov)
