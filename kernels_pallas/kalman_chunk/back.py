"""The reverse by kernels: a kernel over chunks before, between and after each of the two chains.

README.md has the formulas; `bwd` states the same in plain JAX.
"""

import jax
import jax.numpy as jnp

from kernels_pallas.kalman_chunk import (
    back_covs,
    back_joints,
    back_means,
    back_transitions,
    reverse,
    tiles,
)
from kernels_pallas.kalman_chunk.chunks import Tokens, Vectors, stack
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.fwd import Parts


def _chain_end(exits: jax.Array, lead: tuple[int, ...]) -> jax.Array:
    """The cotangent before the first chunk, [B, H, G, D, K]."""
    return tiles.join_in_xla(exits[:, 0], axis=1).reshape(*lead, *exits.shape[-2:])


def backward(
    tokens: Tokens,
    vectors: Vectors,
    factors: tuple[Parts, jax.Array],
    means: jax.Array,
    cotangents: tuple[jax.Array, jax.Array, jax.Array],
    config: Config,
) -> tuple[Tokens, Vectors, jax.Array, jax.Array]:
    """Reverses covariance chain, mean chain and reads.

    Args:
      tokens: queries, keys and values, bfloat16.
      vectors: the numbers of each token.
      factors: parts of T and U, and parts of P, as `fwd.covariance_chain` leaves them.
      means: parts of M, as `reads.read_chunks` leaves them.
      cotangents: of the reads [B, N, L, H G, m], of the last mean [B, H, G, D, m] and of the last
        covariance [B, H, G, D, D].
      config: tuning values.

    Returns:
      The cotangents of tokens, of vectors, of the first covariance [B, H, G, D, D] (symmetric) and
      of the first mean [B, H, G, D, m].
    """
    (inverse, writes), covs = factors
    reads_ct, mean_ct, cov_ct = cotangents
    plain, lead, rows = config.interpret, mean_ct.shape[:3], stack(vectors)
    before = back_transitions.run_before(
        tokens, reads_ct, rows, inverse, writes, means, interpret=plain
    )
    start = tiles.parts_of(mean_ct, config.parts)
    means_ct = reverse.run_reverse(
        before.transition, before.own, start, both=False, interpret=plain
    )
    mean = back_means.run_means(
        tokens, rows, inverse, writes, means, means_ct, before, interpret=plain
    )
    joint = back_joints.run_joints(tokens.keys, rows, inverse, covs, mean, interpret=plain)
    start = tiles.parts_of(0.5 * (cov_ct + jnp.swapaxes(cov_ct, -1, -2)), config.parts)
    covs_ct = reverse.run_reverse(before.transition, joint.own, start, both=True, interpret=plain)
    after = back_covs.run_covs(
        tokens.keys, rows, vectors.obs_var, before.gain, covs, covs_ct, (mean, joint),
        interpret=plain,
    )  # fmt: skip

    def of_heads(x: jax.Array) -> jax.Array:
        """Sums [B, N, L, H G, D] over groups."""
        if x.dtype == jnp.bfloat16:
            return x
        x = x.reshape(*x.shape[:3], lead[1], lead[2], -1)
        return jnp.sum(x, axis=4).astype(jnp.bfloat16)

    tokens_ct = Tokens(of_heads(before.queries_ct), of_heads(after.keys_ct), mean.values_ct)
    numbers = before.vectors_ct, mean.vectors_ct, joint.vectors_ct, after.vectors_ct
    vectors_ct = _of_vectors(vectors, numbers, lead)
    first = _chain_end(covs_ct, lead)
    first = 0.5 * (first + jnp.swapaxes(first, -1, -2))
    return tokens_ct, vectors_ct, first, _chain_end(means_ct, lead)


def _of_vectors(
    vectors: Vectors,
    numbers: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    lead: tuple[int, ...],
) -> Vectors:
    """Adds up what the kernels leave for each token.

    Args:
      vectors: the numbers of each token.
      numbers: [B H G, N, rows, L] of each kernel, in their order.
      lead: B, H, G.
    """
    before, mean, joint, after = (
        jnp.moveaxis(x.reshape(*lead, *x.shape[1:]), 3, 1) for x in numbers
    )  # [B, N, H, G, rows, L]
    transition, covs = back_transitions, back_covs
    entry = before[..., transition.ENTRY_CT, :] + mean[..., back_means.ENTRY_CT, :]
    entry = jnp.sum(entry + after[..., covs.ENTRY_CT, :], axis=3)
    to_end = mean[..., back_means.TO_END_CT, :] + after[..., covs.TO_END_CT, :]
    passed = 2.0 * vectors.entry[..., -1] * jnp.sum(after[..., covs.PASSED, :], axis=(-1, 3))
    total = passed + jnp.sum(mean[..., back_means.TOTAL_CT, :], axis=(-1, 3))
    noise = jnp.sum(after[..., covs.NOISE_CT, :], axis=3)
    trace = jnp.sum(after[..., covs.TRACE, :], axis=(-1, 3))
    logs = before[..., transition.LATER_CT, :] - before[..., transition.EARLIER_CT, :]
    logs = logs + joint[..., back_joints.LATER_CT, :] - joint[..., back_joints.EARLIER_CT, :]
    logs = jnp.sum(logs + after[..., covs.LOG_CT, :], axis=3)
    obs_var = after[..., covs.OBS_VAR_CT, :]
    return Vectors(
        entry=entry.at[..., -1].add(total),
        to_end=jnp.sum(to_end, axis=3),
        noise=noise.at[..., -1].add(trace),
        coarse=logs,
        fine=logs,
        obs_var=obs_var.reshape(vectors.obs_var.shape),
        injected=jnp.zeros_like(vectors.injected),  # by way of `noise`
    )
