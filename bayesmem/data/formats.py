r"""Documents of one file, read piece by piece, by the file's extension.

- `.txt` is one document, or several with a form feed line (`\f`) between them.
- `.jsonl` is one document a line, the string under a key ("text").
- Either may be compressed: `.xz`, `.gz`, or `.zst` (needs `zstandard`).
- `.parquet` is one document a row, of the column that is named as the key (needs `pyarrow`).
- `.array_record` or `.arrayrecord` is one document a record, its bytes.

Contents are bytes: nothing needs to be valid UTF-8. What needs a package beyond the core's, the
extra "data" has.
"""

import gzip
import importlib
import json
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bayesmem.data.tokenizers import to_bytes

_PACKED = ("", ".xz", ".gz", ".zst")
_RECORDS = (".array_record", ".arrayrecord")
EXTENSIONS = (
    *(kind + packed for kind in (".txt", ".jsonl") for packed in _PACKED),
    ".parquet",
    *_RECORDS,
)
TOKEN_SHARD = ".tokens.array_record"
"""Ending of the shards of prepared tokens, which are no documents."""

_CHUNK = 1 << 20
_ROWS = 256  # rows or records that are read at once


def holds_documents(name: str) -> bool:
    """Says whether a file of this name is read."""
    return name.endswith(EXTENSIONS) and not name.endswith(TOKEN_SHARD)


def file_documents(file: Path, text_key: str) -> Iterator[tuple[str, bytes]]:
    """The documents of one file, each with what comes after the file's name in its own name.

    Args:
        file: A file that `holds_documents`.
        text_key: The key of the text in `.jsonl` lines, the name of its column in `.parquet`.

    Yields:
        ("", content) of a file's only document, ("#n", content) of its n-th, from 1; contents may
        be empty.

    Raises:
        ValueError: The file cannot be read, or a line, row or column of it; names it.
        ImportError: A package that the file needs is missing; names the extra that has it.
    """
    try:
        if file.name.endswith(".parquet"):
            yield from _parquet_documents(file, text_key)
        elif file.name.endswith(_RECORDS):
            yield from _record_documents(file)
        elif ".jsonl" in file.name[-len(".jsonl.zst") :]:
            for number, line in enumerate(_lines(_chunks(file)), start=1):
                if line.strip():
                    yield f"#{number}", _json_text(line, f"{file}:{number}", text_key)
        else:
            yield from _text_documents(b"".join(_chunks(file)))
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"path: cannot read {file}: {error}") from error


def optional_package(name: str, purpose: str) -> Any:
    """Imports a package of the extra "data".

    Args:
        name: What is imported.
        purpose: What needs it, for the error.

    Returns:
        The module.

    Raises:
        ImportError: It is not installed; says what does it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ImportError(
            f"{purpose}: found no package {package!r} ({error}), wanted it installed: "
            f"pip install 'bayesmem[data]'"
        ) from error


def text_of(value: Any, place: str, text_key: str) -> bytes:
    """The bytes of a text that stood under a key; ValueError names the place if it is no text."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError(
            f"path: at {place} found {type(value).__name__} under {text_key!r}, wanted a string"
        )
    return to_bytes(value)


def _text_documents(content: bytes) -> Iterator[tuple[str, bytes]]:
    parts = re.split(rb"^\f\r?\n|^\f\Z", content, flags=re.MULTILINE)
    if len(parts) == 1:
        yield "", content
    else:
        for number, part in enumerate(parts, start=1):
            yield f"#{number}", part


def _chunks(file: Path) -> Iterator[bytes]:
    """The uncompressed content in pieces."""
    if file.suffix == ".zst":
        yield from _zstd_chunks(file)
        return
    openers: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    with openers.get(file.suffix, open)(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


def _zstd_chunks(file: Path) -> Iterator[bytes]:
    """Frame by frame: the package's own reader takes the end of a torn file for its true end."""
    zstandard = optional_package("zstandard", f"path: {file}")
    decompressor = zstandard.ZstdDecompressor()
    frame = None
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            while chunk:
                frame = frame or decompressor.decompressobj()
                try:
                    yield frame.decompress(chunk)
                except zstandard.ZstdError as error:
                    raise EOFError(error) from error
                chunk, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError("the file ends within a compressed frame")


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, without their newlines."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    yield rest


def _json_text(line: bytes, place: str, text_key: str) -> bytes:
    try:
        record = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:  # too deep, or a number of too many digits
        raise ValueError(f"path: bad JSON at {place}: {error}") from error
    text = record.get(text_key) if isinstance(record, dict) else None
    if not isinstance(text, str):
        found = list(record) if isinstance(record, dict) else type(record).__name__
        raise ValueError(f"path: at {place} found {found}, wanted a string under {text_key!r}")
    return to_bytes(text)


def _parquet_documents(file: Path, text_key: str) -> Iterator[tuple[str, bytes]]:
    arrow = optional_package("pyarrow", f"path: {file}")
    parquet = optional_package("pyarrow.parquet", f"path: {file}")
    try:
        with parquet.ParquetFile(file) as table:
            if text_key not in table.schema_arrow.names:
                raise ValueError(
                    f"path: in {file} found the columns {table.schema_arrow.names}, wanted "
                    f"{text_key!r} among them"
                )
            number = 0
            for batch in table.iter_batches(batch_size=_ROWS, columns=[text_key]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    yield f"#{number}", text_of(value, f"{file}#{number}", text_key)
    except arrow.ArrowException as error:
        raise ValueError(f"path: cannot read {file}: {error}") from error


def _record_documents(file: Path) -> Iterator[tuple[str, bytes]]:
    from array_record.python import array_record_module

    try:
        reader = array_record_module.ArrayRecordReader(str(file), "readahead_buffer_size:0")
        count = reader.num_records()
        if count == 0:  # a torn file opens as an empty one
            raise ValueError(f"path: found no record in {file}, wanted at least one")
        for start in range(0, count, _ROWS):
            records = reader.read(list(range(start, min(start + _ROWS, count))))
            for number, record in enumerate(records, start=start + 1):
                yield f"#{number}", record
        reader.close()
    except RuntimeError as error:
        raise ValueError(f"path: cannot read {file}: {error}") from error
