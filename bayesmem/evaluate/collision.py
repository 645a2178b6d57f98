"""The deterministic collision: does writing A wear away what was learned about B?

"Memory by Design" (arXiv 2605.31163), section 4.1 and appendix E.4; nothing is trained. Two unit
keys overlap by k_A . k_B = rho. All identities are written twice (seed), then B many times (boost),
then A many times (flood), and k_B is queried after every step:

    gap     y_B - y_A of the read y = M_t^T k_B    (values are one-hot, one coordinate an identity)
    p_AB    sigmoid(gap)                           two-way probability of B
    margin  tanh(gap / 2) = 2 p_AB - 1             two-way softmax difference

The models are design models, run by the ops that `bayesmem.design_model.derive` gives for them.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem import ops
from bayesmem.design_model import DesignModel, Diagonal, Identity, Propagated, Reset, derive

A, B = 0, 1  # the two colliding identities, also their coordinates in a value


@dataclass(frozen=True)
class CollisionConfig:
    """Setting of the experiment; the defaults are the paper's (E.4.1).

    Attributes:
      key_dim: D.
      identities: how many keys, at least 2; M, since values are one-hot.
      seed_passes: how often all identities are written first.
      boost: writes of B that follow.
      flood: writes of A that follow.
      prior_var: p0.
      process_var: ell^2, and the clamped variance of the reset model.
      obs_var: r^2.
    """

    key_dim: int = 16
    identities: int = 6
    seed_passes: int = 2
    boost: int = 40
    flood: int = 60
    prior_var: float = 3.0
    process_var: float = 0.05
    obs_var: float = 0.05

    def __post_init__(self):
        """Checks that the keys fit: the identities beyond A and B are orthogonal."""
        if not 2 <= self.identities <= self.key_dim:
            raise ValueError(
                f"identities: found {self.identities}, wanted 2 to key_dim = {self.key_dim}"
            )

    @property
    def flood_start(self) -> int:
        """0-based step of the first flood write."""
        return self.seed_passes * self.identities + self.boost

    @property
    def constant_gain(self) -> float:
        """Write gain of the reset model for unit keys, ell^2 / (r^2 + ell^2)."""
        return self.process_var / (self.obs_var + self.process_var)


def identity_keys(overlap: float, config: CollisionConfig) -> np.ndarray:
    """Returns the unit keys [identities, D]: e1, rho e1 + sqrt(1 - rho^2) e2, e3, e4, ...

    Raises:
      ValueError: if overlap is not in [-1, 1].
    """
    if not -1.0 <= overlap <= 1.0:
        raise ValueError(f"overlap: found {overlap}, wanted a number in [-1, 1]")
    keys = np.eye(config.identities, config.key_dim)
    keys[B, A], keys[B, B] = overlap, np.sqrt(1.0 - overlap**2)
    return keys


def write_order(config: CollisionConfig) -> np.ndarray:
    """Returns which identity every step writes, [T] int: seed, boost, flood."""
    seed = np.tile(np.arange(config.identities), config.seed_passes)
    return np.concatenate([seed, np.full(config.boost, B), np.full(config.flood, A)])


def writes(overlaps: list[float], config: CollisionConfig) -> tuple[jax.Array, jax.Array]:
    """Returns keys [B, T, 1, D] and one-hot values [B, T, 1, M], a row for each overlap."""
    order = write_order(config)
    keys = np.stack([identity_keys(overlap, config)[order] for overlap in overlaps])
    values = np.broadcast_to(
        np.eye(config.identities)[order], (len(overlaps), len(order)) + (config.identities,)
    )
    return jnp.asarray(keys)[:, :, None], jnp.asarray(values)[:, :, None]


def queries(overlaps: list[float], direction: str, config: CollisionConfig) -> jax.Array:
    """Returns a constant query [B, T, 1, D], a row for each overlap.

    Args:
      overlaps: rho of each row.
      direction: "A" or "B" for that key, "A_perp" or "B_perp" for the unit vector of the A-B plane
        that is orthogonal to it.
      config: the setting.
    """
    rows = []
    for overlap in overlaps:
        key = identity_keys(overlap, config)[A if direction.startswith("A") else B]
        if direction.endswith("_perp"):
            key = np.concatenate([[-key[1], key[0]], key[2:]])
        rows.append(key)
    steps = len(write_order(config))
    return jnp.broadcast_to(
        jnp.asarray(np.stack(rows))[:, None, None], (len(rows), steps, 1) + (config.key_dim,)
    )


def bayesian_model(config: CollisionConfig) -> DesignModel:
    """Returns the Bayesian Layer of the experiment: A = I, propagated covariance."""
    covariance = Propagated(config.process_var, config.prior_var)
    return DesignModel("memory", config.obs_var, covariance)


def reset_model(config: CollisionConfig, variance=None) -> DesignModel:
    """Returns the covariance-reset model, Pbar = c I; equal to DeltaNet-style for unit keys.

    Args:
      config: the setting.
      variance: c, a number or [B, T, 1]; None for ell^2.
    """
    variance = config.process_var if variance is None else variance
    return DesignModel("memory", config.obs_var, Reset(variance))


def additive_model(config: CollisionConfig, gate: float | None) -> DesignModel:
    """Returns an additive model with the reset model's write gain.

    Args:
      config: the setting.
      gate: None for linear attention (A = I), else the constant diagonal gate of a GLA-style model.
    """
    decay = np.full(config.key_dim, np.log(1.0 if gate is None else gate))
    transition = Identity() if gate is None else Diagonal(decay)
    return DesignModel("write", config.obs_var, Reset(config.process_var), transition)


def readout_gap(
    model: DesignModel,
    overlaps: list[float],
    config: CollisionConfig,
    direction: str = "B",
    implementation: str = "recurrent",
) -> np.ndarray:
    """Returns y_B - y_A after every step, [B, T], for the query that `direction` names."""
    keys, values = writes(overlaps, config)
    reads = _read(model, queries(overlaps, direction, config), keys, values, implementation)
    return np.asarray(reads[:, :, 0, B] - reads[:, :, 0, A])


def retrieval(gap: np.ndarray) -> np.ndarray:
    """Returns p_AB = sigmoid(gap), the two-way probability of B."""
    return (1.0 + margin(gap)) / 2


def margin(gap: np.ndarray) -> np.ndarray:
    """Returns tanh(gap / 2) = p(B) - p(A) of the two-way softmax."""
    return np.tanh(gap / 2)


def zero_crossing(gap: np.ndarray, config: CollisionConfig) -> int | None:
    """Returns the first flood step (counted from 1) with a negative gap [T], or None."""
    negative = np.flatnonzero(gap[config.flood_start :] < 0)
    return config.flood_start + 1 + int(negative[0]) if negative.size else None


def read_variance(overlap: float, direction: str, config: CollisionConfig) -> np.ndarray:
    """Returns q^T P_t q of the Bayesian Layer after every step, [T]; q is named by `direction`."""
    query = queries([overlap], direction, config)
    variance = _read_variance(bayesian_model(config), query, *writes([overlap], config))
    return np.asarray(variance[0, :, 0, 0])


def covariances(overlap: float, config: CollisionConfig) -> np.ndarray:
    """Returns P_0 ... P_T of the Bayesian Layer, [T + 1, D, D], by decoding step by step."""
    return np.asarray(_decode(bayesian_model(config), *writes([overlap], config)))[:, 0, 0, 0]


def write_gain(covs: np.ndarray, key: np.ndarray, config: CollisionConfig) -> np.ndarray:
    """Returns the gain vector that a write of `key` has, or would have, at every step.

    Args:
      covs: [T + 1, D, D], P_0 ... P_T.
      key: [D] unit key.
      config: the setting.

    Returns:
      [T, D]: beta_t u_t with u_t = Pbar_t k and Pbar_t = P_{t-1} + ell^2 I (Proposition 1). The
      scalar gain is its component along the key.
    """
    warped = covs[:-1] @ key + config.process_var * key
    return warped / (config.obs_var + warped @ key)[:, None]


def diagonal_covariance_gap(overlap: float, config: CollisionConfig) -> np.ndarray:
    """Returns y_B - y_A at k_B, [T], of an ablation: only the diagonal of P is carried on.

    Not the exact filter of any design model: after every update the off-diagonal part of the
    covariance is dropped, so evidence about a direction between the axes is forgotten.
    """
    keys, order = identity_keys(overlap, config), write_order(config)
    memory = np.zeros((config.key_dim, config.identities))
    variance = np.full(config.key_dim, config.prior_var)
    gap = []
    for identity in order:
        key, value = keys[identity], np.eye(config.identities)[identity]
        predicted = variance + config.process_var
        warped = predicted * key
        precision = 1.0 / (config.obs_var + key @ warped)
        memory = memory + precision * np.outer(warped, value - memory.T @ key)
        variance = predicted - precision * warped**2
        read = memory.T @ keys[B]
        gap.append(read[B] - read[A])
    return np.array(gap)


@partial(jax.jit, static_argnames="implementation")
def _read(model, q, k, v, implementation):
    """Returns the reads [B, T, H, M] of a design model."""
    return derive(model).apply(q, k, v, implementation=implementation)[0]


@jax.jit
def _read_variance(model, q, k, v):
    """Returns the variances [B, T, H, G] of the reads of a Bayesian Layer."""
    arguments = derive(model).arguments(k, v)
    return ops.kalman_predict(q, k, v, **arguments, implementation="recurrent")[1]


@jax.jit
def _decode(model, k, v):
    """Returns P_0 ... P_T [T + 1, B, H, G, D, D] of a Bayesian Layer: one call for each token."""
    derived = derive(model)
    _, prior = derived.apply(k[:, :0], k[:, :0], v[:, :0])

    def step(state, token):
        key, value = token
        _, state = derived.apply(key, key, value, state=state, implementation="recurrent")
        return state, state.cov

    tokens = tuple(jnp.moveaxis(array, 1, 0)[:, :, None] for array in (k, v))
    _, trace = jax.lax.scan(step, prior, tokens)
    return jnp.concatenate([prior.cov[None], trace])
