"""The covariance chain and those who follow it in one launch, a cluster of two programs each.

The chain keeps B H G multiprocessors busy. Where that leaves as many idle, a second program carries
and reads the mean there meanwhile, a chunk behind.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import chain, follow, fwd, mean, reads, tiles, warpgroups
from kernels_pallas.kalman_chunk.chunks import DIMS, Tokens, Vectors, stack
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

SIDE = "side"
"""Axis of the cluster: the chain, and those who follow."""

TEAM = 2
"""Warpgroups of a program, so bands of those who follow."""

MULTIPROCESSORS = 132
"""Of an H200, where the device does not tell."""


def fits(dim: int, width: int, programs: int) -> bool:
    """Whether there is room for all programs at once, and one launch therefore pays.

    Args:
      dim: D, padded.
      width: value channels of a group, padded.
      programs: B H G.
    """
    known = getattr(jax.devices()[0], "core_count", None) or MULTIPROCESSORS
    return dim <= DIMS[-1] and width == TEAM * BAND and 2 * programs <= known


def _follow(
    gm: mean.Arrays, scratch: Sequence[Any], written: Any, groups: int, plain: bool
) -> None:
    """Lets each warpgroup follow with a band."""
    held = follow.Held._make((*scratch, [written]))
    for member in range(TEAM):

        @pl.when(lax.axis_index("half") == member)
        def _(member=member):
            at = mean.locate(gm, groups, member, plain, member)
            follow.run(gm, held, at)


_FILTERING = chain.Held._fields.index("finished")
_FOLLOWING = follow.Held._fields.index("values"), follow.Held._fields.index("keys_loaded")
"""Where the references of each side are cut: what has a place, what shares one, and barriers."""


def _scratch(dim: int, parts: int) -> list[Any]:
    """Shared memory, of which either side has the same two places, and the barriers of both."""
    filtering, following = fwd.scratch_of(dim, parts), follow.scratch(dim, parts, TEAM)
    (large, small), (place, *barriers) = _FOLLOWING, filtering[_FILTERING:]
    return [
        plgpu.RefUnion((filtering[:_FILTERING],), (following[:large],)),
        plgpu.RefUnion(*place.refs, (following[large:small],)),
        barriers,
        following[small:],
        plgpu.ClusterBarrier(collective_axes=(SIDE,), num_arrivals=TEAM),
    ]


def _body(*refs, groups: int, plain: bool):
    queries, keys, values, rows, obs_var, first_cov, first_mean, *rest = refs
    inverse, writes, cov, read, means, fixed, shared, barriers, meetings, written = rest
    ((filtering,), (following,)), (*places, (others,)) = fixed, shared

    @pl.when(lax.axis_index(SIDE) == 0)
    def _():
        gm = chain.Arrays(keys, rows, obs_var, first_cov, inverse, writes, cov)
        fwd.run_program(gm, [*filtering, places, *barriers], groups, plain, [written])

    @pl.when(lax.axis_index(SIDE) == 1)
    def _():
        gm = mean.Arrays(queries, keys, values, rows, inverse, writes, first_mean, read, means)
        _follow(gm, [*following, *others, *meetings], written, groups, plain)


def run_together(
    tokens: Tokens,
    rows: jax.Array,
    obs_var: jax.Array,
    first: tuple[jax.Array, jax.Array],
    *,
    interpret: bool = False,
) -> tuple[list[jax.Array], tuple[jax.Array, jax.Array]]:
    """Launches the kernel, for sizes that `fits` has.

    Args:
      tokens: queries, keys and values, bfloat16.
      rows: [B, N, H, 5, L] float32, see `chunks.stack`.
      obs_var: [B, N, H G, L] float32, r_i^2.
      first: parts, bfloat16, of the first covariance [B H G, parts, D, D] and of the first mean
        [B H G, parts, D, m].
      interpret: run without inlined code, for the interpreter.

    Returns:
      What `fwd.run_chain` returns, and what `reads.run_reads` does.

    Raises:
      ValueError: sizes that a cluster has no room for.
    """
    batch, chunks, _, places, width = tokens.values.shape
    heads, dim = tokens.keys.shape[3:]
    programs, parts = first[0].shape[:2]
    if dim > DIMS[-1] or width != TEAM * BAND:
        wanted = f"D up to {DIMS[-1]} and {TEAM * BAND} channels a group"
        raise ValueError(f"tokens: found D={dim} and {width} channels a group, wanted {wanted}")
    out = [
        *fwd.outputs(programs, chunks, parts, dim),
        jax.ShapeDtypeStruct((batch, chunks, LENGTH, places, width), jnp.bfloat16),
        jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, width), jnp.bfloat16),
    ]
    body = functools.partial(_body, groups=places // heads, plain=interpret)
    *factors, read, means = warpgroups.mosaic_kernel(
        body,
        out,
        _scratch(dim, parts),
        grid=(programs,),
        grid_names=("program",),
        cluster=(2,),
        cluster_names=(SIDE,),
        num_threads=TEAM,
        thread_name="half",
    )(*tokens, rows, obs_var, *first)
    return factors, (read, means)


def filter_and_read(
    tokens: Tokens, vectors: Vectors, cov: jax.Array, first: jax.Array, config: Config
) -> tuple[tuple[fwd.Parts, jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns what `fwd.covariance_chain` and `reads.read_chunks` do, by one launch where it pays.

    Args:
      tokens: queries, keys and values, bfloat16.
      vectors: the numbers of each token.
      cov: [B, H, G, D, D], before the first chunk.
      first: [B, H, G, D, m], the mean before the first chunk.
      config: tuning values.
    """
    programs = math.prod(cov.shape[:3])
    if config.parts > 2 or not fits(cov.shape[-1], tokens.values.shape[-1], programs):
        parts, covs = fwd.covariance_chain(tokens.keys, vectors, cov, config)
        return (parts, covs), reads.read_chunks(tokens, vectors, parts, first, config)
    beliefs = fwd.symmetric_parts(cov, config), tiles.parts_of(first, config.parts)
    run = functools.partial(run_together, interpret=config.interpret)
    (inverse, writes, covs), read = run(tokens, stack(vectors), vectors.obs_var, beliefs)
    return (fwd.Parts(inverse, writes), covs), read
