"""The covariance chain as a Mosaic GPU kernel: one program a batch row, head and noise group.

The covariance stays in shared memory from the first chunk to the last. Keys are read where the op
has them; decays and Gram matrices are made in registers from a few numbers a token. What a program
does is in `chain`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import chain, panels, tiles, warpgroups
from kernels_pallas.kalman_chunk.algebra import Factors, transpose
from kernels_pallas.kalman_chunk.chunks import Vectors, stack
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.tiles import LENGTH


def _chain_body(*refs, heads: int, groups: int, plain: bool):
    """Lets each warpgroup run its half of a program."""
    count, alone = len(chain.Arrays._fields), chain.Held._fields.index("finished")
    scratch = refs[count:]
    (finished, aged), (share,), (writes, gain) = scratch[alone]
    in_one_place = finished, aged, share, writes, gain
    gm = chain.Arrays(*refs[:count])
    held = chain.Held._make((*scratch[:alone], *in_one_place, *scratch[alone + 1 :]))
    program = lax.axis_index("program")
    batch, place = program // (heads * groups), lax.rem(program, heads * groups)
    for half in range(2):

        @pl.when(lax.axis_index("half") == half)
        def _(half=half):
            at = chain.Program(program, batch, place, place // groups, half, plain)
            chain.run(gm, held, at)


def run_chain(
    keys: jax.Array,
    rows: jax.Array,
    obs_var: jax.Array,
    first: jax.Array,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Launches the kernel.

    Args:
      keys: [B, N, L, H, D] bfloat16.
      rows: [B, N, H, 5, L] float32, see `chunks.stack`.
      obs_var: [B, N, H G, L] float32, r_i^2.
      first: [B H G, parts, D, D] bfloat16, parts of the first covariance.
      interpret: run without inlined code, for the interpreter.

    Returns:
      Parts, bfloat16, of T^T [B H G, N, parts, L, L], of the writes [B H G, N, parts, L, D], and of
      P at chunk entries and at the end [B H G, N + 1, parts, D, D].
    """
    batch, chunks, _, heads, dim = keys.shape
    programs, parts = first.shape[:2]
    bf16, f32 = jnp.bfloat16, jnp.float32

    def halves(height, width=dim):
        """A matrix for wgmma, of which a warpgroup may take half of D columns."""
        return [plgpu.SMEM((height, width), bf16, transforms=tiles.wide(dim // 2))] * parts

    square = halves(LENGTH, LENGTH)
    panel = (LENGTH // panels.WIDTH, LENGTH, panels.WIDTH)
    finished = [plgpu.SMEM(panel, f32, transforms=panels.PANEL)] * 2
    padded = plgpu.SMEM((LENGTH, LENGTH + 8), f32)  # rows in different banks
    scratch = [
        halves(LENGTH)[0],
        plgpu.SMEM((2, 5, LENGTH), f32),
        plgpu.SMEM((2, LENGTH), f32),
        halves(dim),
        halves(LENGTH),
        padded,
        plgpu.SMEM((LENGTH, panels.PITCH), f32),
        square,
        plgpu.RefUnion(
            (finished, square), (padded,), (halves(LENGTH, dim // 2) * 2, halves(LENGTH))
        ),
        plgpu.Barrier(num_arrivals=3),
        plgpu.Barrier(num_arrivals=parts),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=1),
        plgpu.Barrier(num_arrivals=2),
    ]
    groups = programs // (batch * heads)
    body = functools.partial(_chain_body, heads=heads, groups=groups, plain=interpret)
    out = [
        jax.ShapeDtypeStruct((programs, chunks, parts, LENGTH, LENGTH), bf16),
        jax.ShapeDtypeStruct((programs, chunks, parts, LENGTH, dim), bf16),
        jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, dim), bf16),
    ]
    return warpgroups.mosaic_kernel(
        body,
        out,
        scratch,
        grid=(programs,),
        grid_names=("program",),
        num_threads=2,
        thread_name="half",
    )(keys, rows, obs_var, first)


class Parts(NamedTuple):
    """What the kernel leaves for the reads, as it stores it: parts, bfloat16."""

    inverse: jax.Array  # [B H G, N, parts, L, L] of T^T
    writes: jax.Array  # [B H G, N, parts, L, D]


def covariance_chain(
    keys: jax.Array, vectors: Vectors, cov: jax.Array, config: Config
) -> tuple[Parts, jax.Array]:
    """`algebra.covariance_chain` by the kernel.

    Args:
      keys: [B, N, L, H, D] bfloat16, L = 64.
      vectors: the numbers of each token.
      cov: [B, H, G, D, D], before the first chunk.
      config: tuning values.

    Returns:
      Parts of the inverse and of the writes, and of P at chunk entries and at the end
      [B H G, N + 1, parts, D, D], as the kernel stores them.
    """
    cov = 0.5 * (cov + transpose(cov))
    first = tiles.parts_of(cov, config.parts)
    inverse, writes, covs = run_chain(
        keys, stack(vectors), vectors.obs_var, first, interpret=config.interpret
    )
    return Parts(inverse, writes), covs


def factors(parts: Parts, covs: jax.Array, lead: tuple[int, int, int]) -> tuple[Factors, jax.Array]:
    """Joins what `covariance_chain` returns: the factors of `algebra`, and P at the end.

    Args:
      parts: of the inverse and of the writes.
      covs: parts of P.
      lead: B, H, G.
    """

    def joined(parts: jax.Array) -> jax.Array:
        """Parts [B H G, N, parts, ...] -> [N, B, H, G, ...]."""
        return tiles.by_chunk(tiles.join_in_xla(parts, axis=2), lead)

    cov = joined(covs)
    inverse = jnp.tril(transpose(joined(parts.inverse)))
    return Factors(inverse, joined(parts.writes), cov[:-1]), cov[-1]
