"""The covariance chain, and readers that follow it, beside one another in one launch.

The chain keeps B H G multiprocessors busy. Where that leaves as many idle, programs there read what
it has filtered (`step_follow`), a chunk behind. A program of the chain waits for nobody. It counts
in global memory what it has written, and its readers wait for the count.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas import device
from kernels_pallas.kalman_chunk import (
    chain_chunk,
    fwd,
    mean,
    reads,
    registers,
    step_follow,
    steps,
    tiles,
    warpgroups,
)
from kernels_pallas.kalman_chunk.chunks import DIMS, Tokens, Vectors, stack
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.step_follow import TEAM
from kernels_pallas.kalman_chunk.tiles import BAND, LENGTH

MULTIPROCESSORS = 132
"""Of an H200, where the device does not tell."""


def fits(dim: int, width: int, programs: int, config: Config) -> bool:
    """Whether there is room for all programs at once, so that one launch pays.

    Args:
      dim: D, padded.
      width: value channels of a group, padded.
      programs: B H G.
      config: tuning values.
    """
    known = getattr(device.current(), "core_count", None) or MULTIPROCESSORS
    return (dim, width, config.parts) == (DIMS[-1], TEAM * BAND, 2) and 2 * programs <= known


def _tell(counts: Any, program: Any) -> None:
    """Counts that half of a chunk is in global memory; the warpgroup has waited for the copies."""
    registers.fence("proxy.async.global")
    plgpu.commit_smem()
    plgpu.semaphore_signal(counts.at[program], memory_scope="gpu")


def _ready(counts: Any, program: Any, chunk: Any) -> None:
    """Waits for both halves of a chunk, which are counted in the chunk after it."""
    wanted = 2 * (chunk + 2)
    plgpu.semaphore_wait(counts.at[program], wanted, decrement=False, memory_scope="gpu")
    registers.fence("proxy.async.global")


def _read(gm: mean.Arrays, held: Any, groups: int, plain: bool, number: Any, counts: Any) -> None:
    """Lets each warpgroup of a program read a band; `counts` are None where all is there."""
    places = gm.values.shape[3]
    batch, place = number // places, lax.rem(number, places)
    band = lax.axis_index("half")
    at = step_follow.Program(number, batch, place, place // groups, band, plain)
    ready = functools.partial(_ready, counts, number) if counts is not None else lambda chunk: None
    step_follow.run(gm, held, at, ready)


def _readers_body(*refs, groups: int, plain: bool):
    """Readers alone."""
    count = len(mean.Arrays._fields)
    gm, held = mean.Arrays(*refs[:count]), step_follow.Held(*refs[count:])
    _read(gm, held, groups, plain, lax.axis_index("program"), None)


def _body(*refs, programs: int, groups: int):
    queries, keys, values, rows, rows_of_steps, obs_var, first_cov, first_mean, *rest = refs
    inverse, writes, cov, read, means, fixed, shared, barriers, waits = rest
    ((filtering,), (large,)), (*places, (small,)) = fixed, shared
    counts = pl.get_global(plgpu.SemaphoreType.REGULAR((programs,)))
    number = lax.axis_index("program")

    # Programs start in this order, so readers take no place that a chain would need.
    @pl.when(number < programs)
    def _():
        gm = chain_chunk.Arrays(keys, rows, obs_var, first_cov, inverse, writes, cov)
        told = functools.partial(_tell, counts)
        fwd.run_program(gm, [*filtering, places, *barriers], groups, False, told)

    @pl.when(number >= programs)
    def _():
        gm = mean.Arrays(
            queries, keys, values, rows_of_steps, inverse, writes, first_mean, read, means
        )
        held = step_follow.Held(large, small, waits)
        _read(gm, held, groups, False, number - programs, counts)


def _scratch(dim: int, parts: int) -> list[Any]:
    """Shared memory, of which either side has the same two places, and the barriers of both."""
    filtering, readers = fwd.scratch_of(dim, parts), step_follow.scratch(dim, parts)
    # From here on things take each other's place.
    start = chain_chunk.Held._fields.index("finished")
    place, *barriers = filtering[start:]
    return [
        plgpu.RefUnion((filtering[:start],), (readers.large,)),
        plgpu.RefUnion(*place.refs, (readers.small,)),
        barriers,
        readers.barriers,
    ]


def _read_outputs(tokens: Tokens, programs: int, parts: int) -> list[jax.ShapeDtypeStruct]:
    """Reads, and parts of the means; as of `reads.run_reads`."""
    batch, chunks, _, places, width = tokens.values.shape
    dim = tokens.keys.shape[-1]
    return [
        jax.ShapeDtypeStruct((batch, chunks, LENGTH, places, width), jnp.bfloat16),
        jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, width), jnp.bfloat16),
    ]


def run_readers(
    tokens: Tokens,
    rows_of_steps: jax.Array,
    inverse: jax.Array,
    writes: jax.Array,
    first: jax.Array,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Launches readers alone: `reads.run_reads` but for `rows_of_steps`, see `steps.step_rows`.

    For tests: the interpreter has no counts in global memory, so it runs one after the other.
    """
    programs, parts, dim = first.shape[:3]
    groups = tokens.values.shape[3] // tokens.keys.shape[3]
    body = functools.partial(_readers_body, groups=groups, plain=interpret)
    read, means = warpgroups.mosaic_kernel(
        body,
        _read_outputs(tokens, programs, parts),
        list(step_follow.scratch(dim, parts)),
        grid=(programs,),
        grid_names=("program",),
        num_threads=TEAM,
        thread_name="half",
    )(*tokens, rows_of_steps, inverse, writes, first)
    return read, means


