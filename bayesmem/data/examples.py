"""The examples of a config's `data` block: one split, read by rows.

A batch is a dict of int32 NumPy arrays. Text: "inputs", "targets", "segment_ids" [B, T]. MQAR:
"inputs" [B, T], "targets" and "query_positions" [B, Q]. A target of -100 is ignored.

MQAR rows come from `data.seed`, not from the seed of the run: runs of several seeds differ in
their order and their initial parameters, and are tested on the same rows.
"""

import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from bayesmem.data import text
from bayesmem.data.mqar import SPLITS, MqarBatch, MqarTask, sample_mqar, split_seed
from bayesmem.data.shards import open_split, read_manifest
from bayesmem.data.splits import read_split
from bayesmem.data.tokenizers import BYTES, load_tokenizer

logger = logging.getLogger(__name__)

Batch = dict[str, np.ndarray]

_TASK_KEYS = {
    "mqar": (
        *(field.name for field in fields(MqarTask)),
        *(f"{split}_examples" for split in SPLITS),
        "seed",
    ),
    "text": ("path", "text_key", "tokenizer", "seq_len"),
}
# What a key means that configs of earlier versions do not have.
_DEFAULTS = {"text": {"tokenizer": BYTES}}
# Bytes of text that a tokenizer takes some seconds for, at every start.
_LONG_TEXT = 10_000_000


class Examples(Protocol):
    """One split, held in memory or, if it was prepared, on disk."""

    def __len__(self) -> int:
        """How many examples there are."""
        ...

    def take(self, indices: np.ndarray) -> Batch:
        """The examples of indices [B], in that order; a blank row for a negative index."""
        ...

    def checksum(self) -> int:
        """A number for the content: a stored position means nothing in other content."""
        ...


@dataclass(frozen=True)
class MqarExamples:
    """Rows of MQAR."""

    rows: MqarBatch

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows.inputs)

    def take(self, indices: np.ndarray) -> Batch:
        """The rows of indices [B]; a blank row (targets -100) for a negative index."""
        batch = {name: rows[indices] for name, rows in self.rows._asdict().items()}
        blank = indices < 0
        batch["inputs"][blank] = 0
        batch["targets"][blank] = text.IGNORED_TARGET
        batch["query_positions"][blank] = 0
        return batch

    def checksum(self) -> int:
        """CRC-32 of all three arrays."""
        total = 0
        for rows in self.rows:
            total = zlib.crc32(rows.data, total)
        return total


@dataclass(frozen=True)
class TextExamples:
    """Windows of a packed corpus."""

    packed: text.PackedText
    seq_len: int

    def __len__(self) -> int:
        """How many windows there are."""
        return text.num_windows(self.packed, self.seq_len)

    def take(self, indices: np.ndarray) -> Batch:
        """The windows of indices [B]; a blank one (segments -1) for a negative index."""
        return text.windows(self.packed, self.seq_len, indices)

    def checksum(self) -> int:
        """CRC-32 of what tells the tokens from others, and the window length."""
        return zlib.crc32(self.packed.content, self.seq_len)


def load_examples(data_config: Mapping[str, Any], split: str) -> Examples:
    """Reads or draws one split.

    Args:
        data_config: `task` ("mqar" or "text") and exactly the keys of that task, which
            `configs/common.py` states with a comment each.
        split: "train", "valid" or "test".

    Returns:
        The examples, at least one.

    Raises:
        ValueError: An unknown task, split or key, a missing key, sizes that do not fit, text that
            cannot be read, or a prepared folder that is torn or of another tokenizer.
        ImportError: A package that the text needs is not installed.
    """
    data = _checked(data_config)
    if split not in SPLITS:
        raise ValueError(f"split: found {split!r}, wanted one of {list(SPLITS)}")
    if data["task"] == "mqar":
        task = MqarTask(**{field.name: data[field.name] for field in fields(MqarTask)})
        count = data[f"{split}_examples"]
        if count == 0:
            raise ValueError(f"data.{split}_examples: found 0, wanted at least 1")
        seed = split_seed(data["seed"], split)
        return MqarExamples(sample_mqar(task, num_examples=count, seed=seed))
    if data["seq_len"] < 1:
        raise ValueError(f"data.seq_len: found {data['seq_len']}, wanted at least 1")
    return TextExamples(_packed(data, split), data["seq_len"])


def vocab_size(data_config: Mapping[str, Any]) -> int:
    """How many token ids a task uses; a model for it needs at least as many.

    Args:
        data_config: The `data` block of a config.

    Returns:
        The number of ids.

    Raises:
        ValueError: An unknown task or key, a missing key, or a tokenizer that cannot be loaded.
    """
    data = _checked(data_config)
    if data["task"] == "mqar":
        return data["vocab_size"]
    return load_tokenizer(data["tokenizer"]).vocab_size


def _packed(data: Mapping[str, Any], split: str) -> text.PackedText:
    """The stream of a split: opened if it was prepared, else read and tokenized here."""
    tokenizer = load_tokenizer(data["tokenizer"])
    manifest = read_manifest(data["path"])
    if manifest is not None:
        return open_split(data["path"], manifest, split, tokenizer)
    contents = [item.content for item in read_split(data["path"], split, text_key=data["text_key"])]
    if tokenizer.name != BYTES and (size := sum(map(len, contents))) > _LONG_TEXT:
        logger.warning(
            "tokenizing %d bytes of %r, as at every start: launch.prepare_data does it once",
            *(size, split),
        )
    return text.pack(contents, tokenizer)


def _checked(data_config: Mapping[str, Any]) -> dict[str, Any]:
    """The block as a dict, with exactly the keys that its task reads."""
    data = {key: data_config[key] for key in data_config}
    task = data.get("task")
    if task not in _TASK_KEYS:
        raise ValueError(f"data.task: found {task!r}, wanted one of {list(_TASK_KEYS)}")
    data = {**_DEFAULTS.get(task, {}), **data}
    wanted = {"task", *_TASK_KEYS[task]}
    unknown, missing = sorted(set(data) - wanted), sorted(wanted - set(data))
    if unknown or missing:
        raise ValueError(
            f"data: found unknown keys {unknown}, missing keys {missing}; wanted exactly "
            f"{sorted(wanted)} for task {task!r}"
        )
    return data
