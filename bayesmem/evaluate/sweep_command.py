"""The command that makes a sweep's file, from the config in it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

SHIPPED_SIZES = ((64, 4), (128, 8), (256, 16), (512, 64))
"""Length and pairs that `configs/sweeps/mqar.py` has variants of."""


class Origin(NamedTuple):
    """Config of `configs/sweeps` that a sweep has, its variant ("" for none), and a workdir."""

    file: str
    variant: str
    workdir: str


def origin(config: Mapping[str, Any]) -> Origin:
    """Returns where a config comes from, by its task and, for MQAR, its form and size."""
    data = config["data"]
    if data["task"] != "mqar":
        return Origin(data["task"], "", f"runs/{data['task']}")
    size = f"{data['seq_len']}x{data['num_pairs']}"
    known = (data["seq_len"], data["num_pairs"]) in SHIPPED_SIZES
    variant = f"{data['variant']},{size}" if known else data["variant"]
    return Origin("mqar", variant, f"runs/mqar_{data['variant']}_{size}")


def command(
    config: Mapping[str, Any], shipped: Callable[[str, str], Mapping[str, Any]]
) -> tuple[str, list[str]]:
    """Returns the command, and the keys that no flag can set.

    Args:
      config: in a sweep's file.
      shipped: (file, variant) to the config that the file in `configs/sweeps` makes of it. What
        differs from it becomes a flag.
    """
    file, variant, workdir = origin(config)
    name = f"configs/sweeps/{file}.py" + (f":{variant}" if variant else "")
    parts = ["python -m launch.sweep", f"--config={name}", f"--workdir={workdir}"]
    left, here, there = [], _flat(config), _flat(shipped(file, variant))
    for key in sorted(here.keys() | there.keys()):
        if key not in here and len(key) == 2:
            continue  # younger than the file: its default is what there was before
        if key in here and key in there and here[key] == there[key]:
            continue
        settable = all(part.isidentifier() for part in key) and key in here and key in there
        if settable:
            parts.append(shlex.quote(f"--config.{'.'.join(key)}={_text(here[key])}"))
        else:
            left.append(".".join(key))
    return " ".join(parts), left


def _flat(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Path to each value that is no mapping, lists as tuples; an empty mapping has no path."""
    found: dict[tuple[str, ...], Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, (*above, key))
        else:
            found[*above, key] = tuple(value) if isinstance(value, list | tuple) else value
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
