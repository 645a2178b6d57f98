"""The reverse chains as a Mosaic GPU kernel: X = F^T X' + own, or F^T X' F + own.

The only part of the backward pass that goes from chunk to chunk. One program a batch row, head and
noise group (and, with F on one side only, band of 64 columns). Parts and precision as in `tiles`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import panels, tiles

BAND = 64
"""Columns that one product makes."""


def _reverse_body(
    transition_gm, own_gm, last_gm, exits_gm, transition, state, right, loaded, last_loaded,
    *, chunks: int, bands: int, parts: int,
):  # fmt: skip
    """Runs one program; see `run_reverse` for the arrays in global memory (`_gm`).

    In shared memory: parts of F [stages, D, D]; parts of X [D, K]; and, where F stands on both
    sides, parts of X F [D, D].
    """
    program, place = lax.axis_index("program"), lax.axis_index("band")
    dim = state[0].shape[0]
    stages = transition[0].shape[0]
    both = bool(right)
    mine = slice(None) if both else pl.ds(place * BAND, BAND)  # columns of a program

    def columns(band):
        return slice(BAND * band, BAND * (band + 1))

    def fetch(step):
        """Loads F of the chunk that is `step` chunks from the end."""
        slot, chunk = lax.rem(step, stages), lax.max(chunks - 1 - step, 0)
        for i, part in enumerate(transition):
            plgpu.copy_gmem_to_smem(
                transition_gm.at[program, chunk, i], part.at[slot], loaded.at[slot]
            )

    def emit(chunk):
        for i, part in enumerate(state):
            plgpu.copy_smem_to_gmem(part, exits_gm.at[program, chunk, i, :, mine])

    def read_own(chunk, band):
        """Straight to registers: a load that waits for nothing."""
        start = BAND * band if both else place * BAND
        own = own_gm.at[program, chunk, :, pl.ds(start, BAND)]
        return tiles.read(own, optimized=False)

    def step(index, _):
        slot, chunk = lax.rem(index, stages), chunks - 1 - index
        emit(chunk + 1)
        plgpu.barrier_wait(loaded.at[slot])
        f = [part.at[slot] for part in transition]
        left = [tiles.transposed(part) for part in f]
        if both:
            for band in range(bands):
                through = [part.at[:, columns(band)] for part in f]
                product = tiles.product((dim, BAND), (state, through))
                tiles.store([part.at[:, columns(band)] for part in right], product)
            plgpu.commit_smem()
        source = right if both else state
        made = []
        for band in range(bands):
            own = read_own(chunk, band)
            operand = [part.at[:, columns(band)] for part in source]
            made.append(tiles.product((dim, BAND), (left, operand)) + own)
            if both:  # X is no operand of it, so a band may be replaced at once
                plgpu.wait_smem_to_gmem(0)
                tiles.store([part.at[:, columns(band)] for part in state], made.pop())
        if not both:
            plgpu.wait_smem_to_gmem(0)  # and all warps are done with X
            tiles.store(state, made.pop())
        plgpu.commit_smem()
        fetch(index + stages)
        return 0

    for stage in range(stages):
        fetch(jnp.int32(stage))
    for i, part in enumerate(state):
        plgpu.copy_gmem_to_smem(last_gm.at[program, i, :, mine], part, last_loaded)
    plgpu.barrier_wait(last_loaded)
    lax.fori_loop(0, chunks, step, 0)
    for stage in range(stages):  # of the last fetches, which nobody reads
        plgpu.barrier_wait(loaded.at[lax.rem(jnp.int32(chunks + stage), stages)])
    emit(0)
    plgpu.wait_smem_to_gmem(0)


def run_reverse(transition: jax.Array, own: jax.Array, last: jax.Array, *, both: bool) -> jax.Array:
    """Launches the kernel.

    Args:
      transition: [B H G, N, parts, D, D] bfloat16, parts of F.
      own: [B H G, N, D, K] float32, what each chunk adds; 64 divides K.
      last: [B H G, parts, D, K] bfloat16, parts of X after the last chunk.
      both: whether F stands on both sides; then K = D.

    Returns:
      Parts [B H G, N + 1, parts, D, K] bfloat16 of X at chunk entries and at the end.
    """
    programs, chunks, parts, dim = transition.shape[:4]
    bf16 = jnp.bfloat16
    total = own.shape[-1] // BAND
    bands = total if both else 1
    stages = 2 if dim * parts == 128 or (dim == 64 and not both) else 1

    def wide(*shape):
        return [plgpu.SMEM(shape, bf16, transforms=panels.WIDE)] * parts

    scratch: list[Any] = [
        wide(stages, dim, dim),
        wide(dim, BAND * bands),
        wide(dim, dim) if both else [],
        plgpu.Barrier(num_arrivals=parts, num_barriers=stages),
        plgpu.Barrier(num_arrivals=parts),
    ]
    body = functools.partial(_reverse_body, chunks=chunks, bands=bands, parts=parts)
    out = jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, own.shape[-1]), bf16)
    grid = (programs, total // bands)
    return tiles.mosaic_kernel(body, out, scratch, grid=grid, grid_names=("program", "band"))(
        transition, own, last
    )


def walk_back(
    transition: jax.Array, own: jax.Array, last: jax.Array, both: bool, _: Any, *, parts: int
) -> tuple[jax.Array, jax.Array]:
    """`bwd.walk_back` by the kernel; D and K multiples of 64.

    Args:
      transition: [N, B, H, G, D, D], F.
      own: [N, B, H, G, D, K], what each chunk adds.
      last: [B, H, G, D, K], after the last chunk.
      both: whether F stands on both sides; then K = D.
      parts: bfloat16 numbers that stand for a float32 one.
    """
    lead = last.shape[:3]
    dim, width = last.shape[-2:]

    exits = run_reverse(
        jnp.stack(tiles.split_in_xla(tiles.by_program(transition), parts), axis=2),
        tiles.by_program(own),
        jnp.stack(tiles.split_in_xla(last.reshape(-1, dim, width), parts), axis=1),
        both=both,
    )
    x = tiles.join_in_xla(exits, axis=2)
    x = x.reshape(*lead, -1, dim, width)
    if both:
        x = 0.5 * (x + jnp.swapaxes(x, -1, -2))
    x = jnp.moveaxis(x, 3, 0)
    return x[0], x[1:]
