"""The definition of the Bayesian Layer recurrence: one Kalman step a token."""

import jax
import jax.numpy as jnp

from bayesmem.ops.kalman.types import KalmanInputs, KalmanOutputs, rotate_both, rotate_rows
from bayesmem.ops.linalg import einsum


def recurrent(inputs: KalmanInputs, chunk_size: int) -> KalmanOutputs:
    """Filters the memory token by token (arXiv 2605.31163, Proposition 1, Eqs. 8-13).

        Mb = A M,   Pb = A P A^T + ell^2 I,   u = Pb k,   b = 1 / (r^2 + k^T u),   K = b u
        M = Mb + K (v - Mb^T k)^T,   P = Pb - b u u^T,   y = M^T q,   var = q^T P q

    P is computed in the equal form (I - K k^T) Pb (I - K k^T)^T + r^2 K K^T, which stays positive
    definite in float32. A = diag(exp(log_decay)) R(angle); with angles ell^2 enters even rows only.
    A document starts from M = 0, P = p0 I. `chunk_size` has no meaning here.
    """
    del chunk_size
    dim = inputs.k.shape[-1]
    eye = jnp.eye(dim, dtype=inputs.k.dtype)
    noisy = eye if inputs.angle is None else eye * (jnp.arange(dim) % 2 == 0)
    prior = inputs.prior_var[:, None, None, None] * eye

    def step(belief, token: KalmanInputs):
        mean, cov = belief
        if token.starts is not None:
            start = token.starts[:, None, None, None, None]
            mean, cov = jnp.where(start, 0.0, mean), jnp.where(start, prior, cov)
        decay = jnp.exp(token.log_decay)[:, :, None, :, None]
        mean, cov = decay * mean, decay * cov * jnp.swapaxes(decay, -1, -2)
        if token.angle is not None:
            mean = rotate_rows(mean, token.angle[:, :, None])
            cov = rotate_both(cov, token.angle[:, :, None])
        cov = cov + token.process_var[:, :, None, None, None] * noisy
        u = einsum("bhgij,bhj->bhgi", cov, token.k)
        gain = u / (token.obs_var + einsum("bhgi,bhi->bhg", u, token.k))[..., None]
        error = token.v - einsum("bhgim,bhi->bhgm", mean, token.k)
        mean = mean + gain[..., :, None] * error[..., None, :]
        cov = cov - gain[..., :, None] * u[..., None, :]
        blind = einsum("bhgij,bhj->bhgi", cov, token.k)
        cov = cov + (token.obs_var[..., None] * gain - blind)[..., :, None] * gain[..., None, :]
        cov = 0.5 * (cov + jnp.swapaxes(cov, -1, -2))
        y = einsum("bhgim,bhi->bhgm", mean, token.q)
        var = einsum("bhi,bhgij,bhj->bhg", token.q, cov, token.q)
        return (mean, cov), (y, var)

    tokens = inputs._replace(prior_var=None, mean=None, cov=None)  # type: ignore[arg-type]
    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
    (mean, cov), (y, var) = jax.lax.scan(step, (inputs.mean, inputs.cov), tokens)
    return KalmanOutputs(jnp.moveaxis(y, 0, 1), jnp.moveaxis(var, 0, 1), mean, cov)
