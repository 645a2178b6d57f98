"""What the delta rule's kernels do not have is refused with its reason."""

import jax
import jax.numpy as jnp
import pytest

from bayesmem.ops import delta_rule, kalman_memory
from bayesmem.ops.delta import api
from bayesmem.ops.delta.types import DeltaInputs
from kernels_pallas.delta_chunk import op


def inputs(dim=64, width=64, channels=1, dtype=jnp.float32):
    """Shapes of a call of 70 tokens."""
    lead = (1, 70, 2)
    sizes = DeltaInputs(
        q=(*lead, dim),
        k=(*lead, dim),
        v=(*lead, width),
        beta=lead,
        log_decay=(*lead, channels),
        starts=None,
        memory=(1, 2, dim, width),
    )
    shapes = {
        name: None if x is None else jax.ShapeDtypeStruct(x, dtype)
        for name, x in sizes._asdict().items()
    }
    return DeltaInputs(**shapes)


@pytest.mark.parametrize(
    "backend,sizes,narrow,reason",
    (
        ("triton", {}, True, "no triton kernel"),
        ("pallas", {"channels": 64}, True, "one decay a head"),
        ("pallas", {"dim": 192}, True, "D=192"),
        ("pallas", {}, False, "bfloat16"),
        ("pallas", {"dtype": jnp.float64}, True, "float32, and a state of float64"),
        ("pallas", {"dim": 24, "width": 40}, True, "Hopper"),
    ),
)
def test_what_is_not_there_is_refused_with_its_reason(backend, sizes, narrow, reason):
    if reason == "Hopper" and jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    with pytest.raises(NotImplementedError, match=reason):
        op.run(backend, inputs(**sizes), 64, narrow=narrow)


@pytest.mark.parametrize("low", ("", "q", "qkv"))
def test_kernels_are_told_whether_tokens_are_bfloat16(monkeypatch, low):
    told = []

    def kernel(inputs, chunk_size, *, narrow):
        told.append(narrow)
        return inputs.v, inputs.memory

    monkeypatch.setitem(api.FORMS, "pallas", kernel)
    given = {
        name: jnp.ones((1, 3 + len(low), 1, 4), jnp.bfloat16 if name in low else jnp.float32)
        for name in "qkv"
    }
    beta = jnp.ones(given["q"].shape[:3])
    y, _ = delta_rule(**given, beta=beta, implementation="pallas")
    assert told == [low == "qkv"]
    assert y.dtype == given["v"].dtype


@pytest.mark.parametrize(
    "memory,strengths", ((delta_rule, ("beta",)), (kalman_memory, ("process_var", "obs_var")))
)
def test_ops_find_their_kernels_and_say_what_those_need(monkeypatch, memory, strengths):
    # A GPU, but an older one: its kernels are found, and refuse.
    ampere = type("Device", (), {"compute_capability": "8.0"})()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda *_: [ampere])
    tokens = dict.fromkeys("qkv", jnp.ones((1, 3, 1, 64), jnp.bfloat16))
    numbers = dict.fromkeys(strengths, jnp.ones((1, 3, 1)))
    with pytest.raises(NotImplementedError, match="Hopper.*8.0 was found"):
        memory(**tokens, **numbers, implementation="pallas")
