r"""Documents as bytes: where they come from, and which split each belongs to.

Where documents come from (`read_documents`):

- "" is the default corpus, with nothing to download: the running Python's own standard library,
  one document a `.py` file, without tests, installed packages and generated tables.
- A `.txt` file is one document, or several with a form feed line (`\f`) between them.
- A `.jsonl` file is one document a line, the string under a key ("text").
- `.txt.xz` and `.jsonl.xz` are the same, compressed.
- A folder is its files of these kinds, at any depth; others are left alone.

Contents are bytes: nothing needs to be valid UTF-8.

How they are split (`read_split`): a folder with an entry named train, valid or test (a file with
an extension above, or a folder) states its splits. Anything else is split by document: a stable
hash of the document's name (its path below the folder, with `#n` for the n-th of a file) puts 90%
into train and 5% into each of valid and test, and orders them. With so few documents that this
leaves a split empty, the corpus is cut by position instead, at 90% and 95% of its bytes.
"""

import hashlib
import json
import lzma
import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bayesmem.data.mqar import SPLITS

_EXTENSIONS = (".txt", ".jsonl", ".txt.xz", ".jsonl.xz")
_TRAIN_END, _VALID_END = 0.9, 0.95
# No prose and no ordinary code: tests, installed packages, programs, codec tables, frozen blobs.
_LIBRARY_SKIPPED = frozenset(
    "__pycache__ dist-packages encodings ensurepip idlelib lib2to3 lib-dynload pydoc_data "
    "site-packages test tests turtledemo".split()
)
# What Python's build generates, by the machine it ran on.
_LIBRARY_GENERATED = ("_sysconfigdata", "config-")


class Document(NamedTuple):
    """One document: a name that stays the same on every machine, and its bytes."""

    name: str
    content: bytes


def read_documents(path: str | Path, *, text_key: str = "text") -> list[Document]:
    """All documents of a file or folder, in the order of their names; empty ones are left out.

    Args:
        path: "" for the standard library, or a file or folder as the module docstring says.
        text_key: The key of the text in `.jsonl` lines.

    Returns:
        At least one document.

    Raises:
        ValueError: The path is missing, has an unknown extension, cannot be read, has a bad
            `.jsonl` line (named as file:line), or holds no document.
    """
    if not str(path):
        root = Path(sysconfig.get_paths()["stdlib"])
        files = _walk(root, (".py",), library=True)
        documents = [Document(_relative(file, root), _read_bytes(file)) for file in files]
    else:
        root = Path(path)
        if not root.exists():
            raise ValueError(f"path: found nothing at {root}, wanted a file or folder")
        if not root.is_dir() and not root.name.endswith(_EXTENSIONS):
            raise ValueError(f"path: found {root}, wanted a folder or one of {list(_EXTENSIONS)}")
        files = _walk(root, _EXTENSIONS) if root.is_dir() else [root]
        documents = [
            Document(_relative(file, root) + suffix, content)
            for file in files
            for suffix, content in _file_documents(file, text_key)
        ]
    documents = [document for document in documents if document.content]
    if not documents:
        raise ValueError(f"path: found no document in {len(files)} files of {root}, wanted text")
    return documents


def read_split(path: str | Path, split: str, *, text_key: str = "text") -> list[Document]:
    """The documents of one split; the module docstring says how a path is split.

    Args:
        path: "" for the standard library, or a file or folder.
        split: "train", "valid" or "test".
        text_key: The key of the text in `.jsonl` lines.

    Returns:
        At least one document: in the path's order where it states its splits, else in the order
        of the names' hashes.

    Raises:
        ValueError: As for `read_documents`; an unknown split; a path that states other splits
            than this one, or this one twice; too few bytes to cut.
    """
    if split not in SPLITS:
        raise ValueError(f"split: found {split!r}, wanted one of {list(SPLITS)}")
    stated = _stated_splits(Path(path)) if str(path) else {}
    if not stated:
        return split_documents(read_documents(path, text_key=text_key))[split]
    if len(stated.get(split, [])) != 1:
        found = {name: [entry.name for entry in entries] for name, entries in stated.items()}
        raise ValueError(f"split: found {found} in {path}, wanted one entry for {split!r}")
    return read_documents(stated[split][0], text_key=text_key)


