"""Gates and norms: float32, finite, in range (C2, C7)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bayesmem.layers import RMSNorm, SwiGLU
from bayesmem.layers.gates import SigmoidDecay, SigmoidGate, SoftplusGate, StepDecay
from bayesmem.layers.norm import l2_normalise
from tests.tolerances import assert_close


def test_log_rates_are_float32_and_finite_with_4096_heads():
    """Drawn in bfloat16, 21 of 4096 rates would be exactly 0 and their logarithm -inf."""
    params = StepDecay(4096).init(jax.random.key(0), jnp.zeros((1, 1, 4), jnp.bfloat16))
    params = nn.meta.unbox(params)["params"]
    assert params["A_log"].dtype == params["dt_bias"].dtype == jnp.float32
    rates, steps = np.exp(params["A_log"]), np.log1p(np.exp(params["dt_bias"]))
    assert np.isfinite(params["A_log"]).all() and np.isfinite(params["dt_bias"]).all()
    assert 0 < rates.min() < 0.1 and 15.9 < rates.max() < 16
    assert 0.00099 < steps.min() < 0.0011 and 0.09 < steps.max() < 0.1001


@pytest.mark.parametrize(
    ("gate", "low", "high"),
    [
        (StepDecay(3), -np.inf, 0),
        (StepDecay(3, channels=2, rank=2), -np.inf, 0),
        (SigmoidDecay((3, 2), 2, 16.0), -np.inf, 0),
        (SigmoidGate(3), 0, 1),
        (SigmoidGate(3, 2.0), 0, 2),
        (SoftplusGate((3, 2), 0.1), 0, np.inf),
    ],
)
def test_gates_of_bfloat16_inputs_are_float32_and_in_range(gate, low, high):
    x = 100 * jax.random.normal(jax.random.key(1), (2, 50, 4), jnp.bfloat16)
    params = gate.init(jax.random.key(0), x)
    y = gate.apply(params, x)
    y = y.log_decay if isinstance(gate, StepDecay) else y
    assert y.dtype == jnp.float32 and y.shape[:3] == (2, 50, 3)
    assert np.isfinite(y).all() and (y >= low).all() and (y <= high).all()
    assert np.abs(np.diff(y, axis=1)).max() > 0


def test_softplus_gate_starts_at_its_initial_value():
    gate = SoftplusGate((2,), 0.03)
    y, _ = gate.init_with_output(jax.random.key(0), jnp.zeros((1, 1, 4)))
    assert_close(y, np.full((1, 1, 2), 0.03), "float32")


def test_unit_keys_and_the_slope_at_zero():
    x = jax.random.normal(jax.random.key(0), (5, 8))
    assert_close(np.linalg.norm(l2_normalise(x), axis=-1), np.ones(5), "float32", length=8)
    np.testing.assert_array_equal(l2_normalise(jnp.zeros(3)), 0)
    assert_close(jax.jacobian(l2_normalise)(jnp.zeros(3)), 1000 * np.eye(3), "float32")


def test_rms_norm_is_made_in_float32():
    x = jnp.asarray([[3e4, -3e4]], jnp.float16)  # squares overflow float16
    y, params = RMSNorm().init_with_output(jax.random.key(0), x)
    assert y.dtype == jnp.float16 and params["params"]["scale"].value.dtype == jnp.float32
    np.testing.assert_array_equal(y, [[1, -1]])


def test_swiglu():
    rng = np.random.default_rng(0)
    gate, up, down = (rng.standard_normal(shape) for shape in ((3, 4), (3, 4), (4, 3)))
    x = rng.standard_normal((1, 2, 3))
    params = {name: {"kernel": k} for name, k in (("gate", gate), ("up", up), ("down", down))}
    wanted = (x @ gate / (1 + np.exp(-x @ gate)) * (x @ up)) @ down
    assert_close(SwiGLU(3, 4).apply({"params": params}, x), wanted, "float32", length=4)
