"""What "auto" runs where it finds a GPU: the ops and their gradients, lowered for CUDA."""

import jax
import jax.numpy as jnp
import pytest

from bayesmem import ops
from bayesmem.ops import linalg
from bayesmem.ops.kalman import update
from kernels_pallas import device
from kernels_pallas.kalman_chunk import algebra, panels
from tests.kernels_pallas.kernel_checks import count_kernels

STRENGTHS = {"kalman_memory": ("process_var", "obs_var"), "delta_rule": ("beta",)}


@pytest.fixture
def hopper(monkeypatch):
    """Ops find a Hopper GPU; what they traced without it, and with it, is forgotten."""
    jax.clear_caches()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(linalg, "_splits", lambda backend: backend == "gpu")
    monkeypatch.setattr(device, "missing_of_machine", lambda: [])
    yield
    jax.clear_caches()


def kernels_of(op, dtype, differentiated):
    """How many kernels a call of an op of 70 tokens and D = 64, or its gradient, becomes."""
    lead = 1, 70, 2
    arguments = {name: jax.ShapeDtypeStruct((*lead, 64), dtype) for name in "qkv"}
    numbers = jax.ShapeDtypeStruct(lead, jnp.float32)
    arguments |= dict.fromkeys(("log_decay", *STRENGTHS[op]), numbers)

    def call(given):
        return getattr(ops, op)(**given, implementation="auto")

    def loss(given):
        return sum(jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(call(given)))

    return count_kernels(jax.grad(loss) if differentiated else call, arguments)


@pytest.mark.parametrize(
    "op,forward,both", (("kalman_memory", 1, 2 + 6), ("delta_rule", 2, 2 + 3)), ids=STRENGTHS
)
def test_auto_runs_the_kernels_forward_and_backward(hopper, op, forward, both):
    assert kernels_of(op, jnp.bfloat16, differentiated=False) == forward
    assert kernels_of(op, jnp.bfloat16, differentiated=True) == both


@pytest.mark.parametrize("op", STRENGTHS)
def test_auto_runs_no_kernel_on_float32_tokens(hopper, op):
    assert kernels_of(op, jnp.float32, differentiated=True) == 0


def test_floors_of_the_kernels_are_those_of_the_op():
    # The kernels import nothing of bayesmem, and so have the numbers once more.
    assert panels.PIVOT_FLOOR == ops.OBS_VAR_FLOOR
    assert algebra.NOISE_FLOOR == update.NOISE_FLOOR
