"""What the kernels read: tokens cut into chunks as the op has them, and a few numbers a token.

Nothing of size L x L is stored: kernels make decays between tokens from the sums of log decays, and
Gram matrices from keys. `expand` spells both out for `algebra`.

Axes: B batch, N chunks, L tokens of a chunk, H heads, G noise groups, D key dim, m = M/G.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from kernels_pallas.kalman_chunk.algebra import Terms, product, transpose

LOG_DECAY_FLOOR = -100.0
"""Log decays are clamped here: exp(-100) is below the smallest normal float32."""

RESET = -200.0
"""log2 of the decay at the start of a document: 2^-200 is 0 in float32."""

STEP = 1024.0
"""`Vectors.coarse` counts in 1 / STEP: sums of 64 of them are exact in float32."""


class Tokens(NamedTuple):
    """Queries, keys and values, in the op's own order of axes: cutting moves nothing."""

    queries: jax.Array  # [B, N, L, H, D]
    keys: jax.Array  # [B, N, L, H, D]
    values: jax.Array  # [B, N, L, H G, m]


class Vectors(NamedTuple):
    """The numbers of each token.

    c_i = coarse_i + fine_i is log2 of the decay from the chunk's entry to after token i. Both parts
    are sums, and c_i - c_j is exact to float32 however strong the decays before j were, as long as
    the parts are subtracted by themselves.
    """

    entry: jax.Array  # [B, N, H, L] a_i, decay from the chunk's entry to after i
    to_end: jax.Array  # [B, N, H, L] e_i, decay from after i to the chunk's end
    coarse: jax.Array  # [B, N, H, L] multiples of 1 / STEP
    fine: jax.Array  # [B, N, H, L] the rest
    noise: jax.Array  # [B, N, H, L] n_i, noise gathered since the entry
    obs_var: jax.Array  # [B, N, H G, L] r_i^2
    injected: jax.Array  # [B, N, H, L] noise that comes in before i; what `noise` sums up


ENTRY, TO_END, COARSE, FINE, NOISE = range(5)
"""Rows of the array [B, N, H, 5, L] that kernels take; see `stack`."""


DIMS = (64, 128)
"""Key dims that a program takes; others are padded with zeros, which no read and no write sees."""

CLUSTER_DIM = 256
"""Key dim that takes programs of a cluster, each with `SLAB` columns of P."""

SLAB = 64
"""Columns of P that a program of a cluster has."""

BAND = 64
"""Columns that one product of the kernels makes; channels of a group are padded to a multiple."""


def missing(dim: int, width: int, dims: tuple[int, ...] = DIMS) -> tuple[int, int]:
    """How many key dims, up to one of `dims`, and value channels of a group have to be added."""
    return min(size for size in dims if size >= dim) - dim, -width % BAND


def cut(x: jax.Array, length: int, fill: float = 0.0, more: int = 0) -> jax.Array:
    """Cuts tokens into chunks: [B, T, ...] -> [B, N, L, ...], the tail padded.

    Args:
      x: [B, T, ...].
      length: L.
      fill: of the padding.
      more: channels that are added to vectors [B, T, H, ...].
    """
    batch, steps = x.shape[:2]
    widths = [(0, 0), (0, -steps % length)] + [(0, 0)] * (x.ndim - 2)
    widths[-1] = (0, more) if x.ndim == 4 else widths[-1]
    x = jnp.pad(x, widths, constant_values=fill)
    return x.reshape(batch, -1, length, *x.shape[2:])


def cut_numbers(x: jax.Array, length: int, fill: float = 0.0) -> jax.Array:
    """Cuts numbers of tokens into chunks: [B, T, H] -> [B, N, H, L], the tail padded."""
    return jnp.swapaxes(cut(x, length, fill), 2, 3)


def stack(vectors: Vectors) -> jax.Array:
    """Returns the vectors that all noise groups share as one array [B, N, H, 5, L]."""
    return jnp.stack(vectors[:5], axis=-2)


