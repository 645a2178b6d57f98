"""Gates and decays made from the input, all of them float32."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bayesmem.array_types import Hidden
from bayesmem.layers.linear import parameter, wide_linear

SMALLEST_RATE = 1e-4
STEP_RANGE = (1e-3, 1e-1)


class Decay(NamedTuple):
    """Output of `StepDecay`, float32.

    Attributes:
      log_decay: [B, T, H] or [B, T, H, D], at most 0.
      step: the step size dt of the same shape, positive.
    """

    log_decay: Float[Array, "B T H *D"]
    step: Float[Array, "B T H *D"]


def inverse_softplus(value: jax.Array) -> jax.Array:
    """Returns x with softplus(x) = value, for value > 0."""
    return value + jnp.log(-jnp.expm1(-value))


def softplus_bias(value: float) -> nn.initializers.Initializer:
    """Returns an initializer of a bias whose softplus is `value`."""
    return nn.initializers.constant(value + math.log(-math.expm1(-value)))


class StepDecay(nn.Module):
    """log a = -exp(A_log) * dt with dt = softplus(x W + dt_bias), as in Mamba-2 and Gated DeltaNet.

    A_log and dt_bias are drawn in float32: exp(A_log) uniform up to `largest_rate`, dt at x = 0
    log-uniform in [1e-3, 1e-1] (arXiv 2405.21060, and its code).

    Attributes:
      num_heads: H; there is one rate exp(A_log) a head.
      channels: None for one decay a head, or D for one decay a key dimension.
      rank: None for one projection, or the size between two.
      largest_rate: upper end of the rates' draw.
    """

    num_heads: int
    channels: int | None = None
    rank: int | None = None
    largest_rate: float = 16.0

    @nn.compact
    def __call__(self, x: Hidden) -> Decay:
        """Returns the decay of every token from x [B, T, W]."""
        shape = (self.num_heads,) if self.channels is None else (self.num_heads, self.channels)
        if self.rank is not None:
            x = wide_linear(self.rank, ("embed", None), "down")(x)
        raw = wide_linear(math.prod(shape), (None if self.rank else "embed", None), "step")(x)
        rates = parameter(self, "A_log", self._draw_log_rates, (None,), (self.num_heads,))
        bias = parameter(self, "dt_bias", _draw_step_bias, (None,) * len(shape), shape)
        return _decay(raw.reshape(*raw.shape[:2], *shape), rates, bias)

    def _draw_log_rates(self, key, shape):
        # In bfloat16 some draws are exactly 0, whose logarithm is not a number to train from.
        uniform = jax.random.uniform(
            key,
            shape,
            jnp.float32,
            SMALLEST_RATE,
            max(self.largest_rate, 2 * SMALLEST_RATE),
        )
        return jnp.log(uniform)


@jax.checkpoint
def _decay(raw: jax.Array, rates: jax.Array, bias: jax.Array) -> Decay:
    """Makes raw [B, T, H] or [B, T, H, D] with one rate a head and a bias of raw's last axes."""
    step = nn.softplus(raw + bias)
    return Decay(-jnp.exp(rates).reshape(-1, *(1,) * (bias.ndim - 1)) * step, step)


def _draw_step_bias(key, shape):
    low, high = map(math.log, STEP_RANGE)
    return inverse_softplus(jnp.exp(jax.random.uniform(key, shape, jnp.float32, low, high)))


class SigmoidGate(nn.Module):
    """sigmoid(x W), one number a head: the write strength beta of the delta rule.

    Attributes:
      num_heads: H.
      scale: the gate's upper end; 2 allows negative eigenvalues (arXiv 2411.12537).
    """

    num_heads: int
    scale: float = 1.0

    @nn.compact
    def __call__(self, x: Hidden) -> Float[Array, "B T H"]:
        """Returns [B, T, H] float32 in (0, scale)."""
        raw = wide_linear(self.num_heads, ("embed", None), "gate")(x)
        return self.scale * nn.sigmoid(raw)


class SoftplusGate(nn.Module):
    """softplus(x W + bias): a positive number a head (and group), `initial` at x = 0.

    Attributes:
      shape: (H,) or (H, G).
      initial: value at x = 0.
    """

    shape: tuple[int, ...]
    initial: float

    @nn.compact
    def __call__(self, x: Hidden) -> Float[Array, "B T H *G"]:
        """Returns [B, T, *shape] float32, positive."""
        project = wide_linear(
            math.prod(self.shape),
            ("embed", None),
            "gate",
            bias=softplus_bias(self.initial),
        )
        return nn.softplus(project(x)).reshape(*x.shape[:2], *self.shape)


class SigmoidDecay(nn.Module):
    """log a = logsigmoid(x W_1 W_2 + b) / temperature, for every key dimension (GLA, equation 4).

    Attributes:
      shape: (H, D).
      rank: size between the two projections.
      temperature: divides the logarithm.
    """

    shape: tuple[int, int]
    rank: int
    temperature: float

    @nn.compact
    def __call__(self, x: Hidden) -> Float[Array, "B T H D"]:
        """Returns log a [B, T, H, D] float32, below 0."""
        down = wide_linear(self.rank, ("embed", None), "down")(x)
        zeros = nn.initializers.zeros_init()
        raw = wide_linear(math.prod(self.shape), (None, None), "up", bias=zeros)(down)
        log_decay = jax.checkpoint(nn.log_sigmoid)(raw) / self.temperature
        return log_decay.reshape(*x.shape[:2], *self.shape)
