"""A loader's state as JSON values: one entry if all processes have the same, else one each."""

from __future__ import annotations

import base64
import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def pack_loader_state(state: Any) -> dict[str, Any]:
    """Collects the loader states of all processes. Every process calls it.

    Args:
      state: this process's `get_state()`: JSON values (NumPy integers allowed) or bytes.

    Returns:
      JSON values, equal on all processes.

    Raises:
      TypeError: the state is neither bytes nor made of JSON values.
    """
    if isinstance(state, bytes):
        value: Any = {"base64": base64.b64encode(state).decode("ascii")}
    else:
        value = {"json": json.loads(json.dumps(state, default=_plain))}
    if jax.process_count() == 1:
        return {"processes": [value]}
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(text.size))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: text.size] = text
    rows = multihost_utils.process_allgather(padded)
    states = [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]
    same = all(state == states[0] for state in states)
    return {"processes": states[:1] if same else states}


def unpack_loader_state(packed: dict[str, Any]) -> Any:
    """Gives this process the state it passed to `pack_loader_state`.

    Args:
      packed: result of `pack_loader_state`.

    Returns:
      The state for `set_state()`.

    Raises:
      ValueError: it was saved by another number of processes with a state each.
    """
    states = packed["processes"]
    if len(states) == 1:
        states = states * jax.process_count()
    if len(states) != jax.process_count():
        raise ValueError(
            f"loader state: found one of {len(states)} processes; wanted {jax.process_count()}: "
            "continue with the number of processes the run was started with"
        )
    state = states[jax.process_index()]
    return base64.b64decode(state["base64"]) if "base64" in state else state["json"]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"loader state: found {type(value).__name__}; wanted JSON values or bytes")
