"""A chunk of the delta rule as a Kalman chunk with given writes, in plain JAX.

With the keys themselves as write vectors and T = beta (I + A beta)^{-1} as what makes errors of
surprises, reads and memories are those of `kalman_chunk.algebra`. README.md beside this file
derives the formulas; names and axes are those of that folder, with one noise group (G = 1).
"""

import jax
import jax.numpy as jnp

from kernels_pallas.kalman_chunk import algebra, chunks
from kernels_pallas.kalman_chunk.algebra import Factors, Terms, grouped, product, transpose
from kernels_pallas.kalman_chunk.chunks import NOISE, Tokens, Vectors

BETA = NOISE
"""Row of the numbers of each token that holds beta: `Vectors.noise`, and `Terms.noise`."""

SMALLEST = 1e-20
"""Size below which beta is taken to be this: nothing is seen of it, and beta may be divided by."""


def make_vectors(log_decay: jax.Array, beta: jax.Array, starts: jax.Array | None) -> Vectors:
    """Derives the numbers of each token.

    Args:
      log_decay: [B, N, H, L], <= 0.
      beta: [B, N, H, L].
      starts: [B, N, L] bool, where a document starts, or None.
    """
    none = jnp.zeros_like(beta)
    vectors = chunks.make_vectors(log_decay, none, none, none[0, 0, :, 0], starts)
    raised = jnp.where(jnp.abs(beta) < SMALLEST, jnp.asarray(SMALLEST, beta.dtype), beta)
    return vectors._replace(noise=beta + jax.lax.stop_gradient(raised - beta))


def expand(tokens: Tokens, vectors: Vectors, precision: jax.lax.PrecisionLike) -> Terms:
    """Spells out `Terms`, `noise` being beta; they have no `gram` and no `obs_var`."""
    terms = chunks.expand(tokens, vectors, precision)
    none = jnp.zeros((), terms.entry.dtype)
    return terms._replace(gram=none, obs_var=none)


def overlaps(terms: Terms, precision: jax.lax.PrecisionLike) -> jax.Array:
    """Returns k_i . k_j for j < i and 0 elsewhere, [N, B, H, L, L]."""
    return jnp.tril(product(terms.keys, transpose(terms.keys), precision), -1)


def factors(terms: Terms, precision: jax.lax.PrecisionLike) -> Factors:
    """Returns T = beta (I + A beta)^{-1} and the keys; of a covariance there is none.

    Args:
      terms: of all chunks.
      precision: of the products.
    """
    size = terms.keys.shape[-2]
    mixed = terms.ratio * overlaps(terms, precision) * terms.noise[..., None, :]
    eye = jnp.broadcast_to(jnp.eye(size, dtype=mixed.dtype), mixed.shape)
    inverse = jax.scipy.linalg.solve_triangular(eye + mixed, eye, lower=True, unit_diagonal=True)
    return as_factors(terms, terms.noise[..., :, None] * inverse)


def as_factors(terms: Terms, inverse: jax.Array) -> Factors:
    """Returns what `kalman_chunk` takes for T [N, B, H, L, L] and for the keys as writes."""
    none = jnp.zeros((), inverse.dtype)
    return Factors(grouped(inverse, 2), grouped(terms.keys, 2), none)


def forward(
    terms: Terms, memory: jax.Array, precision: jax.lax.PrecisionLike
) -> tuple[jax.Array, jax.Array, Factors, jax.Array]:
    """Passes a memory through all chunks and reads it at every token.

    Args:
      terms: of all chunks.
      memory: [B, H, 1, D, M], before the first chunk.
      precision: of the products.

    Returns:
      Reads [N, B, H, 1, L, M], the memory at the end, the factors, and the memories
      [N, B, H, 1, D, M] at chunk entries.
    """
    found = factors(terms, precision)
    last, entries = algebra.mean_chain(terms, found, memory, precision)
    return algebra.reads(terms, found, entries, precision), last, found, entries
