"""Text as byte tokens, packed to windows of equal length.

Token ids are the bytes 0 to 255 and 256, which both starts and ends a document: a packed corpus
is `256 doc 256 doc ... 256`. The inputs are that stream without its last token, the targets the
same stream one further on, so every target is a byte of the input's own document or its end;
none reveals another document, and only padding is ignored. Every 256 in the inputs starts a new
segment.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bayesmem.data.documents import Document, to_bytes

DOCUMENT_END = 256
VOCAB_SIZE = 257
IGNORED_TARGET = -100
PADDING_SEGMENT = -1


class PackedText(NamedTuple):
    """A corpus as one stream of N + 1 tokens."""

    tokens: np.ndarray  # [N + 1] uint16: 256 before every document and after the last
    starts: np.ndarray  # [documents] int64, ascending: where each document's 256 is


def encode(text: str | bytes) -> np.ndarray:
    """Byte tokens of a text, without document marks.

    Args:
        text: A string (encoded as UTF-8) or bytes.

    Returns:
        uint16 [length].
    """
    content = text if isinstance(text, bytes) else to_bytes(text)
    return np.frombuffer(content, np.uint8).astype(np.uint16)


def decode(tokens: Sequence[int] | np.ndarray) -> str:
    """The text of byte tokens; document marks are left out, bad UTF-8 becomes U+FFFD.

    Args:
        tokens: Integers in [0, 257).

    Returns:
        The text.

    Raises:
        ValueError: A token outside [0, 257).
    """
    ids = np.asarray(tokens, np.int64)
    bad = ids[(ids < 0) | (ids >= VOCAB_SIZE)]
    if bad.size:
        raise ValueError(f"tokens: found {bad[0]}, wanted ids in [0, {VOCAB_SIZE})")
    return ids[ids != DOCUMENT_END].astype(np.uint8).tobytes().decode("utf-8", "replace")


def pack(documents: Sequence[Document]) -> PackedText:
    """Joins documents to one stream `256 doc 256 doc ... 256`.

    Args:
        documents: At least one.

    Returns:
        PackedText.
    """
    lengths = np.array([len(document.content) + 1 for document in documents], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    tokens = np.full(lengths.sum() + 1, DOCUMENT_END, np.uint16)
    for start, document in zip(starts, documents, strict=True):
        tokens[start + 1 : start + 1 + len(document.content)] = encode(document.content)
    return PackedText(tokens, starts)


def num_windows(text: PackedText, seq_len: int) -> int:
    """How many windows of seq_len inputs cover the stream; the last may be padded."""
    return -(-(len(text.tokens) - 1) // seq_len)


def windows(text: PackedText, seq_len: int, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Cuts windows out of the stream; window i has the inputs i * seq_len and on.

    Args:
        text: The stream.
        seq_len: Inputs a window, T.
        indices: Integers [B]; a negative one gives a window of padding.

    Returns:
        int32 [B, T] each: "inputs"; "targets", -100 at padding; "segment_ids", from 0 in every
        window and one more at every 256, -1 at padding (whose inputs are 0).
    """
    indices = np.asarray(indices, np.int64)
    last = len(text.tokens) - 1
    positions = indices[:, None] * seq_len + np.arange(seq_len)
    real = (indices[:, None] >= 0) & (positions < last)
    positions = np.where(real, positions, 0)
    documents = np.searchsorted(text.starts, positions, side="right") - 1
    columns = {
        "inputs": (text.tokens[positions], 0),
        "targets": (text.tokens[positions + 1], IGNORED_TARGET),
        "segment_ids": (documents - documents[:, :1], PADDING_SEGMENT),
    }
    return {
        # Cast first: uint16 tokens cannot hold -100.
        name: np.where(real, values.astype(np.int32), np.int32(padding))
        for name, (values, padding) in columns.items()
    }
