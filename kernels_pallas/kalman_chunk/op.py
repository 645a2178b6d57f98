"""Runs the Kalman recurrence on the kernels: checks, chunks, the derivative's rule.

`run` is what `bayesmem/ops/dispatch.py` calls. It takes the arrays of the op by attribute, so that
this package needs to import nothing of bayesmem.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kernels_pallas.kalman_chunk import algebra, bwd
from kernels_pallas.kalman_chunk.algebra import Factors, Terms
from kernels_pallas.kalman_chunk.config import Config

DIMS = (64, 128)
"""Key dims that the kernels take."""

BAND = 64
"""Value channels that a program of the kernels takes."""


class Filtered(NamedTuple):
    """What a call returns; the fields of the op's outputs, in their order."""

    y: jax.Array  # [B, T, H, G, M/G]
    var: jax.Array  # [B, T, H, G]
    mean: jax.Array  # [B, H, G, D, M/G]
    cov: jax.Array  # [B, H, G, D, D]


class Passed(NamedTuple):
    """What the rule of the derivative covers."""

    reads: jax.Array  # [N, B, H, G, L, m]
    mean: jax.Array  # [B, H, G, D, m]
    cov: jax.Array  # [B, H, G, D, D]
    writes: jax.Array  # [N, B, H, G, L, D]
    entry_cov: jax.Array  # [N, B, H, G, D, D]


def _forward(
    terms: Terms, cov: jax.Array, mean: jax.Array, config: Config
) -> tuple[Passed, tuple[Factors, jax.Array]]:
    """Returns what `pass_chunks` does, and what its reverse needs."""
    if config.kernel:
        # Imported here: what needs no GPU, as tests of the algebra, then needs no Mosaic either.
        from kernels_pallas.kalman_chunk import fwd, reads

        last_cov, factors, parts = fwd.covariance_chain(terms, cov, config)
        read, last_mean, means = reads.read_chunks(terms, parts, mean, config)
    else:
        last_cov, factors = algebra.covariance_chain(terms, cov, config.forward)
        last_mean, means = algebra.mean_chain(terms, factors, mean, config.forward)
        read = algebra.reads(terms, factors, means, config.forward)
    return Passed(read, last_mean, last_cov, factors.writes, factors.cov), (factors, means)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def pass_chunks(terms: Terms, cov: jax.Array, mean: jax.Array, config: Config) -> Passed:
    """Passes a belief through all chunks and reads it at every token.

    Args:
      terms: of all chunks.
      cov: [B, H, G, D, D], before the first chunk.
      mean: [B, H, G, D, m], before the first chunk.
      config: tuning values.
    """
    return _forward(terms, cov, mean, config)[0]


def _pass_forward(terms, cov, mean, config):
    terms, cov, mean = jax.tree.map(
        lambda x: x.value, (terms, cov, mean), is_leaf=lambda x: hasattr(x, "perturbed")
    )
    passed, (factors, means) = _forward(terms, cov, mean, config)
    return passed, (terms, factors, means)


def _pass_backward(config, saved, cotangents):
    terms, factors, means = saved

    def spelled(name: str, x: jax.Array) -> jax.Array:
        """A cotangent as an array, also where nothing depends on the output."""
        given = getattr(cotangents, name)
        return jnp.zeros(x.shape, x.dtype) if _absent(given) else given

    given = bwd.Cotangents(
        reads=spelled("reads", terms.values),
        mean=spelled("mean", means[0]),
        cov=spelled("cov", factors.cov[0]),
        writes=None if _absent(cotangents.writes) else cotangents.writes,
        entry_cov=None if _absent(cotangents.entry_cov) else cotangents.entry_cov,
    )
    walk: bwd.Walk = bwd.walk_back
    if config.kernel:
        from kernels_pallas.kalman_chunk import reverse

        walk = functools.partial(reverse.walk_back, parts=config.parts)
    terms_ct, cov_ct, mean_ct = bwd.backward(terms, factors, means, given, config.backward, walk)
    terms_ct = jax.tree.map(lambda ct, x: ct.astype(x.dtype), terms_ct, terms)
    return terms_ct, cov_ct, mean_ct


