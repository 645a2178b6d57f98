"""Arrays that pass between the public function and the forms of the additive recurrence."""

from typing import NamedTuple

import jax


class AdditiveInputs(NamedTuple):
    """Checked inputs of a form: one compute dtype, all heads spelled out, padding neutral."""

    q: jax.Array  # [B, T, H, D]
    k: jax.Array  # [B, T, H, D]
    v: jax.Array  # [B, T, H, M], gain applied
    log_decay: jax.Array  # [B, T, H, C], C = 1 or D
    starts: jax.Array | None  # [B, T] bool
    memory: jax.Array  # [B, H, D, M]
