"""The associative form: every chunk is made an element, elements combine in any grouping.

Depth log(T / L) instead of T / L, work O(D^3) a chunk: for long sequences at small batch, and for
exchanging one element a device between shards of a sequence. Derivation: README.md here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.ops import chunking
from bayesmem.ops.kalman.chunked import chunk_step
from bayesmem.ops.kalman.terms import ChunkTerms, by_group, chunk_terms, cut
from bayesmem.ops.kalman.types import KalmanInputs, KalmanOutputs, rotate_both, rotate_rows
from bayesmem.ops.kalman.update import distinct
from bayesmem.ops.linalg import inverse_cholesky, matmul, transpose


class ChunkElement(NamedTuple):
    """A stretch of tokens as a map of beliefs; arrays are [..., G, D, D] or [..., G, D, M/G].

    Given the memory S at its entry, the memory at its exit is N(a S + b, c), and the likelihood of
    its values as a function of S is exp(-S^T info S / 2 + S^T score) up to a factor.
    """

    a: jax.Array
    b: jax.Array
    c: jax.Array
    score: jax.Array
    info: jax.Array


def chunk_element(chunk: ChunkTerms) -> ChunkElement:
    """Makes the element of each chunk, which needs nothing of the belief at its entry."""
    chunk = by_group(chunk)
    inverse = inverse_cholesky(*distinct(chunk.noise_gram, chunk.obs_var))
    keys = matmul(inverse, chunk.keys)
    rows = matmul(inverse, chunk.exit_rows)
    values = matmul(inverse, chunk.values)
    dim = keys.shape[-1]
    a = chunk.total * jnp.eye(dim, dtype=keys.dtype) - matmul(transpose(rows), keys)
    b = matmul(transpose(rows), values)
    c = chunk.exit_noise.matrix(dim) - matmul(transpose(rows), rows)
    if chunk.exit_angle is not None:
        angle = chunk.exit_angle
        a, b, c = rotate_rows(a, angle), rotate_rows(b, angle), rotate_both(c, angle)
    return ChunkElement(a, b, c, matmul(transpose(keys), values), matmul(transpose(keys), keys))


def combine(first: ChunkElement, second: ChunkElement) -> ChunkElement:
    """Joins two neighbouring stretches; associative."""
    eye = jnp.eye(first.c.shape[-1], dtype=first.c.dtype)
    mixed = jnp.linalg.inv(eye + matmul(first.c, second.info))
    forward = matmul(second.a, mixed)
    backward = matmul(transpose(first.a), transpose(mixed))
    c = matmul(matmul(forward, first.c), transpose(second.a)) + second.c
    info = matmul(matmul(backward, second.info), first.a) + first.info
    return ChunkElement(
        a=matmul(forward, first.a),
        b=matmul(forward, first.b + matmul(first.c, second.score)) + second.b,
        c=0.5 * (c + transpose(c)),
        score=matmul(backward, second.score - matmul(second.info, first.b)) + first.score,
        info=0.5 * (info + transpose(info)),
    )


def apply(element: ChunkElement, mean: jax.Array, cov: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Maps the belief (mean [..., G, D, M/G], cov [..., G, D, D]) through a stretch."""
    eye = jnp.eye(cov.shape[-1], dtype=cov.dtype)
    forward = matmul(element.a, jnp.linalg.inv(eye + matmul(cov, element.info)))
    mean = matmul(forward, mean + matmul(cov, element.score)) + element.b
    cov = matmul(matmul(forward, cov), transpose(element.a)) + element.c
    return mean, 0.5 * (cov + transpose(cov))


def associative(inputs: KalmanInputs, chunk_size: int) -> KalmanOutputs:
    """Finds the beliefs at all chunk entries by an associative scan, then filters all chunks."""
    steps = inputs.k.shape[1]
    terms = chunk_terms(cut(inputs, min(chunk_size, steps)), inputs.prior_var)
    prefixes = jax.lax.associative_scan(combine, chunk_element(terms), axis=0)
    before_last = jax.tree.map(lambda x: x[:-1], prefixes)
    first = inputs.mean[None], inputs.cov[None]
    later = apply(before_last, *first)
    mean, cov = (jnp.concatenate([x, y]) for x, y in zip(first, later, strict=True))
    (mean, cov), (y, var) = chunk_step(mean, cov, terms)
    return KalmanOutputs(chunking.join(y, steps), chunking.join(var, steps), mean[-1], cov[-1])
