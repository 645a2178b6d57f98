"""Which split each document belongs to.

A folder with an entry named train, valid or test (a file that `formats` can read, or a folder)
states its splits, and so does a data set of the hub with more than "train". Anything else is split
by document: a stable hash of the document's name (its path below the folder, with `#n` for the n-th
of a file) puts 90% into train and 5% into each of valid and test. With so few documents that this
leaves a split empty, the corpus is cut by position instead, at 90% and 95% of its bytes.

`read_split` holds one split in memory. `survey_splits` and `stream_splits` read a corpus of any
size in two passes.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bayesmem.data.documents import Document, iterate_documents, read_documents
from bayesmem.data.formats import EXTENSIONS
from bayesmem.data.hub import hub_splits, is_hub
from bayesmem.data.mqar import SPLITS

_TRAIN_END, _VALID_END = 0.9, 0.95


class Survey(NamedTuple):
    """What a first pass over a corpus finds; `stream_splits` needs it.

    Attributes:
        documents: How many there are.
        size: Their bytes.
        digest: Hash of splits, names and contents: other text has another.
        cut: Whether the corpus is cut by position, for want of documents.
    """

    documents: int
    size: int
    digest: str
    cut: bool


def read_split(path: str | Path, split: str, *, text_key: str = "text") -> list[Document]:
    """The documents of one split; the module docstring says how a path is split.

    Args:
        path: "" for the standard library, a file or folder, or "hf:NAME".
        split: "train", "valid" or "test".
        text_key: The key of the text in `.jsonl` lines and of its column in tables.

    Returns:
        At least one document: in the path's order where it states its splits, else in the order
        of the names' hashes.

    Raises:
        ValueError: As for `iterate_documents`; an unknown split; a path that states other splits
            than this one, or this one twice; too few bytes to cut.
        ImportError: As for `iterate_documents`.
    """
    if split not in SPLITS:
        raise ValueError(f"split: found {split!r}, wanted one of {list(SPLITS)}")
    stated = _stated_splits(path)
    if not stated:
        return split_documents(read_documents(path, text_key=text_key))[split]
    if split not in stated:
        found = [Path(entry).name for entry in stated.values()]
        raise ValueError(f"split: found {found} in {path}, wanted one entry for {split!r}")
    return read_documents(stated[split], text_key=text_key)


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
        splits[_split_at(fraction)].append(document)
    if all(splits.values()):
        return splits
    splits = {split: [] for split in SPLITS}
    for split, document in _cut(documents, sum(len(document.content) for document in documents)):
        splits[split].append(document)
    return splits


def survey_splits(
    path: str | Path,
    *,
    text_key: str = "text",
    progress: Callable[[int], None] = lambda size: None,
) -> Survey:
    """Reads a corpus once and keeps none of it.

    Args:
        path: As `iterate_documents` takes it.
        text_key: The key of the text in `.jsonl` lines and of its column in tables.
        progress: Called with the bytes read so far, after every document.

    Returns:
        The survey.

    Raises:
        ValueError: As for `read_split`.
        ImportError: As for `iterate_documents`.
    """
    stated = _stated_splits(path)
    hasher, count, size, seen = hashlib.blake2b(digest_size=16), 0, 0, set()
    for split, document in _natural_splits(path, stated, text_key):
        _add_to_digest(hasher, split, document)
        count, size = count + 1, size + len(document.content)
        seen.add(split)
        progress(size)
    cut = not stated and len(seen) < len(SPLITS)
    return Survey(count, size, hasher.hexdigest(), cut)


def stream_splits(
    path: str | Path, survey: Survey, *, text_key: str = "text"
) -> Iterator[tuple[str, Document]]:
    """The documents of all splits, one by one, in the path's order.

    Args:
        path: As `iterate_documents` takes it.
        survey: What `survey_splits` found there.
        text_key: The key of the text in `.jsonl` lines and of its column in tables.

    Yields:
        Split and document. Splits are those of `read_split`, where a document's place may differ.

    Raises:
        ValueError: As for `read_split`; the text is not what the survey found.
        ImportError: As for `iterate_documents`.
    """
    hasher = hashlib.blake2b(digest_size=16)

    def watched() -> Iterator[tuple[str, Document]]:
        for split, document in _natural_splits(path, _stated_splits(path), text_key):
            _add_to_digest(hasher, split, document)
            yield split, document

    if survey.cut:
        yield from _cut((document for _, document in watched()), survey.size)
    else:
        yield from watched()
    if hasher.hexdigest() != survey.digest:
        raise ValueError(f"path: found other text in {path} than at first, wanted it unchanged")


def _natural_splits(
    path: str | Path, stated: dict[str, str | Path], text_key: str
) -> Iterator[tuple[str, Document]]:
    """Documents with the splits that are stated, or else those of their names."""
    if not stated:
        for document in iterate_documents(path, text_key=text_key):
            yield _split_at(_fraction(document.name)), document
    for split, entry in stated.items():
        for document in iterate_documents(entry, text_key=text_key):
            yield split, document


def _add_to_digest(hasher: "hashlib.blake2b", split: str, document: Document) -> None:
    name = document.name.encode("utf-8", "surrogateescape")
    hasher.update(f"{split} {len(name)} {len(document.content)} ".encode() + name)
    hasher.update(document.content)


def _fraction(name: str) -> float:
    """Where a name falls in [0, 1); the same on every machine and Python."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _split_at(fraction: float) -> str:
    return SPLITS[(fraction >= _TRAIN_END) + (fraction >= _VALID_END)]


def _cut(documents: Iterable[Document], total: int) -> Iterator[tuple[str, Document]]:
    """Cuts the documents, set end to end, at 90% and 95% of their `total` bytes."""
    edges = [0, int(total * _TRAIN_END), int(total * _VALID_END), total]
    if len(set(edges)) < len(edges):
        raise ValueError(f"path: found {total} bytes, wanted enough for {list(SPLITS)}")
    offset = 0
    for name, content in documents:
        for split, start, end in zip(SPLITS, edges[:-1], edges[1:], strict=True):
            piece = content[max(start - offset, 0) : max(end - offset, 0)]
            if piece:
                yield split, Document(name, piece)
        offset += len(content)


def _stated_splits(path: str | Path) -> dict[str, str | Path]:
    """The splits that a path states, each with the path of its documents."""
    if is_hub(path):
        return dict(hub_splits(str(path)))
    folder = Path(path)
    if not str(path) or not folder.is_dir():
        return {}
    found: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for entry in sorted(folder.iterdir()):
        endings = ("",) if entry.is_dir() else EXTENSIONS
        for split in SPLITS:
            if entry.name in [split + ending for ending in endings]:
                found[split].append(entry)
    for split, entries in found.items():
        if len(entries) > 1:
            names = [entry.name for entry in entries]
            raise ValueError(f"split: found {names} in {path}, wanted one entry for {split!r}")
    return {split: entries[0] for split, entries in found.items() if entries}
