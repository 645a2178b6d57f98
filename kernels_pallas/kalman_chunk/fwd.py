"""The covariance chain as a Mosaic GPU kernel: one program a batch row, head and noise group.

At D = 256 it is one cluster of programs, see `slabs`.

The covariance stays in shared memory from the first chunk to the last. Keys are read where the op
has them; decays and Gram matrices are made in registers from a few numbers a token. What a program
does is in `chain`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import chain, chain_chunk, panels, slabs, tiles, warpgroups
from kernels_pallas.kalman_chunk.algebra import Factors, transpose
from kernels_pallas.kalman_chunk.chunks import DIMS, Vectors, stack
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.tiles import LENGTH


def run_program(
    gm: chain_chunk.Arrays,
    scratch: list[Any],
    groups: int,
    plain: bool,
    told: Callable[[Any], None] | None = None,
) -> None:
    """Lets both warpgroups do their half of a program.

    Args:
      gm: global memory.
      scratch: what `scratch_of` describes.
      groups: G, noise groups of a head.
      plain: without inlined code.
      told: called with the number of the program, see `chain.run`.
    """
    rest, program, slab, exchange = scratch, lax.axis_index("program"), None, None
    if slabs.count_of(gm.first.shape[-1]) > 1:
        sums, blocks, keys, rows, obs_var, cov, carried, panel, inverse, *rest, meetings = rest
        ((received,), (joint, finished, writes), (stream,)), ((aged,), (gain,)), *barriers = rest
        slab = lax.axis_index(slabs.AXIS)
        exchange = slabs.Exchange(sums, blocks, received, stream, *meetings)
        share = received.at[slab]
    else:
        keys, rows, obs_var, cov, carried, joint, panel, inverse, *rest = rest
        ((finished, aged), (padded,), (writes, gain)), *barriers = rest
        share = padded.at[:, :LENGTH]
    held = chain_chunk.Held._make(
        (keys, rows, obs_var, cov, carried, joint, panel, inverse, finished, aged, share, writes)
        + (gain, *barriers, exchange)
    )
    places = gm.keys.shape[3] * groups
    batch, place = program // places, lax.rem(program, places)
    for half in range(2):

        @pl.when(lax.axis_index("half") == half)
        def _(half=half):
            at = chain_chunk.Program(program, batch, place, place // groups, slab, half, plain)
            chain.run(gm, held, at, None if told is None else functools.partial(told, program))


def _chain_body(*refs, groups: int, plain: bool):
    count = len(chain_chunk.Arrays._fields)
    run_program(chain_chunk.Arrays(*refs[:count]), list(refs[count:]), groups, plain)


def scratch_of(dim: int, parts: int) -> list[Any]:
    """Shared memory and barriers of a program."""
    bf16, f32, count = jnp.bfloat16, jnp.float32, slabs.count_of(dim)
    width = dim // count

    def halves(height, width=width, lead=()):
        """A matrix for wgmma, of which a warpgroup may take half of the program's columns."""
        return plgpu.SMEM((*lead, height, width), bf16, transforms=tiles.wide(dim // count // 2))

    tall, square = [halves(LENGTH)] * parts, [halves(LENGTH, LENGTH)] * parts
    panel = (LENGTH // panels.WIDTH, LENGTH, panels.WIDTH)
    finished = [plgpu.SMEM(panel, f32, transforms=panels.PANEL)] * 2
    padded = plgpu.SMEM((LENGTH, LENGTH + 8), f32)  # rows in different banks
    writes = [halves(LENGTH, width // 2)] * (2 * parts)
    given = [
        halves(LENGTH, dim),
        plgpu.SMEM((2, 5, LENGTH), f32),
        plgpu.SMEM((2, LENGTH), f32),
        [halves(dim)] * parts,
        tall,
    ]
    small = plgpu.SMEM((LENGTH, panels.PITCH), f32)
    barriers = [plgpu.Barrier(num_arrivals=n) for n in (3, parts, 1, 1, 2)]
    if count == 1:
        place = plgpu.RefUnion((finished, square), (padded,), (writes, tall))
        return [*given, padded, small, square, place, *barriers]
    received = plgpu.SMEM((count, LENGTH, LENGTH), f32, transforms=tiles.WIDE_FLOAT32)
    stream = halves(LENGTH, lead=(slabs.SLOTS, 2 * parts))
    place = plgpu.RefUnion((received,), (padded, finished, writes), (stream,))
    rest = plgpu.RefUnion((square,), (tall,))
    return [*given, small, square, place, rest, *barriers, slabs.meetings(count, parts)]


def outputs(programs: int, chunks: int, parts: int, dim: int) -> list[jax.ShapeDtypeStruct]:
    """What a chain leaves: parts of T^T, of the writes, and of P."""
    shapes = (chunks, parts, LENGTH, LENGTH), (chunks, parts, LENGTH, dim)
    return [
        jax.ShapeDtypeStruct((programs, *shape), jnp.bfloat16)
        for shape in (*shapes, (chunks + 1, parts, dim, dim))
    ]


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

    Raises:
      ValueError: more parts than shared memory has room for at this D.
    """
    batch, chunks, _, heads, dim = keys.shape
    programs, parts = first.shape[:2]
    count = slabs.count_of(dim)
    if dim > DIMS[0] and parts > 2:
        raise ValueError(f"parts: found {parts}, wanted 2, for which there is room at D={dim}")
    groups = programs // (batch * heads)
    body = functools.partial(_chain_body, groups=groups, plain=interpret)
    out = outputs(programs, chunks, parts, dim)
    cluster = {}
    if count > 1:
        out += slabs.places(programs, count, parts)
        cluster = {"cluster": (count,), "cluster_names": (slabs.AXIS,)}
    inverse, writes, cov, *_ = warpgroups.mosaic_kernel(
        body,
        out,
        scratch_of(dim, parts),
        grid=(programs,),
        grid_names=("program",),
        num_threads=2,
        thread_name="half",
        **cluster,
    )(keys, rows, obs_var, first)
    return inverse, writes, cov


class Parts(NamedTuple):
    """What the kernel leaves for the reads, as it stores it: parts, bfloat16."""

    inverse: jax.Array  # [B H G, N, parts, L, L] of T^T
    writes: jax.Array  # [B H G, N, parts, L, D]


def symmetric_parts(cov: jax.Array, config: Config) -> jax.Array:
    """Parts [B H G, parts, D, D] of a covariance [B, H, G, D, D], the same on both triangles."""
    return tiles.parts_of(0.5 * (cov + transpose(cov)), config.parts)


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
    first = symmetric_parts(cov, config)
    inverse, writes, covs = run_chain(
        keys, stack(vectors), vectors.obs_var, first, interpret=config.interpret
    )
    return Parts(inverse, writes), covs


def joined(parts: Parts, lead: tuple[int, int, int]) -> tuple[jax.Array, jax.Array]:
    """T [N, B, H, G, L, L] and the writes [N, B, H, G, L, D]; `lead` is B, H, G."""
    inverse, writes = (tiles.by_chunk(tiles.join_in_xla(x, axis=2), lead) for x in parts)
    return jnp.tril(transpose(inverse)), writes


def factors(parts: Parts, covs: jax.Array, lead: tuple[int, int, int]) -> tuple[Factors, jax.Array]:
    """Joins what `covariance_chain` returns: the factors of `algebra`, and P at the end.

    Args:
      parts: of the inverse and of the writes.
      covs: parts of P.
      lead: B, H, G.
    """
    cov = tiles.by_chunk(tiles.join_in_xla(covs, axis=2), lead)
    return Factors(*joined(parts, lead), cov[:-1]), cov[-1]
