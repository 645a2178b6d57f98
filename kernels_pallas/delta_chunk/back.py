"""The reverse by kernels: one over chunks before the walk back, the walk, and one after it.

README.md has the formulas; `bwd` states the same in plain JAX. What comes before the walk, and the
walk itself, are the kernels of a Kalman chunk whose writes are its keys.
"""

import jax
import jax.numpy as jnp

from kernels_pallas.delta_chunk import after
from kernels_pallas.kalman_chunk import back_transitions, reverse, tiles
from kernels_pallas.kalman_chunk.chunks import Tokens, Vectors, stack
from kernels_pallas.kalman_chunk.config import Config


def backward(
    tokens: Tokens,
    vectors: Vectors,
    inverse: jax.Array,
    memory: jax.Array,
    cotangents: tuple[jax.Array, jax.Array],
    config: Config,
) -> tuple[Tokens, Vectors, jax.Array]:
    """Reverses `op.pass_chunks`.

    Args:
      tokens: queries, keys and values, bfloat16.
      vectors: the numbers of each token, `noise` being beta.
      inverse: parts of T^T, as `fwd.run_inverse` leaves them.
      memory: parts of M, as `reads.run_reads` leaves them.
      cotangents: of the reads [B, N, L, H, M] and of the last memory [B, H, 1, D, M].
      config: tuning values.

    Returns:
      The cotangents of tokens, of vectors, beta's as `noise`, and of the first memory.
    """
    reads_ct, memory_ct = cotangents
    rows, plain = stack(vectors), config.interpret
    before = back_transitions.run_before(
        tokens, reads_ct, rows, inverse, None, memory, interpret=plain
    )
    last = tiles.parts_of(memory_ct, config.parts)
    exits = reverse.run_reverse(before.transition, before.own, last, both=False, interpret=plain)
    found = after.run_after(tokens, rows, inverse, memory, exits, before, interpret=plain)
    tokens_ct = Tokens(before.queries_ct, found.keys_ct, found.values_ct)
    vectors_ct = _of_vectors(vectors, before.vectors_ct, found)
    return tokens_ct, vectors_ct, tiles.join_in_xla(exits[:, 0], axis=1).reshape(memory_ct.shape)


def _of_vectors(vectors: Vectors, before_ct: jax.Array, found: after.After) -> Vectors:
    """Adds up what the kernels leave for each token.

    Args:
      vectors: the numbers of each token.
      before_ct: [B H, N, 3, L], of the kernel before the walk.
      found: what the kernel after it leaves.
    """
    batch, _, heads, _ = vectors.entry.shape
    before, states, bands, pairs = (
        jnp.swapaxes(x.reshape(batch, heads, *x.shape[1:]), 1, 2)
        for x in (
            before_ct, jnp.sum(found.states_ct, axis=2), jnp.sum(found.bands_ct, axis=2),
            found.pairs_ct,
        )
    )  # [B, N, H, rows, L]  # fmt: skip
    first = back_transitions
    total = jnp.sum(states[..., after.TOTAL_CT, :], axis=-1)
    entry = before[..., first.ENTRY_CT, :] + states[..., after.ENTRY_CT, :]
    logs = before[..., first.LATER_CT, :] - before[..., first.EARLIER_CT, :]
    logs = logs + pairs[..., after.LATER_CT, :] - pairs[..., after.EARLIER_CT, :]
    return Vectors(
        entry=entry.at[..., -1].add(total),
        to_end=bands[..., after.TO_END_CT, :],
        noise=bands[..., after.BETA_CT, :],
        coarse=logs,
        fine=logs,
        obs_var=jnp.zeros_like(vectors.obs_var),
        injected=jnp.zeros_like(vectors.injected),
    )
