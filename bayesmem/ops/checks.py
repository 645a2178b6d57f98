"""Checks of op arguments: static ones always, checks of values when they can be afforded.

Shapes and dtypes are checked before any tracing. Values (`log_decay <= 0`, `obs_var > 0`) are
checked at once where the array is concrete, that is outside of `jit`, `grad` and `vmap`; inside of
them only under `debug_checks()`, where a callback in the compiled program reports them.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

_DEBUG = {"on": False}


@contextlib.contextmanager
def debug_checks(enabled: bool = True) -> Iterator[None]:
    """Turns value checks inside compiled code on (or off) for what is traced within the block.

    A function that was compiled outside of the block keeps the checks it was compiled with.
    """
    previous = _DEBUG["on"]
    _DEBUG["on"] = enabled
    try:
        yield
    finally:
        _DEBUG["on"] = previous


def require_floating(name: str, value: jax.Array) -> None:
    """Raises ValueError unless `value` has a floating-point dtype."""
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"{name}: found dtype {value.dtype}, wanted a floating-point dtype")


def require_shape(
    name: str, value: jax.Array, sizes: Mapping[str, int], *alternatives: str
) -> None:
    """Raises ValueError unless the shape of `value` is one of `alternatives`.

    Args:
      name: the argument's name.
      value: the array.
      sizes: known sizes of axes, such as {"B": 2, "T": 5}; an axis not in it may have any size.
      *alternatives: axis names separated by spaces, such as "B T H" or "B T H D".
    """
    wanted = []
    for axes in (alternative.split() for alternative in alternatives):
        sized = [sizes.get(axis) for axis in axes]
        if len(sized) == value.ndim and all(
            size is None or size == found for size, found in zip(sized, value.shape, strict=True)
        ):
            return
        shown = (
            axis if size is None else f"{axis}={size}"
            for axis, size in zip(axes, sized, strict=True)
        )
        wanted.append(f"[{', '.join(shown)}]")
    raise ValueError(f"{name}: found shape {value.shape}, wanted {' or '.join(wanted)}")


def require_values(
    name: str, value: jax.Array, ok: Callable[[np.ndarray], np.ndarray], wanted: str
):
    """Raises ValueError where an element of `value` is not `ok`.

    Args:
      name: the argument's name.
      value: the array; concrete arrays are checked at once, traced ones under `debug_checks()`.
      ok: elementwise test on a NumPy array; a NaN must fail it.
      wanted: the wish in words, such as "log_decay <= 0".

    Raises:
      ValueError: at once, or from inside the compiled program under `debug_checks()`.
    """

    def check(found):
        found = np.asarray(found)
        if found.dtype.itemsize < 4:
            found = found.astype(np.float32)
        bad = ~ok(found)
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ValueError(
                f"{name}: found {found[where]} at {where} ({int(bad.sum())} of {bad.size} "
                f"elements), wanted {wanted}"
            )

    if not isinstance(value, jax.core.Tracer):
        check(value)
    elif _DEBUG["on"]:
        jax.debug.callback(check, value)
