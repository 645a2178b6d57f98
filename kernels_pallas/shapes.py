"""The one list of shapes, for benchmarks and for tests of kernels."""

from typing import NamedTuple


class Shape(NamedTuple):
    """Sizes of one call: see the axis legend in `bayesmem.array_types`."""

    B: int
    T: int
    H: int
    D: int
    M: int


SUITES = {
    "cpu": (Shape(1, 2048, 4, 64, 64),),
    "gpu": (Shape(8, 2048, 16, 64, 64), Shape(8, 2048, 8, 128, 128), Shape(8, 2048, 4, 256, 256)),
    "quick": (Shape(1, 128, 2, 16, 16),),
}
"""Suites of `launch.bench_ops`."""

CHUNK_SIZES = {
    ("cpu", "kalman_memory", "chunked"): 16,
    ("cpu", "delta_rule", "chunked"): 32,
    ("cpu", "linear_attention", "chunked"): 32,
}
"""Tokens in a chunk where 64 is not the fastest, by suite, op and form: a CPU has its cache."""
