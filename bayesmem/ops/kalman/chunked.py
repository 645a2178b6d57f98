"""The exact chunk form: one L x L factorization a chunk, everything else matrix products.

Derivation: README.md beside this file; its parts: `terms.py`, `update.py` and `entries.py`.
"""

import functools

import jax
import jax.numpy as jnp

from bayesmem.ops import chunking
from bayesmem.ops.kalman.entries import SAVED, entries
from bayesmem.ops.kalman.terms import ChunkTerms, by_group, chunk_terms, cut, heads_and_groups
from bayesmem.ops.kalman.types import KalmanInputs, KalmanOutputs
from bayesmem.ops.kalman.update import exit_cov, exit_mean, readings, reads, surprise
from bayesmem.ops.linalg import inverse_cholesky, solve

Belief = tuple[jax.Array, jax.Array]
Reads = tuple[jax.Array, jax.Array]


def chunk_step(mean: jax.Array, cov: jax.Array, chunk: ChunkTerms) -> tuple[Belief, Reads]:
    """Filters one chunk (or, with more leading axes, many at once) from its entry belief.

    Args:
      mean: [..., H, G, D, M/G].
      cov: [..., H, G, D, D].
      chunk: the chunk's terms, with the same leading axes, as `chunk_terms` returns them.

    Returns:
      ((mean, cov) at the exit, (y [..., L, H, G, M/G], var [..., L, H, G])).
    """
    chunk = by_group(chunk)
    read = readings(chunk, cov)
    inverse = inverse_cholesky(read.joint, read.floor)
    gain = solve(inverse, read.carried)
    error = surprise(chunk, mean)
    y, var = reads(chunk, mean, cov, read.kp, error, inverse)
    belief = exit_mean(chunk, mean, error, gain), exit_cov(chunk, cov, read, gain)
    return belief, (jnp.moveaxis(y, -2, -4), jnp.moveaxis(var, -1, -3))


def chunked(inputs: KalmanInputs, chunk_size: int, at_once: bool | None = None) -> KalmanOutputs:
    """Filters chunk after chunk; the backward pass keeps beliefs at chunk entries, at once T too.

    Args:
      inputs: of the op.
      chunk_size: tokens in a chunk.
      at_once: whether all but the belief is found for all chunks at once, which fills an
        accelerator, or for each in its turn, which stays in the cache of a CPU. None: by the
        default backend.
    """
    if at_once is None:
        at_once = jax.default_backend() != "cpu"
    steps = inputs.k.shape[1]
    form = _at_once if at_once else _in_turn
    (mean, cov), (y, var) = form(inputs, min(chunk_size, steps))
    return KalmanOutputs(chunking.join(y, steps), chunking.join(var, steps), mean, cov)


def _in_turn(inputs: KalmanInputs, length: int) -> tuple[Belief, Reads]:
    """Keeps the belief at each entry for a backward pass, and computes the chunk again there."""

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(belief: Belief, chunk: KalmanInputs):
        return chunk_step(*belief, chunk_terms(chunk, inputs.prior_var))

    return jax.lax.scan(step, (inputs.mean, inputs.cov), cut(inputs, length))


def _at_once(inputs: KalmanInputs, length: int) -> tuple[Belief, Reads]:
    """Keeps `Entries` for a backward pass, and computes the terms of all chunks again there."""

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(SAVED))
    def filter_all(inputs: KalmanInputs) -> tuple[Belief, Reads]:
        batch, heads, groups, dim, columns = inputs.mean.shape
        chunks = heads_and_groups(by_group(chunk_terms(cut(inputs, length), inputs.prior_var)))
        found = entries(
            chunks._replace(queries=None, noise_read=None, noise_var=None),  # type: ignore[arg-type]
            inputs.mean.reshape(batch, heads * groups, dim, columns),
            inputs.cov.reshape(batch, heads * groups, dim, dim),
        )
        y, var = reads(chunks, found.means, found.covs, found.kp, found.errors, found.inverses)
        y = jnp.moveaxis(y, -2, 2).reshape(-1, batch, length, heads, groups, columns)
        var = jnp.moveaxis(var, -1, 2).reshape(-1, batch, length, heads, groups)
        belief = (
            found.last_mean.reshape(inputs.mean.shape),
            found.last_cov.reshape(inputs.cov.shape),
        )
        return belief, (y, var)

    return filter_all(inputs)
