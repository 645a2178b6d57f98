"""The Bayesian Layer: a Kalman filter over an associative memory (arXiv 2605.31163).

The input makes the design model of each head at every step: key, value, transition A, process
variance ell^2 and observation variance r^2. The filter of that model is the write rule.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bayesmem import ops
from bayesmem.array_types import (
    GroupScalars,
    HeadScalars,
    Hidden,
    Keys,
    Values,
)
from bayesmem.layers.gates import SoftplusGate, StepDecay, inverse_softplus
from bayesmem.layers.heads import Heads, empty_state, mix_heads
from bayesmem.layers.interface import MixerState
from bayesmem.layers.linear import parameter
from bayesmem.layers.options import (
    HeadLayout,
    MixerOptions,
    default_head_dim,
    require_choice,
    require_positive,
)

TRANSITIONS = ("identity", "scalar", "diagonal")


class BayesianLayer(nn.Module):
    """Kalman filtering of an associative memory, with every noise and transition from the input.

    r^2 = floor + softplus(x W + b) for each head and group, ell^2 = softplus(x W + b) for each
    head; A = I, a I or diag(a) with log a <= 0 as in `StepDecay`. Keys and queries have unit
    length.

    With `rotation`, A = diag(a) R(angle) turns interleaved (real, imaginary) pairs, angle =
    x W + b a pair. As in the paper (appendix D, "Diagonal real and complex eigenvalues") keys and
    queries fill the real (even) rows only and process noise enters those only: the memory has
    2 * head_dim rows, and a decay is shared by the rows of a pair.

    Attributes:
      width: W.
      num_heads: heads of queries and keys.
      head_dim: key dimension (real rows where `rotation` is on); None for width / num_heads.
      value_dim: M; None for head_dim.
      num_value_heads: H, heads of values, a multiple of num_heads, each with a memory, noises and a
        transition of its own; None for num_heads.
      num_groups: G, observation-noise groups; divides value_dim.
      transition: "identity", "scalar" or "diagonal".
      rotation: whether A also rotates.
      prior_var: p0 of the prior p0 I, at the start of every document.
      learn_prior: whether p0 is a parameter a head that starts at `prior_var`. The filter then runs
        in units of p0: it sees ell^2 / p0 and r^2 / p0 and starts at I, which gives the same reads,
        and the covariance in the state is to be multiplied by p0.
      obs_var: a fixed r^2, or None to make it from the input.
      process_var: a fixed ell^2, or None to make it from the input.
      initial_obs_var: r^2 above the floor at x = 0, where it is made from the input.
      initial_process_var: ell^2 at x = 0, where it is made from the input.
      options: the options all recurrent mixers share; no short convolution by default.
    """

    width: int
    num_heads: int = 4
    head_dim: int | None = None
    value_dim: int | None = None
    num_value_heads: int | None = None
    num_groups: int = 1
    transition: str = "identity"
    rotation: bool = False
    prior_var: float = 1.0
    learn_prior: bool = False
    obs_var: float | None = None
    process_var: float | None = None
    initial_obs_var: float = 0.1
    initial_process_var: float = 0.01
    options: MixerOptions = MixerOptions()

    __call__ = mix_heads

    def __post_init__(self):
        """Checks the sizes."""
        super().__post_init__()
        require_choice("transition", self.transition, TRANSITIONS)
        require_positive(num_groups=self.num_groups)
        if self.layout.value_dim % self.num_groups:
            raise ValueError(
                f"num_groups: found {self.num_groups}, wanted a divisor of the value_dim "
                f"{self.layout.value_dim}"
            )
        lowest = {"obs_var": ops.OBS_VAR_FLOOR, "process_var": 0.0}
        for name, low in lowest.items():
            value = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise ValueError(f"{name}: found {value}, wanted a finite variance >= {low}")
        for name in ("prior_var", "initial_obs_var", "initial_process_var"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name}: found {value}, wanted a finite variance > 0")

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes of the heads; `key_dim` counts the real rows only."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        value_dim = head_dim if self.value_dim is None else self.value_dim
        value_heads = self.num_heads if self.num_value_heads is None else self.num_value_heads
        return HeadLayout(self.num_heads, value_heads, head_dim, value_dim, unit_keys=True)

    @nn.nowrap
    def init_state(self, batch: int) -> MixerState:
        """Returns the prior belief of `batch` rows, a `KalmanState`, and a convolution window."""
        layout = self.layout
        rows = layout.key_dim * (2 if self.rotation else 1)
        mean = jnp.zeros((batch, layout.value_heads, rows, layout.value_dim), jnp.float32)
        prior = (1.0 if self.learn_prior else self.prior_var) * jnp.eye(rows, dtype=jnp.float32)
        cov = jnp.broadcast_to(prior, (batch, layout.value_heads, self.num_groups, rows, rows))
        return empty_state(layout, self.options, batch, ops.KalmanState(mean, cov))

    def recurrence(self, heads: Heads, **op: Any) -> tuple[Values, ops.KalmanState]:
        """Makes the design model of every token and filters; see `HeadMixer`."""
        x, q, k, v, _ = heads
        if self.rotation:
            q, k = _real_rows(q), _real_rows(k)
        log_decay, angle = self._transition(x)
        process_var, obs_var = self._noise(x)
        return ops.kalman_memory(
            q,
            k,
            v,
            log_decay=log_decay,
            angle=angle,
            process_var=process_var,
            obs_var=obs_var,
            prior_var=1.0 if self.learn_prior else self.prior_var,
            **op,
        )

    def _transition(self, x: Hidden) -> tuple[jax.Array | None, jax.Array | None]:
        """Returns log_decay, None or [B, T, H, *D], and angle, None or [B, T, H, D/2]."""
        heads, pairs = self.layout.value_heads, self.layout.key_dim
        log_decay = angle = None
        if self.transition != "identity":
            channels = pairs if self.transition == "diagonal" else None
            log_decay = StepDecay(heads, channels, largest_rate=1.0, name="decay")(x).log_decay
            if self.rotation and channels:
                log_decay = jnp.repeat(log_decay, 2, axis=-1)
        if self.rotation:
            angle = RotationAngle(heads, pairs, name="rotation")(x)
        return log_decay, angle

    def _noise(self, x: Hidden) -> tuple[HeadScalars, GroupScalars]:
        """Returns ell^2 [B, T, H] and r^2 [B, T, H, G], in units of a learned prior."""
        heads = self.layout.value_heads
        process_var = self._variance("process_noise", self.process_var, x, (heads,))
        obs_var = self._variance("observation_noise", self.obs_var, x, (heads, self.num_groups))
        if self.learn_prior:
            prior = nn.softplus(parameter(self, "prior", self._prior_init, (None,), (heads,)))
            process_var, obs_var = process_var / prior, obs_var / prior[:, None]
        if self.obs_var is None or self.learn_prior:
            obs_var = ops.OBS_VAR_FLOOR + obs_var
        return process_var, obs_var

    def _variance(self, name: str, fixed: float | None, x: Hidden, shape: tuple[int, ...]):
        if fixed is not None:
            return jnp.full((*x.shape[:2], *shape), fixed, jnp.float32)
        initial = {
            "process_noise": self.initial_process_var,
            "observation_noise": self.initial_obs_var,
        }
        return SoftplusGate(shape, initial[name], name=name)(x)

    def _prior_init(self, key, shape):
        del key
        return jnp.broadcast_to(inverse_softplus(jnp.float32(self.prior_var)), shape)


class RotationAngle(nn.Module):
    """angle = x W + b in radians, one a head and pair; b starts as the rotary rates 10000^(-i/P).

    Attributes:
      num_heads: H.
      pairs: P, (real, imaginary) pairs of rows of a head.
    """

    num_heads: int
    pairs: int

    @nn.compact
    def __call__(self, x: Hidden) -> Keys:
        """Returns [B, T, H, P] float32."""
        shape = (self.num_heads, self.pairs)
        init = nn.initializers.normal(0.02)
        kernel = parameter(self, "kernel", init, ("embed", None, None), (x.shape[-1], *shape))
        bias = parameter(self, "bias", _rotary_rates, (None, None), shape)
        return jnp.einsum("btw,whp->bthp", x.astype(jnp.float32), kernel) + bias


def _rotary_rates(key, shape):
    del key
    pairs = shape[-1]
    return jnp.broadcast_to(10000.0 ** (-jnp.arange(pairs, dtype=jnp.float32) / pairs), shape)


def _real_rows(x: Keys) -> Keys:
    """Returns [B, T, H, 2 D] with x in the even rows and zeros in the odd ones."""
    return jnp.stack([x, jnp.zeros_like(x)], axis=-1).reshape(*x.shape[:3], 2 * x.shape[3])
