"""Which slots a token addresses: product softmax, exact top-K, and the cyclic shift (CAPE)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem.array_types import DigitLogits, Positions
from bayesmem.ops.arguments import compute_dtype
from bayesmem.ops.checks import require_floating, require_shape, require_values
from bayesmem.ops.slots.types import SlotAddress

MOST_SLOTS = 2**31 - 1
"""Slot numbers are int32."""


def product_topk(
    logits: DigitLogits,
    base: int = 4,
    k: int = 8,
    temperature: float | jax.Array = 1.0,
) -> SlotAddress:
    """Returns the K slots of the largest product weights (RAM-Net, arXiv 2602.11958v2).

        p_u = softmax(logits_u / temperature_u),   u = 0..U-1
        slot a = sum_u a_u base^u,   weight of a = product over u of p_u[a_u],   S = base^U

    The search goes digit by digit and is exact. Equal weights go to the smaller slot number. The
    weights are not normalised again. Gradients flow through the K weights that are kept, softmax
    included. Scores are float32 at least, and no array has an axis of S.

    Args:
      logits: [B, T, H, U * base], digit 0, the least significant, first.
      base: values of a digit.
      k: K, slots to address.
      temperature: scalar, [H] or [H, U], > 0.

    Returns:
      Slot numbers and weights [B, T, H, K], the largest weight first.

    Raises:
      ValueError: a rank, size, dtype or value does not fit (a NaN score included), 1 <= K <= S does
        not hold, or S is beyond int32.
    """
    logits, temperature = jnp.asarray(logits), jnp.asarray(temperature)
    if jnp.issubdtype(temperature.dtype, jnp.integer):
        temperature = temperature.astype(jnp.float32)
    require_floating("logits", logits)
    require_floating("temperature", temperature)
    require_shape("logits", logits, {}, "B T H U*base")
    digits = _digits(logits.shape[3], base, k)
    sizes = {"H": logits.shape[2], "U": digits}
    require_shape("temperature", temperature, sizes, "", "H", "H U")
    require_values("logits", logits, lambda x: x < np.inf, "logits < inf, and no NaN")
    require_values("temperature", temperature, lambda x: x > 0, "temperature > 0")
    return _product_topk(logits, temperature, base, k)


def cyclic_shift(address: SlotAddress, positions: Positions, num_slots: int) -> SlotAddress:
    """Moves addresses with the position, slot a to (a - t) mod S (CAPE of RAM-Net).

    Args:
      address: slots [B, T, H, K].
      positions: [B, T] integers, t, 0-based in the document.
      num_slots: S.

    Raises:
      ValueError: a shape, dtype or S does not fit.
    """
    ids, positions = jnp.asarray(address.ids), jnp.asarray(positions)
    require_slots(num_slots)
    for name, value in (("address.ids", ids), ("positions", positions)):
        if not jnp.issubdtype(value.dtype, jnp.integer):
            raise ValueError(f"{name}: found dtype {value.dtype}, wanted an integer dtype")
    require_shape("address.ids", ids, {}, "B T H K")
    require_shape("positions", positions, dict(zip("BT", ids.shape, strict=False)), "B T")
    shift = jnp.mod(positions, num_slots)[:, :, None, None]
    # Both are in [0, S), so the difference cannot leave int32.
    return address._replace(ids=jnp.mod(ids - shift, num_slots).astype(jnp.int32))


def require_slots(num_slots: int) -> None:
    """Checks that `num_slots` is an integer from 1 to `MOST_SLOTS`."""
    whole = isinstance(num_slots, int) and not isinstance(num_slots, bool)
    if not whole or not 1 <= num_slots <= MOST_SLOTS:
        raise ValueError(f"num_slots: found {num_slots!r}, wanted an integer in 1..{MOST_SLOTS}")


def _digits(width: int, base: int, k: int) -> int:
    """Returns U, after all checks of the numbers."""
    for name, value, least in (("base", base, 2), ("k", k, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}: found {value!r}, wanted an integer >= {least}")
    if width < 1 or width % base:
        raise ValueError(f"logits: found width {width}, wanted a multiple of base={base}")
    digits = width // base
    if base**digits > MOST_SLOTS:
        raise ValueError(
            f"logits: found {digits} digits of base {base}, which are more slots than "
            f"{MOST_SLOTS}, the largest int32"
        )
    if k > base**digits:
        raise ValueError(
            f"k: found {k} slots to address, wanted at most the {base**digits} slots of {digits} "
            f"digits of base {base}"
        )
    return digits


@functools.partial(jax.jit, static_argnames=("base", "k"))
def _product_topk(logits: jax.Array, temperature: jax.Array, base: int, k: int) -> SlotAddress:
    """Scores the digits, searches, and gives the found slots their weights."""
    digits = logits.shape[3] // base
    dtype = compute_dtype(logits, temperature)
    scores = logits.astype(dtype).reshape(*logits.shape[:3], digits, base)
    over = temperature.reshape(*temperature.shape, *(1,) * (3 - temperature.ndim))
    scores = scores / (over if temperature.ndim else temperature).astype(dtype)
    ids = _search(jax.lax.stop_gradient(scores), k)
    powers = base ** jnp.arange(digits, dtype=jnp.int32)
    values = ids[..., None, :] // powers[:, None] % base
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores, axis=-1), values, axis=-1)
    return SlotAddress(ids, jnp.exp(jnp.sum(chosen, axis=-2)))


def _search(scores: jax.Array, k: int) -> jax.Array:
    """Finds the K largest sums of one score a digit: scores [..., U, base] -> ids [..., K].

    All extensions of a prefix gain from the digits to come what those of any other gain, so the
    best K of all are extensions of the best K prefixes. Prefixes start at the most significant
    digit and are kept in the order of their numbers; then places are in the order of slot numbers,
    and `top_k`, which prefers the first of equals, prefers the smaller number.
    """
    digits, base = scores.shape[-2:]
    scores = scores - jnp.max(scores, axis=-1, keepdims=True)
    scores = jnp.where(scores == 0, 0.0, scores)  # for `top_k`, -0 is less than 0
    ids = jnp.zeros((*scores.shape[:-2], 1), jnp.int32)
    total = jnp.zeros(ids.shape, scores.dtype)
    for digit in reversed(range(digits)):
        total = total[..., :, None] + scores[..., digit, None, :]
        ids = ids[..., :, None] * base + jnp.arange(base, dtype=jnp.int32)
        flat = (*total.shape[:-2], total.shape[-2] * base)
        total, ids = total.reshape(flat), ids.reshape(flat)
        if digit == 0 or total.shape[-1] > k:
            place = jax.lax.top_k(total, k)[1]
            if digit > 0:
                place = jnp.sort(place, axis=-1)
            total, ids = (jnp.take_along_axis(x, place, axis=-1) for x in (total, ids))
    return ids
