"""The public additive op: checks, defaults, dispatch."""

import functools
from typing import Any

import jax

from bayesmem.array_types import HeadScalars, HeadVectors, Keys, Memory, SegmentIds, Values
from bayesmem.ops import arguments, dispatch
from bayesmem.ops.additive.chunked import chunked
from bayesmem.ops.additive.reference import recurrent
from bayesmem.ops.additive.types import AdditiveInputs

FORMS = {
    "recurrent": recurrent,
    "chunked": chunked,
    "pallas": dispatch.kernel("additive_chunk", "pallas"),
    "triton": dispatch.kernel("additive_chunk", "triton"),
}


def linear_attention(
    q: Keys,
    k: Keys,
    v: Values,
    *,
    gain: HeadScalars | None = None,
    log_decay: HeadScalars | HeadVectors | None = None,
    state: Memory | None = None,
    segment_ids: SegmentIds | None = None,
    chunk_size: int = 64,
    implementation: str = "auto",
) -> tuple[Values, Memory]:
    """Reads and writes an associative memory by addition.

    The latent-input family (arXiv 2605.31163, Sec. 3.2, Table 1):

        M = A M + gain k v^T,   y = M^T q

    Linear attention where A = I, RetNet where A = rho I is constant, SSD (Mamba-2) where A = a I,
    GLA where A = diag(a).

    Args:
      q: [B, T, Hk, D], queries. No scaling or normaliser is applied. H must be a multiple of Hk;
        heads of q, k and of each per-head argument are repeated to H.
      k: [B, T, Hk, D], keys.
      v: [B, T, H, M], values.
      gain: None (1) or [B, T, H], write strength.
      log_decay: None (A = I), [B, T, H] (A = a I) or [B, T, H, D] (A = diag(a)); log a <= 0.
      state: [B, H, D, M] to continue from, or None for zeros. A is applied to it first.
      segment_ids: [B, T] integers or None; a new id starts a new document at zero, a negative id
        is padding (see `bayesmem.ops.segments`). The first document continues from `state`.
      chunk_size: tokens in a chunk of the chunk form.
      implementation: "auto", "recurrent", "chunked", "pallas" or "triton".

    Returns:
      y [B, T, H, M] in the dtype of v, and the state [B, H, D, M], float32 at least.

    Raises:
      ValueError: a rank, size, dtype or value does not fit; names the argument.
      NotImplementedError: the named implementation cannot run here.
    """
    given = {"q": q, "k": k, "v": v, "gain": gain, "log_decay": log_decay}
    dispatch.require_known("linear_attention", implementation, FORMS)
    return arguments.run_memory(_run, given, "gain", state, segment_ids, chunk_size, implementation)


@functools.partial(jax.jit, static_argnames=("chunk_size", "implementation"))
def _run(
    given: dict[str, Any],
    segment_ids: jax.Array | None,
    chunk_size: int,
    implementation: str,
) -> tuple[jax.Array, jax.Array]:
    """Spells out heads, defaults and padding of checked arguments, and runs a form."""
    sizes, dtype = (
        arguments.sequence_sizes(given["q"], given["k"], given["v"]),
        given["state"].dtype,
    )
    valid, starts = arguments.documents(segment_ids)

    def spread(name: str) -> jax.Array:
        return arguments.spread(given[name], sizes["H"], dtype, valid)

    v = spread("v")
    if given["gain"] is not None:
        v = spread("gain")[..., None] * v
    inputs = AdditiveInputs(
        q=spread("q"),
        k=spread("k"),
        v=v,
        log_decay=arguments.decay_channels(given["log_decay"], sizes, dtype, valid),
        starts=starts,
        memory=given["state"],
    )
    preferred = arguments.preferred_forms(sizes["T"])
    y, memory = dispatch.run(
        "linear_attention", implementation, FORMS, preferred, inputs, chunk_size
    )
    return y.astype(given["v"].dtype), memory
