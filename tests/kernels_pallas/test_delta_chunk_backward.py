"""The delta rule's reverse by kernels against the plain JAX that defines it.

Without a GPU they are interpreted; `pytest tests/kernels_pallas --device=gpu` runs them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas.delta_chunk import back, op
from kernels_pallas.kalman_chunk import tiles
from kernels_pallas.kalman_chunk.chunks import Tokens, Vectors
from kernels_pallas.kalman_chunk.config import Config
from tests.kernels_pallas.kernel_checks import assert_cotangent_close, count_kernels
from tests.kernels_pallas.test_delta_chunk_kernels import LENGTH, case
from tests.kernels_pallas.test_kalman_chunk_kernels import KERNELS, needs_interpreter, run_kernels


def by_program(x, parts, swapped=False):
    """[N, B, H, ...] float32 as the kernels keep it, and as what they keep stands for."""
    x = x.swapaxes(-1, -2) if swapped else x
    lead = (*x.shape[1:3], 1)
    pieces = tiles.split_in_xla(
        tiles.by_program(x.reshape(x.shape[0], *lead, *x.shape[-2:])), parts
    )
    pieces = jnp.stack(pieces, axis=2)
    joined = tiles.by_chunk(tiles.join_in_xla(pieces, axis=2), lead)
    return pieces, joined.swapaxes(-1, -2) if swapped else joined


@functools.partial(jax.jit, static_argnums=1)
def passed_forward(given, parts):
    """What the forward pass of a case keeps, in both forms."""
    (_, last), (inverse, entries) = op._forward(*given, Config(kernel=False))
    memory = jnp.concatenate([entries, last[None]])
    inverse, inverse_of = by_program(inverse, parts, swapped=True)
    memory, memory_of = by_program(memory, parts)
    return (*given[:2], inverse, memory), (*given[:2], inverse_of[:, :, :, 0], memory_of[:-1])


@needs_interpreter
@pytest.mark.parametrize(
    "dim,width,kind,parts",
    ((64, 128, "packed", 3), (128, 64, "alike", 2), (128, 128, "packed", 2)),
)
def test_reverse_by_kernels_equals_its_definition(dim, width, kind, parts):
    given = case(dim, kind, heads=2, width=width)
    kept, spelled = passed_forward(given, parts)
    rng = np.random.default_rng(6)
    reads_ct = jnp.asarray(rng.standard_normal(given[0].values.shape), jnp.bfloat16)
    passed_ct = reads_ct, jnp.asarray(rng.standard_normal(given[2].shape), jnp.float32)
    wanted = jax.jit(lambda *x: op._pass_backward(Config(kernel=False), x, passed_ct))(*spelled)
    with run_kernels():
        found = op._pass_backward(KERNELS(parts=parts), kept, passed_ct)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        rounded = other.dtype == jnp.bfloat16
        assert_cotangent_close(one, other, rounded, f"{parts} parts")


@pytest.mark.parametrize("dim,width,parts", ((64, 64, 2), (64, 128, 3), (128, 128, 2)))
def test_reverse_lowers_for_cuda(dim, width, parts):
    shape, low, f32 = jax.ShapeDtypeStruct, jnp.bfloat16, jnp.float32
    batch, chunks, heads = 2, 3, 5
    lead, programs = (batch, chunks, LENGTH, heads), batch * heads
    keys, values = shape((*lead, dim), low), shape((*lead, width), low)
    arguments = (
        Tokens(keys, keys, values),
        Vectors(*[shape((batch, chunks, heads, LENGTH), f32)] * 7),
        shape((programs, chunks, parts, LENGTH, LENGTH), low),
        shape((programs, chunks + 1, parts, dim, width), low),
        (values, shape((batch, heads, 1, dim, width), f32)),
    )
    # Before the walk, the walk, and after it.
    assert count_kernels(lambda *x: back.backward(*x, Config(parts=parts)), *arguments) == 3
