"""The Kalman op under one jit, and its inputs in low precision."""

import functools

import jax
import jax.numpy as jnp

from bayesmem import ops

FORMS = ("recurrent", "chunked", "associative")
FAST_FORMS = ("chunked", "associative")


@functools.partial(jax.jit, static_argnums=(1, 2))
def predict(case, implementation, chunk_size=64):
    y, var, state = ops.kalman_predict(**case, implementation=implementation, chunk_size=chunk_size)
    return y, var, state.mean, state.cov


def cast(case, dtype):
    """Casts all but integers; the state and the noise keep float32 at least."""

    def one(name, x):
        if name == "segment_ids":
            return jnp.asarray(x)
        low = name in ("q", "k", "v")
        return jax.tree.map(lambda a: jnp.asarray(a, dtype if low else jnp.float32), x)

    return {name: one(name, x) for name, x in case.items()}
