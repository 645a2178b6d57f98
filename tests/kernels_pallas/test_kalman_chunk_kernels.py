"""The Kalman chunk's kernels against the algebra and the XLA form, and lowered for CUDA.

Without a GPU they are interpreted; `JAX_PLATFORMS=cuda pytest tests/kernels_pallas` runs them.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental.pallas import mosaic_gpu as plgpu

from bayesmem.ops.kalman.chunked import chunked
from kernels_pallas.kalman_chunk import algebra, bwd, fwd, op, reads, reverse, tiles
from kernels_pallas.kalman_chunk.config import Config
from tests.kernels_pallas.test_kalman_chunk_algebra import differentiable, prepared, symmetric
from tests.ops import cases
from tests.tolerances import assert_close

LENGTH = tiles.LENGTH
ON_GPU = jax.default_backend() == "gpu"
KERNELS = functools.partial(Config, interpret=not ON_GPU)
run_kernels = contextlib.nullcontext if ON_GPU else getattr(plgpu, "force_gpu_interpret_mode", None)
needs_interpreter = pytest.mark.skipif(
    not (ON_GPU or hasattr(plgpu, "force_gpu_interpret_mode")),
    reason="neither a GPU nor an interpreter of this JAX",
)


def bf16(x):
    """float32 that bfloat16 holds."""
    return jnp.asarray(x, jnp.bfloat16).astype(jnp.float32)


def case(dim, width, groups=1, packed=False, chunks=2):
    """Terms of `chunks` chunks of one head, strong decays and padding included, and a belief."""
    rng = np.random.default_rng(dim + width)
    lead = (chunks, 1, 1)
    keys = rng.standard_normal((*lead, LENGTH, dim))
    log_decay = -rng.exponential(0.05, (*lead, LENGTH))
    log_decay[0, ..., 20:30], log_decay[1, ..., 5] = -20.0, -100.0
    starts = jnp.asarray(rng.random((chunks, 1, 1, LENGTH)) < 0.04) if packed else None
    terms = algebra.prepare(
        (
            bf16(rng.standard_normal(keys.shape)),
            bf16(keys / np.linalg.norm(keys, axis=-1, keepdims=True)),
            bf16(rng.standard_normal((*lead, groups, LENGTH, width))),
        ),
        jnp.asarray(log_decay, jnp.float32),
        jnp.asarray(rng.uniform(0, 0.1, (*lead, LENGTH)), jnp.float32),
        jnp.asarray(rng.uniform(0.05, 0.5, (*lead, groups, LENGTH)), jnp.float32),
        jnp.ones((1,), jnp.float32),
        starts,
    )
    root = rng.standard_normal((1, 1, groups, dim, dim))
    cov = jnp.asarray(root @ root.swapaxes(-1, -2) / dim + 0.1 * np.eye(dim), jnp.float32)
    mean = jnp.asarray(rng.standard_normal((1, 1, groups, dim, width)), jnp.float32)
    return terms, cov, mean


@needs_interpreter
@pytest.mark.parametrize(
    "dim,groups,parts,packed", ((64, 2, 3, True), (64, 1, 2, False), (128, 1, 2, True))
)
def test_covariance_kernel_equals_the_algebra(dim, groups, parts, packed):
    terms, cov, _ = case(dim, 64, groups, packed)
    wanted, factors = jax.jit(algebra.covariance_chain)(terms, cov)
    with run_kernels():
        found, made, _ = fwd.covariance_chain(terms, cov, KERNELS(parts=parts))
    # Two parts hold 16 bits of a number, three all 24.
    dtype = np.float32 if parts == 3 else jnp.bfloat16
    assert_close(found, wanted, dtype, length=dim)
    for one, other in zip(made, factors, strict=True):
        assert_close(one, other, dtype, length=dim)
    assert np.array_equal(made.cov, made.cov.swapaxes(-1, -2))


@needs_interpreter
@pytest.mark.parametrize("dim,width,groups,packed", ((64, 128, 1, True), (128, 64, 2, False)))
def test_both_kernels_equal_the_algebra(dim, width, groups, packed):
    given = case(dim, width, groups, packed)
    config = KERNELS()
    wanted = op._forward(*given, Config(kernel=False))[0]
    with run_kernels():
        last_cov, factors, parts = fwd.covariance_chain(*given[:2], config)
        read, mean, _ = reads.read_chunks(given[0], parts, given[2], config)
    found = op.Passed(read, mean, last_cov, factors.writes, factors.cov)
    for one, other in zip(found, wanted, strict=True):
        scale = float(jnp.abs(other).max())
        assert float(jnp.abs(one - other).max()) < 1e-4 * scale
        assert_close(one, other, jnp.bfloat16)


@needs_interpreter
def test_the_op_on_kernels_equals_the_chunk_form():
    case = cases.kalman(
        3, 70, "scalar", groups=2, packed=True, dim=64, value_dim=128, batch=1, heads=1, key_heads=1
    )
    case |= {name: np.asarray(bf16(case[name])) for name in ("q", "k", "v")}
    inputs = jax.tree.map(lambda x: x if x.dtype == bool else x.astype(jnp.float32), prepared(case))

    def loss(varied, form):
        rng = np.random.default_rng(4)
        outputs = form(inputs._replace(**varied))
        weights = [jnp.asarray(rng.standard_normal(x.shape), jnp.float32) for x in outputs]
        return sum(jnp.sum(w * x) for w, x in zip(weights, outputs, strict=True))

    varied = differentiable(inputs)
    wanted = symmetric(jax.jit(jax.grad(lambda x: loss(x, lambda y: chunked(y, 64))))(varied))
    with run_kernels():
        kernels = functools.partial(op.filter_tokens, config=KERNELS())
        found = symmetric(jax.grad(lambda x: loss(x, kernels))(varied))
    for name in varied:
        scale = float(jnp.abs(wanted[name]).max())
        assert_close(found[name] / scale, wanted[name] / scale, np.float32, "gradient", length=70)


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
        found = reverse.walk_back(*given, None, parts=2)
    for one, other in zip(found, wanted, strict=True):
        scale = float(jnp.abs(other).max())
        assert_close(one / scale, other / scale, np.float32, length=dim)


@pytest.mark.parametrize("dim,parts", ((64, 2), (64, 3), (128, 2)))
def test_kernels_lower_for_cuda(dim, parts):
    shape, low, f32 = jax.ShapeDtypeStruct, jnp.bfloat16, jnp.float32
    chunks = 3

    def of(*sizes, dtype=low):
        return shape((2, *sizes), dtype)

    keys, rows = of(chunks, LENGTH, dim), functools.partial(of, dtype=f32)
    square, tall = of(chunks, parts, LENGTH, LENGTH), of(chunks, parts, LENGTH, dim)
    chain = keys, rows(chunks, LENGTH, LENGTH), rows(chunks, 6, LENGTH), of(parts, dim, dim)
    read = (keys, keys, keys), rows(chunks, 4, LENGTH), square, tall, of(parts, dim, dim)
    calls = [export.DisabledSafetyCheck.custom_call(f"mosaic_gpu{v}") for v in ("", "_v2")]
    f, own, last = of(chunks, parts, dim, dim), rows(chunks, dim, dim), of(parts, dim, dim)
    back = [functools.partial(reverse.run_reverse, both=both) for both in (False, True)]
    for kernel, arguments in (
        (fwd.run_chain, chain),
        (reads.run_reads, read),
        *((kernel, (f, own, last)) for kernel in back),
    ):
        lowered = export.export(jax.jit(kernel), platforms=["cuda"], disabled_checks=calls)
        assert "mosaic_gpu" in lowered(*arguments).mlir_module()


def test_parts_add_up():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 64)), jnp.float32)
    for count, digits in ((1, 8), (2, 16), (3, 24)):
        joined = sum(part.astype(jnp.float32) for part in tiles.split(x, count))
        assert float(jnp.abs(joined - x).max() / jnp.abs(x).max()) <= 2.0**-digits


def test_sums_of_logs_give_the_decays():
    terms, _, _ = case(64, 64, packed=True)
    logs = tiles.log_sums(terms.ratio)
    decay = jnp.exp2(jnp.minimum(logs[..., :, None] - logs[..., None, :], 0.0))
    assert_close(jnp.tril(decay), terms.ratio, np.float32, length=LENGTH * LENGTH)
