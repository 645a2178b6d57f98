"""What the kernels compute, in plain JAX: the covariance chain, the mean chain, the reads.

Kernels differ in one thing besides rounding: what is put back on the diagonal of P for it is eps of
the prior variance there (`chain_chunk.EPS`), here eps |K B|.

Only two things go from chunk to chunk, the covariance P and the mean M; all else is a product that
every chunk does by itself. README.md beside this file derives the formulas; names here are its
symbols spelled out. No exponent is positive and nothing is divided by a decay, so a decay of any
strength, and a document that starts inside a chunk (a decay of 0), are no special cases.

Axes: N chunks, B batch, H heads, G noise groups, L tokens of a chunk, D key dim, m = M/G.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

NOISE_FLOOR = 128.0
"""Smallest own noise of a reading, in eps of its variance: below, it is not told from rounding."""


class Terms(NamedTuple):
    """What a chunk needs and that depends on no belief."""

    queries: jax.Array  # [N, B, H, L, D]
    keys: jax.Array  # [N, B, H, L, D]
    values: jax.Array  # [N, B, H, G, L, m]
    ratio: jax.Array  # [N, B, H, L, L] decay from after j to after i; 0 for j > i
    entry: jax.Array  # [N, B, H, L] a_i, decay from the chunk's entry to after i
    to_end: jax.Array  # [N, B, H, L] e_i, decay from after i to the chunk's end
    total: jax.Array  # [N, B, H] a_L, decay over the chunk
    noise: jax.Array  # [N, B, H, L] n_i, noise gathered since the entry
    gram: jax.Array  # [N, B, H, G, L, L] ratio_ij n_j k_i . k_j + r_i^2 [i = j], symmetric
    obs_var: jax.Array  # [N, B, H, G, L] r_i^2


class Factors(NamedTuple):
    """What the covariance chain leaves to everything else."""

    inverse: jax.Array  # [N, B, H, G, L, L] T = chol(S)^{-1}, lower triangular
    writes: jax.Array  # [N, B, H, G, L, D] U_j = Cov(S_j, innovation_j), each as of its own token
    cov: jax.Array  # [N, B, H, G, D, D] P at chunk entries


def transpose(x: jax.Array) -> jax.Array:
    """Returns `x` [..., I, J] with its last two axes swapped."""
    return jnp.swapaxes(x, -1, -2)


def product(x: jax.Array, y: jax.Array, precision: jax.lax.PrecisionLike) -> jax.Array:
    """Returns the matrix product of `x` [..., I, J] and `y` [..., J, K]."""
    return jnp.matmul(x, y, precision=precision)


def grouped(x: jax.Array, trailing: int) -> jax.Array:
    """Adds the axis G to `x` [N, B, H, ...], before its last `trailing` axes."""
    return jnp.expand_dims(x, x.ndim - trailing)


def own_noise(joint: jax.Array, obs_var: jax.Array) -> jax.Array:
    """Returns the noise [..., L] of readings of covariance `joint` [..., L, L], raised to eps."""
    variances = jnp.diagonal(joint, axis1=-2, axis2=-1)
    return jnp.maximum(obs_var, NOISE_FLOOR * jnp.finfo(joint.dtype).eps * variances)


def inverse_cholesky(joint: jax.Array, floor: jax.Array) -> jax.Array:
    """Returns chol(`joint`)^{-1} by elimination on [joint | I], a pivot after the other.

    Args:
      joint: [..., L, L], symmetric positive definite.
      floor: [..., L], positive bounds that the squared pivots keep in exact arithmetic.
    """
    size = joint.shape[-1]
    eye = jnp.broadcast_to(jnp.eye(size, dtype=joint.dtype), joint.shape)
    below = jnp.arange(size)

    def pivot(i, rest):
        row = jax.lax.dynamic_index_in_dim(rest, i, -2, keepdims=False)
        column = jax.lax.dynamic_index_in_dim(rest, i, -1, keepdims=False)
        squared = jax.lax.dynamic_index_in_dim(row, i, -1, keepdims=False)
        bound = jax.lax.dynamic_index_in_dim(floor, i, -1, keepdims=False)
        scale = jax.lax.rsqrt(jnp.maximum(squared, bound))[..., None]
        row, column = row * scale, jnp.where(below > i, column * scale, 0.0)
        rest = rest - column[..., :, None] * row[..., None, :]
        return jnp.where((below == i)[:, None], row[..., None, :], rest)

    done = jax.lax.fori_loop(0, size, pivot, jnp.concatenate([joint, eye], axis=-1))
    return jnp.tril(done[..., size:])


def carried(terms: Terms, key_cov: jax.Array) -> jax.Array:
    """Returns the rows Cov(S_j) k_j = a_j^2 P k_j + n_j k_j.

    Args:
      terms: of one or more chunks.
      key_cov: [..., G, L, D], rows P k_j.
    """
    keys, noise = grouped(terms.keys, 2), grouped(terms.noise, 1)[..., None]
    return grouped(terms.entry, 1)[..., None] ** 2 * key_cov + noise * keys


def covariance_step(
    cov: jax.Array, terms: Terms, precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST
) -> tuple[jax.Array, Factors]:
    """Passes the covariance through one chunk.

    Args:
      cov: [B, H, G, D, D], P at the chunk's entry.
      terms: of the chunk, without the axis N.
      precision: of the products.

    Returns:
      P at the chunk's exit, and the chunk's factors.
    """
    keys, entry = grouped(terms.keys, 2), grouped(terms.entry, 1)
    key_cov = product(keys, cov, precision)
    joint = product(key_cov, transpose(keys), precision)
    joint = joint * entry[..., :, None] * entry[..., None, :] + terms.gram
    floor = jax.lax.stop_gradient(own_noise(joint, jnp.zeros_like(terms.obs_var)))
    raised = jnp.maximum(terms.obs_var, floor)
    eye = jnp.eye(joint.shape[-1], dtype=joint.dtype)
    joint = joint + (raised - terms.obs_var)[..., None] * eye
    inverse = inverse_cholesky(joint, jax.lax.stop_gradient(raised))
    rows = carried(terms, key_cov)
    writes = product(inverse * grouped(terms.ratio, 2), rows, precision)
    to_end = grouped(terms.to_end, 1)[..., None]
    rows = to_end * rows
    gain = product(transpose(inverse), to_end * writes, precision)
    # Joseph's form, P - K B - (K B)^T + K S K^T, and not P - Z^T Z: an error of the gain enters it
    # in second order only. The two halves make it exactly symmetric.
    half = product(transpose(gain), 0.5 * product(joint, gain, precision) - rows, precision)
    # What rounding may have taken from each diagonal entry is put back on it: eps |K B|.
    rounding = jnp.finfo(cov.dtype).eps * jnp.sum(jnp.abs(gain * rows), axis=-2)
    added = terms.noise[..., -1, None, None] + jax.lax.stop_gradient(rounding)
    total = terms.total[..., None, None, None]
    exit_cov = total * total * cov + added[..., None] * jnp.eye(cov.shape[-1], dtype=cov.dtype)
    return exit_cov + (half + transpose(half)), Factors(inverse, writes, cov)


def covariance_chain(
    terms: Terms, cov: jax.Array, precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST
) -> tuple[jax.Array, Factors]:
    """Passes the covariance `cov` [B, H, G, D, D] through all chunks; as `covariance_step`."""
    step = functools.partial(covariance_step, precision=precision)
    return jax.lax.scan(step, cov, terms._replace(queries=None, values=None))  # type: ignore[arg-type]


def gains(
    terms: Terms, factors: Factors, precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST
) -> tuple[jax.Array, jax.Array]:
    """Returns what a chunk does to the mean, M' = F M + gain^T V.

    Args:
      terms: of all chunks.
      factors: of all chunks.
      precision: of the products.

    Returns:
      gain [N, B, H, G, L, D], the chunk's gain K^T = T^T Z, and F = a_L I - K (a k) as
      `transition` [N, B, H, G, D, D].
    """
    at_end = grouped(terms.to_end, 1)[..., None] * factors.writes
    gain = product(transpose(factors.inverse), at_end, precision)
    keys = grouped(terms.entry[..., None] * terms.keys, 2)
    eye = jnp.eye(keys.shape[-1], dtype=gain.dtype)
    transition = terms.total[..., None, None, None] * eye
    return gain, transition - product(transpose(gain), keys, precision)


def mean_chain(
    terms: Terms,
    factors: Factors,
    mean: jax.Array,
    precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST,
) -> tuple[jax.Array, jax.Array]:
    """Passes the mean through all chunks.

    Args:
      terms: of all chunks.
      factors: of all chunks.
      mean: [B, H, G, D, m], before the first chunk.
      precision: of the products.

    Returns:
      The mean at the end, and the means [N, B, H, G, D, m] at chunk entries.
    """
    gain, transition = gains(terms, factors, precision)
    written = product(transpose(gain), terms.values, precision)

    def step(mean, chunk):
        transition, written = chunk
        return product(transition, mean, precision) + written, mean

    return jax.lax.scan(step, mean, (transition, written))


def innovations(
    terms: Terms, factors: Factors, mean: jax.Array, precision: jax.lax.PrecisionLike
) -> tuple[jax.Array, jax.Array]:
    """Returns surprise R = V - a (K M) and E = T R, both [N, B, H, G, L, m].

    Args:
      terms: of all chunks.
      factors: of all chunks.
      mean: [N, B, H, G, D, m], at chunk entries.
      precision: of the products.
    """
    keys = grouped(terms.entry[..., None] * terms.keys, 2)
    surprise = terms.values - product(keys, mean, precision)
    return surprise, product(factors.inverse, surprise, precision)


def reads(
    terms: Terms,
    factors: Factors,
    mean: jax.Array,
    precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST,
) -> jax.Array:
    """Returns every read, Y = a (Q M) + W E with W_ij = ratio_ij q_i . U_j [N, B, H, G, L, m].

    Args:
      terms: of all chunks.
      factors: of all chunks.
      mean: [N, B, H, G, D, m], at chunk entries.
      precision: of the products.
    """
    _, errors = innovations(terms, factors, mean, precision)
    queries = grouped(terms.queries, 2)
    weights = product(queries, transpose(factors.writes), precision) * grouped(terms.ratio, 2)
    from_entry = product(grouped(terms.entry, 1)[..., None] * queries, mean, precision)
    return from_entry + product(weights, errors, precision)


def read_variances(
    terms: Terms, factors: Factors, precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST
) -> jax.Array:
    """Returns the variance of every read, q_i^T P_i q_i >= 0 [N, B, H, G, L].

    Args:
      terms: of all chunks.
      factors: of all chunks.
      precision: of the products.
    """
    queries = grouped(terms.queries, 2)
    weights = product(queries, transpose(factors.writes), precision) * grouped(terms.ratio, 2)
    spread = jnp.sum(product(queries, factors.cov, precision) * queries, axis=-1)
    gathered = grouped(terms.noise * jnp.sum(terms.queries * terms.queries, axis=-1), 1)
    spread = grouped(terms.entry, 1) ** 2 * spread + gathered
    return jnp.maximum(spread - jnp.sum(weights * weights, axis=-1), 0.0)
