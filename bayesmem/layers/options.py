"""Static description of a mixer: its heads, and the options all recurrent mixers share."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp

ACTIVATIONS = ("identity", "silu")
OUTPUT_GATES = ("none", "silu", "sigmoid")
OUTPUT_NORMS = ("heads", "gated_groups", "none")


def require_choice(name: str, found: str, wanted: tuple[str, ...]) -> None:
    """Raises ValueError unless `found` is one of `wanted`."""
    if found not in wanted:
        raise ValueError(f"{name}: found {found!r}, wanted one of {', '.join(map(repr, wanted))}")


def require_positive(**sizes: int) -> None:
    """Raises ValueError unless every size is a whole number of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}: found {size!r}, wanted a whole number >= 1")


def require_number(name: str, value: float, least: float, most: float) -> None:
    """Raises ValueError unless `value` is a finite number from `least` to `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{name}: found {value!r}, wanted a finite number in {least:g}..{most:g}")


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
      ValueError: the product is not a whole number >= 1, but for the rounding of a factor such as
        1/3; names both factors and the product.
    """
    product = size * factor
    if not math.isclose(product, round(product), rel_tol=1e-9) or round(product) < 1:
        raise ValueError(
            f"{factor_name}: {name} {size} * {factor_name} {factor:g} = {product:g}, "
            f"wanted a whole number >= 1"
        )
    return round(product)


@dataclasses.dataclass(frozen=True)
class MixerOptions:
    """What every recurrent mixer can be asked for, whatever its recurrence.

    Attributes:
      conv_size: taps of the short convolution on queries, keys and values; 0 for none.
      activation: "identity" or "silu", applied to queries, keys and values.
      conv_bias: whether the convolution adds a bias.
      qk_bias: standard deviation of the initial values of a bias that keys and queries share, added
        before they are normalised; 0 for no bias. It is a direction in which every query finds
        every key, so what was written last can be read whatever its key: a layer without a short
        convolution learns to look one token back from it.
      output_gate: "none", "silu" or "sigmoid" of a projection of x, times the normalised output.
      output_norm: the RMSNorm of the values read. "heads": of each head, with one scale for all
        heads, before the gate. "gated_groups": after the gate, of all value heads that share a key
        head together, with a scale for each channel of all heads, as in Mamba-2. "none": none.
      norm_eps: epsilon of that RMSNorm.
      chunk_size: tokens in a chunk of the op's chunked form.
      implementation: form of the op, see `bayesmem.ops.dispatch`.
      dtype: dtype of the activations; parameters, gates, decays, norms and state are float32.
    """

    conv_size: int = 0
    activation: str = "identity"
    conv_bias: bool = False
    qk_bias: float = 0.0
    output_gate: str = "silu"
    output_norm: str = "heads"
    norm_eps: float = 1e-5
    chunk_size: int = 64
    implementation: str = "auto"
    dtype: Any = jnp.float32

    def __post_init__(self):
        """Checks the values."""
        require_choice("activation", self.activation, ACTIVATIONS)
        require_choice("output_gate", self.output_gate, OUTPUT_GATES)
        require_choice("output_norm", self.output_norm, OUTPUT_NORMS)
        require_positive(chunk_size=self.chunk_size)
        if isinstance(self.qk_bias, bool) or not 0 <= self.qk_bias < math.inf:
            raise ValueError(f"qk_bias: found {self.qk_bias!r}, wanted a finite number >= 0")
        if self.conv_size != 0:
            require_positive(conv_size=self.conv_size)
        elif self.conv_bias:
            raise ValueError("conv_bias: found True with conv_size 0, wanted a conv_size >= 1")


@dataclasses.dataclass(frozen=True)
class HeadLayout:
    """How many heads of which size; queries and keys have `key_heads`, values `value_heads`.

    Value heads i * r ... (i + 1) * r - 1 read key head i, where r = value_heads / key_heads.

    Attributes:
      key_heads: heads of queries and keys.
      value_heads: H, heads of values.
      key_dim: D.
      value_dim: M.
      unit_keys: whether queries and keys are L2-normalised.
      positions: whether queries and keys are rotated by their positions, and the state counts them.

    Raises:
      ValueError: a size is not a whole number >= 1, key_heads does not divide value_heads, or D is
        odd where pairs of dimensions are rotated.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    unit_keys: bool = False
    positions: bool = False

    def __post_init__(self):
        """Checks the values."""
        require_positive(
            key_heads=self.key_heads,
            value_heads=self.value_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
        )
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"value heads: found {self.value_heads}, wanted a multiple of the "
                f"{self.key_heads} key heads"
            )
        if self.positions and self.key_dim % 2:
            raise ValueError(
                f"head_dim: found {self.key_dim}, wanted an even number for the rotation of pairs"
            )

    @property
    def part_sizes(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values, all heads together."""
        keys = self.key_heads * self.key_dim
        return keys, keys, self.value_heads * self.value_dim


def equal_heads(
    width: int, num_heads: int, head_dim: int | None, *, unit_keys: bool = False
) -> HeadLayout:
    """Returns the layout of `num_heads` heads whose keys and values have one size.

    Args:
      width: W.
      num_heads: H.
      head_dim: D = M; None for width / num_heads.
      unit_keys: whether queries and keys are L2-normalised.
    """
    head_dim = default_head_dim(width, num_heads, head_dim)
    return HeadLayout(num_heads, num_heads, head_dim, head_dim, unit_keys)
