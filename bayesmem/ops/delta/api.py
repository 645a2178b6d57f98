"""The public delta rule: checks, defaults, dispatch."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from bayesmem.array_types import HeadScalars, HeadVectors, Keys, Memory, SegmentIds, Values
from bayesmem.ops import arguments, dispatch
from bayesmem.ops.delta.chunked import chunked
from bayesmem.ops.delta.reference import recurrent
from bayesmem.ops.delta.types import DeltaInputs

FORMS: dict[str, dispatch.Form] = {
    "recurrent": recurrent,
    "chunked": chunked,
    "pallas": dispatch.kernel("delta_chunk", "pallas"),
    "triton": dispatch.kernel("delta_chunk", "triton"),
}


def delta_rule(
    q: Keys,
    k: Keys,
    v: Values,
    *,
    beta: HeadScalars,
    log_decay: HeadScalars | HeadVectors | None = None,
    state: Memory | None = None,
    segment_ids: SegmentIds | None = None,
    chunk_size: int = 64,
    implementation: str = "auto",
) -> tuple[Values, Memory]:
    """Reads and writes an associative memory by the (gated) delta rule.

    The covariance-reset family (arXiv 2605.31163, Proposition 2, Eq. 17, Table 1):

        Mb = A M,   M = Mb + beta k (v - Mb^T k)^T,   y = M^T q

    DeltaNet where A = I, Gated DeltaNet where A = a I, KDA where A = diag(a).

    Args:
      q: [B, T, Hk, D], queries. No scaling is applied. H must be a multiple of Hk; heads of q, k
        and of each per-head argument are repeated to H.
      k: [B, T, Hk, D], keys.
      v: [B, T, H, M], values.
      beta: [B, T, H], write strength.
      log_decay: None (A = I), [B, T, H] (A = a I) or [B, T, H, D] (A = diag(a)); log a <= 0.
      state: [B, H, D, M] to continue from, or None for zeros. A is applied to it first.
      segment_ids: [B, T] integers or None; a new id starts a new document at zero, a negative id
        is padding (see `bayesmem.ops.segments`). The first document continues from `state`.
      chunk_size: tokens in a chunk of the chunk form.
      implementation: "auto", "recurrent", "chunked", "pallas" (no jvp) or "triton".

    Returns:
      y [B, T, H, M] in the dtype of v, and the state [B, H, D, M], float32 at least.

    Raises:
      ValueError: a rank, size, dtype or value does not fit; names the argument.
      NotImplementedError: the named implementation cannot run here.
    """
    if beta is None:
        raise ValueError("beta: found None, wanted an array [B, T, H]")
    given = {"q": q, "k": k, "v": v, "beta": beta, "log_decay": log_decay}
    dispatch.require_known("delta_rule", implementation, FORMS)
    return arguments.run_memory(_run, given, "beta", state, segment_ids, chunk_size, implementation)


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

    inputs = DeltaInputs(
        q=spread("q"),
        k=spread("k"),
        v=spread("v"),
        beta=spread("beta"),
        log_decay=arguments.decay_channels(given["log_decay"], sizes, dtype, valid),
        starts=starts,
        memory=given["state"],
    )
    preferred = arguments.preferred_forms(sizes["T"])
    narrow = all(given[name].dtype == jnp.bfloat16 for name in ("q", "k", "v"))
    forms, passed = dispatch.tell_kernels(FORMS, narrow=narrow), (inputs, chunk_size)
    y, memory = dispatch.run("delta_rule", implementation, forms, preferred, *passed)
    return y.astype(given["v"].dtype), memory
