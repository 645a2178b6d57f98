"""Memory recurrences as pure functions: no Flax, no parameters.

Every op takes sequence-first arrays [B, T, H, ...] and returns `(output, state)`; the step for
decoding is the same function with T = 1. See `docs/DESIGN.md` for the contract.
"""

from bayesmem.ops.additive.api import linear_attention
from bayesmem.ops.checks import debug_checks
from bayesmem.ops.delta.api import delta_rule
from bayesmem.ops.gated_slots.api import gated_slot_attention
from bayesmem.ops.gated_slots.types import GatedSlots
from bayesmem.ops.kalman.api import initial_state as initial_kalman_state
from bayesmem.ops.kalman.api import kalman_memory, kalman_predict
from bayesmem.ops.kalman.types import OBS_VAR_FLOOR, KalmanState
from bayesmem.ops.slots.addressing import cyclic_shift, product_topk
from bayesmem.ops.slots.api import slot_memory
from bayesmem.ops.slots.types import MASS_FLOOR, SlotAddress, SlotState

__all__ = [
    "MASS_FLOOR",
    "OBS_VAR_FLOOR",
    "GatedSlots",
    "KalmanState",
    "SlotAddress",
    "SlotState",
    "cyclic_shift",
    "debug_checks",
    "delta_rule",
    "gated_slot_attention",
    "initial_kalman_state",
    "kalman_memory",
    "kalman_predict",
    "linear_attention",
    "product_topk",
    "slot_memory",
]
