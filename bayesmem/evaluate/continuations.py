"""Log-likelihoods of texts: of continuations given contexts, and of whole texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayesmem.data.tokenizers import Tokenizer
from bayesmem.evaluate.scorer import Row


def continuation_row(tokenizer: Tokenizer, context: str, continuation: str) -> Row:
    """The row that scores a continuation after a context, a document's start before both.

    The two are tokenized together and cut where the context's own tokens end; spaces at the
    context's end are counted to the continuation, as tokenizers join them with the word after.

    Args:
      tokenizer: of the model.
      context: what is read; may be empty.
      continuation: what is scored, not empty.

    Returns:
      The row.

    Raises:
      ValueError: the continuation is empty, or has no token of its own.
    """
    if not continuation:
        raise ValueError("continuation: found an empty text, wanted at least one character")
    kept = context.rstrip()
    if kept:
        context, continuation = kept, context[len(kept) :] + continuation
    whole = tokenizer.encode(context + continuation)
    count = len(tokenizer.encode(context)) if context else 0
    if count >= len(whole):
        raise ValueError(
            f"continuation: found no token for {continuation!r} after {context[-20:]!r}, "
            f"wanted at least one"
        )
    return Row(np.concatenate([[tokenizer.document_end], whole]).astype(np.int32), count + 1)


def text_rows(tokens: Sequence[int] | np.ndarray, start: int, window: int | None) -> list[Row]:
    """Rows that score every token of a document once.

    Args:
      tokens: ids of the document.
      start: id before the first, the document's start.
      window: most tokens a row reads before the state starts afresh; the first token of a row is
        the last one of the row before. None for one row, whose state is carried all the way.

    Returns:
      The rows in order; none for a document without tokens.

    Raises:
      ValueError: window is below 1.
    """
    stream = np.concatenate([[start], tokens]).astype(np.int32)
    last = len(stream) - 1
    if window is not None and window < 1:
        raise ValueError(f"window: found {window}, wanted None or at least 1")
    width = last if window is None else window
    return [Row(stream[at : at + width + 1]) for at in range(0, last, width or 1)]
