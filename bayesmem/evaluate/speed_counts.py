"""Bytes that a call must move, operations that it must do, and the least time for them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kernels_pallas.shapes import Shape, SlotShape

SOLVER_STEPS = 30
"""Conjugate-gradient steps of a MesaNet, each a product with its key matrix."""


class Ceilings(NamedTuple):
    """What one device reached when measured: bytes copied (read and written) and FLOP, a second."""

    copy: float
    bfloat16: float
    tf32: float
    float32: float


CEILINGS = {"NVIDIA H200": Ceilings(copy=4.19e12, bfloat16=763e12, tf32=418e12, float32=51e12)}
"""By the kind of device, as JAX names it."""


def count_flops(name: str, shape: Shape | SlotShape, mode: str) -> int:
    """Returns the operations of the token recurrence; a backward pass is taken as two forward ones.

    A Kalman token costs 4 D^2 + 6 D M a head (P k, the update of P; read, update and output of the
    mean), a delta rule 6 D M, an additive memory 4 D M, a slot memory 5 K M, a MesaNet
    2 D^2 + 4 D M and its solver's 2 D^2 a step.
    """
    m = shape.M
    if isinstance(shape, SlotShape):
        token = 5 * shape.K * m
    else:
        d = shape.D
        token = {
            "kalman_memory": 4 * d * d + 6 * d * m,
            "delta_rule": 6 * d * m,
            "linear_attention": 4 * d * m,
            "mesa_net": (2 + 2 * SOLVER_STEPS) * d * d + 4 * d * m,
        }[name]
    return shape.B * shape.T * shape.H * token * (3 if mode == "fwd+bwd" else 1)


def count_bytes(inputs: Mapping[str, Any], output: Any, shape: Shape | SlotShape, mode: str) -> int:
    """Returns the fewest bytes: every input read once, every output written once.

    With the backward pass also the output's cotangent and the gradient of every input of floats.
    Of the slots of a step only those count that it touches: read and written by its write, read by
    its read.
    """
    state = ("content", "mass")
    total = sum(x.nbytes for key, x in inputs.items() if key not in state) + output.nbytes
    if mode == "fwd+bwd":
        total += output.nbytes + sum(x.nbytes for x in inputs.values() if x.dtype.kind != "i")
    if isinstance(shape, SlotShape) and "content" in inputs:
        touched = 2 * shape.K * (shape.M + 1) + shape.K * shape.M
        total += shape.B * shape.H * touched * inputs["content"].dtype.itemsize
    return total


def roofline(row: Mapping[str, Any]) -> float | None:
    """Returns the least time on this device over the time found; None without either.

    The covariance of a Kalman memory and the key matrix of a MesaNet are float32 in any dtype, so
    their products run at tf32's rate at best; others at that of the row's dtype; a slot memory has
    no matrix products.
    """
    ceilings = CEILINGS.get(row["device"])
    if ceilings is None or not row["gpu_ms"] or row["bytes"] is None:
        return None
    rate = ceilings.bfloat16 if row["dtype"] == "bfloat16" else ceilings.tf32
    if row["op"] in ("kalman_memory", "mesa_net"):
        rate = ceilings.tf32
    elif row["op"] == "slot_memory":
        rate = ceilings.float32
    seconds = max(row["bytes"] / ceilings.copy, row["flops"] / rate)
    return 1e3 * seconds / row["gpu_ms"]