def _absent(cotangent: Any) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)


pass_chunks.defvjp(_pass_forward, _pass_backward, symbolic_zeros=True)


def make_terms(inputs: Any, config: Config) -> Terms:
    """Cuts tokens into chunks and prepares what depends on no belief.

    Args:
      inputs: as in `filter_tokens`.
      config: tuning values.
    """

    def cut(x: jax.Array, fill: float = 0.0) -> jax.Array:
        """[B, T, ...] -> [N, B, L, ...], the tail padded."""
        batch, steps = x.shape[:2]
        chunks = -(-steps // config.length)
        widths = [(0, 0), (0, chunks * config.length - steps)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, widths, constant_values=fill)
        return jnp.moveaxis(x.reshape(batch, chunks, config.length, *x.shape[2:]), 1, 0)

    def heads_first(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(cut(x), 2, 3)

    return algebra.prepare(
        (heads_first(inputs.q), heads_first(inputs.k), jnp.moveaxis(cut(inputs.v), 2, -2)),
        heads_first(inputs.log_decay[..., 0]),
        heads_first(inputs.process_var),
        jnp.moveaxis(cut(inputs.obs_var, fill=1.0), 2, -1),
        inputs.prior_var,
        None if inputs.starts is None else cut(inputs.starts, fill=False)[:, :, None],
        jax.lax.Precision.HIGH if config.kernel else jax.lax.Precision.HIGHEST,
    )


def filter_tokens(inputs: Any, config: Config) -> Filtered:
    """Cuts tokens into chunks, filters them and joins what comes out.

    Args:
      inputs: q, k [B, T, H, D], v [B, T, H, G, m], log_decay [B, T, H, 1], process_var [B, T, H],
        obs_var [B, T, H, G], prior_var [H], starts [B, T] or None, mean [B, H, G, D, m],
        cov [B, H, G, D, D] by attribute.
      config: tuning values.
    """
    steps = inputs.k.shape[1]

    def join(x: jax.Array) -> jax.Array:
        """[N, B, L, ...] -> [B, T, ...]."""
        x = jnp.moveaxis(x, 0, 1)
        return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :steps]

    terms = make_terms(inputs, config)
    passed = pass_chunks(terms, inputs.cov, inputs.mean, config)
    # The variance of a read is left to autodiff: it is free where nothing asks for it.
    factors = Factors(jnp.zeros(()), passed.writes, passed.entry_cov)
    var = algebra.read_variances(terms, factors, config.forward)
    return Filtered(
        join(jnp.moveaxis(passed.reads, -2, 2)),
        join(jnp.moveaxis(var, -1, 2)),
        passed.mean,
        passed.cov,
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
    return filter_tokens(inputs, Config())


def require_supported(backend: str, inputs: Any, narrow: bool) -> None:
    """Raises NotImplementedError, with the reason, for what the kernels do not have."""
    if backend != "pallas":
        raise NotImplementedError(f"there is no {backend} kernel for it, only a pallas one")
    if inputs.angle is not None:
        raise NotImplementedError("the pallas kernel has no rotations (angle)")
    if inputs.log_decay.shape[-1] != 1:
        raise NotImplementedError("the pallas kernel has one decay a head, not one a key dim")
    dim, width = inputs.k.shape[-1], inputs.v.shape[-1]
    if dim not in DIMS:
        raise NotImplementedError(f"the pallas kernel has key dims {DIMS}, and D={dim} was found")
    if width % BAND:
        raise NotImplementedError(
            f"the pallas kernel has groups of a multiple of {BAND} value channels, and M/G={width} "
            f"was found"
        )
    if not narrow:
        raise NotImplementedError("the pallas kernel takes q, k and v in bfloat16 only")
    if inputs.cov.dtype != jnp.float32:
        raise NotImplementedError(f"the pallas kernel is float32, and {inputs.cov.dtype} was found")
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", "none"))
    if capability != "9.0":
        raise NotImplementedError(
            f"the pallas kernel needs a Hopper GPU (compute capability 9.0), and {capability} was "
            f"found"
        )
