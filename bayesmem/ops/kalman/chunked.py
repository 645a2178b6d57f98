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


class ChunkTerms(NamedTuple):
    """All that a chunk needs and that does not depend on its entry belief.

    With angles, everything is seen in the frame that turns with the memory, where A is diagonal;
    `exit_angle` turns the belief at the exit back.
    """

    keys: jax.Array  # [B, H, N, L, D] kt_i = Phi_i^T k_i
    queries: jax.Array  # [B, H, N, L, D] qt_i = Phi_i^T q_i
    values: jax.Array  # [B, H, N, G, L, M/G]
    obs_var: jax.Array  # [B, H, N, G, L]
    noise_gram: jax.Array  # [B, H, N, G, L, L] k_i^T A_{i:j+1} N_j k_j + r_i^2 [i = j], symmetric
    noise_read: jax.Array  # [B, H, N, L, L] q_i^T A_{i:j+1} N_j k_j, j <= i
    noise_var: jax.Array  # [B, H, N, L] q_i^T N_i q_i
    exit_rows: jax.Array  # [B, H, N, L, D] A_{L:j+1} N_j k_j
    total: jax.Array  # [B, H, N, C] Phi_L
    exit_noise: ChunkNoise  # [B, H, N, ...] N_L
    exit_angle: jax.Array | None  # [B, H, N, D/2]


def chunk_terms(inputs: KalmanInputs, length: int) -> ChunkTerms:
    """Prepares all chunks of `length` tokens at once, in parallel."""
    split = functools.partial(chunking.split, length=length)
    q, k = split(inputs.q), split(inputs.k)
    starts = chunking.split_starts(inputs.starts, length)
    decay = chunking.chunk_decay(split(inputs.log_decay), starts)
    angle = None
    if inputs.angle is not None:
        angle = jnp.cumsum(split(inputs.angle), axis=-2)
        q, k = rotate(q, -angle), rotate(k, -angle)
    noise = chunk_noise(split(inputs.process_var), inputs.prior_var, decay, starts, angle)
    noisy_k = noise.apply(k)
    lower = chunking.decayed_products(k, noisy_k, decay)
    obs_var = jnp.moveaxis(split(inputs.obs_var, fill=1.0), -1, -2)
    gram = lower + transpose(jnp.tril(lower, -1))
    gram = gram[..., None, :, :] + obs_var[..., None] * jnp.eye(length, dtype=k.dtype)
    return ChunkTerms(
        keys=decay.from_entry * k,
        queries=decay.from_entry * q,
        values=jnp.moveaxis(split(inputs.v), -2, -3),
        obs_var=obs_var,
        noise_gram=gram,
        noise_read=chunking.decayed_products(q, noisy_k, decay),
        noise_var=jnp.sum(q * noise.apply(q), axis=-1),
        exit_rows=decay.to_end * noisy_k,
        total=decay.total,
        exit_noise=noise.at_end(),
        exit_angle=None if angle is None else angle[..., -1, :],
    )


def chunk_step(
    mean: jax.Array, cov: jax.Array, chunk: ChunkTerms
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Filters one chunk (or, with more leading axes, many at once) from its entry belief.

    Args:
      mean: [..., G, D, M/G].
      cov: [..., G, D, D].
      chunk: the chunk's terms, with the same leading axes.

    Returns:
      ((mean, cov) at the exit, (y [..., G, L, M/G], var [..., G, L])).
    """
    keys, queries = chunk.keys[..., None, :, :], chunk.queries[..., None, :, :]
    exit_rows, total = chunk.exit_rows[..., None, :, :], chunk.total[..., None, None, :]
    kp = matmul(keys, cov)
    inverse = inverse_cholesky(matmul(kp, transpose(keys)) + chunk.noise_gram, chunk.obs_var)
    errors = matmul(inverse, chunk.values - matmul(keys, mean))
    read = matmul(queries, transpose(kp)) + chunk.noise_read[..., None, :, :]
    weights = jnp.tril(matmul(read, transpose(inverse)))
    y = matmul(queries, mean) + matmul(weights, errors)
    var = jnp.sum(matmul(queries, cov) * queries, -1) + chunk.noise_var[..., None, :]
    var = jnp.maximum(var - jnp.sum(weights * weights, -1), 0.0)

    whitened = matmul(inverse, kp * total + exit_rows)
    mean = transpose(total) * mean + matmul(transpose(whitened), errors)
    # The covariance by the gain (Joseph's form) and not as X - Z^T Z: a sum of positive
    # semidefinite terms, which an error of the gain enters only in second order. With
    # F = Phi - K kt it is F P F^T + [I, -K] (joint noise of exit and values) [I, -K]^T, grouped
    # by factors of K^T.
    gain = matmul(transpose(whitened), inverse)
    kept = transpose(total) * cov - matmul(gain, kp)
    noise = chunk.exit_noise.matrix(cov.shape[-1])[..., None, :, :] - matmul(gain, exit_rows)
    carried = matmul(gain, chunk.noise_gram) - transpose(exit_rows) - matmul(kept, transpose(keys))
    cov = kept * total + noise + matmul(carried, transpose(gain))
    if chunk.exit_angle is not None:
        mean = rotate_rows(mean, chunk.exit_angle[..., None, :])
        cov = rotate_both(cov, chunk.exit_angle[..., None, :])
    return (mean, 0.5 * (cov + transpose(cov))), (y, var)


def chunked(inputs: KalmanInputs, chunk_size: int) -> KalmanOutputs:
    """Filters chunk after chunk; the backward pass keeps beliefs at chunk entries only."""
    steps = inputs.k.shape[1]
    terms = chunk_terms(inputs, min(chunk_size, steps))

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(belief: tuple[jax.Array, jax.Array], chunk: ChunkTerms):
        return chunk_step(*belief, chunk)

    terms = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), terms)
    (mean, cov), reads = jax.lax.scan(step, (inputs.mean, inputs.cov), terms)
    y, var = (jnp.moveaxis(x, 0, 2) for x in reads)
    return KalmanOutputs(*join_reads(y, var, steps), mean, cov)


def join_reads(y: jax.Array, var: jax.Array, steps: int) -> tuple[jax.Array, jax.Array]:
    """Joins reads of chunks, [B, H, N, G, L, M/G] and [B, H, N, G, L], into sequences."""
    return (
        chunking.merge(jnp.moveaxis(y, -3, -2), steps),
        chunking.merge(jnp.moveaxis(var, -2, -1), steps),
    )
