"""Text as tokens, packed to windows of equal length.

With the tokenizer's document end E, which both starts and ends a document, a packed corpus is
`E doc E doc ... E`. The inputs are that stream without its last token, the targets the same stream
one further on, so every target is a token of the input's own document or its end; none reveals
another document, and only padding is ignored. The E before every document starts a new segment.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np

from bayesmem.data.tokenizers import ByteTokenizer, Tokenizer

DOCUMENT_END = ByteTokenizer.document_end
VOCAB_SIZE = ByteTokenizer.vocab_size
IGNORED_TARGET = -100
PADDING_SEGMENT = -1


class TokenStream(Protocol):
    """Tokens in memory or on disk; a NumPy array [N + 1] is one."""

    def __len__(self) -> int:
        """How many tokens there are, N + 1."""
        ...

    def __getitem__(self, positions: np.ndarray, /) -> np.ndarray:
        """The tokens at positions of any shape, integers in [0, N]."""
        ...


class PackedText(NamedTuple):
    """A corpus as one stream of N + 1 tokens."""

    tokens: TokenStream  # [N + 1] of `token_dtype`: E before every document and after the last
    starts: np.ndarray  # [documents] int64, ascending: where each document's E is
    content: bytes | memoryview  # what tells these tokens from others


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest of uint16 and uint32 that holds the ids of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def join(contents: Iterable[bytes], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Encodes documents and joins them to `E doc E doc`, without the last E.

    Args:
        contents: The documents; those without a token are left out.
        tokenizer: Encodes them.

    Returns:
        The tokens [N] of `token_dtype`, and where each document's E is, [documents] int64.

    Raises:
        ValueError: The tokenizer gives an id that is not in its vocabulary.
    """
    mark = np.array([tokenizer.document_end], np.int32)
    documents = [ids for ids in map(tokenizer.encode, contents) if len(ids)]
    lengths = np.array([0, *(len(ids) + 1 for ids in documents)], np.int64)
    tokens = np.concatenate([mark[:0], *(part for ids in documents for part in (mark, ids))])
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < tokenizer.vocab_size:
        raise ValueError(
            f"tokenizer {tokenizer.name}: found ids from {tokens.min()} to {tokens.max()}, wanted "
            f"them in [0, {tokenizer.vocab_size})"
        )
    return tokens.astype(token_dtype(tokenizer.vocab_size)), np.cumsum(lengths)[:-1]


def pack(contents: Iterable[bytes], tokenizer: Tokenizer) -> PackedText:
    """Joins documents to one stream `E doc E doc ... E`, in memory.

    Args:
        contents: The documents.
        tokenizer: Encodes them.

    Returns:
        PackedText.

    Raises:
        ValueError: As for `join`; no document has a token.
    """
    joined, starts = join(contents, tokenizer)
    if not len(starts):
        raise ValueError("path: found no document with a token, wanted text")
    tokens = np.append(joined, joined.dtype.type(tokenizer.document_end))
    return PackedText(tokens, starts, tokens.data)


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
        window and one more at every document's E, -1 at padding (whose inputs are 0).
    """
    indices = np.asarray(indices, np.int64)
    last = len(text.tokens) - 1
    # One more than there are inputs, for the last target.
    positions = indices[:, None] * seq_len + np.arange(seq_len + 1)
    real = (indices[:, None] >= 0) & (positions[:, :-1] < last)
    positions = np.where(indices[:, None] >= 0, np.minimum(positions, last), 0)
    tokens = text.tokens[positions]
    documents = np.searchsorted(text.starts, positions[:, :-1], side="right") - 1
    columns = {
        "inputs": (tokens[:, :-1], 0),
        "targets": (tokens[:, 1:], IGNORED_TARGET),
        "segment_ids": (documents - documents[:, :1], PADDING_SEGMENT),
    }
    return {
        # Cast first: unsigned tokens cannot hold -100.
        name: np.where(real, values.astype(np.int32), np.int32(padding))
        for name, (values, padding) in columns.items()
    }
