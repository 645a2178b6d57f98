"""A forward pass that nothing is differentiated through, in steps of 16 tokens: one launch.

One warpgroup of a program filters (`step_chain`), the other carries the mean and reads it
(`step_reads`). P and M^T never leave the registers but for the chunks' entries. What the reverse
needs, T of whole chunks, is not made: `fwd` and `reads` make it, in chunks of 64.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import chunks as cutting
from kernels_pallas.kalman_chunk import fwd, step_chain, step_reads, tiles, warpgroups
from kernels_pallas.kalman_chunk.chunks import Tokens, Vectors
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.elimination import FOUND_PITCH, NARROW, PITCH, STEP
from kernels_pallas.kalman_chunk.step_tiles import DIM, STEPS, TALL, THIN, Arrays, Held, Program
from kernels_pallas.kalman_chunk.tiles import LENGTH


class Filtered(NamedTuple):
    """What a pass leaves, as the kernel stores it; parts are bfloat16."""

    writes: jax.Array  # [B H G, N, parts, L, D]
    covs: jax.Array  # [B H G, N + 1, parts, D, D] at chunk entries and at the end
    reads: jax.Array  # [B, N, L, H G, m] bfloat16
    means: jax.Array  # [B H G, N + 1, parts, D, m] as `covs`


def fits(dim: int, width: int, config: Config) -> bool:
    """Whether one warpgroup has room for P, and another for M.

    Args:
      dim: D, padded.
      width: value channels of a group, padded.
      config: tuning values.
    """
    return dim == DIM and width == DIM and config.parts == 2


def step_rows(vectors: Vectors) -> jax.Array:
    """Returns `chunks.stack` with the entry of each token's step in place of the chunk's.

    Args:
      vectors: the numbers of each token.
    """

    def cut(x: jax.Array) -> jax.Array:
        """[..., L] -> [..., L/16, 16]."""
        return x.reshape(*x.shape[:-1], STEPS, STEP)

    coarse, fine, injected = cut(vectors.coarse), cut(vectors.fine), cut(vectors.injected)
    before = [(0, 0)] * (coarse.ndim - 2) + [(1, 0)]
    since = [x - jnp.pad(x[..., :-1, -1], before)[..., None] for x in (coarse, fine)]
    left = [x[..., -1:] - x for x in (coarse, fine)]
    ratio = cutting.between(coarse, fine)
    noise = jnp.sum(ratio * ratio * injected[..., None, :], axis=-1)
    rows = jnp.exp2(since[0] + since[1]), jnp.exp2(left[0] + left[1]), coarse, fine, noise
    return jnp.stack([x.reshape(vectors.coarse.shape) for x in rows], axis=-2)


def _body(*refs, groups: int, plain: bool):
    count = len(Arrays._fields)
    gm, held = Arrays(*refs[:count]), Held._make(refs[count:])
    program, heads = lax.axis_index("program"), gm.keys.shape[3]
    batch, place = program // (heads * groups), lax.rem(program, heads * groups)
    at = Program(program, batch, place, place // groups, plain)
    for work, run in enumerate((step_chain.run, step_reads.run)):
        pl.when(lax.axis_index("work") == work)(functools.partial(run, gm, held, at))


def _scratch(parts: int) -> list[Any]:
    """Shared memory and barriers of `Held`."""
    bf16, f32 = jnp.bfloat16, jnp.float32

    def narrow(*shape: int) -> list[Any]:
        return [plgpu.SMEM(shape, bf16, transforms=NARROW)] * parts

    def wide(*shape: int) -> Any:
        return plgpu.SMEM(shape, bf16, transforms=tiles.WIDE)

    return [
        wide(2, LENGTH, DIM),
        plgpu.SMEM((2, 5, LENGTH), f32),
        plgpu.SMEM((2, LENGTH), f32),
        narrow(*THIN),
        plgpu.SMEM((LENGTH, PITCH), f32),
        plgpu.SMEM((2 * STEP, FOUND_PITCH), f32),
        narrow(2, STEP, STEP),
        narrow(STEP, STEP),
        narrow(STEP, STEP),
        narrow(*THIN),
        narrow(*THIN),
        narrow(2, STEP, DIM),
        [wide(DIM, DIM)] * parts,
        wide(LENGTH, DIM),
        wide(LENGTH, DIM),
        narrow(*TALL),
        [wide(DIM, DIM)] * parts,
        wide(STEP, DIM),
        plgpu.Barrier(num_arrivals=3),
        plgpu.Barrier(num_arrivals=parts),
        plgpu.Barrier(num_arrivals=2),
        plgpu.Barrier(num_arrivals=parts),
        plgpu.Barrier(num_arrivals=1, num_barriers=2),
        plgpu.Barrier(num_arrivals=1, num_barriers=2),
        plgpu.Barrier(num_arrivals=1),
    ]


def run_steps(
    tokens: Tokens,
    rows: jax.Array,
    obs_var: jax.Array,
    first: tuple[jax.Array, jax.Array],
    *,
    interpret: bool = False,
) -> Filtered:
    """Launches the kernel; D = m = 64.

    Args:
      tokens: queries, keys and values, bfloat16, L = 64.
      rows: [B, N, H, 5, L] float32, see `step_rows`.
      obs_var: [B, N, H G, L] float32, r_i^2.
      first: parts, bfloat16, of the first covariance [B H G, parts, D, D] and of the first mean
        [B H G, parts, D, m].
      interpret: run without inlined code, for the interpreter.

    Raises:
      ValueError: another D or m, or more parts than registers have room for.
    """
    batch, chunks, _, places, width = tokens.values.shape
    heads, dim = tokens.keys.shape[3:]
    programs, parts = first[0].shape[:2]
    if (dim, width, parts) != (DIM, DIM, 2):
        found = f"D={dim}, {width} channels a group and {parts} parts"
        raise ValueError(f"tokens: found {found}, wanted {DIM}, {DIM} and 2")
    low = jnp.bfloat16
    out = [
        jax.ShapeDtypeStruct((programs, chunks, parts, LENGTH, dim), low),
        jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, dim), low),
        jax.ShapeDtypeStruct(tokens.values.shape, low),
        jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, width), low),
    ]
    body = functools.partial(_body, groups=places // heads, plain=interpret)
    found = warpgroups.mosaic_kernel(
        body,
        out,
        _scratch(parts),
        grid=(programs,),
        grid_names=("program",),
        num_threads=2,
        thread_name="work",
    )(*tokens, rows, obs_var, *first)
    return Filtered._make(found)


def filter_and_read(
    tokens: Tokens, vectors: Vectors, cov: jax.Array, mean: jax.Array, config: Config
) -> Filtered:
    """Passes a belief through all chunks and reads it at every token, for sizes that `fits` has.

    Args:
      tokens: queries, keys and values, bfloat16.
      vectors: the numbers of each token.
      cov: [B, H, G, D, D], before the first chunk.
      mean: [B, H, G, D, m], before the first chunk.
      config: tuning values.
    """
    first = fwd.symmetric_parts(cov, config), tiles.parts_of(mean, config.parts)
    rows = step_rows(vectors)
    return run_steps(tokens, rows, vectors.obs_var, first, interpret=config.interpret)
