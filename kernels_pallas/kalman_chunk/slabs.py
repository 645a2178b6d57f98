"""What programs of a cluster tell each other, each of which has a slab of the columns of P.

Twice a chunk. S is a sum over columns, so each slab makes what its own add (`total`), and all add
that up in the same order: their S is the same to the last bit, and so is all that they make of it.
A slab's columns of P' take the gain and X's inner factor of all columns (`spread`, `each_block`).

Both go through global memory, which stays in the L2 cache, and need no second buffer. Between the
writing of one chunk's sums and that of the next, every slab arrives at `spread`, and it does so
after it has read the sums. Between two writings of blocks every slab arrives at `summed`, and it
does so after both of its warpgroups have read the blocks.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import tiles, warpgroups
from kernels_pallas.kalman_chunk.chunks import DIMS, SLAB
from kernels_pallas.kalman_chunk.tiles import LENGTH

AXIS = "slab"
"""Axis of the cluster."""

SLOTS = 2
"""Blocks of other slabs that shared memory has room for."""


class Exchange(NamedTuple):
    """Where and how slabs meet; count is that of slabs, w of columns of one."""

    sums: Any  # global [B H G, count, L, L] float32, what each adds to S
    blocks: Any  # global [B H G, count, 2 parts, L, w] bfloat16, its gain and inner factor
    received: Any  # shared [count, L, L] float32
    stream: Any  # shared [SLOTS, 2 parts, L, w] bfloat16
    summed: Any  # barriers of the cluster: `sums` are written,
    spread: Any  # and `blocks` are
    sums_loaded: Any  # barriers of copies: of all sums,
    block_loaded: Any  # and of the block in each slot


def count_of(dim: int) -> int:
    """How many slabs D columns of P are cut into."""
    return dim // SLAB if dim > DIMS[-1] else 1


def places(programs: int, count: int, parts: int) -> list[jax.ShapeDtypeStruct]:
    """Outputs of the kernel that are there for the exchange only."""
    lead = programs, count
    return [
        jax.ShapeDtypeStruct((*lead, LENGTH, LENGTH), jnp.float32),
        jax.ShapeDtypeStruct((*lead, 2 * parts, LENGTH, SLAB), jnp.bfloat16),
    ]


def meetings(count: int, parts: int) -> list[Any]:
    """The barriers of `Exchange`: one warpgroup of a slab arrives with sums, two with blocks."""
    return [
        plgpu.ClusterBarrier(collective_axes=(AXIS,), num_arrivals=1),
        plgpu.ClusterBarrier(collective_axes=(AXIS,), num_arrivals=2),
        plgpu.Barrier(num_arrivals=count - 1),
        plgpu.Barrier(num_arrivals=2 * parts, num_barriers=SLOTS),
    ]


def meet(barrier: Any, plain: bool) -> None:
    """Waits for all slabs; what copies that were waited for have written is there for copies."""
    warpgroups.show(plain)
    plgpu.barrier_arrive(barrier)
    plgpu.barrier_wait(barrier)
    warpgroups.show(plain)


def total(exchange: Exchange, share: Any, own: jax.Array, at: Any) -> jax.Array:
    """Returns the sum of all slabs' shares [L, L]; one warpgroup does it.

    Args:
      exchange: with the other slabs.
      share: shared memory, this slab's place in `received`.
      own: this slab's share.
      at: where the program is.
    """
    count = exchange.sums.shape[1]
    share[...] = own
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(share, exchange.sums.at[at.program, at.slab])
    plgpu.wait_smem_to_gmem(0)
    meet(exchange.summed, at.plain)
    others = [lax.rem(at.slab + step, count) for step in range(1, count)]
    for other in others:
        source, target = exchange.sums.at[at.program, other], exchange.received.at[other]
        plgpu.copy_gmem_to_smem(source, target, exchange.sums_loaded)
    plgpu.barrier_wait(exchange.sums_loaded)
    shares = [tiles.read(exchange.received.at[i]) for i in range(count)]
    plgpu.commit_smem()  # S takes the place of what it is summed from
    return functools.reduce(jnp.add, shares)


def spread(
    exchange: Exchange, block: tuple[Sequence[Any], Sequence[Any]], met: Any, at: Any
) -> None:
    """Shows all slabs this one's block; when it returns, theirs are there.

    Args:
      exchange: with the other slabs.
      block: gain and inner factor, of which each warpgroup has stored half of the columns.
      met: barrier of both warpgroups.
      at: where the program is.
    """
    warpgroups.meet([met])
    rows = slice(at.half * LENGTH // 2, (at.half + 1) * LENGTH // 2)  # in one piece, unlike columns
    for i, part in enumerate((*block[0], *block[1])):
        target = exchange.blocks.at[at.program, at.slab, i, rows]
        plgpu.copy_smem_to_gmem(part.at[rows], target)
    plgpu.wait_smem_to_gmem(0)
    meet(exchange.spread, at.plain)


def each_block(
    exchange: Exchange,
    block: tuple[Sequence[Any], Sequence[Any]],
    use: Callable[[Any, Sequence[Any], Sequence[Any]], None],
    met: Any,
    at: Any,
) -> None:
    """Calls `use` with the place and the block of every slab, the own one first.

    Args:
      exchange: with the other slabs.
      block: the own one, gain and inner factor.
      use: takes a slab, its gain and its inner factor.
      met: barrier of both warpgroups.
      at: where the program is.
    """
    count, parts = exchange.blocks.shape[1], len(block[0])

    def load(step: Any) -> None:
        slot, other = lax.rem(step, SLOTS), lax.rem(at.slab + step, count)
        for i in range(2 * parts):
            source, target = exchange.blocks.at[at.program, other, i], exchange.stream.at[slot, i]
            plgpu.copy_gmem_to_smem(source, target, exchange.block_loaded.at[slot])

    if at.half == 0:
        for step in range(1, min(1 + SLOTS, count)):
            load(step)
    use(at.slab, *block)

    def one(step, _):
        slot = lax.rem(step, SLOTS)
        plgpu.barrier_wait(exchange.block_loaded.at[slot])
        given = [exchange.stream.at[slot, i] for i in range(2 * parts)]
        use(lax.rem(at.slab + step, count), given[:parts], given[parts:])

        @pl.when(step + SLOTS < count)
        def refill():
            warpgroups.meet([met])  # both have read the slot
            if at.half == 0:
                load(step + SLOTS)

        return 0

    lax.fori_loop(1, count, one, 0)
