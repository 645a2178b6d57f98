"""Runs the Kalman recurrence on the kernels: checks, chunks, the derivative's rule.

`run` is what `bayesmem/ops/dispatch.py` calls. It takes the arrays of the op by attribute, so that
this package needs to import nothing of bayesmem.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kernels_pallas import device, partition
from kernels_pallas.kalman_chunk import algebra, bwd, chunks
from kernels_pallas.kalman_chunk.algebra import Factors
from kernels_pallas.kalman_chunk.chunks import Tokens, Vectors
from kernels_pallas.kalman_chunk.config import SPLIT, Config

DIMS = (*chunks.DIMS, chunks.CLUSTER_DIM)
"""Key dims of the kernels."""

LEAST_WIDTH = 16
"""Value channels of a group below which most of the work would be on padding."""


class Filtered(NamedTuple):
    """What a call returns; the fields of the op's outputs, in their order."""

    y: jax.Array  # [B, T, H, G, M/G]
    var: jax.Array  # [B, T, H, G]
    mean: jax.Array  # [B, H, G, D, M/G]
    cov: jax.Array  # [B, H, G, D, D]


class Passed(NamedTuple):
    """What the rule of the derivative covers."""

    reads: jax.Array  # [B, N, L, H G, m]
    mean: jax.Array  # [B, H, G, D, m]
    cov: jax.Array  # [B, H, G, D, D]
    writes: jax.Array  # [N, B, H, G, L, D]
    entry_cov: jax.Array  # [N, B, H, G, D, D]


TOKENS = Tokens._make(("B N L H", "B N L H", "B N L (H G)"))
VECTORS = Vectors._make((*("B N H",) * 5, "B N (H G)", "B N H"))
PASSED = Passed._make(("B N L (H G)", "B H G", "B H G", "N B H G", "N B H G"))
"""Where the axes are that devices may share, see `partition`."""


def _saved(config: Config) -> str:
    """The same of all that the forward pass leaves to its reverse."""
    return "(B H G)" if config.kernel else "N B H"


def _forward_places(config: Config) -> partition.Places:
    arguments = TOKENS, VECTORS, "B H G", "B H G"
    return partition.Places(arguments, (PASSED, _saved(config)))


def _backward_places(config: Config) -> partition.Places:
    arguments = (TOKENS, VECTORS, _saved(config), _saved(config)), PASSED
    return partition.Places(arguments, (TOKENS, VECTORS, "B H G", "B H G"))


def _filter_places(config: Config) -> partition.Places:
    return partition.Places(_forward_places(config).arguments, PASSED)


def _run_forward(
    tokens: Tokens, vectors: Vectors, cov: jax.Array, mean: jax.Array, config: Config
) -> tuple[Passed, tuple[Any, jax.Array]]:
    """Returns what `pass_chunks` does, and what its reverse needs of it: factors and means."""
    if config.kernel:
        # Imported here: what needs no GPU, as tests of the algebra, then needs no Mosaic either.
        from kernels_pallas.kalman_chunk import beside, fwd

        found = beside.filter_and_read(tokens, vectors, cov, mean, config)
        (parts, covs), (read, means) = found
        lead = mean.shape[0], mean.shape[1], mean.shape[2]
        factors, last_cov = fwd.factors(parts, covs, lead)
        last_mean = fwd.tiles.join_in_xla(means[:, -1], axis=1).reshape(mean.shape)
        passed = Passed(read, last_mean, last_cov, factors.writes, factors.cov)
        return passed, ((parts, covs), means)
    terms = chunks.expand(tokens, vectors, config.forward)
    last_cov, factors = algebra.covariance_chain(terms, cov, config.forward)
    last_mean, means = algebra.mean_chain(terms, factors, mean, config.forward)
    read = _by_token(algebra.reads(terms, factors, means, config.forward), tokens)
    return Passed(read, last_mean, last_cov, factors.writes, factors.cov), (factors, means)


_forward = partition.spread(_forward_places, static=4)(_run_forward)


@partition.spread(_filter_places, static=4)
def _filter(
    tokens: Tokens, vectors: Vectors, cov: jax.Array, mean: jax.Array, config: Config
) -> Passed:
    """`pass_chunks` where nothing is differentiated: by steps of 16 tokens where that is there."""
    if config.kernel:
        from kernels_pallas.kalman_chunk import steps, tiles

        if steps.fits(cov.shape[-1], mean.shape[-1], config):
            found = steps.filter_and_read(tokens, vectors, cov, mean, config)
            lead = mean.shape[0], mean.shape[1], mean.shape[2]
            writes, covs = (
                tiles.by_chunk(tiles.join_in_xla(x, axis=2), lead)
                for x in (found.writes, found.covs)
            )
            last_mean = tiles.join_in_xla(found.means[:, -1], axis=1).reshape(mean.shape)
            return Passed(found.reads, last_mean, covs[-1], writes, covs[:-1])
    return _run_forward(tokens, vectors, cov, mean, config)[0]


