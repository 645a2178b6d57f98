"""Steps of 16 tokens against the algebra of chunks, and when they are taken.

Both the forward pass alone and readers beside a chain of chunks.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from bayesmem.ops.kalman.chunked import chunked
from kernels_pallas.kalman_chunk import beside, op, steps
from kernels_pallas.kalman_chunk.chunks import make_vectors, stack
from kernels_pallas.kalman_chunk.config import Config
from tests.kernels_pallas.kernel_checks import assert_passed_close, count_kernels
from tests.kernels_pallas.test_kalman_chunk_algebra import prepared
from tests.kernels_pallas.test_kalman_chunk_kernels import (
    KERNELS,
    LENGTH,
    ON_GPU,
    case,
    needs_interpreter,
    run_kernels,
)
from tests.ops import cases
from tests.tolerances import assert_close


def filtered(*given):
    with run_kernels():
        return op._filter(*given, KERNELS())


@needs_interpreter
@pytest.mark.parametrize(
    "groups,packed,floor", ((1, False, False), (2, True, False), (1, True, True))
)
def test_steps_equal_the_algebra(groups, packed, floor):
    tokens, vectors, cov, mean = case(64, 64, groups, packed, chunks=3)
    if floor:  # r^2 at its floor for half of the readings
        low = np.random.default_rng(0).random(vectors.obs_var.shape) < 0.5
        vectors = vectors._replace(obs_var=jnp.where(low, 1e-6, vectors.obs_var))
    wanted = op._filter(tokens, vectors, cov, mean, Config(kernel=False))
    found = filtered(tokens, vectors, cov, mean)
    assert_passed_close(found, wanted)
    for covs in (found.cov, found.entry_cov):
        if ON_GPU:  # symmetric to the bit; an interpreter sums as its processor does
            assert np.array_equal(covs, covs.swapaxes(-1, -2))
        assert_close(covs, covs.swapaxes(-1, -2), "float32")


@needs_interpreter
def test_a_reading_that_says_nothing_changes_nothing():
    """A huge r^2 is how a token is left out: nothing of it may be seen, and nothing overflow."""
    tokens, vectors, cov, mean = case(64, 64)
    out = vectors.obs_var.at[..., ::3].set(1e30)
    tokens = tokens._replace(values=tokens.values.at[:, :, ::3].set(1.0))
    other = tokens._replace(values=tokens.values.at[:, :, ::3].set(-1.0))
    one, two = (filtered(x, vectors._replace(obs_var=out), cov, mean) for x in (tokens, other))
    for x, y in zip(one, two, strict=True):
        assert bool(jnp.isfinite(x.astype(jnp.float32)).all())
        np.testing.assert_array_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))


@needs_interpreter
@pytest.mark.parametrize("dim,value_dim", ((48, 96), (100, 200)))  # steps; readers beside a chain
def test_the_op_undifferentiated_equals_the_chunk_form(dim, value_dim):
    # D and M/G are padded, T to 128; sequences, heads and groups have to find their own.
    sizes = {"dim": dim, "value_dim": value_dim, "batch": 2, "heads": 2, "key_heads": 2}
    given = cases.kalman(5, 70, "scalar", groups=2, packed=True, **sizes)
    given |= {
        n: np.asarray(jnp.asarray(given[n], jnp.bfloat16), np.float32) for n in ("q", "k", "v")
    }
    inputs = jax.tree.map(
        lambda x: x if x.dtype == bool else x.astype(jnp.float32), prepared(given)
    )
    wanted = jax.jit(lambda x: chunked(x, 16))(inputs)
    with run_kernels():
        found = op.filter_tokens(inputs, KERNELS())
    for name in ("y", "var", "mean", "cov"):
        one, other = (jnp.asarray(getattr(x, name), jnp.float32) for x in (found, wanted))
        scale = float(jnp.abs(other).max())
        assert_close(one / scale, other / scale, jnp.bfloat16 if name == "y" else "2 parts")


@pytest.mark.skipif(ON_GPU, reason="races are found by the interpreter")
@needs_interpreter
def test_the_warpgroups_of_a_step_do_not_race():
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
        jax.block_until_ready(op._filter(*case(64, 64), KERNELS()))
    assert not gpu_callbacks.get_races().races_found


def test_numbers_of_a_step_are_those_of_a_chunk_as_long():
    rng = np.random.default_rng(0)
    shape = (1, 2, 3, LENGTH)
    log_decay = -rng.exponential(1.0, shape)
    log_decay[..., 20:30], log_decay[..., 7] = -20.0, -100.0
    given = [jnp.asarray(x, jnp.float32) for x in (log_decay, *rng.uniform(0.1, 1.0, (2, *shape)))]
    starts = jnp.asarray(rng.random((1, 2, LENGTH)) < 0.1)
    prior = jnp.ones(3)
    found = steps.step_rows(make_vectors(*given, prior, starts))

    def short(x):
        """[1, 2, 3, 64] -> [1, 8, 3, 16]."""
        return jnp.moveaxis(x.reshape(1, 2, 3, 4, 16), 3, 2).reshape(1, 8, 3, 16)

    vectors = make_vectors(*map(short, given), prior, starts.reshape(1, 8, 16))
    wanted = stack(vectors).reshape(1, 2, 4, 3, 5, 16)
    wanted = jnp.moveaxis(wanted, 2, 4).reshape(found.shape)
    for row in (0, 1, 4):  # the others are sums from the chunk's entry
        assert_close(found[..., row, :], wanted[..., row, :], jnp.float32)


def reads_of(*given):
    return op.pass_chunks(*given, Config()).reads


def pull_reads(tokens, vectors, cov, mean):
    return jax.grad(lambda x: reads_of(tokens, vectors, cov, x).astype(jnp.float32).sum())(mean)


def test_steps_are_taken_where_nothing_is_differentiated():
    for dim, width, one in ((64, 64, True), (64, 128, False), (128, 64, False)):
        given = jax.eval_shape(functools.partial(case, dim, width))
        assert count_kernels(reads_of, *given) == (1 if one else 2)
    given = jax.eval_shape(functools.partial(case, 64, 64))
    # Chunks forward, and of the reverse what the first mean needs.
    assert count_kernels(pull_reads, *given) == 2 + 2


def several(given, axis, count):
    """Shapes of arrays with a first axis, or of a first axis that is `count` times as long."""
    sizes = (count,) if axis is None else ()
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            (*sizes, *(x.shape if axis is None else (count * x.shape[0], *x.shape[1:]))), x.dtype
        ),
        given,
    )


def test_readers_run_beside_a_chain_that_leaves_them_room():
    given = jax.eval_shape(functools.partial(case, 128, 128))
    assert count_kernels(reads_of, *given) == 1
    assert count_kernels(pull_reads, *given) == 1 + 2
    for programs, kernels in ((66, 1), (67, 2)):  # of 132 multiprocessors
        assert count_kernels(reads_of, *several(given, 0, programs)) == kernels
    # One set of counts a launch: calls that vmap joins have to be two launches.
    assert count_kernels(jax.vmap(reads_of), *several(given, None, 3)) == 2
    assert count_kernels(jax.vmap(pull_reads), *several(given, None, 3)) == 2 + 2


def test_sizes_without_readers_are_named():
    tokens, _, cov, mean = jax.eval_shape(functools.partial(case, 128, 64))
    rows = jax.ShapeDtypeStruct((1, 2, 1, 5, LENGTH), jnp.float32)
    obs_var = jax.ShapeDtypeStruct((1, 2, 1, LENGTH), jnp.float32)
    first = [jax.ShapeDtypeStruct((1, 2, *x.shape[-2:]), jnp.bfloat16) for x in (cov, mean)]
    with pytest.raises(ValueError, match="found D=128, 64 channels a group and 2 parts"):
        jax.eval_shape(beside.run_beside, tokens, (rows, rows), obs_var, tuple(first))


def test_sizes_without_steps_are_named():
    tokens, _, cov, mean = jax.eval_shape(functools.partial(case, 128, 64))
    rows = jax.ShapeDtypeStruct((1, 2, 1, 5, LENGTH), jnp.float32)
    obs_var = jax.ShapeDtypeStruct((1, 2, 1, LENGTH), jnp.float32)
    first = [jax.ShapeDtypeStruct((1, 2, *x.shape[-2:]), jnp.bfloat16) for x in (cov, mean)]
    with pytest.raises(ValueError, match="found D=128, 64 channels a group and 2 parts"):
        jax.eval_shape(steps.run_steps, tokens, rows, obs_var, tuple(first))
