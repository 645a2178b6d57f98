"""Tokenizers: text to ids and back."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bayesmem.data import text

BYTES = "bytes"


class Tokenizer(Protocol):
    """What `load_tokenizer` returns.

    Attributes:
        name: The spec it was loaded from: "bytes" or a path.
        vocab_size: Ids are in [0, vocab_size).
        document_end: The id that starts and ends every document.
        fingerprint: A hash of what decides the ids.
    """

    name: str
    vocab_size: int
    document_end: int
    fingerprint: str

    def encode(self, text: str | bytes) -> np.ndarray:
        """Ids of a text, int32 [length], without document marks."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of ids, document marks left out; ValueError for an id that there is not."""
        ...


class ByteTokenizer:
    """The bytes of the text, and 256 for the document end."""

    name = BYTES
    vocab_size = text.VOCAB_SIZE
    document_end = text.DOCUMENT_END
    fingerprint = BYTES

    def encode(self, text: str | bytes) -> np.ndarray:
        """Bytes of a text (of a string, its UTF-8), int32 [length]."""
        return _encode(text).astype(np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of bytes, marks left out; bad UTF-8 becomes U+FFFD. Raises as `Tokenizer`."""
        return _decode(ids)


_encode, _decode = text.encode, text.decode


def load_tokenizer(spec: str) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        spec: "bytes", or "" for it.

    Raises:
        ValueError: The spec is another.
    """
    if spec not in ("", BYTES):
        raise ValueError(f"tokenizer: found {spec!r}, wanted {BYTES!r}")
    return ByteTokenizer()
