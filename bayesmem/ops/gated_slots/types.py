"""Arrays that pass between the public function and the forms of gated slot attention."""

from typing import NamedTuple

import jax


class GatedSlots(NamedTuple):
    """Keys and values of S slots; zero where nothing was written."""

    keys: jax.Array  # [B, H, S, D]
    values: jax.Array  # [B, H, S, M]


class GatedSlotInputs(NamedTuple):
    """Checked inputs of a form: one compute dtype, all heads spelled out, padding neutral."""

    q: jax.Array  # [B, T, H, D]
    k: jax.Array  # [B, T, H, D]
    v: jax.Array  # [B, T, H, M]
    log_decay: jax.Array  # [B, T, H, S]
    starts: jax.Array | None  # [B, T] bool
    slots: GatedSlots
