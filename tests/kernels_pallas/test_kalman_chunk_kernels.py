"""The Kalman chunk's kernels against the algebra and the XLA form, and lowered for CUDA.

Without a GPU they are interpreted; `pytest tests/kernels_pallas --device=gpu` runs them.
"""

import contextlib
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from bayesmem.ops.kalman.chunked import chunked
from kernels_pallas.kalman_chunk import (
    algebra,
    back,
    bwd,
    fwd,
    op,
    reads,
    reverse,
    tiles,
)
from kernels_pallas.kalman_chunk.chunks import Tokens, between, expand, make_vectors
from kernels_pallas.kalman_chunk.config import Config
from tests.kernels_pallas.kernel_checks import (
    assert_cotangent_close,
    assert_passed_close,
    count_kernels,
)
from tests.kernels_pallas.test_kalman_chunk_algebra import differentiable, prepared, symmetric
from tests.ops import cases
from tests.tolerances import assert_close

LENGTH = tiles.LENGTH
ON_GPU = jax.default_backend() == "gpu"
KERNELS = functools.partial(Config, interpret=not ON_GPU)
run_kernels = contextlib.nullcontext if ON_GPU else getattr(plgpu, "force_gpu_interpret_mode", None)
needs_interpreter = pytest.mark.skipif(
    not (ON_GPU or hasattr(plgpu, "force_gpu_interpret_mode")),
    reason=f"no GPU, and jax {jax.__version__} has no interpreter of Mosaic GPU kernels "
    f"(0.11.2 has)",
)


def case(dim, width, groups=1, packed=False, chunks=2):
    """Tokens of `chunks` chunks of one head, strong decays and padding included, and a belief."""
    rng = np.random.default_rng(dim + width)
    lead = (1, chunks, LENGTH)
    keys = rng.standard_normal((*lead, 1, dim))
    log_decay = -rng.exponential(0.05, (1, chunks, 1, LENGTH))
    log_decay[:, 0, :, 20:30], log_decay[:, 1, :, 5] = -20.0, -100.0
    low = functools.partial(jnp.asarray, dtype=jnp.bfloat16)
    tokens = Tokens(
        low(rng.standard_normal(keys.shape)),
        low(keys / np.linalg.norm(keys, axis=-1, keepdims=True)),
        low(rng.standard_normal((*lead, groups, width))),
    )
    vectors = make_vectors(
        jnp.asarray(log_decay, jnp.float32),
        jnp.asarray(rng.uniform(0, 0.1, log_decay.shape), jnp.float32),
        jnp.asarray(rng.uniform(0.05, 0.5, (1, chunks, groups, LENGTH)), jnp.float32),
        jnp.ones((1,), jnp.float32),
        jnp.asarray(rng.random((1, chunks, LENGTH)) < 0.04) if packed else None,
    )
    root = rng.standard_normal((1, 1, groups, dim, dim))
    cov = jnp.asarray(root @ root.swapaxes(-1, -2) / dim + 0.1 * np.eye(dim), jnp.float32)
    mean = jnp.asarray(rng.standard_normal((1, 1, groups, dim, width)), jnp.float32)
    return tokens, vectors, cov, mean


@needs_interpreter
@pytest.mark.parametrize(
    "dim,groups,parts,packed",
    ((64, 2, 3, True), (128, 1, 2, True), (256, 1, 2, True)),
)
def test_covariance_kernel_equals_the_algebra(dim, groups, parts, packed):
    tokens, vectors, cov, _ = case(dim, 64, groups, packed)
    terms = expand(tokens, vectors, jax.lax.Precision.HIGHEST)
    last, wanted = jax.jit(algebra.covariance_chain)(terms, cov)
    with run_kernels():
        stored = fwd.covariance_chain(tokens.keys, vectors, cov, KERNELS(parts=parts))
    found, last_found = fwd.factors(*stored, (1, 1, groups))
    for one, other in zip((*found, last_found), (*wanted, last), strict=True):
        scale = float(jnp.abs(other).max())
        assert_close(one / scale, other / scale, f"{parts} parts")
    if ON_GPU:  # symmetric to the bit; products of an interpreter are as its processor sums them
        assert np.array_equal(found.cov, found.cov.swapaxes(-1, -2))
    assert_close(found.cov, found.cov.swapaxes(-1, -2), "float32")


