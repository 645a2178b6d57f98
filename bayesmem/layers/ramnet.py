"""RAM-Net: a memory of slots of which a token writes K and reads K (arXiv 2602.11958v2)."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import Addresses, Hidden, Positions, SegmentIds
from bayesmem.layers.heads import HEAD_AXES, gated
from bayesmem.layers.interface import (
    NO_STATE,
    MixerState,
    check_input,
    mask_padding,
    reject_addresses,
)
from bayesmem.layers.linear import linear, parameter, wide_linear
from bayesmem.layers.norm import RMSNorm
from bayesmem.layers.options import (
    default_head_dim,
    require_choice,
    require_number,
    require_positive,
)
from bayesmem.layers.rotary import document_positions, next_position
from bayesmem.layers.short_convolution import ShortConvolution, Window
from bayesmem.ops.segments import valid_steps
from bayesmem.ops.slots.addressing import LEAST_TEMPERATURE

RETENTIONS = ("gsu", "pdma")
LEAST_EPS = 1e-12
"""Smallest epsilon of the output's norm: a read of zeros has a gradient of at most 1e6."""


class RamNet(nn.Module):
    """Writes K of S = base^digits slots a head, then reads K, by sparse product addresses.

    A linear projection of x gives, without convolution or activation, an output gate g, a value v,
    a forget strength gamma and the digit scores of a write and of a read address. An address is the
    exact top K of the product of `digits` softmaxes; in CAPE heads it moves with the position, slot
    a to (a - t) mod S. The slots are updated by the gated slot update, `ops.slot_memory`; the
    output is W_o (RMSNorm(o) * sigmoid(g)).

    Values of our own choice, where the paper prints none: the share of CAPE heads, and every
    `initial_*` but the temperature.

    Attributes:
      width: W.
      num_heads: H.
      value_dim: M, width of a slot; None for width / num_heads.
      digits: U, digits of an address.
      base: values of a digit, or one number for each digit; then S is their product.
      top_k: K, slots that a token writes, and slots that it reads; at most S.
      cape_share: share of the heads, the first ones, whose addresses move with the position; their
        number is rounded, a half to the even one.
      retention: "gsu", or "pdma" of the paper's first version.
      output_norm: whether each head's read is normalised.
      renormalise: whether the K weights of an address are scaled to the sum 1.
      balance: weight of a loss that spreads addresses evenly over the slots; 0 for none.
      conv_size: taps of a short convolution on values and digit scores, which the paper does not
        have; 0 for none.
      initial_temperature: of the digits' softmaxes; a learned factor a head and digit.
      initial_gate: bias of g; the gate starts near open.
      initial_forget: bias of gamma; above 0, so that early writes fade fast.
      initial_address: standard deviation of the biases of the digit scores, distinct from each
        other so that slots differ from the start.
      norm_eps: epsilon of the output's RMSNorm.
      implementation: form of the op, see `bayesmem.ops.dispatch`.
      dtype: dtype of values, gate and output; addresses, gamma and slots are float32.
    """

    width: int
    num_heads: int = 4
    value_dim: int | None = None
    digits: int = 5
    base: int | Sequence[int] = 4
    top_k: int = 8
    cape_share: float = 0.5
    retention: str = "gsu"
    output_norm: bool = True
    renormalise: bool = False
    balance: float = 0.0
    conv_size: int = 0
    initial_temperature: float = 2.2
    initial_gate: float = 2.0
    initial_forget: float = 1.0
    initial_address: float = 0.1
    norm_eps: float = 1e-5
    implementation: str = "auto"
    dtype: Any = jnp.float32

    def __post_init__(self):
        """Checks the sizes."""
        if isinstance(self.base, list):
            self.base = tuple(self.base)  # a list would make the layer unhashable
        super().__post_init__()
        require_positive(digits=self.digits, top_k=self.top_k)
        if len(self.bases) != self.digits:
            raise ValueError(
                f"base, digits: found {len(self.bases)} bases {self.bases} and digits="
                f"{self.digits}, wanted a base for each digit"
            )
        for base in self.bases:
            if isinstance(base, bool) or not isinstance(base, int) or base < 2:
                raise ValueError(f"base: found {base!r}, wanted a whole number >= 2")
        whole = isinstance(self.conv_size, int) and not isinstance(self.conv_size, bool)
        if not whole or self.conv_size < 0:
            raise ValueError(f"conv_size: found {self.conv_size!r}, wanted a whole number >= 0")
        require_positive(value_dim=self.slot_width)
        require_choice("retention", self.retention, RETENTIONS)
        if self.top_k > self.num_slots or self.num_slots >= 2**31:
            product = f"{self.base}^{self.digits}" if isinstance(self.base, int) else self.bases
            raise ValueError(
                f"top_k, digits, base: found top_k={self.top_k} of {product} = {self.num_slots} "
                f"slots, wanted top_k at most that number, and fewer than 2^31 slots"
            )
        for name, least, most in (
            ("cape_share", 0.0, 1.0),
            ("balance", 0.0, math.inf),
            ("initial_temperature", LEAST_TEMPERATURE, math.inf),
            ("initial_gate", -math.inf, math.inf),
            ("initial_forget", -math.inf, math.inf),
            ("initial_address", 0.0, math.inf),
            ("norm_eps", LEAST_EPS, math.inf),
        ):
            require_number(name, getattr(self, name), least, most)

    @property
    def bases(self) -> tuple[int, ...]:
        """Values of each digit, the least significant first."""
        if isinstance(self.base, int):
            return (self.base,) * self.digits
        return self.base if isinstance(self.base, tuple) else (self.base,)

    @property
    def num_slots(self) -> int:
        """S, slots of a head."""
        return math.prod(self.bases)

    @property
    def slot_width(self) -> int:
        """M, values in a slot."""
        return default_head_dim(self.width, self.num_heads, self.value_dim)

    @property
    def cape_heads(self) -> int:
        """How many heads, the first ones, move their addresses with the position."""
        return round(self.cape_share * self.num_heads)

    @nn.nowrap
    def init_state(self, batch: int) -> MixerState:
        """Returns the slots of `batch` rows that have read nothing, at position 0."""
        shape = (batch, self.num_heads, self.num_slots)
        content = jnp.zeros((*shape, self.slot_width), jnp.float32)
        mass = jnp.full(shape, 1 / self.num_slots, jnp.float32)
        window = None
        if self.conv_size:
            channels = self.num_heads * (self.slot_width + 2 * sum(self.bases))
            window = jnp.zeros((batch, self.conv_size - 1, channels), jnp.float32)
        return MixerState(ops.SlotState(content, mass), window, jnp.zeros(batch, jnp.int32))

    @nn.compact
    def __call__(
        self,
        x: Hidden,
        state: MixerState | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        addresses: Addresses | None = None,
    ) -> tuple[Hidden, MixerState]:
        """Returns the layer's output [B, T, W] and the state after it; see `Mixer`.

        Sows `write_address` and `read_address` into "intermediates", and the balancing loss into
        "losses" where `balance` is on.

        Raises:
          ValueError: there are addresses, which are keys and no slots.
        """
        reject_addresses("ramnet", addresses)
        check_input(x, self.width, segment_ids)
        memory, window, offset = state or NO_STATE
        if offset is None:
            offset = jnp.zeros(x.shape[0], jnp.int32)
        positions = document_positions(x.shape[:2], segment_ids, offset, positions)
        x = mask_padding(x, segment_ids)
        v, write, read, window = self._projections(x, window, segment_ids)
        o, memory = ops.slot_memory(
            self._address("write", write, positions, segment_ids),
            self._address("read", read, positions, segment_ids),
            v,
            self._forget(x),
            num_slots=self.num_slots,
            retention=self.retention,
            state=memory,
            segment_ids=segment_ids,
            implementation=self.implementation,
        )
        if self.output_norm:
            o = RMSNorm(self.norm_eps, name="norm")(o)
        bias = nn.initializers.constant(self.initial_gate)
        values = self.num_heads * self.slot_width
        gate = linear(values, HEAD_AXES, "gate", dtype=self.dtype, bias=bias)(x)
        y = gated(o.reshape(*x.shape[:2], values), gate, "sigmoid")
        y = mask_padding(y, segment_ids)
        y = linear(self.width, HEAD_AXES[::-1], "out", dtype=self.dtype)(y)
        return y, MixerState(memory, window, next_position(positions, segment_ids, offset))

    def _projections(
        self, x: Hidden, window: Window | None, segment_ids: SegmentIds | None
    ) -> tuple[jax.Array, jax.Array, jax.Array, Window | None]:
        """Returns v [B, T, H, M], scores of both addresses [B, T, H, sum of bases], the window."""
        values, scores = self.num_heads * self.slot_width, self.num_heads * sum(self.bases)
        bias = nn.initializers.normal(self.initial_address)
        parts = [linear(values, HEAD_AXES, "value", dtype=self.dtype)(x)]
        for name in ("write", "read"):
            parts.append(wide_linear(scores, ("embed", None), name, bias=bias)(x))
        if self.conv_size:
            joined = jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=-1)
            joined, window = ShortConvolution(self.conv_size, name="conv")(
                joined, window, segment_ids
            )
            parts = jnp.split(joined, (values, values + scores), axis=-1)
        sizes = (self.slot_width, sum(self.bases), sum(self.bases))
        v, write, read = (
            part.reshape(*x.shape[:2], self.num_heads, size)
            for part, size in zip(parts, sizes, strict=True)
        )
        return v.astype(self.dtype), write, read, window

    def _forget(self, x: Hidden) -> jax.Array:
        """Returns gamma [B, T, H] float32; of any sign, but not for "pdma"."""
        bias = nn.initializers.constant(self.initial_forget)
        raw = wide_linear(self.num_heads, ("embed", None), "forget", bias=bias)(x)
        return nn.softplus(raw) if self.retention == "pdma" else raw

    def _address(
        self, name: str, logits: jax.Array, positions: Positions, segment_ids: SegmentIds | None
    ) -> ops.SlotAddress:
        """Returns K slots and weights [B, T, H, K] of an address from its scores [B, T, H, ...]."""
        zeros, shape = nn.initializers.zeros_init(), (self.num_heads, self.digits)
        factor = parameter(self, f"{name}_temperature", zeros, (None, None), shape)
        temperature = self.initial_temperature * jnp.exp(factor)
        if self.balance and not self.is_initializing():
            parts = jnp.split(logits, np.cumsum(self.bases)[:-1], axis=-1)
            uneven = [
                imbalance(part / temperature[:, digit, None], segment_ids)
                for digit, part in enumerate(parts)
            ]
            self.sow("losses", f"{name}_balance", self.balance * jnp.mean(jnp.stack(uneven)))
        address = ops.product_topk(logits, self.bases, self.top_k, temperature)
        moved = ops.cyclic_shift(address, positions, self.num_slots)
        is_cape = jnp.arange(self.num_heads) < self.cape_heads
        address = address._replace(ids=jnp.where(is_cape[:, None], moved.ids, address.ids))
        if self.renormalise:
            weights = address.weights / jnp.sum(address.weights, axis=-1, keepdims=True)
            address = address._replace(weights=jnp.minimum(weights, 1.0))
        if not self.is_initializing():
            self.sow("intermediates", f"{name}_address", address)
        return address


def imbalance(logits: jax.Array, segment_ids: SegmentIds | None) -> jax.Array:
    """Returns how unevenly a digit's values are used, 0 where all are used alike.

    With p the mean of its softmax over all valid tokens: base * sum(p^2) - 1, averaged over heads.

    Args:
      logits: [B, T, H, base], divided by the temperature.
      segment_ids: [B, T] int32 or None.
    """
    used = nn.softmax(logits, axis=-1)
    valid = jnp.ones(used.shape[:2], bool) if segment_ids is None else valid_steps(segment_ids)
    count = jnp.sum(valid)
    used = jnp.where(valid[:, :, None, None], used, 0)
    mean = jnp.sum(used, axis=(0, 1)) / jnp.maximum(count, 1)
    uneven = jnp.mean(logits.shape[-1] * jnp.sum(jnp.square(mean), axis=-1) - 1)
    return jnp.where(count == 0, 0.0, uneven)
