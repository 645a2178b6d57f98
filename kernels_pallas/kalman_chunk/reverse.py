"""The reverse chains as a Mosaic GPU kernel: X = F^T X' + own, or F^T X' F + own.

The only part of the backward pass that goes from chunk to chunk. One program a batch row, head and
noise group (and, with F on one side only, band of 64 columns); with F on both sides a warpgroup has
a band of 64 columns. Parts and precision as in `tiles`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import tiles, warpgroups
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.tiles import BAND


def _reverse_body(
    transition_gm, own_gm, last_gm, exits_gm, transition, state, apart, loaded, last_loaded, met,
    *, chunks: int, team: int, both: bool, stages: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_reverse` for the arrays in global memory (`_gm`).

    In shared memory: parts of F [stages, D, D], of X [D, K], and, where F stands on both sides and
    there is room for it, of X F [D, D] (`apart`), which else takes the place of X. A warpgroup has
    64 of the columns of X and of X F.
    """
    program, place = lax.axis_index("program"), lax.axis_index("band")
    dim = state[0].shape[0]
    mine = slice(None) if both else pl.ds(place * BAND, BAND)  # columns of a program
    source = apart or state

    def fetch(step):
        """Loads F of the chunk that is `step` chunks from the end."""
        slot, chunk = lax.rem(step, stages), lax.max(chunks - 1 - step, 0)
        for i, part in enumerate(transition):
            plgpu.copy_gmem_to_smem(
                transition_gm.at[program, chunk, i], part.at[slot], loaded.at[slot]
            )

    def fetch_first():
        for stage in range(stages):
            fetch(jnp.int32(stage))
        for i, part in enumerate(state):
            plgpu.copy_gmem_to_smem(last_gm.at[program, i, :, mine], part, last_loaded)

    def run(member):
        band, rows = pl.ds(member * BAND, BAND), pl.ds(member * (dim // team), dim // team)
        start = (member if both else place) * BAND

        def emit(chunk):
            """A warpgroup copies rows: those of a matrix lie in one piece, its columns do not."""
            for i, part in enumerate(state):
                plgpu.copy_smem_to_gmem(part.at[rows], exits_gm.at[program, chunk, i, rows, mine])

        def step(index, _):
            slot, chunk = lax.rem(index, stages), chunks - 1 - index
            emit(chunk + 1)
            plgpu.barrier_wait(loaded.at[slot])
            f = [part.at[slot] for part in transition]
            if both:
                through = tiles.product((dim, BAND), (state, tiles.columns(f, band)))
                if not apart:
                    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                    warpgroups.meet(met)
                tiles.store(tiles.columns(source, band), through, plain)
                plgpu.commit_smem()
            right, made = tiles.columns(source, band), []
            for part in tiles.bands(dim):
                own = tiles.straight(own_gm.at[program, chunk, part, pl.ds(start, BAND)])
                pair = tiles.flipped(tiles.columns(f, part)), right
                made.append(tiles.product((BAND, BAND), pair) + own)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # and its warps are done with `source`
            for part, share in zip(tiles.bands(dim), made, strict=True):
                tiles.store([x.at[part, band] for x in state], share, plain)
            warpgroups.meet(met)
            pl.when(member == 0)(lambda: fetch(index + stages))
            return 0

        pl.when(member == 0)(fetch_first)
        plgpu.barrier_wait(last_loaded)
        lax.fori_loop(0, chunks, step, 0)
        for stage in range(stages):  # of the last fetches, which nobody reads
            plgpu.barrier_wait(loaded.at[lax.rem(jnp.int32(chunks + stage), stages)])
        emit(0)
        plgpu.wait_smem_to_gmem(0)

    warpgroups.split_up(team, run)


def run_reverse(
    transition: jax.Array,
    own: jax.Array,
    last: jax.Array,
    *,
    both: bool,
    interpret: bool = False,
) -> jax.Array:
    """Launches the kernel.

    Args:
      transition: [B H G, N, parts, D, D] bfloat16, parts of F.
      own: [B H G, N, D, K] float32, what each chunk adds; 64 divides K.
      last: [B H G, parts, D, K] bfloat16, parts of X after the last chunk.
      both: whether F stands on both sides; then K = D.
      interpret: run without what the interpreter does not have.

    Returns:
      Parts [B H G, N + 1, parts, D, K] bfloat16 of X at chunk entries and at the end.
    """
    programs, chunks, parts, dim = transition.shape[:4]
    bf16 = jnp.bfloat16
    width = dim if both else BAND  # of a program
    team = width // BAND
    stages = 2 if parts == 2 or (dim == 64 and not both) else 1

    def wide(*shape):
        return [plgpu.SMEM(shape, bf16, transforms=tiles.WIDE)] * parts

    scratch: list[Any] = [
        wide(stages, dim, dim),
        wide(dim, width),
        wide(dim, dim) if both and team == 1 else [],
        plgpu.Barrier(num_arrivals=parts, num_barriers=stages),
        plgpu.Barrier(num_arrivals=parts),
        warpgroups.meeting(team),
    ]
    options: dict[str, Any] = {
        "chunks": chunks,
        "team": team,
        "both": both,
        "stages": stages,
        "plain": interpret,
    }
    body = functools.partial(_reverse_body, **options)
    out = jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, own.shape[-1]), bf16)
    kernel = warpgroups.mosaic_kernel(
        body,
        out,
        scratch,
        grid=(programs, own.shape[-1] // width),
        grid_names=("program", "band"),
        **warpgroups.members(team),
    )
    return kernel(transition, own, last)


def walk_back(
    transition: jax.Array, own: jax.Array, last: jax.Array, both: bool, _: Any, *, config: Config
) -> tuple[jax.Array, jax.Array]:
    """`bwd.walk_back` by the kernel; D and K multiples of 64."""
    lead = last.shape[:3]
    dim, width = last.shape[-2:]

    exits = run_reverse(
        jnp.stack(tiles.split_in_xla(tiles.by_program(transition), config.parts), axis=2),
        tiles.by_program(own),
        tiles.parts_of(last, config.parts),
        both=both,
        interpret=config.interpret,
    )
    x = tiles.join_in_xla(exits, axis=2)
    x = x.reshape(*lead, -1, dim, width)
    if both:
        x = 0.5 * (x + jnp.swapaxes(x, -1, -2))
    x = jnp.moveaxis(x, 3, 0)
    return x[0], x[1:]
