"""Design models: say how a memory evolves and what is observed, and the filter is the layer.

A design model ("Memory by Design", arXiv 2605.31163, Definition 1 and eq. 18) is a linear-Gaussian
model of an associative memory S [D, M], whose parts may be any function of the input:

    transition    S_t = A_t S_{t-1} + noise      A_t = I, a I, diag(a) or damped rotations
    observation   v_t = S_t^T k_t + noise        "memory": a reading of the memory, or
                  v_t = w_t + noise              "write": a reading of the fresh coefficient w_t
                                                 that the transition adds as k_t w_t^T
    noise         r_t^2                          variance of the observation noise
    covariance    Propagated or Reset            what the filter knows before the reading

Its exact filter is a sequence layer, and `derive` says which op of `bayesmem.ops` runs it:

    observation  covariance                   op                arguments
    memory       Propagated(ell^2, p0)        kalman_memory     ell^2, r^2, p0
    memory       Reset(L): Pbar = L I         delta_rule        beta = L / (r^2 + L |k|^2)
    write        Reset(L): w_t ~ N(0, L I)    linear_attention  gain = L / (L + r^2)

with L = lambda, the reset variance.

`Reset` clamps the predicted covariance Pbar (before the reading), so the reading's own reduction
of it is forgotten. A write coefficient is drawn anew at every step, so its variance is reset by
nature, and the mean of the memory needs no covariance. Example, Gated DeltaNet:

    model = DesignModel("memory", obs_var=0.1, covariance=Reset(1.0), transition=Scalar(log_decay))
    y, state = derive(model).apply(q, k, v)

Every number may be a scalar or an array that broadcasts to [B, T, H].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bayesmem import ops
from bayesmem.array_types import Keys, SegmentIds, Values
from bayesmem.ops.checks import require_values


class Identity(NamedTuple):
    """A_t = I: the memory stays as it is."""


class Scalar(NamedTuple):
    """A_t = a_t I: all key directions decay alike; log_decay = log a_t <= 0, [B, T, H]."""

    log_decay: ArrayLike


class Diagonal(NamedTuple):
    """A_t = diag(a_t): a decay for each key direction; log_decay = log a_t <= 0, [B, T, H, D]."""

    log_decay: ArrayLike


class Rotation(NamedTuple):
    """Damped 2x2 rotations on interleaved (real, imaginary) pairs of key directions.

    log_decay is [B, T, H, D] (equal in the two rows of a pair) or [B, T, H]; angle is
    [B, T, H, D//2] in radians. Process noise enters the real rows only (Appendix D).
    """

    log_decay: ArrayLike
    angle: ArrayLike


Transition = Identity | Scalar | Diagonal | Rotation


class Propagated(NamedTuple):
    """The covariance is carried on: Pbar_t = A_t P_{t-1} A_t^T + ell_t^2 I, from P_0 = p0 I."""

    process_var: ArrayLike  # ell^2 >= 0
    prior_var: ArrayLike = 1.0  # p0, a scalar or [H]


class Reset(NamedTuple):
    """The predicted covariance is lambda_t I at every step, whatever was learned before."""

    variance: ArrayLike  # lambda >= 0


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("obs_var", "covariance", "transition"),
    meta_fields=("observes",),
)
@dataclass(frozen=True)
class DesignModel:
    """A linear-Gaussian model of a memory; see the module's docstring for its equations.

    A pytree: it may go in and out of `jax.jit`, `jax.grad` and `jax.vmap`.

    Attributes:
      observes: "memory" (v = S^T k + noise) or "write" (v = w + noise).
      obs_var: r^2 > 0; [B, T, H], or [B, T, H, G] with `Propagated` (M in G equal groups).
      covariance: `Propagated` or `Reset`.
      transition: A_t, applied first.
    """

    observes: Literal["memory", "write"]
    obs_var: ArrayLike
    covariance: Propagated | Reset
    transition: Transition = Identity()


class DerivedOp(NamedTuple):
    """The exact filter of a design model, as an op of `bayesmem.ops` and its arguments."""

    op: Literal["kalman_memory", "delta_rule", "linear_attention"]
    model: DesignModel

    def arguments(self, k: Keys, v: Values) -> dict[str, Any]:
        """Returns the keyword arguments of the op for keys [B, T, H, D] and values [B, T, H, M].

        Raises:
          ValueError: if a variance is not positive, or a part does not broadcast to its shape.
        """
        transition, covariance = self.model.transition, self.model.covariance
        shape = v.shape[:3]
        found: dict[str, Any] = {}
        if isinstance(transition, Scalar):
            found["log_decay"] = jnp.broadcast_to(transition.log_decay, shape)
        elif isinstance(transition, Diagonal):
            found["log_decay"] = jnp.broadcast_to(transition.log_decay, (*shape, k.shape[-1]))
        elif isinstance(transition, Rotation):
            found["log_decay"] = jnp.asarray(transition.log_decay)
            found["angle"] = jnp.asarray(transition.angle)
        obs_var = jnp.asarray(self.model.obs_var)
        if isinstance(covariance, Propagated):
            found["process_var"] = jnp.broadcast_to(covariance.process_var, shape)
            found["obs_var"] = obs_var if obs_var.ndim == 4 else jnp.broadcast_to(obs_var, shape)
            found["prior_var"] = covariance.prior_var
            return found
        variance = jnp.asarray(covariance.variance)
        require_values("obs_var", obs_var, lambda found: found > 0, "r^2 > 0")
        require_values("covariance.variance", variance, lambda found: found >= 0, "lambda >= 0")
        if self.op == "linear_attention":
            found["gain"] = jnp.broadcast_to(variance / (variance + obs_var), shape)
        else:
            squared = _squared_norm(k, heads=shape[2])
            found["beta"] = jnp.broadcast_to(variance / (obs_var + variance * squared), shape)
        return found

    def apply(
        self,
        q: Keys,
        k: Keys,
        v: Values,
        *,
        state: Any = None,
        segment_ids: SegmentIds | None = None,
        **options: Any,
    ) -> tuple[Values, Any]:
        """Runs the filter and reads its mean: y_t = M_t^T q_t.

        Args:
          q: [B, T, H, D] queries.
          k: [B, T, H, D] write keys; any norm.
          v: [B, T, H, M] observed values.
          state: the state that an earlier call returned, or None.
          segment_ids: [B, T] document numbers, or None.
          **options: passed on to the op: `chunk_size`, `implementation`.

        Returns:
          y [B, T, H, M] and the op's state.

        Raises:
          ValueError: from the op, where a shape or a value does not fit.
        """
        run = getattr(ops, self.op)
        arguments = self.arguments(k, v)
        return run(q, k, v, **arguments, state=state, segment_ids=segment_ids, **options)


def derive(model: DesignModel) -> DerivedOp:
    """Returns the op whose recurrence is the exact filter of `model` (Propositions 1 and 2).

    Raises:
      ValueError: if no op is the exact filter; the message has the reason.
    """
    if model.observes not in ("memory", "write"):
        raise ValueError(f"observes: found {model.observes!r}, wanted 'memory' or 'write'")
    if isinstance(model.covariance, Propagated):
        if model.observes == "write":
            raise ValueError(
                "covariance: found Propagated with observes='write', wanted Reset(lambda): the "
                "write coefficient is drawn anew at every step and has no covariance to propagate"
            )
        return DerivedOp("kalman_memory", model)
    op: Literal["delta_rule", "linear_attention"] = (
        "delta_rule" if model.observes == "memory" else "linear_attention"
    )
    if isinstance(model.transition, Rotation):
        raise ValueError(
            f"transition: found Rotation with {op}, which has no angle; wanted Identity, Scalar or "
            "Diagonal, or observes='memory' with Propagated"
        )
    if jnp.ndim(model.obs_var) > 3:
        raise ValueError(
            f"obs_var: found shape {jnp.shape(model.obs_var)} with {op}, whose write strength is "
            "one number a head; wanted [B, T, H], or Propagated for noise groups"
        )
    return DerivedOp(op, model)


class TableRow(NamedTuple):
    """A named recurrence as a design model: its observation, covariance and transitions."""

    observes: Literal["memory", "write"]
    covariance: type[Propagated] | type[Reset]
    transitions: tuple[type[Transition], ...]


TABLE_1: Mapping[str, TableRow] = MappingProxyType(
    {
        "bayesian": TableRow("memory", Propagated, (Identity, Scalar, Diagonal, Rotation)),
        "deltanet": TableRow("memory", Reset, (Identity,)),
        "gated_deltanet": TableRow("memory", Reset, (Scalar,)),
        "kda": TableRow("memory", Reset, (Diagonal,)),
        "linear_attention": TableRow("write", Reset, (Identity,)),
        "retnet": TableRow("write", Reset, (Scalar,)),  # a constant decay for each head
        "gla": TableRow("write", Reset, (Diagonal,)),
        "mamba2": TableRow("write", Reset, (Scalar,)),  # SSD: the decay depends on the input
    }
)
"""Table 1 of the paper: known recurrences by the design model whose exact filter they are."""


def table_1_names(model: DesignModel) -> tuple[str, ...]:
    """Returns the names of the rows of `TABLE_1` that `model` is an instance of."""
    return tuple(
        name
        for name, row in TABLE_1.items()
        if row.observes == model.observes
        and isinstance(model.covariance, row.covariance)
        and isinstance(model.transition, row.transitions)
    )


def _squared_norm(k: Keys, heads: int) -> jax.Array:
    """Returns |k|^2 [B, T, heads], in float32 at least; heads of v share the keys in groups."""
    k = k.astype(jnp.promote_types(k.dtype, jnp.float32))
    squared = jnp.sum(jnp.square(k), axis=-1)
    return jnp.repeat(squared, heads // squared.shape[-1], axis=-1)
