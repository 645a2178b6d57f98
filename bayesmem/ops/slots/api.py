"""The public slot memory: checks, defaults, dispatch."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem.array_types import HeadScalars, SegmentIds, Values
from bayesmem.ops import arguments, dispatch
from bayesmem.ops.checks import require_floating, require_shape, require_values
from bayesmem.ops.slots.addressing import require_slots
from bayesmem.ops.slots.reference import recurrent, retained
from bayesmem.ops.slots.segmented import segmented
from bayesmem.ops.slots.touched import touched
from bayesmem.ops.slots.types import SlotAddress, SlotInputs, SlotOutputs, SlotState

FORMS = {
    "recurrent": recurrent,
    "touched": touched,
    "segmented": segmented,
    "pallas": dispatch.kernel("slot_memory", "pallas"),
    "triton": dispatch.kernel("slot_memory", "triton"),
}
RETENTIONS = ("gsu", "pdma")


def slot_memory(
    write: SlotAddress,
    read: SlotAddress,
    v: Values,
    forget: HeadScalars,
    *,
    num_slots: int,
    retention: str = "gsu",
    state: SlotState | None = None,
    segment_ids: SegmentIds | None = None,
    implementation: str = "auto",
) -> tuple[Values, SlotState]:
    """Writes a few of S slots and reads a few, for every token (RAM-Net, arXiv 2602.11958v2).

    For each written slot a with its weight w, m its mass and s its content (gated slot update):

        lambda = sigmoid(logit(1 - w) - gamma),   m = lambda m + w,   eta = w / (m + 1e-12)
        s = s + eta (v - s)

    then, with the slots and weights r of the read, o = sum over a of r[a] s[a]. Slots that are not
    written, or with weight 0, stay as they are, bit for bit. At the start m = 1/S, s = 0.

    Args:
      write: slots [B, T, H, K] int32 in [0, S), none twice in one token (as `product_topk` gives
        them; if one is, one of its writes is lost), and weights in [0, 1].
      read: slots [B, T, H, R] and weights, by which the contents are added up.
      v: [B, T, H, M], values.
      forget: [B, T, H], gamma, any number: far below 0 nothing is forgotten and a slot holds the
        weighted mean of its writes, far above 0 a write replaces what was there.
      num_slots: S.
      retention: "gsu" as above, or "pdma": lambda = (1 - w)^gamma with gamma >= 0. Both see w at
        most 1 - eps of the dtype, so that a weight of 1 has a finite gradient.
      state: slots to continue from, or None for the start.
      segment_ids: [B, T] integers or None; a new id starts a new document at the start, a negative
        id is padding (see `bayesmem.ops.segments`). The first document continues from `state`.
      implementation: "auto", "recurrent", "touched", "segmented", "pallas" or "triton".

    Returns:
      o [B, T, H, M] in the dtype of v, and the state, float32 at least. With "recurrent", which
      "auto" takes for up to 8 tokens, one token costs the same at any S, if the state is donated
      to the jitted caller.

    Raises:
      ValueError: a rank, size, dtype or value does not fit; names the argument.
      NotImplementedError: the named implementation cannot run here.
    """
    dispatch.require_known("slot_memory", implementation, FORMS)
    if retention not in RETENTIONS:
        raise ValueError(f"retention: found {retention!r}, wanted 'gsu' or 'pdma'")
    require_slots(num_slots)
    write, read = _address("write", write), _address("read", read)
    v, forget = jnp.asarray(v), jnp.asarray(forget)
    segment_ids = arguments.as_segments(segment_ids)
    if state is not None:
        if not isinstance(state, tuple | list) or len(state) != len(SlotState._fields):
            raise ValueError(
                f"state: found a {type(state).__name__}, wanted SlotState(content [B, H, S, M], "
                f"mass [B, H, S])"
            )
        state = SlotState(*map(jnp.asarray, state))
    _check_shapes(write, read, v, forget, num_slots, state, segment_ids)
    _check_values(write, read, forget, num_slots, retention, segment_ids)
    return _run(write, read, v, forget, num_slots, retention, state, segment_ids, implementation)


@functools.partial(jax.jit, static_argnames=("num_slots", "retention", "implementation"))
def _run(
    write: SlotAddress,
    read: SlotAddress,
    v: jax.Array,
    forget: jax.Array,
    num_slots: int,
    retention: str,
    state: SlotState | None,
    segment_ids: jax.Array | None,
    implementation: str,
) -> tuple[jax.Array, SlotState]:
    """Spells out defaults and padding of checked arguments, and runs a form."""
    held = () if state is None else state
    dtype = arguments.compute_dtype(write.weights, read.weights, v, forget, *held)
    (batch, steps, heads, width), slots = v.shape, num_slots
    valid, starts = arguments.documents(segment_ids)

    def spread(x: jax.Array) -> jax.Array:
        return arguments.spread(x, heads, dtype, valid)

    if state is None:
        content = jnp.zeros((batch, heads, slots, width), dtype)
        state = SlotState(content, jnp.full((batch, heads, slots), 1 / slots, dtype))
    weights = spread(write.weights)
    inputs = SlotInputs(
        write_ids=_real_slots(write.ids, valid),
        write_weights=weights,
        keep=retained(weights, spread(forget), retention),
        read_ids=_real_slots(read.ids, valid),
        read_weights=spread(read.weights),
        v=spread(v),
        # The first token of a call starts nothing, so a step of decoding need not look.
        starts=None if steps == 1 else starts,
        content=state.content.astype(dtype),
        mass=state.mass.astype(dtype),
    )
    if steps == 0:
        outputs = SlotOutputs(inputs.v, inputs.content, inputs.mass)
    else:
        outputs = dispatch.run("slot_memory", implementation, FORMS, _preferred(steps), inputs)
    return outputs.o.astype(v.dtype), SlotState(outputs.content, outputs.mass)


def _preferred(steps: int) -> tuple[str, ...]:
    """Returns the order in which "auto" tries forms for a call of `steps` tokens."""
    if steps <= arguments.SHORT:
        return ("recurrent",)
    if jax.default_backend() == "cpu":
        return ("touched",)
    return ("pallas", "triton", "segmented")


def _real_slots(ids: jax.Array, valid: jax.Array | None) -> jax.Array:
    """Slot numbers as int32; padding, whose weights are 0, gets 0, 1, .. K-1."""
    ids = ids.astype(jnp.int32)
    if valid is None:
        return ids
    return jnp.where(valid[:, :, None, None], ids, jnp.arange(ids.shape[3], dtype=jnp.int32))


def _address(name: str, address: Any) -> SlotAddress:
    """Returns (ids, weights) as a SlotAddress of arrays of the right dtypes."""
    if not isinstance(address, tuple | list) or len(address) != len(SlotAddress._fields):
        raise ValueError(
            f"{name}: found a {type(address).__name__}, wanted SlotAddress(ids [B, T, H, K], "
            f"weights [B, T, H, K])"
        )
    ids, weights = address
    address = SlotAddress(arguments.as_ids(f"{name}.ids", ids), jnp.asarray(weights))
    if not jnp.issubdtype(address.ids.dtype, jnp.integer):
        raise ValueError(f"{name}.ids: found dtype {address.ids.dtype}, wanted an integer dtype")
    require_floating(f"{name}.weights", address.weights)
    return address


def _check_shapes(
    write: SlotAddress,
    read: SlotAddress,
    v: jax.Array,
    forget: jax.Array,
    num_slots: int,
    state: SlotState | None,
    segment_ids: jax.Array | None,
) -> None:
    """Checks ranks, sizes and dtypes."""
    require_floating("v", v)
    require_floating("forget", forget)
    require_shape("v", v, {}, "B T H M")
    sizes = dict(zip("BTHM", v.shape, strict=True)) | {"S": num_slots}
    for axis in ("H", "M"):
        if sizes[axis] < 1:
            raise ValueError(f"v: found {axis}={sizes[axis]}, wanted at least 1")
    for name, address, axis in (("write", write, "K"), ("read", read, "R")):
        require_shape(f"{name}.ids", address.ids, sizes, f"B T H {axis}")
        sizes[axis] = address.ids.shape[3]
        require_shape(f"{name}.weights", address.weights, sizes, f"B T H {axis}")
        if not 1 <= sizes[axis] <= num_slots:
            raise ValueError(
                f"{name}.ids: found {axis}={sizes[axis]} addressed slots, wanted 1 to "
                f"num_slots={num_slots}"
            )
    require_shape("forget", forget, sizes, "B T H")
    arguments.require_segments(segment_ids, sizes)
    if state is not None:
        for name, value, axes in (
            ("content", state.content, "B H S M"),
            ("mass", state.mass, "B H S"),
        ):
            require_floating(f"state.{name}", value)
            require_shape(f"state.{name}", value, sizes, axes)


def _check_values(
    write: SlotAddress,
    read: SlotAddress,
    forget: jax.Array,
    num_slots: int,
    retention: str,
    segment_ids: jax.Array | None,
) -> None:
    """Checks the values of all but padding."""
    valid = None if segment_ids is None else segment_ids >= 0

    def real(x: jax.Array) -> jax.Array:
        return arguments.spread(x, x.shape[2], x.dtype, valid)

    for name, address in (("write", write), ("read", read)):
        ids = _real_slots(address.ids, valid)
        inside = f"0 <= slot < num_slots={num_slots}"
        require_values(f"{name}.ids", ids, lambda x: (x >= 0) & (x < num_slots), inside)
        require_values(f"{name}.ids", ids, _distinct, "no slot twice in one token")
        weights = real(address.weights)
        wanted = "0 <= weight <= 1"
        require_values(f"{name}.weights", weights, lambda x: (x >= 0) & (x <= 1), wanted)
    if retention == "pdma":
        finite = "0 <= forget < inf for 'pdma'"
        require_values("forget", real(forget), lambda x: (x >= 0) & (x < np.inf), finite)
    else:
        require_values("forget", real(forget), lambda x: x == x, "a number, not NaN")


def _distinct(ids: np.ndarray) -> np.ndarray:
    """Where no slot comes twice in one token, for all its slots alike."""
    ordered = np.sort(ids, axis=-1)
    once = np.all(np.diff(ordered, axis=-1) != 0, axis=-1, keepdims=True)
    return np.broadcast_to(once, ids.shape)
