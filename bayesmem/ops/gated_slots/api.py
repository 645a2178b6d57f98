"""The public op of gated slot attention: checks, defaults, dispatch."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesmem.array_types import Keys, SegmentIds, Values
from bayesmem.ops import arguments, dispatch
from bayesmem.ops.checks import require_floating, require_shape, require_values
from bayesmem.ops.gated_slots.chunked import chunked
from bayesmem.ops.gated_slots.reference import recurrent
from bayesmem.ops.gated_slots.types import GatedSlotInputs, GatedSlots

FORMS = {"recurrent": recurrent, "chunked": chunked}


def gated_slot_attention(
    q: Keys,
    k: Keys,
    v: Values,
    *,
    log_decay: Float[Array, "B T H S"],
    state: GatedSlots | None = None,
    segment_ids: SegmentIds | None = None,
    chunk_size: int = 64,
    implementation: str = "auto",
) -> tuple[Values, GatedSlots]:
    """Attends over S slots that every token writes a part of (arXiv 2409.07146).

        K = diag(a) K + (1 - a) k^T,   V = diag(a) V + (1 - a) v^T,   y = V^T softmax(K q)

    Args:
      q: [B, T, Hk, D], queries; no scaling is applied. H must be a multiple of Hk.
      k: [B, T, Hk, D], keys.
      v: [B, T, H, M], values.
      log_decay: [B, T, H, S] (or Hk heads), log a <= 0; S is the number of slots.
      state: `GatedSlots` to continue from, or None for zeros.
      segment_ids: [B, T] integers or None; a new id starts a new document at zero, a negative id
        is padding (see `bayesmem.ops.segments`). The first document continues from `state`.
      chunk_size: tokens in a chunk of the chunk form, which takes 16 at most.
      implementation: "auto", "recurrent" or "chunked".

    Returns:
      y [B, T, H, M] in the dtype of v, and the state, float32 at least.

    Raises:
      ValueError: a rank, size, dtype or value does not fit; names the argument.
    """
    dispatch.require_known("gated_slot_attention", implementation, FORMS)
    arguments.require_chunk_size(chunk_size)
    q, k, v, log_decay = (jnp.asarray(x) for x in (q, k, v, log_decay))
    sizes = arguments.sequence_sizes(q, k, v)
    arguments.require_gate("log_decay", log_decay, sizes, "S")
    sizes["S"] = log_decay.shape[-1]
    if sizes["S"] < 1:
        raise ValueError("log_decay: found S=0, wanted one slot at least")
    require_values("log_decay", log_decay, lambda x: x <= 0, "log_decay <= 0 (a decay, not growth)")
    segment_ids = arguments.as_segments(segment_ids)
    arguments.require_segments(segment_ids, sizes)
    slots = _slots(state, sizes, arguments.compute_dtype(q, k, v, log_decay))
    if sizes["T"] == 0:
        return jnp.zeros(v.shape, v.dtype), slots
    given = {"q": q, "k": k, "v": v, "log_decay": log_decay}
    return _run(given, slots, segment_ids, chunk_size, implementation)


def _slots(state: Any, sizes: dict[str, int], dtype: Any) -> GatedSlots:
    """Checks a state, or makes an empty one."""
    axes = {"keys": "B H S D", "values": "B H S M"}
    if state is None:
        made = (jnp.zeros([sizes[axis] for axis in own.split()], dtype) for own in axes.values())
        return GatedSlots(*made)
    if not isinstance(state, tuple) or len(state) != 2:
        raise ValueError(f"state: found a {type(state).__name__}, wanted GatedSlots(keys, values)")
    slots = GatedSlots(*map(jnp.asarray, state))
    for name, value in slots._asdict().items():
        require_floating(f"state.{name}", value)
        require_shape(f"state.{name}", value, sizes, axes[name])
    dtype = jnp.result_type(dtype, *slots)
    return GatedSlots(*(x.astype(dtype) for x in slots))


@functools.partial(jax.jit, static_argnames=("chunk_size", "implementation"))
def _run(
    given: dict[str, jax.Array],
    slots: GatedSlots,
    segment_ids: jax.Array | None,
    chunk_size: int,
    implementation: str,
) -> tuple[jax.Array, GatedSlots]:
    """Spells out heads and padding of checked arguments, and runs a form."""
    heads, dtype = given["v"].shape[2], slots.keys.dtype
    valid, starts = arguments.documents(segment_ids)
    spread = {name: arguments.spread(x, heads, dtype, valid) for name, x in given.items()}
    inputs = GatedSlotInputs(**spread, starts=starts, slots=slots)
    steps = given["k"].shape[1]
    preferred = ("recurrent",) if steps <= arguments.SHORT else ("chunked",)
    y, slots = dispatch.run(
        "gated_slot_attention", implementation, FORMS, preferred, inputs, chunk_size
    )
    if valid is not None:  # a softmax reads something even where there is no token
        y = jnp.where(valid[..., None, None], y, 0.0)
    return y.astype(given["v"].dtype), slots
