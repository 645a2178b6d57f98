"""Process noise gathered inside a chunk: N_j = A_j N_{j-1} A_j^T + ell_j^2 I, N_0 = 0.

N_j is one number for a scalar decay, a diagonal for a decay of each key dimension, and 2 x 2 blocks
for rotations. A document that starts inside the chunk brings its prior in: A_j (p0 I) A_j^T.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.ops.chunking import ChunkDecay
from bayesmem.ops.linalg import einsum, matmul


class ChunkNoise(NamedTuple):
    """N_j for each token of each chunk.

    With `blocks`, pairs hold (xx, xy, yy) of their 2 x 2 block in the frame that turns with the
    memory; else a diagonal, of one entry where it is a multiple of I.
    """

    diagonal: jax.Array | None  # [N, B, H, L, C]
    blocks: jax.Array | None  # [N, B, H, L, D/2, 3]

    def apply(self, x: jax.Array) -> jax.Array:
        """Returns N_j x_j for x [N, B, H, L, D]."""
        if self.blocks is None:
            assert self.diagonal is not None
            return self.diagonal * x
        xx, xy, yy = (self.blocks[..., i] for i in range(3))
        even, odd = x[..., ::2], x[..., 1::2]
        pairs = jnp.stack([xx * even + xy * odd, xy * even + yy * odd], axis=-1)
        return pairs.reshape(x.shape)

    def at_end(self) -> "ChunkNoise":
        """Returns N_L: the same without the axis L."""
        if self.blocks is None:
            assert self.diagonal is not None
            return ChunkNoise(self.diagonal[..., -1, :], None)
        return ChunkNoise(None, self.blocks[..., -1, :, :])

    def matrix(self, dim: int) -> jax.Array:
        """Spells the noise out: [..., D, D], where its axes end in C or in (D/2, 3)."""
        if self.blocks is None:
            assert self.diagonal is not None
            return self.diagonal[..., None, :] * jnp.eye(dim, dtype=self.diagonal.dtype)
        xx, xy, yy = (self.blocks[..., i] for i in range(3))
        blocks = jnp.stack([jnp.stack([xx, xy], -1), jnp.stack([xy, yy], -1)], -2)
        full = einsum("...pij,pq->...piqj", blocks, jnp.eye(dim // 2, dtype=blocks.dtype))
        return full.reshape(*blocks.shape[:-3], dim, dim)


def chunk_noise(
    process_var: jax.Array,
    prior_var: jax.Array,
    decay: ChunkDecay,
    starts: jax.Array | None,
    angle: jax.Array | None,
) -> ChunkNoise:
    """Derives N_j of all chunks.

    Args:
      process_var: [N, B, H, L], ell^2.
      prior_var: [H], p0.
      decay: decays of the chunks.
      starts: [N, B, 1, L] bool or None.
      angle: [N, B, H, L, D/2], cumulative since chunk entry, or None.
    """
    injected = process_var[..., None]
    fresh = jnp.zeros_like(injected)
    if starts is not None:
        fresh = jnp.where(starts[..., None], prior_var[:, None, None], 0.0)
        fresh = fresh * jnp.exp(2.0 * decay.log_decay)
    if angle is None:
        injected = jnp.broadcast_to(injected + fresh, decay.log_decay.shape)
        return ChunkNoise(_gather(injected, decay, starts), None)
    # ell^2 enters real rows only, e1 e1^T of each pair, seen from the turning frame.
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    shape = jnp.stack([cos * cos, -cos * sin, sin * sin], axis=-1)
    if fresh.shape[-1] > 1:
        fresh = fresh[..., ::2]
    fresh = fresh[..., None] * jnp.array([1.0, 0.0, 1.0], fresh.dtype)
    injected = injected[..., None] * shape + fresh
    pairs = injected.shape[-2]
    channels = [_gather(injected[..., i], _pair_decay(decay), starts) for i in range(3)]
    return ChunkNoise(None, jnp.stack(channels, axis=-1).reshape(*angle.shape[:-1], pairs, 3))


def _pair_decay(decay: ChunkDecay) -> ChunkDecay:
    """The decay of pairs: their two rows decay alike."""
    return decay if decay.ratio is not None else decay._replace(log_decay=decay.log_decay[..., ::2])


def _gather(injected: jax.Array, decay: ChunkDecay, starts: jax.Array | None) -> jax.Array:
    """Sums what was injected, [N, B, H, L, C], each decayed by the square of its decay since."""
    if decay.ratio is not None:
        return matmul(decay.ratio * decay.ratio, injected)
    kept = jnp.exp(2.0 * decay.log_decay)
    if starts is not None:
        kept = jnp.where(starts[..., None], 0.0, kept)
    return jax.lax.associative_scan(
        lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (kept, injected), axis=injected.ndim - 2
    )[1]
