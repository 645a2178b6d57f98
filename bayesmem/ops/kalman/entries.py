"""The beliefs at all chunk entries: the one part of the chunk form that goes chunk after chunk.

A step holds no more than the next belief needs, since on an accelerator the chain of small kernels
is what takes the time. Its derivative is not that of the steps: README.md beside this file, (28)
to (31), has it as two linear recurrences between products of all chunks at once.
"""

from typing import NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name

from bayesmem.ops.kalman.terms import ChunkTerms
from bayesmem.ops.kalman.update import (
    exit_cov,
    exit_mean,
    readings,
    surprise,
    transition,
)
from bayesmem.ops.linalg import (
    d_inverse_cholesky,
    inverse_and_solution,
    matmul,
    solve,
    transpose,
)

SAVED = "kalman_entries"
"""Name of what a backward pass keeps, for the policies of `jax.checkpoint`."""

UNROLL = 2
"""Chunks in one step of a loop: the loop itself takes as long as several of the kernels in it."""


class Entries(NamedTuple):
    """Beliefs at all entries, T of each chunk, what the two make, and the belief after the last."""

    means: jax.Array  # [N, ..., D, M/G]
    covs: jax.Array  # [N, ..., D, D]
    inverses: jax.Array  # [N, ..., L, L]
    kp: jax.Array  # [N, ..., L, D] Kt P
    errors: jax.Array  # [N, ..., L, M/G] V - Kt M
    last_mean: jax.Array  # [..., D, M/G]
    last_cov: jax.Array  # [..., D, D]


@jax.custom_jvp
def entries(chunks: ChunkTerms, mean: jax.Array, cov: jax.Array) -> Entries:
    """Carries a belief over chunks.

    Args:
      chunks: arrays [N, ...], each with the leading axes of the belief; no queries are needed.
      mean: [..., D, M/G], before the first chunk.
      cov: [..., D, D].
    """

    def step(belief: tuple[jax.Array, jax.Array], chunk: ChunkTerms):
        mean, cov = belief
        read = readings(chunk, cov)
        inverse, gain = inverse_and_solution(read.joint, read.floor, read.carried)
        error = surprise(chunk, mean)
        after = exit_mean(chunk, mean, error, gain), exit_cov(chunk, cov, read, gain)
        return after, (mean, cov, inverse, read.kp, error)

    last, found = jax.lax.scan(step, (mean, cov), chunks, unroll=UNROLL)
    means, covs, inverses, kp, errors = found
    return Entries(means, covs, inverses, kp, errors, *last)


@entries.defjvp
def _entries_jvp(primals, tangents):
    (chunks, mean, cov), (d_chunks, d_mean, d_cov) = primals, tangents
    found = entries(chunks, mean, cov)
    means, covs, inverses = (checkpoint_name(x, SAVED) for x in found[:3])
    gain = solve(inverses, readings(chunks, covs).carried)
    change = transition(chunks, gain)

    def own_cov(chunks: ChunkTerms) -> jax.Array:
        return exit_cov(chunks, covs, readings(chunks, covs), gain)

    def own_mean(chunks: ChunkTerms, gain: jax.Array) -> jax.Array:
        return exit_mean(chunks, means, surprise(chunks, means), gain)

    def read(chunks: ChunkTerms, covs: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = readings(chunks, covs)
        return found.joint, found.carried

    _, own = jax.jvp(own_cov, (chunks,), (d_chunks,))
    d_covs, d_last_cov = _walk(change, own, d_cov, both_sides=True)
    (joint, _), (d_joint, d_carried) = jax.jvp(read, (chunks, covs), (d_chunks, d_covs))
    d_gain = solve(inverses, d_carried - matmul(d_joint, gain))
    _, own = jax.jvp(own_mean, (chunks, gain), (d_chunks, d_gain))
    d_means, d_last_mean = _walk(change, own, d_mean, both_sides=False)
    d_inverses = d_inverse_cholesky(inverses, d_joint)

    def seen(chunks: ChunkTerms, means: jax.Array, covs: jax.Array) -> tuple[jax.Array, jax.Array]:
        return matmul(chunks.keys, covs), surprise(chunks, means)

    (kp, errors), (d_kp, d_errors) = jax.jvp(
        seen, (chunks, means, covs), (d_chunks, d_means, d_covs)
    )
    primal = Entries(means, covs, inverses, kp, errors, found.last_mean, found.last_cov)
    tangent = Entries(d_means, d_covs, d_inverses, d_kp, d_errors, d_last_mean, d_last_cov)
    return primal, tangent


def _walk(
    change: jax.Array, own: jax.Array, first: jax.Array, both_sides: bool
) -> tuple[jax.Array, jax.Array]:
    """Runs x' = F x + own, or F x F^T + own; returns x before each chunk and after the last."""

    def step(x: jax.Array, chunk: tuple[jax.Array, jax.Array]):
        change, own = chunk
        moved = matmul(change, x)
        return (matmul(moved, transpose(change)) if both_sides else moved) + own, x

    last, before = jax.lax.scan(step, first, (change, own), unroll=UNROLL)
    return before, last