@needs_interpreter
@pytest.mark.parametrize(
    "dim,width,groups,packed",
    (
        (64, 128, 1, True),
        (128, 64, 2, False),
        (128, 128, 2, True),  # readers beside the chain
        (256, 64, 1, False),
    ),
)
def test_both_kernels_equal_the_algebra(dim, width, groups, packed):
    given = case(dim, width, groups, packed)
    wanted = op._forward(*given, Config(kernel=False))[0]
    with run_kernels():
        found = op._forward(*given, KERNELS())[0]
    assert_passed_close(found, wanted)


@pytest.mark.skipif(ON_GPU, reason="races are found by the interpreter")
@needs_interpreter
@pytest.mark.parametrize("dim,width", ((64, 64), (64, 128), (128, 128), (128, 64), (256, 64)))
def test_warpgroups_do_not_race(dim, width):
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

    params = plgpu.InterpretGPUParams(detect_races=True)
    with plgpu.force_gpu_interpret_mode(params):
        jax.block_until_ready(op._forward(*case(dim, width), KERNELS()))
    assert not gpu_callbacks.get_races().races_found


@needs_interpreter
@pytest.mark.parametrize("outputs", (("y", "mean", "cov"), ("y", "var", "mean", "cov")))
def test_the_op_on_kernels_equals_the_chunk_form(monkeypatch, outputs):
    reverse_by_kernels = mock.Mock(side_effect=back.backward)
    monkeypatch.setattr(back, "backward", reverse_by_kernels)
    # D and M/G are padded to 64, T to 128.
    case = cases.kalman(
        3, 70, "scalar", groups=2, packed=True, dim=48, value_dim=96, batch=1, heads=1, key_heads=1
    )
    case |= {n: np.asarray(jnp.asarray(case[n], jnp.bfloat16), np.float32) for n in ("q", "k", "v")}
    inputs = jax.tree.map(lambda x: x if x.dtype == bool else x.astype(jnp.float32), prepared(case))

    def loss(varied, form):
        rng = np.random.default_rng(4)
        found = form(inputs._replace(**varied))
        found = [getattr(found, name) for name in outputs]
        # Cotangents that bfloat16 holds: that of the reads comes as such.
        weights = [jnp.asarray(rng.standard_normal(x.shape), jnp.bfloat16) for x in found]
        return sum(jnp.sum(w.astype(jnp.float32) * x) for w, x in zip(weights, found, strict=True))

    varied = differentiable(inputs)
    # In chunks of 16, which compile several times faster than those of the kernels.
    wanted = symmetric(jax.jit(jax.grad(lambda x: loss(x, lambda y: chunked(y, 16))))(varied))
    with run_kernels():
        kernels = functools.partial(op.filter_tokens, config=KERNELS())
        found = symmetric(jax.grad(lambda x: loss(x, kernels))(varied))
    # Of a cotangent of `var`, XLA has the reverse but for its walk.
    assert reverse_by_kernels.called == ("var" not in outputs)
    for name in varied:
        rounded = name in ("q", "k", "v")
        assert_cotangent_close(found[name], wanted[name], rounded, np.float32, length=70)


@needs_interpreter
def test_the_op_pads_to_the_largest_kernels():
    # D to 256, M/G to 128, T to 128.
    case = cases.kalman(
        4, 70, "scalar", packed=True, dim=130, value_dim=70, batch=1, heads=1, key_heads=1
    )
    case |= {n: np.asarray(jnp.asarray(case[n], jnp.bfloat16), np.float32) for n in ("q", "k", "v")}
    inputs = jax.tree.map(lambda x: x if x.dtype == bool else x.astype(jnp.float32), prepared(case))
    wanted = jax.jit(lambda x: chunked(x, 16))(inputs)
    with run_kernels():
        found = op.filter_tokens(inputs, KERNELS())
    for name in ("y", "var", "mean", "cov"):
        one, other = (jnp.asarray(getattr(x, name), jnp.float32) for x in (found, wanted))
        scale = float(jnp.abs(other).max())
        assert_close(one / scale, other / scale, jnp.bfloat16 if name == "y" else "2 parts")