def run_beside(
    tokens: Tokens,
    rows: tuple[jax.Array, jax.Array],
    obs_var: jax.Array,
    first: tuple[jax.Array, jax.Array],
) -> tuple[list[jax.Array], tuple[jax.Array, jax.Array]]:
    """Launches both, for sizes that `fits` has.

    Args:
      tokens: queries, keys and values, bfloat16.
      rows: [B, N, H, 5, L] float32, `chunks.stack` and `steps.step_rows`.
      obs_var: [B, N, H G, L] float32, r_i^2.
      first: parts, bfloat16, of the first covariance [B H G, parts, D, D] and of the first mean
        [B H G, parts, D, m].

    Returns:
      What `fwd.run_chain` returns, and what `reads.run_reads` does.

    Raises:
      ValueError: sizes that a program has no room for.
    """
    _, chunks, _, places, width = tokens.values.shape
    heads, dim = tokens.keys.shape[3:]
    programs, parts = first[0].shape[:2]
    if (dim, width, parts) != (DIMS[-1], TEAM * BAND, 2):
        found = f"D={dim}, {width} channels a group and {parts} parts"
        raise ValueError(f"tokens: found {found}, wanted {DIMS[-1]}, {TEAM * BAND} and 2")
    out = [
        *fwd.outputs(programs, chunks, parts, dim),
        *_read_outputs(tokens, programs, parts),
    ]
    body = functools.partial(_body, programs=programs, groups=places // heads)
    *factors, read, means = warpgroups.mosaic_kernel(
        body,
        out,
        _scratch(dim, parts),
        grid=(2 * programs,),
        grid_names=("program",),
        num_threads=TEAM,
        thread_name="half",
    )(*tokens, *rows, obs_var, *first)
    return factors, (read, means)


Passed = tuple[tuple[fwd.Parts, jax.Array], tuple[jax.Array, jax.Array]]


def _apart(
    tokens: Tokens, vectors: Vectors, cov: jax.Array, first: jax.Array, config: Config
) -> Passed:
    """`filter_and_read` by two launches."""
    parts, covs = fwd.covariance_chain(tokens.keys, vectors, cov, config)
    return (parts, covs), reads.read_chunks(tokens, vectors, parts, first, config)


def _in_one(
    tokens: Tokens, vectors: Vectors, cov: jax.Array, first: jax.Array, config: Config
) -> Passed:
    """`filter_and_read` by one launch, or interpreted one after the other."""
    means, rows = tiles.parts_of(first, config.parts), steps.step_rows(vectors)
    if config.interpret:
        parts, covs = fwd.covariance_chain(tokens.keys, vectors, cov, config)
        return (parts, covs), run_readers(tokens, rows, *parts, means, interpret=True)
    beliefs = fwd.symmetric_parts(cov, config), means
    found, read = run_beside(tokens, (stack(vectors), rows), vectors.obs_var, beliefs)
    inverse, writes, covs = found
    return (fwd.Parts(inverse, writes), covs), read


def filter_and_read(
    tokens: Tokens, vectors: Vectors, cov: jax.Array, first: jax.Array, config: Config
) -> Passed:
    """Returns what `fwd.covariance_chain` and `reads.read_chunks` do, by one launch where it pays.

    Args:
      tokens: queries, keys and values, bfloat16.
      vectors: the numbers of each token.
      cov: [B, H, G, D, D], before the first chunk.
      first: [B, H, G, D, m], the mean before the first chunk.
      config: tuning values.
    """
    apart = functools.partial(_apart, config=config)
    programs = math.prod(cov.shape[:3])
    if not fits(cov.shape[-1], tokens.values.shape[-1], programs, config):
        return apart(tokens, vectors, cov, first)
    in_one = custom_vmap(functools.partial(_in_one, config=config))

    # `jax.vmap` would make one launch of several, which then shared one set of counts.
    @in_one.def_vmap
    def _(size: int, mapped: Any, *given: Any) -> tuple[Passed, Any]:
        places = jax.tree.map(lambda one: 0 if one else None, tuple(mapped))
        found = jax.vmap(apart, in_axes=places, axis_size=size)(*given)
        return found, jax.tree.map(lambda _: True, found)

    return in_one(tokens, vectors, cov, first)
