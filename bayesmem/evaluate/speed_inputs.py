"""What the forms of an op are timed on: random inputs, and the exact outputs for them."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem import ops
from bayesmem.evaluate.baselines import mesa_net, plain_slot_memory
from kernels_pallas.shapes import Shape, SlotShape

KERNELS = ("pallas", "triton")
"""Forms that every op may have; passed over where there is none for the shape or the device."""
OPS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "kalman_memory": (ops.kalman_memory, ("recurrent", "chunked", "associative", *KERNELS)),
    "delta_rule": (ops.delta_rule, ("recurrent", "chunked", *KERNELS)),
    "linear_attention": (ops.linear_attention, ("recurrent", "chunked", *KERNELS)),
    "slot_memory": (ops.slot_memory, ("recurrent", "touched", "segmented", "plain", *KERNELS)),
}
"""Op and the forms to time, the one to which errors and gains refer first; "plain" is no form of
the op but the baseline of `bayesmem.evaluate.baselines`."""
GATES = {
    "kalman_memory": ("log_decay", "process_var", "obs_var"),
    "delta_rule": ("log_decay", "beta"),
    "linear_attention": ("log_decay",),
    "mesa_net": ("log_decay", "beta", "ridge"),
}
"""Inputs of each op besides q, k and v."""
STATE = ("content", "mass")

Inputs = dict[str, jax.Array]


class Case(NamedTuple):
    """Inputs of one op at one shape; `exact` is the output of the token recurrence in float64."""

    name: str
    shape: Shape | SlotShape
    inputs: Inputs
    cotangent: jax.Array
    exact: np.ndarray


@functools.lru_cache(maxsize=4)  # all ops of a shape, from its forward to its backward races
def draw_case(name: str, shape: Shape | SlotShape, dtype: str) -> Case:
    """Draws inputs of seed 0: unit keys, decays near 1, moderate noise; or random slots.

    Args:
      name: a key of `OPS`, or "mesa_net".
      shape: sizes.
      dtype: of q, k, v and of the output; gates, decays, weights and states are float32.
    """
    rng = np.random.default_rng(0)
    drawn = _slot_inputs(rng, shape) if isinstance(shape, SlotShape) else _inputs(name, rng, shape)
    inputs = {
        key: jnp.asarray(x, dtype if key in ("q", "k", "v") else x.dtype)
        for key, x in drawn.items()
    }
    output = (shape.B, shape.T, shape.H, shape.M)
    cotangent = jnp.asarray(rng.standard_normal(output, np.float32), dtype)
    with jax.enable_x64(True):
        exact = np.asarray(caller(name, shape, "recurrent", None)(_wide(inputs))[0])
    return Case(name, shape, inputs, cotangent, exact)


def varied(inputs: Inputs) -> Inputs:
    """Returns the inputs that have a gradient."""
    return {key: x for key, x in inputs.items() if jnp.issubdtype(x.dtype, jnp.floating)}


def gradients(call: Callable[[Inputs], Any], inputs: Inputs, cotangent: jax.Array) -> Any:
    """Returns the output of `call` and the gradient of each input of floats."""
    output, pull = jax.vjp(lambda given: call(inputs | given)[0], varied(inputs))
    return output, pull(cotangent)[0]


def _host() -> Any:
    """The CPU, or None where JAX was told not to have it (JAX_PLATFORMS)."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        return None


@functools.lru_cache(maxsize=4)
def exact_gradients(name: str, shape: Shape | SlotShape, dtype: str) -> dict[str, np.ndarray]:
    """Returns the gradients of the float64 token recurrence for the first sequence of the batch.

    The sequences of a batch do not meet, so these are the first rows of the batch's gradients.
    """
    case = draw_case(name, shape, dtype)
    first = {key: x[:1] if key != "ridge" else x for key, x in case.inputs.items()}
    call = caller(name, shape._replace(B=1), "recurrent", None)
    # On the host: a GPU takes minutes to compile the derivative of so many small steps in float64.
    with jax.enable_x64(True), jax.default_device(_host()):
        inputs = _wide(first | {"cotangent": case.cotangent[:1]})
        cotangent = inputs.pop("cotangent")
        found = jax.jit(lambda inputs, do: gradients(call, inputs, do)[1])(inputs, cotangent)
        return {key: np.asarray(x) for key, x in found.items() if key != "ridge"}


