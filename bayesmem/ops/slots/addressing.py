"""Which slots a token addresses: product softmax, exact top-K, and the cyclic shift (CAPE)."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem.array_types import DigitLogits, Positions
from bayesmem.ops.arguments import as_ids, compute_dtype
from bayesmem.ops.checks import require_floating, require_shape, require_values
from bayesmem.ops.slots.types import SlotAddress

MOST_SLOTS = 2**31 - 1
"""Slot numbers are int32."""
LEAST_TEMPERATURE = 1e-6
"""Smaller temperatures are raised to it: scores and their gradients stay within float32."""
_LARGEST_LOGIT = 1e18


def product_topk(
    logits: DigitLogits,
    base: int | Sequence[int] = 4,
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
      base: values of a digit; or of each of the U digits, for S = their product and logits
        [B, T, H, sum of them].
      k: K, slots to address.
      temperature: scalar, [H] or [H, U], at least `LEAST_TEMPERATURE`.

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
    bases = _bases(logits.shape[3], base, k)
    sizes = {"H": logits.shape[2], "U": len(bases)}
    require_shape("temperature", temperature, sizes, "", "H", "H U")
    require_values("logits", logits, np.isfinite, "finite numbers")
    above = f"{LEAST_TEMPERATURE} <= temperature < inf"
    require_values(
        "temperature", temperature, lambda x: (x >= LEAST_TEMPERATURE) & (x < np.inf), above
    )
    return _product_topk(logits, temperature, bases, k)


def cyclic_shift(address: SlotAddress, positions: Positions, num_slots: int) -> SlotAddress:
    """Moves addresses with the position, slot a to (a - t) mod S (CAPE of RAM-Net).

    Args:
      address: slots [B, T, H, K].
      positions: [B, T] integers, t, 0-based in the document.
      num_slots: S.

    Raises:
      ValueError: a shape, dtype or S does not fit.
    """
    require_slots(num_slots)
    if not isinstance(address, tuple | list) or len(address) != len(SlotAddress._fields):
        raise ValueError(f"address: found a {type(address).__name__}, wanted SlotAddress")
    address = SlotAddress(*address)
    ids, positions = as_ids("address.ids", address.ids), as_ids("positions", positions)
    for name, value in (("address.ids", ids), ("positions", positions)):
        if not jnp.issubdtype(value.dtype, jnp.integer):
            raise ValueError(f"{name}: found dtype {value.dtype}, wanted an integer dtype")
    require_shape("address.ids", ids, {}, "B T H K")
    require_shape("positions", positions, dict(zip("BT", ids.shape, strict=False)), "B T")
    # Narrow and unsigned integers would wrap around in the difference, and S in them.
    ids, positions = ids.astype(jnp.int32), positions.astype(jnp.int32)
    shift = jnp.mod(positions, num_slots)[:, :, None, None]
    # Both are in [0, S), so the difference cannot leave int32.
    return address._replace(ids=jnp.mod(ids - shift, num_slots).astype(jnp.int32))


def require_slots(num_slots: int) -> None:
    """Checks that `num_slots` is an integer from 1 to `MOST_SLOTS`."""
    whole = isinstance(num_slots, int) and not isinstance(num_slots, bool)
    if not whole or not 1 <= num_slots <= MOST_SLOTS:
        raise ValueError(f"num_slots: found {num_slots!r}, wanted an integer in 1..{MOST_SLOTS}")


def _bases(width: int, base: int | Sequence[int], k: int) -> tuple[int, ...]:
    """Returns the values of each digit, after all checks of the numbers."""
    each = isinstance(base, tuple | list)
    given: tuple[Any, ...] = tuple(base) if isinstance(base, tuple | list) else (base,)
    for name, value, least in (*(("base", one, 2) for one in given), ("k", k, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}: found {value!r}, wanted an integer >= {least}")
    if each and (not given or width != sum(given)):
        raise ValueError(f"logits: found width {width}, wanted {sum(given)}, sum of base={given}")
    if not each and (width < 1 or width % given[0]):
        raise ValueError(f"logits: found width {width}, wanted a multiple of base={base}")
    bases = given if each else given * (width // given[0])
    slots = math.prod(bases)
    if slots > MOST_SLOTS:
        raise ValueError(
            f"logits: found {len(bases)} digits of base {base}, which are more slots than "
            f"{MOST_SLOTS}, the largest int32"
        )
    if k > slots:
        raise ValueError(
            f"k: found {k} slots to address, wanted at most the {slots} slots of {len(bases)} "
            f"digits of base {base}"
        )
    return bases


@functools.partial(jax.jit, static_argnames=("bases", "k"))
def _product_topk(
    logits: jax.Array, temperature: jax.Array, bases: tuple[int, ...], k: int
) -> SlotAddress:
    """Scores the digits, searches, and gives the found slots their weights.

    The backward pass is given the logits and the found slots, and makes all else again.
    """
    scores = jax.lax.stop_gradient(_scores(logits, temperature, bases))
    ids = _search(scores, k)
    return SlotAddress(ids, _weights(logits, temperature, ids, bases))


def _scores(logits: jax.Array, temperature: jax.Array, bases: tuple[int, ...]) -> list[jax.Array]:
    """Returns a score [B, T, H, base] for each digit, the largest 0."""
    dtype = compute_dtype(logits, temperature)
    if temperature.ndim == 1:
        temperature = temperature[:, None]
    temperature = jnp.maximum(temperature.astype(dtype), LEAST_TEMPERATURE)
    temperature = jnp.broadcast_to(temperature, (logits.shape[2], len(bases)))
    logits = jnp.clip(logits.astype(dtype), -_LARGEST_LOGIT, _LARGEST_LOGIT)
    ends = np.cumsum(bases)[:-1]
    # The maximum goes first: after a division by 1e-6 its rounding alone would be large.
    return [
        (part - jax.lax.stop_gradient(jnp.max(part, axis=-1, keepdims=True)))
        / temperature[:, digit, None]
        for digit, part in enumerate(jnp.split(logits, ends, axis=-1))
    ]


@functools.partial(jax.checkpoint, static_argnums=3)
def _weights(
    logits: jax.Array, temperature: jax.Array, ids: jax.Array, bases: tuple[int, ...]
) -> jax.Array:
    """Returns the products of the digits' probabilities of slots [B, T, H, K]."""
    scores, rest = _scores(logits, temperature, bases), ids
    log_weight = jnp.zeros(ids.shape, scores[0].dtype)
    for part, base in zip(scores, bases, strict=True):
        value = rest % base
        log_weight = log_weight + jnp.take_along_axis(
            jax.nn.log_softmax(part, axis=-1), value, axis=-1
        )
        rest = rest // base
    return jnp.exp(log_weight)