@needs_interpreter
@pytest.mark.parametrize("dim,width,both", ((64, 64, True), (64, 128, False), (128, 128, True)))
def test_reverse_kernel_equals_a_scan(dim, width, both):
    rng = np.random.default_rng(dim + width)

    def normal(*shape):
        x = rng.standard_normal(shape)
        return jnp.asarray(x + np.swapaxes(x, -1, -2) if both else x, jnp.float32)

    transition = jnp.asarray(rng.standard_normal((3, 1, 1, 1, dim, dim)) / dim**0.5, jnp.float32)
    given = transition, normal(3, 1, 1, 1, dim, width), normal(1, 1, 1, dim, width), both
    wanted = bwd.walk_back(*given, functools.partial(jnp.matmul, precision="highest"))
    with run_kernels():
        found = reverse.walk_back(*given, None, config=KERNELS())
    for one, other in zip(found, wanted, strict=True):
        scale = float(jnp.abs(other).max())
        assert_close(one / scale, other / scale, "2 parts")


@pytest.mark.parametrize("dim,parts", ((64, 2), (64, 3), (128, 2)))
def test_kernels_lower_for_cuda(dim, parts):
    shape, low, f32 = jax.ShapeDtypeStruct, jnp.bfloat16, jnp.float32
    batch, chunks, heads, groups = 2, 3, 5, 2

    def of(*sizes, dtype=low):
        return shape((batch * heads * groups, *sizes), dtype)

    lead = batch, chunks, LENGTH
    keys, values = (shape((*lead, n, dim), low) for n in (heads, heads * groups))
    rows = shape((batch, chunks, heads, 5, LENGTH), f32)
    obs_var = shape((batch, chunks, heads * groups, LENGTH), f32)
    square, tall = of(chunks, parts, LENGTH, LENGTH), of(chunks, parts, LENGTH, dim)
    chain = keys, rows, obs_var, of(parts, dim, dim)
    read = Tokens(keys, keys, values), rows, square, tall, of(parts, dim, dim)
    f, own, last = of(chunks, parts, dim, dim), of(chunks, dim, dim, dtype=f32), of(parts, dim, dim)
    walks = [functools.partial(reverse.run_reverse, both=both) for both in (False, True)]
    for kernel, arguments in (
        (fwd.run_chain, chain),
        (reads.run_reads, read),
        *((walk, (f, own, last)) for walk in walks),
    ):
        assert count_kernels(kernel, *arguments) == 1


def test_a_cluster_lowers_for_cuda():
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    keys, first = ((2, 3, LENGTH, 5, 256), (10, 2, 256, 256))
    given = shape((2, 3, 5, 5, LENGTH)), shape((2, 3, 5, LENGTH))
    keys, first = (jax.ShapeDtypeStruct(x, jnp.bfloat16) for x in (keys, first))
    assert count_kernels(fwd.run_chain, keys, *given, first) == 1
    three = jax.ShapeDtypeStruct((10, 3, 256, 256), jnp.bfloat16)
    with pytest.raises(ValueError, match="parts: found 3"):
        jax.eval_shape(fwd.run_chain, keys, *given, three)
    inverse = jax.ShapeDtypeStruct((10, 3, 2, LENGTH, LENGTH), jnp.bfloat16)
    writes = jax.ShapeDtypeStruct((10, 3, 2, LENGTH, 256), jnp.bfloat16)
    read = Tokens(keys, keys, keys), given[0], inverse
    assert count_kernels(reads.run_reads, *read, writes, first) == 1
    with pytest.raises(ValueError, match="writes: found none at D=256"):
        jax.eval_shape(lambda *x: reads.run_reads(*x[:3], None, x[3]), *read, first)


def test_parts_add_up():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 64)), jnp.float32)
    for count, digits in ((1, 8), (2, 16), (3, 24)):
        joined = sum(part.astype(jnp.float32) for part in tiles.split(x, count))
        assert float(jnp.abs(joined - x).max() / jnp.abs(x).max()) <= 2.0**-digits


def test_decays_come_from_sums_of_their_logs():
    rng = np.random.default_rng(0)
    log_decay = -rng.exponential(0.05, (1, 1, 1, LENGTH))
    log_decay[..., 5:9] = -90.0
    ones = jnp.ones((1, 1, 1, LENGTH))
    starts = jnp.asarray(np.arange(LENGTH) == 40)[None, None]
    vectors = make_vectors(
        jnp.asarray(log_decay, jnp.float32), ones, ones, ones[0, 0, 0, :1], starts
    )
    ratio = np.exp(np.subtract.outer(*[np.cumsum(log_decay.ravel())] * 2))
    document = np.arange(LENGTH) >= 40
    ratio = np.tril(ratio * (document[:, None] == document[None]))
    assert_close(between(vectors.coarse, vectors.fine)[0, 0, 0], ratio, np.float32)
    assert_close(vectors.to_end[0, 0, 0], ratio[-1], np.float32)
