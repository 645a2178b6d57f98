"""What the public ops do alike with their arguments before a form runs."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem.ops.checks import require_floating, require_shape, require_values
from bayesmem.ops.segments import document_starts, valid_steps

SHORT = 8
"""Up to this many tokens "auto" prefers the token recurrence: decoding, and short remainders."""


def sequence_sizes(q: jax.Array, k: jax.Array, v: jax.Array) -> dict[str, int]:
    """Checks q, k [B, T, Hk, D] and v [B, T, H, M] and returns their sizes by axis name.

    Raises:
      ValueError: a rank, size or dtype does not fit, or H is not a multiple of Hk.
    """
    for name, value in (("q", q), ("k", k), ("v", v)):
        require_floating(name, value)
    sizes: dict[str, int] = {}
    require_shape("k", k, sizes, "B T Hk D")
    sizes |= dict(zip(("B", "T", "Hk", "D"), k.shape, strict=True))
    require_shape("q", q, sizes, "B T Hk D")
    require_shape("v", v, sizes, "B T H M")
    sizes |= {"H": v.shape[2], "M": v.shape[3]}
    for axis in ("Hk", "D", "H", "M"):
        if sizes[axis] < 1:
            raise ValueError(f"k, v: found {axis}={sizes[axis]}, wanted at least 1")
    if sizes["H"] % sizes["Hk"]:
        raise ValueError(
            f"v: found {sizes['H']} heads, wanted a multiple of the {sizes['Hk']} heads of q and k"
        )
    return sizes


def require_gate(name: str, value: jax.Array, sizes: Mapping[str, int], *trailing: str) -> None:
    """Checks a per-head argument [B, T, H or Hk, ...] with each of the `trailing` axes tried."""
    require_floating(name, value)
    heads = ("H",) if sizes["H"] == sizes["Hk"] else ("H", "Hk")
    require_shape(
        name, value, sizes, *(f"B T {head} {axes}" for axes in trailing for head in heads)
    )


def as_segments(segment_ids: Any) -> jax.Array | None:
    """Returns `segment_ids` as an array of JAX, or None; see `as_ids`."""
    return None if segment_ids is None else as_ids("segment_ids", segment_ids)


def as_ids(name: str, ids: Any) -> jax.Array:
    """Returns integers as an array of JAX.

    Raises:
      ValueError: a number that int32 does not hold, and that JAX would wrap around to another one.
    """
    if isinstance(ids, jax.Array):
        return ids
    found = np.asarray(ids)
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    if np.issubdtype(found.dtype, np.integer) and found.size:
        for extreme in (found.min(), found.max()):
            if not low <= extreme <= high:
                raise ValueError(f"{name}: found the id {extreme}, wanted ids of int32")
    return jnp.asarray(found)


def require_segments(segment_ids: jax.Array | None, sizes: Mapping[str, int]) -> None:
    """Checks `segment_ids` [B, T], an integer array or None."""
    if segment_ids is None:
        return
    if not jnp.issubdtype(segment_ids.dtype, jnp.integer):
        raise ValueError(f"segment_ids: found dtype {segment_ids.dtype}, wanted an integer dtype")
    require_shape("segment_ids", segment_ids, sizes, "B T")


def require_chunk_size(chunk_size: int) -> None:
    """Checks that `chunk_size` is a positive Python integer."""
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise ValueError(f"chunk_size: found {chunk_size!r}, wanted an integer >= 1")


def require_log_decay(log_decay: jax.Array | None, sizes: Mapping[str, int]) -> None:
    """Checks `log_decay`: None, [B, T, H] or [B, T, H, D], and its values <= 0."""
    if log_decay is None:
        return
    require_gate("log_decay", log_decay, sizes, "", "D")
    require_values("log_decay", log_decay, lambda x: x <= 0, "log_decay <= 0 (a decay, not growth)")


def require_paired(log_decay: jax.Array | None) -> None:
    """Checks that the two rows of each (real, imaginary) pair of log_decay [B, T, H, D] are equal.

    One decay a head, or none, is equal by itself.
    """
    if log_decay is not None and log_decay.ndim == 4:
        require_values(
            "log_decay",
            log_decay[..., ::2] - log_decay[..., 1::2],
            lambda x: ~(np.abs(x) > 0),
            "equal decays in the two rows of each pair that `angle` rotates (differences of 0)",
        )


def compute_dtype(*arrays: jax.Array | None) -> jnp.dtype:
    """Returns the widest dtype of `arrays`, float32 at least."""
    return jnp.result_type(jnp.float32, *(a.dtype for a in arrays if a is not None))


def spread(
    value: jax.Array, heads: int, dtype, valid: jax.Array | None, padded: float = 0.0
) -> jax.Array:
    """Casts [B, T, H or Hk, ...], repeats it to all heads and sets padded steps to `padded`.

    Padding is cut with `where`, so that not even a NaN passes, forward or backward.
    """
    value = value.astype(dtype)
    if valid is not None:
        mask = valid.reshape(*valid.shape, *(1,) * (value.ndim - 2))
        value = jnp.where(mask, value, jnp.asarray(padded, dtype))
    if value.shape[2] != heads:
        value = jnp.repeat(value, heads // value.shape[2], axis=2)
    return value


def decay_channels(
    log_decay: jax.Array | None, sizes: Mapping[str, int], dtype, valid: jax.Array | None
) -> jax.Array:
    """Returns log decays [B, T, H, C], C = 1 (one decay a head, or none) or D."""
    if log_decay is None:
        return jnp.zeros((sizes["B"], sizes["T"], sizes["H"], 1), dtype)
    if log_decay.ndim == 3:
        log_decay = log_decay[..., None]
    return spread(log_decay, sizes["H"], dtype, valid)


def documents(
    segment_ids: jax.Array | None,
) -> tuple[jax.Array | None, jax.Array | None]:
    """Returns (valid steps, document starts) [B, T] of `segment_ids`, or (None, None)."""
    if segment_ids is None:
        return None, None
    return valid_steps(segment_ids), document_starts(segment_ids)


def preferred_forms(steps: int) -> tuple[str, ...]:
    """Returns the order in which "auto" tries forms for a call of `steps` tokens."""
    return ("recurrent",) if steps <= SHORT else ("pallas", "triton", "chunked")


def run_memory(
    run: Callable[..., tuple[jax.Array, jax.Array]],
    given: Mapping[str, Any],
    strength: str,
    state: Any,
    segment_ids: Any,
    chunk_size: int,
    implementation: str,
) -> tuple[jax.Array, jax.Array]:
    """Checks the arguments of an op whose state is one memory [B, H, D, M], then runs it.

    Args:
      run: the op behind its checks, called with (arguments with `state` among them, segment_ids,
        chunk_size, implementation).
      given: q, k, v, log_decay and the write strength, by name.
      strength: name of the write strength, [B, T, H], which may be None if the op says so.
      state: as the op has it, like the rest.
      segment_ids: [B, T] or None.
      chunk_size: tokens in a chunk.
      implementation: name of a form, or "auto".

    Returns:
      y [B, T, H, M] in the dtype of v, and the memory [B, H, D, M].
    """
    require_chunk_size(chunk_size)
    given = {name: None if x is None else jnp.asarray(x) for name, x in given.items()}
    sizes = sequence_sizes(given["q"], given["k"], given["v"])
    if given[strength] is not None:
        require_gate(strength, given[strength], sizes, "")
    require_log_decay(given["log_decay"], sizes)
    segment_ids = as_segments(segment_ids)
    require_segments(segment_ids, sizes)
    if state is None:
        dtype = compute_dtype(*given.values())
        state = jnp.zeros([sizes[axis] for axis in ("B", "H", "D", "M")], dtype)
    else:
        if isinstance(state, tuple | list | dict):
            raise ValueError(
                f"state: found a {type(state).__name__}, wanted one array [B, H, D, M]"
            )
        state = jnp.asarray(state)
        require_floating("state", state)
        require_shape("state", state, sizes, "B H D M")
        state = state.astype(compute_dtype(state, *given.values()))
    if sizes["T"] == 0:
        return jnp.zeros(given["v"].shape, given["v"].dtype), state
    return run(given | {"state": state}, segment_ids, chunk_size, implementation)
