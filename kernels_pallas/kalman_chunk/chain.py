"""What a program of the covariance kernel does, chunk after chunk.

Two warpgroups share a program: each has half of the key channels, that is of the columns of K P,
of the writes, of the gain and of P. Warpgroup 0 alone factors S; meanwhile warpgroup 1 makes the
Gram matrix of the next chunk. They meet where one needs what the other made.

Where P is too large for one program, programs of a cluster have a slab of its columns each, and of
all that has these columns (`slabs`). Each of them factors S.
What each makes of a chunk is in `chain_chunk`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import chain_chunk, slabs, warpgroups
from kernels_pallas.kalman_chunk.chain_chunk import Arrays, Held, Program
from kernels_pallas.kalman_chunk.tiles import LENGTH


def _fetch(gm: Arrays, held: Held, at: Program, chunk: Any) -> None:
    """Loads keys and vectors of a chunk; past the last one it loads that again."""
    given, slot = lax.min(chunk, gm.keys.shape[1] - 1), lax.rem(chunk, 2)
    for source, target in (
        (gm.keys.at[at.batch, given, :, at.head], held.keys),
        (gm.rows.at[at.batch, given, at.head], held.rows.at[slot]),
        (gm.obs_var.at[at.batch, given, at.place], held.obs_var.at[slot]),
    ):
        plgpu.copy_gmem_to_smem(source, target, held.loaded)


def run(gm: Arrays, held: Held, at: Program, told: Callable[[], None] | None = None) -> None:
    """Runs the half of a program that a warpgroup has.

    Args:
      gm: global memory.
      held: shared memory.
      at: where the program is.
      told: called in every chunk, when all that this half makes of those before has been written,
        and at the end; for others that wait for it.
    """
    chunks, leads = gm.keys.shape[1], at.half == 0

    width = held.cov[0].shape[1]
    count = held.keys.shape[1] // width

    def send_inverse(chunk: Any) -> None:
        """Copies a share of T^T's rows out: they lie in one piece, columns do not."""
        rows = chain_chunk.mine_of(at, LENGTH // count)
        for i, part in enumerate(held.inverse):
            plgpu.copy_smem_to_gmem(part.at[rows], gm.inverse.at[at.program, chunk, i, rows])

    def send_cov(chunk: Any) -> None:
        """Copies half of the rows of P out.

        Of slabs, one warpgroup copies all: the other does not wait for it when sums are exchanged.
        """
        dim = held.cov[0].shape[0]
        if count > 1 and leads:
            return
        rows = slice(0, dim) if count > 1 else chain_chunk.where(at.half, dim)
        columns = chain_chunk.slab_of(at, width)
        for i, part in enumerate(held.cov):
            plgpu.copy_smem_to_gmem(part.at[rows], gm.cov.at[at.program, chunk, i, rows, columns])

    def gram_of(chunk: Any) -> jax.Array:
        plgpu.barrier_wait(held.loaded)
        with jax.named_scope("gram"):
            return chain_chunk.gram(held, at, held.rows.at[lax.rem(chunk, 2)])

    def step(chunk, gram):
        vectors = held.rows.at[lax.rem(chunk, 2)]
        send_cov(chunk)
        if leads:
            plgpu.barrier_wait(held.loaded)
            s = chain_chunk.half_of_joint(held, at, vectors)
            with jax.named_scope("joint"):
                plgpu.barrier_wait(held.shared)
                chain_chunk.finish_joint(held, at, s, held.obs_var.at[lax.rem(chunk, 2)])
            _fetch(gm, held, at, chunk + 1)  # the keys have been read by both
            with jax.named_scope("factor"):
                chain_chunk.factor(held, at.plain)
            plgpu.barrier_arrive(held.factored)
        else:
            held.share[...] = chain_chunk.half_of_joint(held, at, vectors) + gram
            plgpu.commit_smem()
            plgpu.barrier_arrive(held.shared)
            gram = gram_of(chunk + 1)
            plgpu.barrier_wait(held.factored)
        chain_chunk.half_of_inverse(held, at, vectors)
        if told is not None:
            plgpu.wait_smem_to_gmem(0)  # they have had half a chunk's time
            told()
        send_inverse(chunk)
        chain_chunk.half_of_gain(gm, held, at, vectors, chunk)
        if held.exchange is None:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # what is overwritten from here on
            warpgroups.meet([held.met])
        else:
            slabs.spread(held.exchange, (held.gain, held.carried), held.met, at)
        with jax.named_scope("update"):
            chain_chunk.half_of_update(held, at, vectors)
            warpgroups.meet([held.met])
        return gram

    if leads:
        _fetch(gm, held, at, jnp.int32(0))
        for i, part in enumerate(held.cov):
            first = gm.first.at[at.program, i, :, chain_chunk.slab_of(at, width)]
            plgpu.copy_gmem_to_smem(first, part, held.first_loaded)
    plgpu.barrier_wait(held.first_loaded)
    lax.fori_loop(0, chunks, step, 0 if leads else gram_of(jnp.int32(0)))
    if leads:
        plgpu.barrier_wait(held.loaded)  # of the last fetch
    send_cov(chunks)
    plgpu.wait_smem_to_gmem(0)
    if told is not None:
        told()
