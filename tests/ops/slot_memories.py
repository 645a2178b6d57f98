"""`slot_memory` on the cases of `cases.slots`, run under one jit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops

FORMS = ("recurrent", "touched", "segmented")
INTEGERS = ("write_ids", "read_ids", "segment_ids")

every_form = pytest.mark.parametrize("form", FORMS)


def call(case, form, num_slots=16, retention="gsu"):
    """Runs the op on a case; returns o, content and mass."""
    case = dict(case)
    write, read = (
        ops.SlotAddress(case.pop(f"{name}_ids"), case.pop(f"{name}_weights"))
        for name in ("write", "read")
    )
    o, state = ops.slot_memory(
        write, read, **case, num_slots=num_slots, retention=retention, implementation=form
    )
    return o, *state


run = functools.partial(jax.jit, static_argnums=(1, 2, 3))(call)


def _loss(varied, fixed, cotangents, form, num_slots, retention):
    outputs = call(varied | fixed, form, num_slots, retention)
    return sum(jnp.sum(c * x) for c, x in zip(cotangents, outputs, strict=True))


_gradients = jax.jit(jax.grad(_loss), static_argnums=(3, 4, 5))


def gradients(case, cotangents, form, num_slots=16, retention="gsu"):
    """Gradients of sum <cotangent, output> by every floating-point input of the case."""
    varied = {name: x for name, x in case.items() if name not in INTEGERS}
    fixed = {name: x for name, x in case.items() if name in INTEGERS}
    return _gradients(varied, fixed, cotangents, form, num_slots, retention)


def cotangents(case, num_slots=16, seed=0):
    """Random cotangents of o, content and mass; NumPy float64."""
    rng = np.random.default_rng(seed)
    batch, _, heads, value_dim = case["v"].shape
    slots = (batch, heads, num_slots)
    shapes = (case["v"].shape, (*slots, value_dim), slots)
    return tuple(rng.standard_normal(shape) for shape in shapes)


def cast(case, dtype, others=jnp.float32):
    """Casts v to `dtype` and all but the integers to `others`."""
    wanted = {"v": dtype, **dict.fromkeys(INTEGERS, jnp.int32)}

    def to(dtype, value):
        return jax.tree.map(lambda x: jnp.asarray(x, dtype), value)

    return {name: to(wanted.get(name, others), value) for name, value in case.items()}


def exact(case):
    """The values of a cast case as NumPy float64, integers as they are."""

    def wide(x):
        return np.asarray(x, np.float64 if jnp.issubdtype(x.dtype, jnp.floating) else None)

    return jax.tree.map(wide, case)
