"""The reverse of the delta rule: that of a Kalman chunk's mean, and then beta and the keys.

The seam is what `mean_reverse` leaves: the cotangents of all terms at a given T and given writes.
The cotangent of T itself is not asked for. With y that of the surprises and E the errors, y E^T is
what the cotangent of A comes to, and beta's is a product of the two as well: README.md, (5), (6).
"""

import jax
import jax.numpy as jnp

from kernels_pallas.delta_chunk import algebra
from kernels_pallas.kalman_chunk import bwd
from kernels_pallas.kalman_chunk.algebra import Factors, Terms, gains, innovations, transpose


def backward(
    terms: Terms,
    factors: Factors,
    memory: jax.Array,
    reads_ct: jax.Array,
    memory_ct: jax.Array,
    precision: jax.lax.PrecisionLike,
) -> tuple[Terms, jax.Array]:
    """Reverses `algebra.forward`.

    Args:
      terms: of all chunks.
      factors: T and the keys.
      memory: [N, B, H, 1, D, M], at chunk entries.
      reads_ct: [N, B, H, 1, L, M].
      memory_ct: [B, H, 1, D, M], of the last memory.
      precision: of the products.

    Returns:
      The cotangents of `terms`, beta's as `noise`, and that of the first memory.
    """
    gain, transition = gains(terms, factors, precision)
    chunks = bwd.Chunks(terms, factors, memory, gain, transition, precision, bwd.walk_back)
    terms_ct, _, writes_ct, first_ct = bwd.mean_reverse(chunks, reads_ct, memory_ct)
    _, errors = innovations(terms, factors, memory, precision)
    return _reverse_factors(chunks, terms_ct, writes_ct, errors), first_ct


def _reverse_factors(
    chunks: bwd.Chunks, terms_ct: Terms, writes_ct: jax.Array, errors: jax.Array
) -> Terms:
    """Adds what reaches keys, decays and beta through T, and through the keys as writes.

    Args:
      chunks: the forward pass.
      terms_ct: the terms' cotangents at a given T and given writes; `values` is that of surprises.
      writes_ct: [N, B, H, 1, L, D].
      errors: [N, B, H, 1, L, M], E.
    """
    terms, dot = chunks.terms, chunks.dot
    mixed_ct = -jnp.tril(jnp.sum(dot(terms_ct.values, transpose(errors)), axis=-3), -1)
    overlap_ct = mixed_ct * terms.ratio
    keys_ct = dot(overlap_ct + transpose(overlap_ct), terms.keys) + jnp.sum(writes_ct, axis=-3)
    beta = chunks.column(terms.noise)
    return terms_ct._replace(
        keys=terms_ct.keys + keys_ct,
        ratio=terms_ct.ratio + mixed_ct * algebra.overlaps(terms, chunks.precision),
        # E and its fellow are beta times something of size 1, row by row and to full accuracy.
        noise=jnp.sum((terms_ct.values / beta) * (errors / beta), axis=(-1, -3)),
    )
