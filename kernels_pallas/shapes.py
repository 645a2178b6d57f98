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
    "long": (Shape(1, 131_072, 8, 128, 128),),
    "length": (),
    "decode": (),
}
"""Suites of `launch.bench_ops`; T = 1 is a step of decoding."""

SLOT_SUITES = {
    "cpu": (SlotShape(1, 1024, 4, 1024, 8, 32),),
    "gpu": (SlotShape(8, 2048, 32, 1024, 8, 32),),
    "quick": (SlotShape(1, 128, 2, 64, 4, 16), SlotShape(1, 1, 2, 64, 4, 16)),
    "long": (),
    "length": tuple(SlotShape(1, t, 4, 1024, 8, 32) for t in (512, 1024, 2048, 4096, 8192)),
    "decode": tuple(SlotShape(8, 1, 4, slots, 8, 32) for slots in (256, 1024, 4096)),
}
"""The same suites' shapes of the slot memory.

Steps of decoding have 8 sequences: below 512 KB of state, which one sequence of 256 slots has, XLA
compiles a CPU's loop in another way, and the ratio to more slots would show that.
"""

DTYPES = {"gpu": "bfloat16", "long": "bfloat16"}
"""Dtype of q, k and v where it is not float32, by suite."""

CHUNK_SIZES = {
    ("cpu", "kalman_memory", "chunked"): 16,
    ("cpu", "delta_rule", "chunked"): 32,
    ("cpu", "linear_attention", "chunked"): 32,
}
"""Tokens in a chunk where 64 is not the fastest, by suite, op and form: a CPU has its cache."""
