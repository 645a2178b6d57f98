"""Checks of a task's numbers."""

import math
from typing import Any

import numpy as np


def check_count(name: str, value: Any, *, minimum: int) -> None:
    """Raises ValueError unless `value` is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ValueError(f"{name}: found {value!r}, wanted an integer >= {minimum}")


def check_counts(name: str, values: Any, *, minimum: int) -> tuple[int, ...]:
    """Returns `values` as a tuple, for a task to be hashable.

    Raises:
      ValueError: they are no list or tuple of at least one whole number, each >= `minimum`.
    """
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"{name}: found {values!r}, wanted a tuple of integers >= {minimum}")
    for value in values:
        check_count(name, value, minimum=minimum)
    return tuple(values)


def check_range(name: str, values: Any, low: float, high: float) -> tuple[float, float]:
    """Returns `values` as a pair of floats.

    Raises:
      ValueError: they are no ascending pair of finite numbers in [low, high).
    """
    pair = tuple(values) if isinstance(values, list | tuple) else ()
    numbers = [v for v in pair if isinstance(v, int | float) and math.isfinite(v)]
    if not (len(pair) == len(numbers) == 2 and low <= pair[0] <= pair[1] < high):
        raise ValueError(
            f"{name}: found {values!r}, wanted a pair (low, high) with "
            f"{low:g} <= low <= high < {high:g}"
        )
    return float(pair[0]), float(pair[1])