def split_documents(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """Splits by a hash of the name; by position where that would leave a split empty.

    Args:
        documents: The corpus.

    Returns:
        The documents of "train", "valid" and "test".

    Raises:
        ValueError: Too few bytes for three splits.
    """
    splits: dict[str, list[Document]] = {split: [] for split in SPLITS}
    for fraction, document in sorted((_fraction(item.name), item) for item in documents):
        which = (fraction >= _TRAIN_END) + (fraction >= _VALID_END)
        splits[SPLITS[which]].append(document)
    if all(splits.values()):
        return splits
    total = sum(len(document.content) for document in documents)
    ends = [0, int(total * _TRAIN_END), int(total * _VALID_END), total]
    for split, start, end in zip(SPLITS, ends[:-1], ends[1:], strict=True):
        splits[split] = _cut(documents, start, end)
        if not splits[split]:
            raise ValueError(f"path: found {total} bytes, wanted enough for {list(SPLITS)}")
    return splits


def to_bytes(text: str) -> bytes:
    """UTF-8 of a string; bytes that were no UTF-8 come back, lone surrogates are kept.

    Args:
        text: Any string, surrogates included.

    Returns:
        Its bytes.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _fraction(name: str) -> float:
    """Where a name falls in [0, 1); the same on every machine and Python."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _cut(documents: Sequence[Document], start: int, end: int) -> list[Document]:
    """The bytes [start, end) of the documents set end to end, as documents."""
    pieces = []
    for name, content in documents:
        piece = content[max(start, 0) : max(end, 0)]
        if piece:
            pieces.append(Document(name, piece))
        start, end = start - len(content), end - len(content)
    return pieces


def _stated_splits(path: Path) -> dict[str, list[Path]]:
    """Entries of a folder that are named as a split: {split: [entries]}."""
    stated: dict[str, list[Path]] = {}
    for entry in sorted(path.iterdir()) if path.is_dir() else []:
        endings = ("",) if entry.is_dir() else _EXTENSIONS
        for split in SPLITS:
            if entry.name in [split + ending for ending in endings]:
                stated.setdefault(split, []).append(entry)
    return stated


def _walk(root: Path, extensions: tuple[str, ...], library: bool = False) -> list[Path]:
    """Files below a folder with one of the extensions, by relative name."""

    def fail(error: OSError) -> None:
        raise ValueError(f"path: cannot read {error.filename}: {error}") from error

    found = []
    for folder, folders, files in os.walk(root, onerror=fail):
        if library:
            folders[:] = [name for name in folders if name not in _LIBRARY_SKIPPED]
            for names in (folders, files):
                names[:] = [name for name in names if not name.startswith(_LIBRARY_GENERATED)]
        found += [Path(folder, name) for name in files if name.endswith(extensions)]
    # A named pipe would be waited for without an end.
    found = [file for file in found if not file.is_fifo()]
    return sorted(found, key=lambda file: _relative(file, root))


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file != root else file.name


def _read_bytes(file: Path) -> bytes:
    try:
        content = file.read_bytes()
        return lzma.decompress(content) if file.suffix == ".xz" else content
    except (OSError, lzma.LZMAError) as error:
        raise ValueError(f"path: cannot read {file}: {error}") from error


def _file_documents(file: Path, text_key: str) -> list[tuple[str, bytes]]:
    """The documents of one file with what comes after the file's name in theirs."""
    content = _read_bytes(file)
    if file.name.endswith((".jsonl", ".jsonl.xz")):
        lines = enumerate(content.split(b"\n"), start=1)
        return [
            (f"#{number}", _json_text(line, f"{file}:{number}", text_key))
            for number, line in lines
            if line.strip()
        ]
    parts = re.split(rb"^\f\r?\n|^\f\Z", content, flags=re.MULTILINE)
    if len(parts) == 1:
        return [("", content)]
    return [(f"#{number}", part) for number, part in enumerate(parts, start=1)]


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
