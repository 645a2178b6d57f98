"""The two ops whose state is one memory, each with its oracle, run under one jit."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests import oracles

FORMS = ("recurrent", "chunked")
KINDS = ("identity", "scalar", "diagonal")


class Op(NamedTuple):
    """An op, its oracle and the name of its write strength."""

    function: Callable
    oracle: Callable
    strength: str


OPS = {
    "delta": Op(ops.delta_rule, oracles.delta, "beta"),
    "additive": Op(ops.linear_attention, oracles.additive, "gain"),
}

every_op = pytest.mark.parametrize("op", tuple(OPS))
every_form = pytest.mark.parametrize("form", FORMS)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def run(case, op, form, chunk_size=64):
    return OPS[op].function(**case, implementation=form, chunk_size=chunk_size)


def _loss(varied, cotangents, segment_ids, op, form, chunk_size):
    case = varied if segment_ids is None else varied | {"segment_ids": segment_ids}
    outputs = run(case, op, form, chunk_size)
    return sum(jnp.sum(c * y) for c, y in zip(cotangents, outputs, strict=True))


_gradients = jax.jit(jax.grad(_loss), static_argnums=(3, 4, 5))


def gradients(case, cotangents, op, form, chunk_size=64):
    """Gradients of sum <cotangent, output> by every floating-point input of the case."""
    varied = {name: x for name, x in case.items() if name != "segment_ids"}
    return _gradients(varied, cotangents, case.get("segment_ids"), op, form, chunk_size)


def padded(case, steps):
    """The case with steps that do nothing (zeros) added at its end, up to `steps`.

    So that a comparison at many lengths compiles its reference once.
    """

    def pad(name, x):
        if name == "state":
            return x
        fill = -1 if name == "segment_ids" else 0
        widths = [(0, 0), (0, steps - x.shape[1])] + [(0, 0)] * (x.ndim - 2)
        return np.pad(np.asarray(x), widths, constant_values=fill)

    return {name: pad(name, x) for name, x in case.items()}


def reference_gradients(case, cotangents, op, steps):
    """`gradients` of the recurrence, run at `steps` tokens whatever the length of the case."""
    length = case["q"].shape[1]
    of_y, of_state = padded({"y": cotangents[0], "state": cotangents[1]}, steps).values()
    slopes = gradients(padded(case, steps), (of_y, of_state), op, "recurrent")
    return {name: x if name == "state" else x[:, :length] for name, x in slopes.items()}


def cotangents(case, seed=0):
    """Random cotangents of the output and the state; NumPy float64."""
    rng = np.random.default_rng(seed)
    batch, _, heads, value_dim = case["v"].shape
    state = (batch, heads, case["k"].shape[3], value_dim)
    return rng.standard_normal(case["v"].shape), rng.standard_normal(state)


def cast(case, dtype, others=jnp.float32):
    """Casts q, k and v to `dtype` and all but the integers to `others`."""
    return {
        name: jnp.asarray(x)
        if name == "segment_ids"
        else jnp.asarray(x, dtype if name in ("q", "k", "v") else others)
        for name, x in case.items()
    }


def exact(case):
    """The values of a cast case as NumPy float64."""
    return {
        name: np.asarray(x) if name == "segment_ids" else np.asarray(x, np.float64)
        for name, x in case.items()
    }
