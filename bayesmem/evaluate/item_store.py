"""Results of a task item by item: an evaluation that is killed goes on where it was.

Items that are done are appended to TASK.partial.jsonl; when all are, TASK.json is written, whole or
not at all, and the partial file removed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bayesmem.train.provenance import provenance
from bayesmem.train.records import free_name, write_json

logger = logging.getLogger(__name__)

EVALUATIONS = "evaluations"

Item = dict[str, Any]


def evaluate_items(
    folder: Path,
    identity: Mapping[str, Any],
    count: int,
    run: Callable[[Sequence[int]], Iterator[tuple[int, Item]]],
    summarise: Callable[[Sequence[Item]], dict[str, Any]],
) -> dict[str, Any]:
    """Runs what is not done yet of a task's items, and writes TASK.json.

    Args:
      folder: of the results, made if missing.
      identity: JSON values that decide the results: `task`, the name of the file; `step`; ...
        Results of another identity are kept under another name.
      count: how many items, the first ones. Where more are done already, they all stay.
      run: from indices of items to (index, result), in any order; results are JSON values.
      summarise: from all results in order to the measures.

    Returns:
      What TASK.json holds: the identity, `count`, `result`, `provenance`, and `items`, each with
      its `index`.

    Raises:
      OSError: the folder is not writable.
      ValueError: there is no item, or a score is not finite.
    """
    name = identity["task"]
    if count < 1:
        raise ValueError(f"{name}: found no item, wanted at least one")
    folder.mkdir(parents=True, exist_ok=True)
    path, partial = folder / f"{name}.json", folder / f"{name}.partial.jsonl"
    identity = json.loads(json.dumps(identity))
    finished = _read_finished(path, identity)
    if finished and finished["count"] >= count:
        logger.info("%s: %d items are done already", name, finished["count"])
        partial.unlink(missing_ok=True)
        return finished
    done = {item["index"]: item for item in finished["items"]} if finished else {}
    done |= _open_partial(partial, identity)
    missing = [index for index in range(count) if index not in done]
    with (
        partial.open("a", encoding="utf-8") as stream,
        tqdm(total=count, initial=count - len(missing), desc=name, unit="item") as bar,
    ):
        for index, item in run(missing) if missing else ():
            done[index] = {"index": index} | item
            stream.write(_line(name, done[index]))
            stream.flush()
            bar.update()
    items = [done[index] for index in sorted(done)]
    whole = dict(identity) | {
        "count": len(items),
        "result": summarise(items),
        "provenance": provenance(),
        "items": items,
    }
    write_json(path, whole)
    partial.unlink(missing_ok=True)  # another process may have ended first
    return whole


def _read_finished(path: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """What TASK.json holds if it is of this identity; another one is moved aside."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if all(found.get(key) == value for key, value in identity.items()):
            return found if len(found["items"]) == found["count"] else {}
        name = f"{path.stem}_step_{found['step']:08d}"
    except (ValueError, TypeError, KeyError, AttributeError):  # not written by us
        name = f"{path.stem}_unreadable"
    kept = path.with_name(f"{name}.json")
    kept = kept if not kept.exists() else free_name(path.parent, f"{name}_{{}}.json")
    logger.warning("%s is of another evaluation and is now %s", path.name, kept.name)
    path.rename(kept)
    return {}


def _open_partial(path: Path, identity: Mapping[str, Any]) -> dict[int, Item]:
    """Items of an evaluation that was stopped; leaves a file that ends with a whole line."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    rows = [row for row in map(_row, lines) if row is not None]
    if rows and rows[0] != identity:
        aside = free_name(path.parent, f"{path.stem}-{{}}.jsonl")
        logger.warning("%s is of another evaluation and is now %s", path.name, aside.name)
        path.rename(aside)
        rows = []
    rows = [row for row in rows[1:] if "index" in row]
    text = "".join(json.dumps(row) + "\n" for row in (dict(identity), *rows))
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return {row["index"]: row for row in rows}


def _line(name: str, item: Item) -> str:
    try:
        return json.dumps(item, allow_nan=False) + "\n"
    except ValueError as error:
        raise ValueError(
            f"{name}: found a score that is not finite at item {item['index']}; wanted a "
            f"checkpoint whose parameters and logits are finite"
        ) from error


def _row(line: str) -> Item | None:
    """A line's object; None of a line that a kill has torn."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
