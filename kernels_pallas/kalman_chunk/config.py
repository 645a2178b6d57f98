"""Tuning values of the Kalman chunk's kernels."""

from dataclasses import dataclass

import jax

SPLIT = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X6
"""Of XLA products on a GPU: each float32 as three bfloat16, and six of their nine products."""


@dataclass(frozen=True)
class Config:
    """How a call runs.

    Attributes:
      length: L, tokens in a chunk; the kernels take 64.
      forward: precision of the XLA products of the forward pass: without kernels, and of variances.
      backward: the same of the backward pass: without kernels, through variances, and at D = 256.
      kernel: whether kernels run, or what `algebra` and `bwd` state.
      parts: bfloat16 numbers that stand for a float32 one in the kernels' products, 2 or, where
        shared memory has room for it, up to D = 64, 3.
      interpret: leave out of the kernels what the interpreter does not have.
    """

    length: int = 64
    forward: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST
    backward: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST
    kernel: bool = True
    parts: int = 2
    interpret: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for what the kernels do not have."""
        if self.length < 1 or (self.kernel and self.length != 64):
            raise ValueError(f"length: found {self.length}, wanted 64, as the kernels have it")
        if self.parts not in (2, 3):
            raise ValueError(f"parts: found {self.parts}, wanted 2 or 3")
