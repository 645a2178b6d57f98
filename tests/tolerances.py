"""The one tolerance table: arithmetic x (value or gradient), scaled by the root of the length.

Arithmetic is a dtype, or how many bfloat16 parts a product of kernels has of each of its float32
factors: two hold 16 bits of a number, three all 24.
"""

import math

import numpy as np

_RELATIVE = {
    ("float64", "value"): 1e-10,
    ("float64", "gradient"): 1e-10,
    ("float32", "value"): 2e-6,
    ("float32", "gradient"): 1e-5,
    ("bfloat16", "value"): 8e-3,
    ("bfloat16", "gradient"): 2e-2,
    ("2 parts", "value"): 2e-5,
    ("2 parts", "gradient"): 5e-5,
    ("3 parts", "value"): 2e-6,
    ("3 parts", "gradient"): 5e-6,
}

SCORE_LIMIT = 1e-4
"""Nats by which scores of one row may differ between batch sizes, and between scorers."""


def _arithmetic(dtype) -> str:
    """The name of a dtype in the table; names of the table stand for themselves."""
    if (dtype, "value") in _RELATIVE:
        return dtype
    return "bfloat16" if "bfloat16" in str(dtype) else np.dtype(dtype).name


def tolerance(dtype, kind: str = "value", length: int = 1) -> dict[str, float]:
    """Returns `rtol` and `atol` for `np.testing.assert_allclose`.

    Args:
      dtype: of the arithmetic compared; "2 parts" or "3 parts" where kernels multiply so.
      kind: "value" or "gradient".
      length: number of terms that the compared numbers sum or steps they went through.
    """
    name = _arithmetic(dtype)
    relative = _RELATIVE[name, kind]
    if name != "float64":
        relative *= math.sqrt(length)
    return {"rtol": relative, "atol": relative}


def assert_close(found, wanted, dtype, kind: str = "value", length: int = 1) -> None:
    """Asserts that arrays agree to the table's tolerance, relative to the largest of `wanted`.

    Elements near zero of a large array are held to the array's own scale, never to less than 1.
    """
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape, f"shapes {found.shape} and {wanted.shape}"
    limits = tolerance(dtype, kind, length)
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    np.testing.assert_allclose(found, wanted, rtol=limits["rtol"], atol=limits["atol"] * scale)
