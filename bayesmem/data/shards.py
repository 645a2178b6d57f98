"""Prepared tokens on disk: ArrayRecord shards and the manifest that describes them.

A prepared folder holds `manifest.json` and files `SPLIT-NUMBER.tokens.array_record`. The shards of
a split, one after the other, are its stream `E doc E doc ...` of `text` without the last E (E: the
tokenizer's document end). A shard's records are

    0           where each document's E is in this shard, little-endian int64
    1, 2, ...   `block` = 8,192 tokens each, the last one fewer, little-endian `dtype`

so a window of any length is a few records, whatever the lengths of documents. Tokens stay on disk;
what is held in memory is the 8 bytes a document of the first records.

The manifest is written last, when all shards are there, so a folder without it is not finished:

    format      "bayesmem tokens 1"
    made_from   the text (path, text_key, documents, bytes, digest), the tokenizer (its name and
                fingerprint), shard_bytes and block
    tokenizer   name, fingerprint, vocab_size, document_end
    dtype       "uint16" or "uint32"
    splits      {split: {documents, tokens, bytes, shards: [{file, documents, tokens, bytes, crc32,
                file_size}]}}

Documents are those with at least one token, `tokens` count each one's E, `bytes` are of their text.
"""

import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python import array_record_module

from bayesmem.data.formats import TOKEN_SHARD
from bayesmem.data.text import PackedText
from bayesmem.data.tokenizers import Tokenizer

FORMAT = "bayesmem tokens 1"
MANIFEST = "manifest.json"
REQUEST = "preparation.json"
"""What an unfinished folder is being prepared from; `preparation` writes it."""
BLOCK = 8_192
_OPEN_READERS = 64
# Records that are read are few and far between: reading ahead would be in vain.
_READER = "readahead_buffer_size:0"


class ShardCounts(NamedTuple):
    """What the manifest says of a shard."""

    file: str
    documents: int
    tokens: int
    bytes: int
    crc32: int  # of the tokens' little-endian bytes
    file_size: int


def shard_name(split: str, number: int) -> str:
    """The file name of a split's shard, from 0."""
    return f"{split}-{number:05d}{TOKEN_SHARD}"


