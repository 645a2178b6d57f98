"""Static description of a mixer: its heads, and the options all recurrent mixers share."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from bayesmem.layers.interface import MixerState

ACTIVATIONS = ("identity", "silu")
OUTPUT_GATES = ("none", "silu", "sigmoid")


def require_choice(name: str, found: str, wanted: tuple[str, ...]) -> None:
    """Raises ValueError unless `found` is one of `wanted`."""
    if found not in wanted:
        raise ValueError(f"{name}: found {found!r}, wanted one of {', '.join(map(repr, wanted))}")


def require_positive(**sizes: int) -> None:
    """Raises ValueError unless every size is a whole number of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}: found {size!r}, wanted a whole number >= 1")


def require_even(name: str, size: int) -> None:
    """Raises ValueError unless `size` is even, as what is rotated in pairs must be."""
    if size % 2:
        raise ValueError(f"{name}: found {size}, wanted an even number for the rotation of pairs")


def default_head_dim(width: int, num_heads: int, head_dim: int | None) -> int:
    """Returns `head_dim`, or width / num_heads where it is None.

    Raises:
      ValueError: head_dim is None and num_heads does not divide width.
    """
    require_positive(width=width, num_heads=num_heads)
    if head_dim is not None:
        return head_dim
    if width % num_heads:
        raise ValueError(
            f"head_dim: width {width} / num_heads {num_heads} = {width / num_heads:g} is not a "
            f"whole number; wanted a head_dim, or heads that divide the width"
        )
    return width // num_heads


def expanded(name: str, size: int, factor_name: str, factor: float) -> int:
    """Returns size * factor.

    Raises:
      ValueError: the product is not a whole number >= 1; names both factors and the product.
    """
    product = size * factor
    if product != int(product) or product < 1:
        raise ValueError(
            f"{factor_name}: {name} {size} * {factor_name} {factor:g} = {product:g}, "
            f"wanted a whole number >= 1"
        )
    return int(product)


@dataclasses.dataclass(frozen=True)
class MixerOptions:
    """What every recurrent mixer can be asked for, whatever its recurrence.

    Attributes:
      conv_size: taps of the short convolution on queries, keys and values; 0 for none.
      activation: "identity" or "silu", applied to queries, keys and values.
      output_gate: "none", "silu" or "sigmoid" of a projection of x, times the normalised output.
      norm_eps: epsilon of the per-head RMSNorm of the output.
      chunk_size: tokens in a chunk of the op's chunked form.
      implementation: form of the op, see `bayesmem.ops.dispatch`.
      dtype: dtype of the activations; parameters, gates, decays, norms and state are float32.
    """

    conv_size: int = 0
    activation: str = "identity"
    output_gate: str = "silu"
    norm_eps: float = 1e-5
    chunk_size: int = 64
    implementation: str = "auto"
    dtype: Any = jnp.float32

    def __post_init__(self):
        """Checks the values."""
        require_choice("activation", self.activation, ACTIVATIONS)
        require_choice("output_gate", self.output_gate, OUTPUT_GATES)
        require_positive(chunk_size=self.chunk_size)
        if self.conv_size != 0:
            require_positive(conv_size=self.conv_size)

    def op_arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments that choose the form of the op."""
        return {"chunk_size": self.chunk_size, "implementation": self.implementation}


@dataclasses.dataclass(frozen=True)
class HeadLayout:
    """How many heads of which size; queries and keys have `key_heads`, values `value_heads`.

    Value heads i * r ... (i + 1) * r - 1 read key head i, where r = value_heads / key_heads.

    Raises:
      ValueError: a size is not a whole number >= 1, or key_heads does not divide value_heads.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    def __post_init__(self):
        """Checks the values."""
        require_positive(**dataclasses.asdict(self))
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"value heads: found {self.value_heads}, wanted a multiple of the "
                f"{self.key_heads} key heads"
            )

    @property
    def part_sizes(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values, all heads together."""
        keys = self.key_heads * self.key_dim
        return keys, keys, self.value_heads * self.value_dim

    def conv_window(self, batch: int, conv_size: int):
        """Returns an empty convolution window [B, taps - 1, C] float32, or None without taps."""
        if conv_size == 0:
            return None
        return jnp.zeros((batch, conv_size - 1, sum(self.part_sizes)), jnp.float32)

    def init_state(self, batch: int, options: MixerOptions) -> MixerState:
        """Returns the state of `batch` fresh rows for a memory [B, H, D, M] that starts at zero."""
        shape = (batch, self.value_heads, self.key_dim, self.value_dim)
        return MixerState(jnp.zeros(shape, jnp.float32), self.conv_window(batch, options.conv_size))