def _search(scores: Sequence[jax.Array], k: int) -> jax.Array:
    """Finds the K largest sums of one score a digit: U scores [..., base] -> ids [..., K].

    All extensions of a prefix gain from the digits to come what those of any other gain, so the
    best K of all are extensions of the best K prefixes. Prefixes start at the most significant
    digit and are kept in the order of their numbers; then places are in the order of slot numbers,
    and `top_k`, which prefers the first of equals, prefers the smaller number.
    """
    ids = jnp.zeros((*scores[0].shape[:-1], 1), jnp.int32)
    total = jnp.zeros(ids.shape, scores[0].dtype)
    for digit, score in reversed(list(enumerate(scores))):
        score = jnp.where(score == 0, 0.0, score)  # for `top_k`, -0 is less than 0
        base = score.shape[-1]
        total = total[..., :, None] + score[..., None, :]
        ids = ids[..., :, None] * base + jnp.arange(base, dtype=jnp.int32)
        flat = (*total.shape[:-2], total.shape[-2] * base)
        total, ids = total.reshape(flat), ids.reshape(flat)
        if digit == 0 or total.shape[-1] > k:
            place = jax.lax.top_k(total, k)[1]
            if digit > 0:
                place = jnp.sort(place, axis=-1)
            total, ids = (jnp.take_along_axis(x, place, axis=-1) for x in (total, ids))
    return ids
