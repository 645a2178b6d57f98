"""Arrays that pass between the public functions and the forms of the slot memory."""

from typing import NamedTuple

import jax

from bayesmem.array_types import SlotContent, SlotIds, SlotMass, SlotWeights

MASS_FLOOR = 1e-12
"""Added to a slot's mass where it divides (epsilon of RAM-Net's gated slot update)."""


class SlotAddress(NamedTuple):
    """The slots that each token addresses, and how strongly; no slot twice in one token."""

    ids: SlotIds  # [B, T, H, K] int32, in [0, S)
    weights: SlotWeights  # [B, T, H, K], in [0, 1]


class SlotState(NamedTuple):
    """What the slots hold, s, and the weight of what they hold, m. At the start s = 0, m = 1/S."""

    content: SlotContent  # [B, H, S, M]
    mass: SlotMass  # [B, H, S]


class SlotInputs(NamedTuple):
    """Checked inputs of a form: one compute dtype, padding with weight 0 and retention 1."""

    write_ids: jax.Array  # [B, T, H, K] int32
    write_weights: jax.Array  # [B, T, H, K]
    keep: jax.Array  # [B, T, H, K] retention of the mass of each written slot
    read_ids: jax.Array  # [B, T, H, R] int32
    read_weights: jax.Array  # [B, T, H, R]
    v: jax.Array  # [B, T, H, M]
    starts: jax.Array | None  # [B, T] bool, where a document starts
    content: jax.Array  # [B, H, S, M]
    mass: jax.Array  # [B, H, S]


class SlotOutputs(NamedTuple):
    """What every form returns."""

    o: jax.Array  # [B, T, H, M] what each token reads
    content: jax.Array  # [B, H, S, M]
    mass: jax.Array  # [B, H, S]
