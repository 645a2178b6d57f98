"""Tokenizers: text to token ids and back."""

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bayesmem.data import text as byte_text


class Tokenizer(Protocol):
    """What is asked of a tokenizer.

    Attributes:
        name: The spec it was loaded from: "bytes" or a path.
        vocab_size: Ids are in [0, vocab_size).
        document_end: Id that starts and ends every document.
        fingerprint: Hash of what decides the ids.
    """

    name: str
    vocab_size: int
    document_end: int
    fingerprint: str

    def encode(self, text: str | bytes) -> np.ndarray:
        """Token ids of a text, int32 [length], without document marks."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of token ids; document marks are left out."""
        ...


class ByteTokenizer:
    """The bytes of UTF-8 as ids, 256 for the ends of documents."""

    name = "bytes"
    vocab_size = byte_text.VOCAB_SIZE
    document_end = byte_text.DOCUMENT_END
    fingerprint = hashlib.sha256(b"bytes").hexdigest()

    def encode(self, text: str | bytes) -> np.ndarray:
        """Bytes of a text, int32 [length]."""
        return byte_text.encode(text).astype(np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of byte ids; bad UTF-8 becomes U+FFFD."""
        return byte_text.decode(ids)


def load_tokenizer(spec: str) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        spec: "bytes" or "".

    Returns:
        The tokenizer.

    Raises:
        ValueError: Any other spec.
    """
    if spec not in ("", "bytes"):
        raise ValueError(f"tokenizer: found {spec!r}, wanted 'bytes'")
    return ByteTokenizer()
