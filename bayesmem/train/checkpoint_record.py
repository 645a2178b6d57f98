"""The record that makes a checkpoint usable: what was saved, file by file and leaf by leaf.

`COMMIT.json` is written into a step's directory after Orbax has finished, with the size and
CRC-32 of every file and the shape and type of every leaf. Orbax alone restores a file with
flipped bytes without a word, and its next save removes the temporary directory of a save that was
killed; the record and `move_aside` close both gaps.
"""

from __future__ import annotations

import json
import logging
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from bayesmem.train.records import free_name, write_json

logger = logging.getLogger(__name__)

RECORD = "COMMIT.json"
_NAMED_PROBLEMS = 10  # leaves an error message lists before it only counts them
_BLOCK = 1 << 22  # bytes read at a time


def write_record(path: Path, step: int, items: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the record of a finished save.

    Args:
      path: the step's directory.
      step: its step.
      items: for each Orbax item, its leaves (anything with shape and dtype) by name.
    """
    leaves = {
        item: {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in found.items()}
        for item, found in items.items()
    }
    write_json(path / RECORD, {"step": step, "files": _file_table(path), "leaves": leaves})


def unusable_because(path: Path) -> str | None:
    """Says why the step at `path` cannot be used, or None if it can."""
    try:
        record = json.loads((path / RECORD).read_text())
        wanted = record["files"].items()
        if not wanted or not record["leaves"] or not all(record["leaves"].values()):
            return f"its {RECORD} names no files or no leaves"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"its {RECORD} cannot be read ({type(error).__name__}): it was not saved to the end"
    try:
        found = _file_table(path)
    except OSError as error:
        return f"its files cannot be read ({error})"
    for name, entry in wanted:
        if name not in found:
            return f"file {name} is missing"
        if found[name] != entry:
            return f"file {name} is not what was saved"
    return None


def check_fit(path: Path, item: str, wanted: Mapping[str, Any]) -> None:
    """Checks that a step's saved leaves are exactly those wanted, and can be placed as wanted.

    Args:
      path: directory of a usable step.
      item: name of the Orbax item.
      wanted: arrays or shapes with shardings, by leaf name.

    Raises:
      ValueError: leaves are missing, extra, of another shape or type, or have an axis that does
        not split over the mesh; the message names them with what was found and wanted.
    """
    found = json.loads((path / RECORD).read_text())["leaves"][item]
    problems = []
    for name in sorted(set(found) | set(wanted)):
        have = _describe(found[name]["shape"], found[name]["dtype"]) if name in found else "nothing"
        want = _describe(wanted[name].shape, wanted[name].dtype) if name in wanted else "nothing"
        if have != want:
            problems.append(f"{item}/{name}: found {have}, wanted {want}")
        else:
            problems += [f"{item}/{name}: {text}" for text in _indivisible(wanted[name])]
    if problems:
        more = len(problems) - _NAMED_PROBLEMS
        listed = problems[:_NAMED_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
        raise ValueError("\n  ".join([f"checkpoint {path} does not fit:", *listed]))


def move_aside(path: Path) -> None:
    """Renames a directory to the first free NAME.unusable-N, with a warning."""
    target = free_name(path.parent, path.name + ".unusable-{}")
    logger.warning("%s is in the way of a new checkpoint: renamed to %s", path, target.name)
    path.rename(target)


def _describe(shape: Any, dtype: Any) -> str:
    return f"{dtype}[{', '.join(str(size) for size in shape)}]"


def _indivisible(leaf: Any) -> list[str]:
    """Names the axes of a placed leaf that its mesh axes do not divide."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return []
    problems = []
    for axis, names in enumerate(sharding.spec):
        names = () if names is None else (names,) if isinstance(names, str) else names
        parts, size = math.prod(sharding.mesh.shape[name] for name in names), leaf.shape[axis]
        if size % parts:
            problems.append(
                f"axis {axis} does not split over mesh axis {' x '.join(names)}: "
                f"{size} % {parts} = {size % parts}"
            )
    return problems


def _file_table(path: Path) -> dict[str, dict[str, int]]:
    """Size and CRC-32 of every file below `path`, by relative name."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != RECORD]
    return {file.relative_to(path).as_posix(): _fingerprint(file) for file in files}


def _fingerprint(file: Path) -> dict[str, int]:
    size = crc = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return {"bytes": size, "crc32": crc}
