"""Tokenizers: text to ids and back, from bytes, a Hugging Face tokenizer.json or SentencePiece.

`load_tokenizer` takes the spec of a config's `data.tokenizer`:

- "bytes" (or ""): ids 0 to 255 are the bytes, 256 is the document end. Any bytes come back.
- A `.json` file: a `tokenizer.json` of the library `tokenizers`.
- A `.model` file: a SentencePiece model.
- A folder: the `tokenizer.json` in it, or else the `tokenizer.model`.

One id, the document end, starts and ends every document. It is the tokenizer's own end of text: of
SentencePiece its eos; of a tokenizer.json the `eos_token` that a `tokenizer_config.json` beside it
names, or else the first of `END_TOKENS` that it has. `encode` never adds it, nor any other mark,
and text that spells a special token is encoded as the text that it is: a document cannot end
itself. The libraries read strings, so bytes that are no UTF-8 become U+FFFD there.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

BYTES = "bytes"
END_TOKENS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]")


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
        """The text of ids without document marks; ValueError: one is not in [0, vocab_size)."""
        ...


def load_tokenizer(spec: str) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        spec: As the module docstring says.

    Returns:
        The tokenizer.

    Raises:
        ValueError: The spec is neither "bytes" nor a path that is there, the file cannot be read
            as its extension says, or it has no document end.
    """
    if spec in ("", BYTES):
        return ByteTokenizer()
    path = Path(spec)
    if path.is_dir():
        inside = [path / name for name in ("tokenizer.json", "tokenizer.model")]
        path = next((file for file in inside if file.is_file()), path)
    if path.is_file() and path.suffix == ".json":
        return JsonTokenizer(spec, path)
    if path.is_file() and path.suffix == ".model":
        return SentencePieceTokenizer(spec, path)
    found = "an unknown kind of file" if path.is_file() else "a folder" if path.is_dir() else None
    raise ValueError(
        f"tokenizer: found {found or 'nothing'} at {spec!r}, wanted {BYTES!r}, a tokenizer.json, a "
        f"SentencePiece .model, or a folder with one of them"
    )


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


class ByteTokenizer:
    """The bytes of the text, and 256 for the document end."""

    name = BYTES
    vocab_size = 257
    document_end = 256
    fingerprint = BYTES

    def encode(self, text: str | bytes) -> np.ndarray:
        """Bytes of a text (of a string, its UTF-8), int32 [length]."""
        content = text if isinstance(text, bytes) else to_bytes(text)
        return np.frombuffer(content, np.uint8).astype(np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of bytes, marks left out; bad UTF-8 becomes U+FFFD. Raises as `Tokenizer`."""
        kept = _text_ids(ids, self)
        return kept.astype(np.uint8).tobytes().decode("utf-8", "replace")


class JsonTokenizer:
    """A tokenizer.json of the library `tokenizers`."""

    def __init__(self, name: str, path: Path) -> None:
        """Loads a file; raises ValueError if it is none or has no document end."""
        import tokenizers

        content = path.read_bytes()
        try:
            loaded = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"tokenizer: cannot read {path}: {error}") from error
        # What a file says of cutting and filling up is about batches of a fixed length.
        loaded.no_truncation()
        loaded.no_padding()
        loaded.encode_special_tokens = True
        self._tokenizer = loaded
        self.name = name
        # Ids may have gaps: the largest counts, not how many there are.
        self.vocab_size = max(loaded.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.document_end = _json_document_end(loaded, path)
        self.fingerprint = _fingerprint(content, self.document_end)

    def encode(self, text: str | bytes) -> np.ndarray:
        """Ids of a text, int32 [length]."""
        # The fast form leaves out the place of each token in the text.
        (encoded,) = self._tokenizer.encode_batch_fast([_string(text)], add_special_tokens=False)
        return np.asarray(encoded.ids, np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of ids; marks and special tokens are left out. Raises as `Tokenizer`."""
        return self._tokenizer.decode(_text_ids(ids, self).tolist(), skip_special_tokens=True)


class SentencePieceTokenizer:
    """A SentencePiece model."""

    def __init__(self, name: str, path: Path) -> None:
        """Loads a file; raises ValueError if it is none or has no document end."""
        import sentencepiece

        content = path.read_bytes()
        try:
            loaded = sentencepiece.SentencePieceProcessor(model_proto=content)
        except (RuntimeError, OSError) as error:
            raise ValueError(f"tokenizer: cannot read {path}: {error}") from error
        if loaded.eos_id() < 0:
            raise ValueError(f"tokenizer: found no eos in {path}, wanted one as document end")
        self._processor = loaded
        self.name = name
        self.vocab_size = loaded.get_piece_size()
        self.document_end = loaded.eos_id()
        self.fingerprint = _fingerprint(content, self.document_end)

    def encode(self, text: str | bytes) -> np.ndarray:
        """Ids of a text, int32 [length]."""
        return np.asarray(self._processor.encode(_string(text), out_type=int), np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of ids; marks and control pieces are left out. Raises as `Tokenizer`."""
        return self._processor.decode(_text_ids(ids, self).tolist())


def _text_ids(ids: Sequence[int] | np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """The ids without document marks, int64, after a check of their range."""
    array = np.asarray(ids, np.int64)
    bad = array[(array < 0) | (array >= tokenizer.vocab_size)]
    if bad.size:
        raise ValueError(f"tokens: found {bad[0]}, wanted ids in [0, {tokenizer.vocab_size})")
    return array[array != tokenizer.document_end]


def _string(text: str | bytes) -> str:
    """A string without lone surrogates, which the libraries refuse."""
    content = text if isinstance(text, bytes) else to_bytes(text)
    return content.decode("utf-8", "replace")


def _fingerprint(content: bytes, document_end: int) -> str:
    return hashlib.sha256(content + f"\0{document_end}".encode()).hexdigest()


def _json_document_end(loaded: Any, path: Path) -> int:
    stated = _stated_end(path.with_name("tokenizer_config.json"))
    wanted = END_TOKENS if stated is None else (stated,)
    found = [loaded.token_to_id(token) for token in wanted]
    end = next((token for token in found if token is not None), None)
    if end is None:
        raise ValueError(
            f"tokenizer: found none of {list(wanted)} in {path}, wanted a token that ends a "
            f"document (tokenizer_config.json beside it may name one as eos_token)"
        )
    return end


def _stated_end(path: Path) -> str | None:
    """The eos_token of a tokenizer_config.json, a string or a record with its content."""
    if not path.is_file():
        return None
    try:
        stated = json.loads(path.read_text(encoding="utf-8")).get("eos_token")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"tokenizer: cannot read {path}: {error}") from error
    return stated.get("content") if isinstance(stated, dict) else stated
