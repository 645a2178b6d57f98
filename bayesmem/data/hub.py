"""Data sets of the Hugging Face hub, by the optional package `datasets`.

A spec is `hf:NAME`, `hf:NAME:CONFIG` or either with `@SPLIT` behind it, for one of its splits:
`hf:roneneldan/TinyStories@train`. NAME may also be a local folder that `datasets` understands.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from bayesmem.data.formats import optional_package, text_of

PREFIX = "hf:"
# What the hub's data sets call our splits, the first that is there.
_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}


class HubSpec(NamedTuple):
    """The parts of a spec; None where it has none."""

    name: str
    config: str | None
    split: str | None


def is_hub(path: object) -> bool:
    """Says whether a path is a spec of the hub."""
    return str(path).startswith(PREFIX)


def parse_hub(spec: str) -> HubSpec:
    """Reads a spec.

    Raises:
        ValueError: It has not the form that the module docstring says.
    """
    match = re.fullmatch(r"hf:([^:@]+)(?::([^:@]+))?(?:@([^:@]+))?", spec)
    if match is None:
        raise ValueError(f"path: found {spec!r}, wanted hf:NAME, hf:NAME:CONFIG, or with @SPLIT")
    return HubSpec(*match.groups())


def hub_splits(spec: str) -> dict[str, str]:
    """The splits that a data set states: {"train", "valid" or "test": the spec of that one}.

    Empty where it has none but "train", or the spec names a split: it is then split by document.

    Raises:
        ValueError: The data set cannot be reached or is none.
        ImportError: `datasets` is not installed.
    """
    name, config, split = parse_hub(spec)
    if split is not None:
        return {}
    there = _call(spec, "get_dataset_split_names", name, config)
    first = {ours: next((n for n in names if n in there), None) for ours, names in _NAMES.items()}
    stated = {ours: f"{spec}@{theirs}" for ours, theirs in first.items() if theirs}
    return stated if len(stated) > 1 else {}


def hub_documents(spec: str, text_key: str) -> Iterator[tuple[str, bytes]]:
    """The documents of one split ("train" where the spec names none), as `file_documents` does.

    Raises:
        ValueError: The data set cannot be reached, or has no such split or column.
        ImportError: `datasets` is not installed.
    """
    name, config, split = parse_hub(spec)
    rows = _call(spec, "load_dataset", name, config, split=split or "train")
    if text_key not in rows.column_names:
        raise ValueError(
            f"path: in {spec} found the columns {rows.column_names}, wanted {text_key!r} among them"
        )
    for number, row in enumerate(rows.select_columns([text_key]), start=1):
        yield f"#{number}", text_of(row[text_key], f"{spec}#{number}", text_key)


def _call(spec: str, function: str, *arguments: Any, **options: Any) -> Any:
    datasets = optional_package("datasets", f"path: {spec}")
    try:
        return getattr(datasets, function)(*arguments, **options)
    except Exception as error:  # of the network, the hub, the cache, or the data set's own files
        raise ValueError(
            f"path: cannot load {spec} from the Hugging Face hub: {type(error).__name__}: {error}"
        ) from error
