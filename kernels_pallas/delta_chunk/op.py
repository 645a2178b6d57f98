"""Runs the delta rule on the kernels: checks, padding, chunks, the derivative's rule.

`run` is what `bayesmem/ops/dispatch.py` calls. It takes the arrays of the op by attribute, so that
this package needs to import nothing of bayesmem.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from kernels_pallas import device, partition
from kernels_pallas.delta_chunk import algebra, bwd
from kernels_pallas.kalman_chunk import chunks
from kernels_pallas.kalman_chunk.chunks import Tokens, Vectors, stack
from kernels_pallas.kalman_chunk.config import Config

Passed = tuple[jax.Array, jax.Array]
"""Reads [B, N, L, H, M] in the dtype of values, and the last memory [B, H, 1, D, M]."""


TOKENS = Tokens._make(("B N L H",) * 3)
VECTORS = Vectors._make(("B N H",) * 7)
PASSED = "B N L H", "B H"
"""Where the axes are that devices may share, see `partition`."""


def _saved(config: Config) -> str:
    """The same of all that the forward pass leaves to its reverse."""
    return "(B H)" if config.kernel else "N B H"


def _forward_places(config: Config) -> partition.Places:
    return partition.Places((TOKENS, VECTORS, "B H"), (PASSED, (_saved(config),) * 2))


def _backward_places(config: Config) -> partition.Places:
    arguments = (TOKENS, VECTORS, _saved(config), _saved(config)), PASSED
    return partition.Places(arguments, (TOKENS, VECTORS, "B H"))


@partition.spread(_forward_places, static=3)
def _forward(
    tokens: Tokens, vectors: Vectors, memory: jax.Array, config: Config
) -> tuple[Passed, tuple[jax.Array, jax.Array]]:
    """Returns what `pass_chunks` does, and what its reverse needs of it: T and memories.

    They are as the kernels leave them: parts of T^T [B H, N, parts, L, L] and of the memories
    [B H, N + 1, parts, D, M]; without kernels, as `algebra` has them.
    """
    if config.kernel:
        # Imported here: what needs no GPU, as tests of the algebra, then needs no Mosaic either.
        from kernels_pallas.delta_chunk import fwd
        from kernels_pallas.kalman_chunk import reads, tiles

        rows, interpret = stack(vectors), config.interpret
        inverse = fwd.run_inverse(tokens.keys, rows, parts=config.parts, interpret=interpret)
        first = tiles.parts_of(memory, config.parts)
        read, entries = reads.run_reads(tokens, rows, inverse, None, first, interpret=interpret)
        last = tiles.join_in_xla(entries[:, -1], axis=1).reshape(memory.shape)
        return (read, last), (inverse, entries)
    terms = algebra.expand(tokens, vectors, config.forward)
    read, last, found, entries = algebra.forward(terms, memory, config.forward)
    read = jnp.moveaxis(read[:, :, :, 0], (0, 3), (1, 2)).astype(tokens.values.dtype)
    return (read, last), (found.inverse[:, :, :, 0], entries)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def pass_chunks(tokens: Tokens, vectors: Vectors, memory: jax.Array, config: Config) -> Passed:
    """Passes a memory through all chunks and reads it at every token.

    Args:
      tokens: queries, keys and values of all chunks.
      vectors: the numbers of each token, `noise` being beta.
      memory: [B, H, 1, D, M], before the first chunk.
      config: tuning values.
    """
    return _forward(tokens, vectors, memory, config)[0]


def _pass_forward(tokens, vectors, memory, config):
    passed, saved = _forward(tokens, vectors, memory, config)
    return passed, (tokens, vectors, *saved)


@partition.spread(_backward_places, static=0)
def _pass_backward(config, saved, cotangents):
    tokens, vectors, inverse, memory = saved
    if config.kernel:
        from kernels_pallas.delta_chunk import back

        return back.backward(tokens, vectors, inverse, memory, cotangents, config)
    spell = functools.partial(algebra.expand, precision=config.backward)
    terms, to_tokens = jax.vjp(spell, tokens, vectors)
    read_ct, memory_ct = cotangents
    read_ct = jnp.moveaxis(read_ct.astype(terms.entry.dtype), (1, 2), (0, 3))[:, :, :, None]
    factors = algebra.as_factors(terms, inverse)
    terms_ct, first_ct = bwd.backward(terms, factors, memory, read_ct, memory_ct, config.backward)
    return *to_tokens(terms_ct), first_ct


pass_chunks.defvjp(_pass_forward, _pass_backward)


def cut(inputs: Any, config: Config) -> tuple[Tokens, Vectors, jax.Array]:
    """Cuts a call into chunks, padded to what the kernels take: tokens, vectors, the first memory.

    Args:
      inputs: as in `run_tokens`.
      config: tuning values.
    """
    more_dim, more_width = chunks.missing(*inputs.memory.shape[-2:]) if config.kernel else (0, 0)
    tokens = functools.partial(chunks.cut, length=config.length)
    numbers = functools.partial(chunks.cut_numbers, length=config.length)
    dtype = jnp.bfloat16 if config.kernel else inputs.k.dtype
    starts = None if inputs.starts is None else tokens(inputs.starts, fill=False)
    memory = jnp.pad(inputs.memory, ((0, 0), (0, 0), (0, more_dim), (0, more_width)))
    return (
        Tokens(
            tokens(inputs.q.astype(dtype), more=more_dim),
            tokens(inputs.k.astype(dtype), more=more_dim),
            tokens(inputs.v.astype(dtype), more=more_width),
        ),
        algebra.make_vectors(numbers(inputs.log_decay[..., 0]), numbers(inputs.beta), starts),
        memory[:, :, None],
    )


def run_tokens(inputs: Any, config: Config) -> tuple[jax.Array, jax.Array]:
    """Cuts tokens into chunks, passes them through the memory and joins what comes out.

    Args:
      inputs: q, k [B, T, H, D], v [B, T, H, M], log_decay [B, T, H, 1], beta [B, T, H],
        starts [B, T] or None, memory [B, H, D, M] by attribute.
      config: tuning values.

    Returns:
      y [B, T, H, M], bfloat16 where kernels run, and the memory [B, H, D, M].
    """
    batch, steps, heads, width = inputs.v.shape
    tokens, vectors, memory = cut(inputs, config)
    read, memory = pass_chunks(tokens, vectors, memory, config)
    read = read.reshape(batch, -1, heads, read.shape[-1])[:, :steps, :, :width]
    return read, memory[:, :, 0, : inputs.k.shape[-1], :width]


def run(
    backend: str, inputs: Any, chunk_size: int, *, narrow: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Runs a call of `delta_rule`.

    Args:
      backend: "pallas"; "triton" is not there.
      inputs: `DeltaInputs` of the op, all heads spelled out.
      chunk_size: of the XLA forms. The kernels have their own, 64: any gives the same result.
      narrow: whether q, k and v came as bfloat16, so that bfloat16 holds what `inputs` has of them.

    Returns:
      y [B, T, H, M] and the memory [B, H, D, M].

    Raises:
      NotImplementedError: the kernels do not have this case, or not on this device.
    """
    del chunk_size
    require_supported(backend, inputs, narrow)
    return run_tokens(inputs, Config())


def require_supported(backend: str, inputs: Any, narrow: bool) -> None:
    """Raises NotImplementedError, with the reasons, for what the kernels do not have."""
    missing = device.not_float32(inputs.memory.dtype)
    if inputs.log_decay.shape[-1] != 1:
        missing.append("has one decay a head, not one a key dim")
    batch, _, heads, dim = inputs.k.shape
    if not 0 < dim <= chunks.DIMS[-1]:
        missing.append(f"has key dims up to {chunks.DIMS[-1]}, and D={dim} was found")
    device.require(backend, missing, inputs, batch * heads, narrow)