def _one_program(state: jax.Array) -> bool:
    """Whether one program holds P, of a state [..., D, K]: then all kernels take it."""
    return state.shape[-2] <= chunks.DIMS[-1]


def _by_token(read: jax.Array, tokens: Tokens) -> jax.Array:
    """Reads [N, B, H, G, L, m] as the values of the tokens are."""
    read = jnp.moveaxis(read, (0, 4), (1, 2))
    return read.reshape(tokens.values.shape).astype(tokens.values.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def pass_chunks(
    tokens: Tokens, vectors: Vectors, cov: jax.Array, mean: jax.Array, config: Config
) -> Passed:
    """Passes a belief through all chunks and reads it at every token.

    Args:
      tokens: queries, keys and values of all chunks.
      vectors: the numbers of each token.
      cov: [B, H, G, D, D], before the first chunk.
      mean: [B, H, G, D, m], before the first chunk.
      config: tuning values.
    """
    return _filter(tokens, vectors, cov, mean, config)


def _pass_forward(tokens, vectors, cov, mean, config):
    tokens, vectors, cov, mean = jax.tree.map(
        lambda x: x.value,
        (tokens, vectors, cov, mean),
        is_leaf=lambda x: isinstance(x, jax.custom_derivatives.CustomVJPPrimal),
    )
    passed, saved = _forward(tokens, vectors, cov, mean, config)
    return passed, (tokens, vectors, *saved)


@partition.spread(_backward_places, static=0)
def _pass_backward(config, saved, cotangents):
    tokens, vectors, factors, means = saved
    through_var = not (_absent(cotangents.writes) and _absent(cotangents.entry_cov))
    if config.kernel and not through_var and _one_program(means):
        from kernels_pallas.kalman_chunk import back

        of_outputs = _spelled(cotangents.reads), _spelled(cotangents.mean), _spelled(cotangents.cov)
        return back.backward(tokens, vectors, factors, means, of_outputs, config)
    terms, to_tokens = jax.vjp(lambda x, y: chunks.expand(x, y, config.backward), tokens, vectors)
    walk: bwd.Walk = bwd.walk_back
    if config.kernel:
        from kernels_pallas.kalman_chunk import fwd, reverse

        _, batch, heads, groups = terms.values.shape[:4]
        lead = batch, heads, groups
        parts, covs = factors
        factors, _ = fwd.factors(parts, covs, lead)
        means = fwd.tiles.by_chunk(fwd.tiles.join_in_xla(means, axis=2), lead)[:-1]
        if _one_program(means):
            walk = functools.partial(reverse.walk_back, config=config)
    read_ct = _spelled(cotangents.reads).astype(terms.entry.dtype)
    read_ct = read_ct.reshape(*read_ct.shape[:3], *terms.values.shape[2:4], -1)
    given = bwd.Cotangents(
        reads=jnp.moveaxis(read_ct, (1, 2), (0, 4)),
        mean=_spelled(cotangents.mean),
        cov=_spelled(cotangents.cov),
        writes=None if _absent(cotangents.writes) else cotangents.writes,
        entry_cov=None if _absent(cotangents.entry_cov) else cotangents.entry_cov,
    )
    terms_ct, cov_ct, mean_ct = bwd.backward(terms, factors, means, given, config.backward, walk)
    return *to_tokens(terms_ct), cov_ct, mean_ct


def _absent(cotangent: Any) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)


def _spelled(cotangent: Any) -> jax.Array:
    """A cotangent as an array, also where nothing depends on the output."""
    if not _absent(cotangent):
        return cotangent
    return jnp.zeros(cotangent.aval.shape, cotangent.aval.dtype)


pass_chunks.defvjp(_pass_forward, _pass_backward, symbolic_zeros=True)


def _missing(inputs: Any, config: Config) -> tuple[int, int]:
    """How many key dims, and value channels of a group, are added."""
    dim, width = inputs.cov.shape[-1], inputs.mean.shape[-1]
    return chunks.missing(dim, width, DIMS) if config.kernel else (0, 0)