def between(coarse: jax.Array, fine: jax.Array) -> jax.Array:
    """Returns decays [..., L, L] from after token j to after token i; 0 for j > i."""
    span = coarse[..., :, None] - coarse[..., None, :] + (fine[..., :, None] - fine[..., None, :])
    earlier = jnp.tril(jnp.ones(span.shape[-2:], bool))
    return jnp.where(earlier, jnp.exp2(jnp.where(earlier, span, 0.0)), 0.0)


def make_vectors(
    log_decay: jax.Array,
    process_var: jax.Array,
    obs_var: jax.Array,
    prior_var: jax.Array,
    starts: jax.Array | None,
) -> Vectors:
    """Derives the numbers of each token.

    Args:
      log_decay: [B, N, H, L], <= 0.
      process_var: [B, N, H, L], ell^2.
      obs_var: [B, N, H G, L], r^2 > 0.
      prior_var: [H], p0, which a document that starts inside a chunk brings in.
      starts: [B, N, L] bool, where a document starts, or None.
    """
    log_decay = jnp.maximum(log_decay, LOG_DECAY_FLOOR)
    steps = log_decay / jnp.log(jnp.asarray(2.0, log_decay.dtype))
    injected = process_var
    coarse = jax.lax.stop_gradient(jnp.round(steps * STEP) / STEP)
    fine = steps - coarse
    if starts is not None:
        begins = starts[:, :, None]
        kept = jnp.exp(2.0 * log_decay)
        injected = injected + jnp.where(begins, prior_var[:, None] * kept, 0.0)
        coarse, fine = jnp.where(begins, RESET, coarse), jnp.where(begins, 0.0, fine)
    coarse, fine = jnp.cumsum(jnp.stack([coarse, fine]), axis=-1)  # one set of kernels for both
    ratio = between(coarse, fine)
    entry = jnp.exp2(coarse + fine)
    to_end = jnp.exp2(coarse[..., -1:] - coarse + (fine[..., -1:] - fine))
    noise = jnp.sum(ratio * ratio * injected[..., None, :], axis=-1)
    return Vectors(entry, to_end, coarse, fine, noise, obs_var, injected)


def expand(tokens: Tokens, vectors: Vectors, precision: jax.lax.PrecisionLike) -> Terms:
    """Spells out for `algebra` what kernels make of tokens and vectors.

    Args:
      tokens: queries, keys and values.
      vectors: the numbers of each token.
      precision: of the products of keys; tf32 is exact for keys that bfloat16 holds.
    """
    dtype = vectors.entry.dtype
    heads, length = vectors.entry.shape[-2:]

    def front(x: jax.Array) -> jax.Array:
        """[B, N, ...] -> [N, B, ...]."""
        return jnp.swapaxes(x, 0, 1)

    def by_head(x: jax.Array) -> jax.Array:
        """[B, N, L, H, ...] -> [N, B, H, L, ...]."""
        return front(jnp.swapaxes(x, 2, 3)).astype(dtype)

    def by_group(x: jax.Array) -> jax.Array:
        """[N, B, H G, ...] -> [N, B, H, G, ...]."""
        return x.reshape(*x.shape[:2], heads, -1, *x.shape[3:])

    queries, keys = by_head(tokens.queries), by_head(tokens.keys)
    ratio, noise = front(between(vectors.coarse, vectors.fine)), front(vectors.noise)
    obs_var = by_group(front(vectors.obs_var))
    lower = product(keys, transpose(keys), precision) * ratio * noise[..., None, :]
    gram = (lower + transpose(jnp.tril(lower, -1)))[:, :, :, None]
    gram = gram + obs_var[..., None] * jnp.eye(length, dtype=dtype)
    entry = front(vectors.entry)
    return Terms(
        queries=queries,
        keys=keys,
        values=by_group(by_head(tokens.values)),
        ratio=ratio,
        entry=entry,
        to_end=front(vectors.to_end),
        total=entry[..., -1],
        noise=noise,
        gram=gram,
        obs_var=obs_var,
    )
