"""What the chunks of a sequence need before any belief is known.

Derivation: README.md beside this file. Symbols there and here: kt, qt keys and queries carried back
to the chunk entry, N_j the noise gathered since.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.ops import chunking
from bayesmem.ops.kalman.noise import ChunkNoise, chunk_noise
from bayesmem.ops.kalman.types import KalmanInputs, rotate
from bayesmem.ops.linalg import transpose


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


def by_group(chunk: ChunkTerms) -> ChunkTerms:
    """Gives every array of `chunk` the axes of a belief, [..., H, G, ...], G = 1 where it has none.

    `total` becomes [..., H, 1, 1, C].
    """
    noise = chunk.exit_noise
    return ChunkTerms(
        keys=chunk.keys[..., None, :, :],
        queries=chunk.queries[..., None, :, :],
        values=chunk.values,
        obs_var=chunk.obs_var,
        noise_gram=chunk.noise_gram,
        noise_read=chunk.noise_read[..., None, :, :],
        noise_var=chunk.noise_var[..., None, :],
        exit_rows=chunk.exit_rows[..., None, :, :],
        total=chunk.total[..., None, None, :],
        exit_noise=ChunkNoise(
            None if noise.diagonal is None else noise.diagonal[..., None, :],
            None if noise.blocks is None else noise.blocks[..., None, :, :],
        ),
        exit_angle=None if chunk.exit_angle is None else chunk.exit_angle[..., None, :],
    )


def heads_and_groups(chunks: ChunkTerms) -> ChunkTerms:
    """Makes heads and groups one axis: `chunks` as `by_group` has them, to [N, B, H G, ...]."""
    groups = chunks.values.shape[3]

    def merge(x: jax.Array) -> jax.Array:
        x = jnp.broadcast_to(x, (*x.shape[:3], groups, *x.shape[4:]))
        return x.reshape(*x.shape[:2], -1, *x.shape[4:])

    return jax.tree.map(merge, chunks)
