"""Documents as bytes, from where a path says.

- "" is the default corpus, with nothing to download: the running Python's own standard library,
  one document a `.py` file, without tests, installed packages and generated tables.
- A file of text, JSON lines, Parquet or ArrayRecord: see `formats`.
- A folder is its files of these kinds, at any depth; others are left alone.
- "hf:NAME" is a data set of the Hugging Face hub: see `hub`.

Contents are bytes: nothing needs to be valid UTF-8.
"""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bayesmem.data.formats import EXTENSIONS, file_documents, holds_documents
from bayesmem.data.hub import hub_documents, is_hub

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


def iterate_documents(path: str | Path, *, text_key: str = "text") -> Iterator[Document]:
    """All documents of a file, folder or data set one by one; empty ones are left out.

    Args:
        path: As the module docstring says.
        text_key: The key of the text in `.jsonl` lines and of its column in tables.

    Yields:
        At least one document; of a folder in the order of the files' names.

    Raises:
        ValueError: The path is missing, has an unknown extension, cannot be read, has a bad
            `.jsonl` line (named as file:line), or holds no document.
        ImportError: A package for this kind of path is not installed.
    """
    count, files = 0, [] if is_hub(path) else _files(path)
    for name, content in _all_documents(path, files, text_key):
        if content:
            count += 1
            yield Document(name, content)
    if not count:
        where = path if is_hub(path) else f"{len(files)} files of {_root(path)}"
        raise ValueError(f"path: found no document in {where}, wanted text")


def read_documents(path: str | Path, *, text_key: str = "text") -> list[Document]:
    """The list of `iterate_documents`: the same arguments, errors and order."""
    return list(iterate_documents(path, text_key=text_key))


def _root(path: str | Path) -> Path:
    return Path(path) if str(path) else Path(sysconfig.get_paths()["stdlib"])


def _files(path: str | Path) -> list[Path]:
    """The files of a path, by name."""
    root = _root(path)
    if not str(path):
        return _walk(root, library=True)
    if not root.exists():
        raise ValueError(f"path: found nothing at {root}, wanted a file or folder")
    if root.is_dir():
        return _walk(root)
    if not holds_documents(root.name):
        raise ValueError(f"path: found {root}, wanted a folder or one of {list(EXTENSIONS)}")
    return [root]


def _all_documents(
    path: str | Path, files: list[Path], text_key: str
) -> Iterator[tuple[str, bytes]]:
    """Name and content of every document, empty ones too."""
    if is_hub(path):
        yield from hub_documents(str(path), text_key)
    for file in files:
        name = _relative(file, _root(path))
        if file.suffix == ".py":
            yield name, file.read_bytes()
        else:
            for suffix, content in file_documents(file, text_key):
                yield name + suffix, content


def _walk(root: Path, library: bool = False) -> list[Path]:
    """Files below a folder that hold documents (of a library, code), by relative name."""

    def fail(error: OSError) -> None:
        raise ValueError(f"path: cannot read {error.filename}: {error}") from error

    found = []
    for folder, folders, files in os.walk(root, onerror=fail):
        if library:
            folders[:] = [name for name in folders if name not in _LIBRARY_SKIPPED]
            for names in (folders, files):
                names[:] = [name for name in names if not name.startswith(_LIBRARY_GENERATED)]
        kept = [n for n in files if (n.endswith(".py") if library else holds_documents(n))]
        found += [Path(folder, name) for name in kept]
    # A named pipe would be waited for without an end.
    found = [file for file in found if not file.is_fifo()]
    return sorted(found, key=lambda file: _relative(file, root))


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file != root else file.name