def cut(inputs: Any, config: Config) -> tuple[Tokens, Vectors]:
    """Cuts a call into chunks, padded to what the kernels take.

    Args:
      inputs: as in `filter_tokens`.
      config: tuning values.
    """
    more_dim, more_width = _missing(inputs, config)
    tokens = functools.partial(chunks.cut, length=config.length)
    numbers = functools.partial(chunks.cut_numbers, length=config.length)
    dtype = jnp.bfloat16 if config.kernel else inputs.k.dtype
    batch, steps, heads, groups, width = inputs.v.shape
    values = inputs.v.reshape(batch, steps, heads * groups, width)
    return Tokens(
        tokens(inputs.q.astype(dtype), more=more_dim),
        tokens(inputs.k.astype(dtype), more=more_dim),
        tokens(values.astype(dtype), more=more_width),
    ), chunks.make_vectors(
        numbers(inputs.log_decay[..., 0]),
        numbers(inputs.process_var),
        numbers(inputs.obs_var.reshape(batch, steps, heads * groups), fill=1.0),
        inputs.prior_var,
        None if inputs.starts is None else tokens(inputs.starts, fill=False),
    )


def filter_tokens(inputs: Any, config: Config) -> Filtered:
    """Cuts tokens into chunks, filters them and joins what comes out.

    Args:
      inputs: q, k [B, T, H, D], v [B, T, H, G, m], log_decay [B, T, H, 1], process_var [B, T, H],
        obs_var [B, T, H, G], prior_var [H], starts [B, T] or None, mean [B, H, G, D, m],
        cov [B, H, G, D, D] by attribute.
      config: tuning values.
    """
    batch, steps, heads, groups, width = inputs.v.shape
    dim = inputs.cov.shape[-1]
    more_dim, more_width = _missing(inputs, config)

    def join(x: jax.Array) -> jax.Array:
        """[B, N, L, ...] -> [B, T, ...]."""
        return x.reshape(batch, -1, *x.shape[3:])[:, :steps]

    def padded(x: jax.Array, more: tuple[int, int]) -> jax.Array:
        return jnp.pad(x, [(0, 0)] * 3 + [(0, n) for n in more])

    tokens, vectors = cut(inputs, config)
    cov, mean = padded(inputs.cov, (more_dim,) * 2), padded(inputs.mean, (more_dim, more_width))
    passed = pass_chunks(tokens, vectors, cov, mean, config)
    # The variance of a read is left to autodiff: it is free where nothing asks for it.
    factors = Factors(jnp.zeros(()), passed.writes, passed.entry_cov)
    terms = chunks.expand(tokens, vectors, config.forward)
    var = algebra.read_variances(terms, factors, config.forward)
    reads = join(passed.reads).reshape(batch, steps, heads, groups, -1)
    return Filtered(
        reads[..., :width],
        join(jnp.moveaxis(var, (0, 4), (1, 2))),
        passed.mean[..., :dim, :width],
        passed.cov[..., :dim, :dim],
    )


def run(backend: str, inputs: Any, chunk_size: int, *, narrow: bool = False) -> Filtered:
    """Filters the tokens of a call of `kalman_memory` or `kalman_predict`.

    Args:
      backend: "pallas"; "triton" is not there.
      inputs: `KalmanInputs` of the op, all heads spelled out.
      chunk_size: of the XLA forms. The kernels have their own, 64: any gives the same result.
      narrow: whether q, k and v came as bfloat16, so that bfloat16 holds what `inputs` has of them.

    Raises:
      NotImplementedError: the kernels do not have this case, or not on this device.
    """
    del chunk_size
    require_supported(backend, inputs, narrow)
    return filter_tokens(inputs, Config(forward=SPLIT, backward=SPLIT))


def require_supported(backend: str, inputs: Any, narrow: bool) -> None:
    """Raises NotImplementedError, with the reasons, for what the kernels do not have."""
    missing = device.not_float32(inputs.cov.dtype)
    if inputs.angle is not None:
        missing.append("has no rotations (angle)")
    if inputs.log_decay.shape[-1] != 1:
        missing.append("has one decay a head, not one a key dim")
    batch, _, heads, groups, width = inputs.v.shape
    dim = inputs.k.shape[-1]
    if not 0 < dim <= DIMS[-1]:
        missing.append(f"has key dims up to {DIMS[-1]}, and D={dim} was found")
    if width < LEAST_WIDTH:
        missing.append(
            f"has groups of {LEAST_WIDTH} value channels or more, and M/G={width} was found"
        )
    device.require(backend, missing, inputs, batch * heads * groups, narrow)