def relative_error(found: Any, exact: np.ndarray) -> float:
    """Returns the norm of the difference over that of `exact`."""
    return float(np.linalg.norm(np.asarray(found, np.float64) - exact) / np.linalg.norm(exact))


def compare_gradients(found: dict[str, Any], exact: dict[str, np.ndarray]) -> dict[str, Any]:
    """Compares gradients for the first sequence of the batch.

    Args:
      found: by input, of the whole batch.
      exact: by input, of the first sequence; only these are compared.

    Returns:
      The fields of a row: gradient_errors, relative ones by input, and gradient_error, the largest
      of them, or NaN if one is.
    """
    errors = {key: relative_error(found[key][:1], exact[key]) for key in exact}
    return {"gradient_error": float(np.max(list(errors.values()))), "gradient_errors": errors}


def caller(
    name: str, shape: Shape | SlotShape, form: str, chunk_size: int | None
) -> Callable[[Inputs], tuple[jax.Array, Any]]:
    """Returns a function from the drawn inputs to output and state of one form."""
    if name == "mesa_net":
        return lambda inputs: mesa_net(**inputs)
    op = OPS[name][0]
    if not isinstance(shape, SlotShape):
        sized = {} if chunk_size is None else {"chunk_size": chunk_size}
        return lambda inputs: op(**inputs, **sized, implementation=form)

    def call(inputs):
        write = ops.SlotAddress(inputs["write_ids"], inputs["write_weights"])
        read = ops.SlotAddress(inputs["read_ids"], inputs["read_weights"])
        if form == "plain":
            return plain_slot_memory(write, read, inputs["v"], inputs["forget"], shape.S)
        given = {"num_slots": shape.S, "implementation": form}
        if shape.T == 1:
            given["state"] = ops.SlotState(*(inputs[key] for key in STATE))
        return op(write, read, inputs["v"], inputs["forget"], **given)

    return call


def _wide(inputs: Inputs) -> Inputs:
    """The same numbers in float64."""
    floats = varied(inputs)
    return {
        key: jnp.asarray(np.asarray(x, np.float64) if key in floats else x)
        for key, x in inputs.items()
    }


def _inputs(name: str, rng: np.random.Generator, shape: Shape) -> dict[str, np.ndarray]:
    """Draws the same for every op, and leaves out what the op does not take."""
    heads = (shape.B, shape.T, shape.H)
    k = rng.standard_normal((*heads, shape.D), np.float32)
    drawn = {
        "q": rng.standard_normal((*heads, shape.D), np.float32),
        "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": rng.standard_normal((*heads, shape.M), np.float32),
        "log_decay": -rng.exponential(0.05, heads),
        "process_var": rng.uniform(0.0, 0.1, heads),
        "obs_var": rng.uniform(0.05, 0.5, heads),
        "beta": rng.uniform(0.0, 1.0, heads),
        "ridge": rng.uniform(0.25, 1.25, (shape.H, shape.D)),
    }
    return {key: drawn[key].astype(np.float32) for key in ("q", "k", "v", *GATES[name])}


def _slot_inputs(rng: np.random.Generator, shape: SlotShape) -> dict[str, Any]:
    """Draws values, gates and the addresses of random scores of binary digits (S = 2^U)."""
    heads = (shape.B, shape.T, shape.H)
    inputs: dict[str, Any] = {
        "v": rng.standard_normal((*heads, shape.M), np.float32),
        "forget": rng.standard_normal(heads, np.float32),
    }
    for side in ("write", "read"):
        logits = rng.standard_normal((*heads, 2 * (shape.S.bit_length() - 1)), np.float32)
        address = ops.product_topk(jnp.asarray(logits), base=2, k=shape.K)
        inputs |= {f"{side}_ids": address.ids, f"{side}_weights": address.weights}
    if shape.T == 1:
        slots = (shape.B, shape.H, shape.S)
        inputs["content"] = rng.standard_normal((*slots, shape.M), np.float32)
        inputs["mass"] = rng.uniform(0.1, 1.0, slots).astype(np.float32)
    return inputs