def write_shard(path: Path, tokens: np.ndarray, starts: np.ndarray, size: int) -> ShardCounts:
    """Writes a shard under a temporary name, flushes it to disk and then renames it.

    Args:
        path: The shard.
        tokens: [N] of the manifest's dtype.
        starts: [documents] int64, where each document's E is.
        size: Bytes of the documents' text.

    Returns:
        Its counts.

    Raises:
        OSError: The disk is full or not writable.
    """
    little = tokens.astype(tokens.dtype.newbyteorder("<"), copy=False)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    blocks = [little[first : first + BLOCK].tobytes() for first in range(0, len(little), BLOCK)]
    records = [starts.astype("<i8").tobytes(), *blocks]
    try:
        writer = array_record_module.ArrayRecordWriter(str(temporary), "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
        reader = array_record_module.ArrayRecordReader(str(temporary), _READER)
        written = reader.num_records()
        reader.close()
    except RuntimeError as error:
        raise OSError(f"cannot write {temporary}: {error}") from error
    if written != len(records):  # a full disk need not raise
        raise OSError(f"cannot write {temporary}: {written} of {len(records)} records are there")
    with temporary.open("rb+") as stream:
        os.fsync(stream.fileno())
    temporary.replace(path)
    crc = zlib.crc32(little.tobytes())
    return ShardCounts(path.name, len(starts), len(tokens), size, crc, path.stat().st_size)


class ShardedTokens:
    """The tokens of a split, read from its shards block by block as they are asked for."""

    def __init__(
        self, folder: Path, shards: Sequence[ShardCounts], manifest: Mapping[str, Any]
    ) -> None:
        """Checks nothing; `open_split` does."""
        self._block = int(manifest["made_from"]["block"])
        self._paths = [folder / shard.file for shard in shards]
        self._dtype = np.dtype(manifest["dtype"]).newbyteorder("<")
        self._document_end = manifest["tokenizer"]["document_end"]
        counts = np.array([0, *(shard.tokens for shard in shards)], np.int64)
        self._edges = np.cumsum(counts)  # [shards + 1] first token of each shard
        # [shards + 1] first block of each shard, in one count over all.
        self._first_blocks = np.cumsum(-(-counts // self._block))
        self._readers: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        """N + 1: the tokens of all shards and the last document end."""
        return int(self._edges[-1]) + 1

    def __getitem__(self, positions: np.ndarray, /) -> np.ndarray:
        """The tokens at positions of any shape, integers in [0, N]."""
        positions = np.asarray(positions, np.int64)
        last = int(self._edges[-1])
        inside = np.minimum(positions, last - 1)
        shard = np.searchsorted(self._edges, inside, side="right") - 1
        local = inside - self._edges[shard]
        block, slot = self._first_blocks[shard] + local // self._block, local % self._block
        # As np.unique does, without sorting every token's block.
        asked = np.zeros(self._first_blocks[-1], bool)
        asked[block] = True
        rows = np.cumsum(asked) - 1
        tokens = self._blocks(np.flatnonzero(asked))[rows[block], slot]
        return np.where(positions == last, self._dtype.type(self._document_end), tokens)

    def starts(self) -> np.ndarray:
        """Where each document's E is in the split, int64 [documents]."""
        firsts = [self._read(shard, [0])[0] for shard in range(len(self._paths))]
        offsets = zip(firsts, self._edges, strict=False)
        return np.concatenate([np.frombuffer(first, "<i8") + offset for first, offset in offsets])

    def _blocks(self, blocks: np.ndarray) -> np.ndarray:
        """Blocks by their number over all shards, one a row, zeros behind short ones."""
        result = np.zeros((len(blocks), self._block), self._dtype)
        shards = np.searchsorted(self._first_blocks, blocks, side="right") - 1
        for shard in np.unique(shards):
            (rows,) = np.nonzero(shards == shard)
            records = 1 + blocks[rows] - self._first_blocks[shard]
            for row, content in zip(rows, self._read(int(shard), records.tolist()), strict=True):
                tokens = np.frombuffer(content, self._dtype)
                result[row, : len(tokens)] = tokens
        return result

    def _read(self, shard: int, records: list[int]) -> Sequence[bytes]:
        path = self._paths[shard]
        reader = self._readers.pop(shard, None)
        try:
            if reader is None:
                reader = array_record_module.ArrayRecordReader(str(path), _READER)
            self._readers[shard] = reader
            if len(self._readers) > _OPEN_READERS:
                self._readers.popitem(last=False)[1].close()
            return reader.read(records)
        except (RuntimeError, IndexError, ValueError) as error:
            raise ValueError(f"shard: cannot read {path}: {error}; prepare it again") from error


def read_manifest(folder: str | Path, *, finished: bool = True) -> dict[str, Any] | None:
    """The manifest of a prepared folder, or None if the path is none.

    Args:
        folder: Any path.
        finished: Whether a preparation without its manifest is an error.

    Returns:
        The manifest.

    Raises:
        ValueError: The folder is not finished, or its manifest is torn or of another format.
    """
    path = Path(folder) / MANIFEST
    if not str(folder) or not path.is_file():
        if finished and str(folder) and (Path(folder) / REQUEST).is_file():
            raise ValueError(
                f"path: found an unfinished preparation in {folder}, wanted {MANIFEST}; the "
                f"command that prepared it, run again, finishes it"
            )
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"path: found no manifest of prepared tokens in {path}") from error
    if found != FORMAT:
        raise ValueError(f"path: found the format {found!r} in {path}, wanted {FORMAT!r}")
    return manifest


def missing_shards(folder: Path, shards: Sequence[ShardCounts]) -> list[str]:
    """The names of shards that are not there, or have another size than was written."""

    def whole(shard: ShardCounts) -> bool:
        path = folder / shard.file
        return path.is_file() and path.stat().st_size == shard.file_size

    return [shard.file for shard in shards if not whole(shard)]


def open_split(
    folder: str | Path, manifest: Mapping[str, Any], split: str, tokenizer: Tokenizer
) -> PackedText:
    """Opens a split of a prepared folder.

    Args:
        folder: The folder.
        manifest: Its manifest.
        split: "train", "valid" or "test".
        tokenizer: That of the config; it has to be the one the folder was prepared with.

    Returns:
        The stream, whose tokens stay on disk.

    Raises:
        ValueError: Another tokenizer, a split that the folder does not have, missing or torn
            shards.
    """
    made_with = manifest["tokenizer"]
    if made_with["fingerprint"] != tokenizer.fingerprint:
        raise ValueError(
            f"data.tokenizer: found {tokenizer.name!r} ({tokenizer.vocab_size} ids, "
            f"{tokenizer.fingerprint[:12]}), wanted that of the prepared folder {folder}: "
            f"{made_with['name']!r} ({made_with['vocab_size']} ids, "
            f"{made_with['fingerprint'][:12]})"
        )
    entry = manifest["splits"].get(split)
    if entry is None:
        raise ValueError(f"split: found {list(manifest['splits'])} in {folder}, wanted {split!r}")
    shards = [ShardCounts(**shard) for shard in entry["shards"]]
    if missing := missing_shards(Path(folder), shards):
        raise ValueError(
            f"path: found {len(missing)} of {len(shards)} shards of {split!r} missing or torn in "
            f"{folder} ({', '.join(missing[:3])}), wanted all; prepare it again"
        )
    tokens = ShardedTokens(Path(folder), shards, manifest)
    content = json.dumps([made_with["fingerprint"], *(shard.crc32 for shard in shards)])
    return PackedText(tokens, tokens.starts(), content.encode())
