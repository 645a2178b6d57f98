"""The one list of shapes, for benchmarks and for tests of kernels."""

from typing import NamedTuple


class Shape(NamedTuple):
    """Sizes of one call: see the axis legend in `bayesmem.array_types`."""

    B: int
    T: int
    H: int
    D: int
    M: int


class SlotShape(NamedTuple):
    """Sizes of one call of the slot memory; a token writes K slots and reads K."""

    B: int
    T: int
    H: int
    S: int
    K: int
    M: int


SUITES = {
    "cpu": (Shape(1, 2048, 4, 64, 64),),
    "gpu": (Shape(8, 2048, 16, 64, 64), Shape(8, 2048, 8, 128, 128), Shape(8, 2048, 4, 256, 256)),
    "quick": (Shape(1, 128, 2, 16, 16),),
}
"""Suites of `launch.bench_ops`."""

SLOT_SUITES = {
    "cpu": (SlotShape(1, 1024, 4, 1024, 8, 32),),
    "gpu": (SlotShape(8, 2048, 32, 1024, 8, 32),),
    "quick": (SlotShape(1, 128, 2, 64, 4, 16),),
}
"""The same suites' shapes of the slot memory."""

CHUNK_SIZES = {
    ("cpu", "kalman_memory", "chunked"): 16,
    ("cpu", "delta_rule", "chunked"): 32,
    ("cpu", "linear_attention", "chunked"): 32,
}
"""Tokens in a chunk where 64 is not the fastest, by suite, op and form: a CPU has its cache."""
