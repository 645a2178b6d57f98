"""The delta rule's kernels against the algebra and the recurrence, and lowered for CUDA.

Without a GPU they are interpreted; `pytest tests/kernels_pallas --device=gpu` runs them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.ops.delta.reference import recurrent
from kernels_pallas.delta_chunk import algebra, fwd, op
from kernels_pallas.kalman_chunk import tiles
from kernels_pallas.kalman_chunk.chunks import Tokens, stack
from kernels_pallas.kalman_chunk.config import Config
from tests.kernels_pallas.kernel_checks import assert_cotangent_close, count_kernels
from tests.kernels_pallas.test_delta_chunk_algebra import differentiable, prepared, weighted_loss
from tests.kernels_pallas.test_kalman_chunk_kernels import (
    KERNELS,
    ON_GPU,
    needs_interpreter,
    run_kernels,
)
from tests.ops import cases
from tests.tolerances import assert_close

LENGTH = tiles.LENGTH
HIGHEST = jax.lax.Precision.HIGHEST


def case(dim, kind="plain", heads=1, chunks=2, width=64):
    """Tokens, numbers of each token and a memory [1, heads, 1, dim, width]: `chunks` chunks."""
    rng = np.random.default_rng(dim)
    keys = rng.standard_normal((1, chunks, LENGTH, heads, dim))
    if kind == "alike":  # the errors of a chunk then depend on each other most
        keys = keys[:, :, :1] + 0.3 * keys
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    log_decay = -rng.exponential(0.05, (1, chunks, heads, LENGTH))
    if kind != "alike":
        log_decay[:, 0, :, 20:30], log_decay[:, 1, :, 5] = -20.0, -100.0
    beta = rng.uniform(0.5 if kind == "alike" else 0.0, 1.0, log_decay.shape)
    beta[:, 0, 0, 3] = 0.0
    starts = jnp.asarray(rng.random((1, chunks, LENGTH)) < 0.04) if kind == "packed" else None
    low = functools.partial(jnp.asarray, dtype=jnp.bfloat16)
    values = rng.standard_normal((1, chunks, LENGTH, heads, width))
    tokens = Tokens(low(rng.standard_normal(keys.shape)), low(keys), low(values))
    f32 = functools.partial(jnp.asarray, dtype=jnp.float32)
    vectors = algebra.make_vectors(f32(log_decay), f32(beta), starts)
    return tokens, vectors, f32(rng.standard_normal((1, heads, 1, dim, width)))


@needs_interpreter
@pytest.mark.parametrize(
    "dim,kind,parts", ((64, "plain", 2), (64, "alike", 3), (128, "alike", 2), (128, "packed", 3))
)
def test_inverse_kernel_equals_the_algebra(dim, kind, parts):
    tokens, vectors, _ = case(dim, kind, heads=2)
    terms = algebra.expand(tokens, vectors, HIGHEST)
    wanted = algebra.factors(terms, HIGHEST).inverse[:, :, :, 0]
    with run_kernels():
        found = fwd.run_inverse(tokens.keys, stack(vectors), parts=parts, interpret=not ON_GPU)
    found = tiles.by_chunk(tiles.join_in_xla(found, axis=2), (1, 2, 1))[:, :, :, 0]
    found = found.swapaxes(-1, -2)
    assert not np.triu(found, 1).any()
    scale = float(jnp.abs(wanted).max())
    assert_close(found / scale, wanted / scale, f"{parts} parts")


@needs_interpreter
@pytest.mark.parametrize("dim,kind", ((64, "packed"), (128, "plain")))
def test_forward_kernels_equal_the_algebra(dim, kind):
    given = case(dim, kind)
    (reads, memory), _ = op._forward(*given, Config(kernel=False))
    with run_kernels():
        (found_reads, found_memory), _ = op._forward(*given, KERNELS())
    scale = float(jnp.abs(memory).max())
    assert_close(found_reads, reads, jnp.bfloat16)
    assert_close(found_memory / scale, memory / scale, "2 parts")


@needs_interpreter
@pytest.mark.parametrize("dim,value_dim,kind", ((64, 64, "identity"), (32, 48, "scalar")))
def test_the_op_on_kernels_equals_the_recurrence(dim, value_dim, kind):
    sizes = {"dim": dim, "value_dim": value_dim, "batch": 1, "heads": 1, "key_heads": 1}
    given = cases.memory(3, 70, "beta", kind, packed=kind == "scalar", **sizes)
    for name in ("q", "k", "v"):
        given[name] = np.asarray(jnp.asarray(given[name], jnp.bfloat16), np.float32)
    inputs = prepared(given, jnp.float32)
    varied = differentiable(inputs)

    def kernels(inputs):
        return op.run_tokens(inputs, KERNELS())

    # Weights that bfloat16 holds: the cotangent of the reads comes as such.
    losses = [
        weighted_loss(form, inputs, jnp.bfloat16) for form in (lambda x: recurrent(x, 0), kernels)
    ]
    wanted = jax.jit(jax.grad(losses[0]))(varied)
    y, memory = jax.jit(recurrent, static_argnums=1)(inputs, 0)
    with run_kernels():
        found_y, found_memory = kernels(inputs)
        found = jax.grad(losses[1])(varied)
    assert found_y.dtype == jnp.bfloat16
    assert_close(found_y, y, jnp.bfloat16)
    assert_close(found_memory, memory, np.float32, length=70)
    for name in varied:
        rounded = name in ("q", "k", "v")
        assert_cotangent_close(found[name], wanted[name], rounded, np.float32, length=70)


@pytest.mark.parametrize("dim,parts", ((64, 2), (64, 3), (128, 2)))
def test_kernels_lower_for_cuda(dim, parts):
    shape, batch, chunks, heads = jax.ShapeDtypeStruct, 2, 3, 5
    keys = shape((batch, chunks, LENGTH, heads, dim), jnp.bfloat16)
    rows = shape((batch, chunks, heads, 5, LENGTH), jnp.float32)
    assert count_kernels(functools.partial(fwd.run_inverse, parts=parts), keys, rows) == 1


def test_forward_and_backward_lower_for_cuda():
    f32, shape = jnp.float32, jax.ShapeDtypeStruct
    sizes = {"dim": 96, "value_dim": 48, "batch": 1, "heads": 2, "key_heads": 2}
    inputs = prepared(cases.memory(3, 70, "beta", "scalar", packed=True, **sizes), f32)
    loss = weighted_loss(lambda x: op.run_tokens(x, Config()), inputs)
    varied = jax.tree.map(lambda x: shape(x.shape, x.dtype), differentiable(inputs))
    # The inverse and the reads; before the walk back, the walk, and after it.
    assert count_kernels(jax.grad(loss), varied) == 5
