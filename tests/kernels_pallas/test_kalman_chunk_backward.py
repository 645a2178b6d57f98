"""The Kalman chunk's reverse by kernels against the plain JAX that defines it.

Without a GPU they are interpreted; `pytest tests/kernels_pallas --device=gpu` runs them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import algebra, back, op, tiles
from kernels_pallas.kalman_chunk.chunks import Tokens, Vectors, expand
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.fwd import Parts
from tests.kernels_pallas.kernel_checks import assert_cotangent_close, count_kernels
from tests.kernels_pallas.test_kalman_chunk_kernels import (
    KERNELS,
    LENGTH,
    ON_GPU,
    case,
    needs_interpreter,
    run_kernels,
)

HIGHEST = jax.lax.Precision.HIGHEST


def split(x, parts):
    """[N, B, H, G, ...] float32 as the kernels keep it, and as what they keep stands for."""
    pieces = jnp.stack(tiles.split_in_xla(tiles.by_program(x), parts), axis=2)
    return pieces, tiles.by_chunk(tiles.join_in_xla(pieces, axis=2), x.shape[1:4])


@functools.partial(jax.jit, static_argnums=2)
def passed_forward(given, obs_var, parts):
    """What the forward pass of a case keeps, in both forms."""
    tokens, vectors, cov, mean = given
    vectors = vectors._replace(obs_var=obs_var)
    terms = expand(tokens, vectors, HIGHEST)
    last_cov, factors = algebra.covariance_chain(terms, cov)
    last, means = algebra.mean_chain(terms, factors, mean)
    inverse, inverse_of = split(factors.inverse.swapaxes(-1, -2), parts)
    writes, writes_of = split(factors.writes, parts)
    covs, cov_of = split(jnp.concatenate([factors.cov, last_cov[None]]), parts)
    means, mean_of = split(jnp.concatenate([means, last[None]]), parts)
    of = algebra.Factors(inverse_of.swapaxes(-1, -2), writes_of, cov_of[:-1])
    lead = tokens, vectors
    return (*lead, (Parts(inverse, writes), covs), means), (*lead, of, mean_of[:-1])


def zero(shape, dtype):
    """The cotangent of what nothing depends on."""
    aval = jax.core.ShapedArray(shape, jnp.dtype(dtype))
    return jax.custom_derivatives.SymbolicZero(aval)


def cotangents(tokens, cov, mean, absent):
    rng = np.random.default_rng(6)

    def normal(name, shape, dtype):
        if name in absent:
            return zero(shape, dtype)
        return jnp.asarray(rng.standard_normal(shape), dtype)

    f32, none = jnp.float32, zero((), jnp.float32)
    reads = normal("reads", tokens.values.shape, jnp.bfloat16)
    lasts = normal("mean", mean.shape, f32), normal("cov", cov.shape, f32)
    return op.Passed(reads, *lasts, none, none)


@needs_interpreter
@pytest.mark.parametrize(
    "dim,width,groups,parts,packed,absent",
    (
        (64, 64, 1, 2, False, ()),
        (64, 128, 2, 2, True, ()),
        (128, 128, 1, 2, True, ("mean", "cov")),
        (128, 64, 1, 2, True, ()),  # bands of values for one of two warpgroups only
        (64, 64, 1, 3, True, ("reads",)),
        (256, 64, 2, 2, True, ()),  # in XLA, from what kernels keep
    ),
)
def test_reverse_by_kernels_equals_its_definition(dim, width, groups, parts, packed, absent):
    given = case(dim, width, groups, packed)
    obs_var = given[1].obs_var
    obs_var = obs_var if packed else obs_var.at[..., ::3].set(1e-6)  # some below the floor
    kept, spelled = passed_forward(given, obs_var, parts)
    passed_ct = cotangents(given[0], *given[2:], absent)
    wanted = jax.jit(lambda *x: op._pass_backward(Config(kernel=False), x, passed_ct))(*spelled)
    with run_kernels():
        found = op._pass_backward(KERNELS(parts=parts), kept, passed_ct)
    pairs = zip(jax.tree.leaves_with_path(found), jax.tree.leaves(wanted), strict=True)
    for (path, one), other in pairs:
        assert one.dtype == other.dtype
        rounded = other.dtype == jnp.bfloat16
        # What n_i does by S and by Cov(S_j) k_j cancels to a quarter of either and less at the
        # floor; away from it, it does not cancel.
        cancels = not packed and jax.tree_util.keystr(path).endswith(".noise")
        assert_cotangent_close(one, other, rounded, f"{parts} parts", length=16 if cancels else 1)


@pytest.mark.skipif(ON_GPU, reason="races are found by the interpreter")
@needs_interpreter
@pytest.mark.parametrize("width", (128, 192))  # as many bands for both warpgroups, or not
def test_warpgroups_do_not_race_backward(width):
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

    given = case(128, width, packed=True)
    kept, _ = passed_forward(given, given[1].obs_var, 2)
    passed_ct = cotangents(given[0], *given[2:], ())
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
        jax.block_until_ready(op._pass_backward(KERNELS(), kept, passed_ct))
    assert not gpu_callbacks.get_races().races_found


@pytest.mark.parametrize(
    "dim,width,groups,parts", ((64, 64, 2, 2), (64, 128, 1, 3), (128, 128, 1, 2))
)
def test_reverse_lowers_for_cuda(dim, width, groups, parts):
    shape, low, f32 = jax.ShapeDtypeStruct, jnp.bfloat16, jnp.float32
    batch, chunks, heads = 2, 3, 5
    lead, programs = (batch, chunks, LENGTH), batch * heads * groups
    keys, values = shape((*lead, heads, dim), low), shape((*lead, heads * groups, width), low)
    numbers = shape((batch, chunks, heads, LENGTH), f32)
    obs_var = shape((batch, chunks, heads * groups, LENGTH), f32)

    def of(*sizes):
        return shape((programs, *sizes), low)

    square, tall = of(chunks, parts, LENGTH, LENGTH), of(chunks, parts, LENGTH, dim)
    lasts = (shape((batch, heads, groups, dim, n), f32) for n in (width, dim))
    arguments = (
        Tokens(keys, keys, values),
        Vectors(*[numbers] * 5, obs_var, numbers),
        (Parts(square, tall), of(chunks + 1, parts, dim, dim)),
        of(chunks + 1, parts, dim, width),
        (values, *lasts),
    )
    assert count_kernels(lambda *x: back.backward(*x, Config(parts=parts)), *arguments) == 6
