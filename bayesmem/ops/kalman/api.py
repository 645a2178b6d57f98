"""The public Kalman ops: checks, defaults, dispatch."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem.array_types import (
    GroupScalars,
    HeadScalars,
    HeadVectors,
    Keys,
    PairAngles,
    SegmentIds,
    Values,
)
from bayesmem.ops import arguments, dispatch
from bayesmem.ops.checks import require_floating, require_shape, require_values
from bayesmem.ops.kalman.associative import associative
from bayesmem.ops.kalman.chunked import chunked
from bayesmem.ops.kalman.reference import recurrent
from bayesmem.ops.kalman.types import OBS_VAR_FLOOR, KalmanInputs, KalmanOutputs, KalmanState

FORMS: dict[str, dispatch.Form] = {
    "recurrent": recurrent,
    "chunked": chunked,
    "associative": associative,
    "pallas": dispatch.kernel("kalman_chunk", "pallas"),
    "triton": dispatch.kernel("kalman_chunk", "triton"),
}


def kalman_memory(
    q: Keys,
    k: Keys,
    v: Values,
    *,
    process_var: HeadScalars,
    obs_var: HeadScalars | GroupScalars,
    log_decay: HeadScalars | HeadVectors | None = None,
    angle: PairAngles | None = None,
    prior_var: float | jax.Array = 1.0,
    state: KalmanState | None = None,
    segment_ids: SegmentIds | None = None,
    chunk_size: int = 64,
    implementation: str = "auto",
) -> tuple[Values, KalmanState]:
    """Reads and writes an associative memory by exact Kalman filtering.

    The recurrence of the Bayesian Layer (arXiv 2605.31163, Proposition 1, Eqs. 8-13):

        Mb = A M,   Pb = A P A^T + ell^2 I,   u = Pb k,   b = 1 / (r^2 + k^T u)
        M = Mb + b u (v - Mb^T k)^T,   P = Pb - b u u^T,   y = M^T q

    Args:
      q: [B, T, Hk, D], queries. No scaling is applied. H must be a multiple of Hk; heads of q, k
        and of each per-head argument are repeated to H.
      k: [B, T, Hk, D], keys.
      v: [B, T, H, M], values.
      process_var: [B, T, H], ell^2 >= 0, variance that the memory gains before each write.
      obs_var: [B, T, H] or [B, T, H, G], r^2 > 0, variance of a write; M splits into G equal
        groups. Raised to `OBS_VAR_FLOOR` where it is smaller.
      log_decay: None (A = I), [B, T, H] (A = a I) or [B, T, H, D] (A = diag(a)); log a <= 0.
      angle: None or [B, T, H, D/2], radians: A = diag(a) R(angle) rotates interleaved (real,
        imaginary) pairs of D; ell^2 then enters the even (real) rows only, and the two rows of a
        pair must have equal decay.
      prior_var: scalar or [H], p0 > 0; P_0 = p0 I where `state` is None and at document starts.
      state: belief to continue from, or None for the prior. A is applied to it first.
      segment_ids: [B, T] integers or None; a new id starts a new document at the prior, a negative
        id is padding (see `bayesmem.ops.segments`). The first document continues from `state`.
      chunk_size: tokens in a chunk of the chunk forms.
      implementation: "auto", "recurrent", "chunked", "associative", "pallas" (no jvp) or "triton".

    Returns:
      y [B, T, H, M] in the dtype of v, and the state, float32 at least.

    Raises:
      ValueError: a rank, size, dtype or value does not fit; names the argument.
      NotImplementedError: the named implementation cannot run here.
    """
    y, _, state = _filter(
        q,
        k,
        v,
        log_decay=log_decay,
        angle=angle,
        process_var=process_var,
        obs_var=obs_var,
        prior_var=prior_var,
        state=state,
        segment_ids=segment_ids,
        chunk_size=chunk_size,
        implementation=implementation,
    )
    return y, state


def kalman_predict(
    q: Keys,
    k: Keys,
    v: Values,
    *,
    process_var: HeadScalars,
    obs_var: HeadScalars | GroupScalars,
    log_decay: HeadScalars | HeadVectors | None = None,
    angle: PairAngles | None = None,
    prior_var: float | jax.Array = 1.0,
    state: KalmanState | None = None,
    segment_ids: SegmentIds | None = None,
    chunk_size: int = 64,
    implementation: str = "auto",
) -> tuple[Values, GroupScalars, KalmanState]:
    """Reads the memory together with the uncertainty of the read.

    Args:
      q: [B, T, Hk, D], queries. No scaling is applied. H must be a multiple of Hk; heads of q, k
        and of each per-head argument are repeated to H.
      k: [B, T, Hk, D], keys.
      v: [B, T, H, M], values.
      process_var: [B, T, H], ell^2 >= 0, variance that the memory gains before each write.
      obs_var: [B, T, H] or [B, T, H, G], r^2 > 0, variance of a write; M splits into G equal
        groups. Raised to `OBS_VAR_FLOOR` where it is smaller.
      log_decay: None (A = I), [B, T, H] (A = a I) or [B, T, H, D] (A = diag(a)); log a <= 0.
      angle: None or [B, T, H, D/2], radians: A = diag(a) R(angle) rotates interleaved (real,
        imaginary) pairs of D; ell^2 then enters the even (real) rows only, and the two rows of a
        pair must have equal decay.
      prior_var: scalar or [H], p0 > 0; P_0 = p0 I where `state` is None and at document starts.
      state: belief to continue from, or None for the prior. A is applied to it first.
      segment_ids: [B, T] integers or None; a new id starts a new document at the prior, a negative
        id is padding (see `bayesmem.ops.segments`). The first document continues from `state`.
      chunk_size: tokens in a chunk of the chunk forms.
      implementation: "auto", "recurrent", "chunked", "associative", "pallas" (no jvp) or "triton".

    Returns:
      mean [B, T, H, M] in the dtype of v; var [B, T, H, G] = q_t^T P_t q_t, the variance of each
      value channel of the read (without observation noise), >= 0, float32 at least; the state.

    Raises:
      ValueError, NotImplementedError: as in `kalman_memory`.
    """
    return _filter(
        q,
        k,
        v,
        log_decay=log_decay,
        angle=angle,
        process_var=process_var,
        obs_var=obs_var,
        prior_var=prior_var,
        state=state,
        segment_ids=segment_ids,
        chunk_size=chunk_size,
        implementation=implementation,
    )


def initial_state(
    batch: int, heads: int, dim: int, value_dim: int, groups: int = 1, prior_var: float = 1.0
) -> KalmanState:
    """Returns the prior belief: mean 0 [B, H, D, M], cov p0 I [B, H, G, D, D], float32."""
    eye = prior_var * jnp.eye(dim, dtype=jnp.float32)
    return KalmanState(
        jnp.zeros((batch, heads, dim, value_dim), jnp.float32),
        jnp.broadcast_to(eye, (batch, heads, groups, dim, dim)),
    )


def _filter(
    q: Any, k: Any, v: Any, *, chunk_size: int, implementation: str, **others: Any
) -> tuple[Values, GroupScalars, KalmanState]:
    """Checks all arguments and runs a form; returns y, var and the state."""
    arguments.require_chunk_size(chunk_size)
    given = {"q": q, "k": k, "v": v} | others
    if isinstance(given["prior_var"], int):
        given["prior_var"] = float(given["prior_var"])
    state, segment_ids = given.pop("state"), given.pop("segment_ids")
    given = {name: None if x is None else jnp.asarray(x) for name, x in given.items()}
    segment_ids = arguments.as_segments(segment_ids)
    if state is not None:
        if not isinstance(state, tuple | list) or len(state) != len(KalmanState._fields):
            raise ValueError(
                f"state: found a {type(state).__name__}, wanted KalmanState(mean [B, H, D, M], "
                f"cov [B, H, G, D, D])"
            )
        state = KalmanState(*map(jnp.asarray, state))
    _check(given, state, segment_ids)
    return _run(given, state, segment_ids, chunk_size, implementation)


@functools.partial(jax.jit, static_argnames=("chunk_size", "implementation"))
def _run(
    given: dict[str, Any],
    state: KalmanState | None,
    segment_ids: jax.Array | None,
    chunk_size: int,
    implementation: str,
) -> tuple[jax.Array, jax.Array, KalmanState]:
    """Prepares checked arguments, runs a form and joins the groups of what it returns."""
    sizes = _check(given, state, segment_ids)
    inputs = _prepare(given, state, segment_ids, sizes)
    shape = tuple(sizes[axis] for axis in ("B", "T", "H", "M"))
    dispatch.require_known("kalman_memory", implementation, FORMS)
    if sizes["T"] == 0:
        y = jnp.zeros((*shape[:-1], sizes["G"], sizes["M"] // sizes["G"]), inputs.k.dtype)
        outputs = KalmanOutputs(y, y[..., 0], inputs.mean, inputs.cov)
    else:
        preferred = arguments.preferred_forms(sizes["T"])
        narrow = all(given[name].dtype == jnp.bfloat16 for name in ("q", "k", "v"))
        forms, passed = dispatch.tell_kernels(FORMS, narrow=narrow), (inputs, chunk_size)
        outputs = dispatch.run("kalman_memory", implementation, forms, preferred, *passed)
    mean = jnp.moveaxis(outputs.mean, -3, -2)
    mean = mean.reshape(*mean.shape[:-2], sizes["M"])
    y = outputs.y.reshape(shape).astype(given["v"].dtype)
    return y, outputs.var, KalmanState(mean, outputs.cov)


def _check(
    given: dict[str, Any], state: KalmanState | None, segment_ids: jax.Array | None
) -> dict[str, int]:
    """Checks every argument and returns the sizes of all axes."""
    q, k, v = given["q"], given["k"], given["v"]
    sizes = arguments.sequence_sizes(q, k, v)
    process_var, obs_var, prior_var = given["process_var"], given["obs_var"], given["prior_var"]
    if process_var is None or obs_var is None or prior_var is None:
        missing = [n for n in ("process_var", "obs_var", "prior_var") if given[n] is None]
        raise ValueError(f"{', '.join(missing)}: found None, wanted an array")
    arguments.require_gate("process_var", process_var, sizes, "")
    arguments.require_gate("obs_var", obs_var, sizes, "", "G")
    sizes["G"] = obs_var.shape[3] if obs_var.ndim == 4 else 1
    if sizes["G"] < 1 or sizes["M"] % sizes["G"]:
        raise ValueError(
            f"obs_var: found G={sizes['G']} groups, wanted a divisor of the value dim "
            f"M={sizes['M']}"
        )
    arguments.require_log_decay(given["log_decay"], sizes)
    angle = given["angle"]
    if angle is not None:
        if sizes["D"] % 2:
            raise ValueError(f"angle: found key dim D={sizes['D']}, wanted an even one for pairs")
        arguments.require_gate("angle", angle, sizes | {"D//2": sizes["D"] // 2}, "D//2")
        arguments.require_paired(given["log_decay"])
    require_floating("prior_var", prior_var)
    require_shape("prior_var", prior_var, sizes, "", "H")
    wanted = "process_var >= 0, finite"
    require_values("process_var", process_var, lambda x: (x >= 0) & (x < np.inf), wanted)
    for name, value in (("obs_var", obs_var), ("prior_var", prior_var)):
        require_values(name, value, lambda x: (x > 0) & (x < np.inf), f"{name} > 0, finite")
    arguments.require_segments(segment_ids, sizes)
    if state is not None:
        require_floating("state.mean", state.mean)
        require_floating("state.cov", state.cov)
        require_shape("state.mean", state.mean, sizes, "B H D M")
        require_shape("state.cov", state.cov, sizes, "B H G D D")
    return sizes


def _prepare(
    given: dict[str, Any],
    state: KalmanState | None,
    segment_ids: jax.Array | None,
    sizes: dict[str, int],
) -> KalmanInputs:
    """Spells out heads, groups, defaults and padding in one compute dtype."""
    names = ("q", "k", "v", "log_decay", "angle", "process_var", "obs_var")
    held = [] if state is None else [state.mean, state.cov]
    dtype = arguments.compute_dtype(*(given[name] for name in names), *held)
    valid, starts = arguments.documents(segment_ids)
    heads, groups = sizes["H"], sizes["G"]

    def spread(name: str, padded: float = 0.0) -> jax.Array:
        return arguments.spread(given[name], heads, dtype, valid, padded)

    obs_var = jnp.maximum(spread("obs_var", padded=1.0), OBS_VAR_FLOOR)
    prior_var = jnp.broadcast_to(given["prior_var"].astype(dtype), (heads,))
    grouped = (groups, sizes["M"] // groups)
    if state is None:
        eye = jnp.eye(sizes["D"], dtype=dtype)
        mean = jnp.zeros((sizes["B"], heads, sizes["D"], sizes["M"]), dtype)
        cov = jnp.broadcast_to(
            prior_var[:, None, None, None] * eye,
            (sizes["B"], heads, groups, sizes["D"], sizes["D"]),
        )
    else:
        mean, cov = state.mean.astype(dtype), state.cov.astype(dtype)
    v = spread("v")
    return KalmanInputs(
        q=spread("q"),
        k=spread("k"),
        v=v.reshape(*v.shape[:-1], *grouped),
        log_decay=arguments.decay_channels(given["log_decay"], sizes, dtype, valid),
        angle=None if given["angle"] is None else spread("angle"),
        process_var=spread("process_var"),
        obs_var=obs_var if obs_var.ndim == 4 else obs_var[..., None],
        prior_var=prior_var,
        starts=starts,
        mean=jnp.moveaxis(mean.reshape(*mean.shape[:-1], *grouped), -2, -3),
        cov=cov,
    )
