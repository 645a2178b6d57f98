"""Text of tokens as they come: whole characters only, and none of a stop text."""

from collections.abc import Sequence

import numpy as np

from bayesmem.data.tokenizers import Tokenizer

CONTEXT = 64
"""Tokens kept before the newest ones: a decoder may need what stands before a token."""
LONGEST = 512
"""Tokens that are decoded at once, so that the work for a token does not grow with the text."""
UNKNOWN = "\ufffd"
"""What decoders put for bytes that are no character, or not yet."""
MISSING = 3
"""Bytes of a character of UTF-8 that may be there while its last one is not."""


class TextStream:
    """Turns tokens into text that can be printed for good.

    Held back is what later tokens may change: the bytes of a character that is not whole yet, and
    text with which a stop text may begin.

    Attributes:
      context: the last tokens, from which a later stream can go on.
      printed: characters of their text that have been given out.
      stopped: whether a stop text has come. It is given out neither now nor later.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: Sequence[int] | np.ndarray = (),
        printed: int | None = None,
        stops: Sequence[str] = (),
    ) -> None:
        """Starts behind a context.

        Args:
          tokenizer: decodes the tokens.
          context: tokens before the first.
          printed: characters of their text that are not to come again; None: all whole ones.
          stops: texts that end the stream, none of them empty.

        Raises:
          ValueError: a stop text is empty.
        """
        if not all(stops):
            raise ValueError("stop: found an empty text, wanted at least one character")
        self.context = [int(token) for token in context]
        self.stopped = False
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        if printed is None:
            self.context = self.context[-CONTEXT:]
            printed = whole_length(tokenizer.decode(self.context))
        self.printed = printed

    def push(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Returns the text that the tokens make certain; nothing after a stop text."""
        if self.stopped:
            return ""
        self.context += [int(token) for token in tokens]
        text = self._tokenizer.decode(self.context)
        found = [(text.find(stop, self.printed), len(stop)) for stop in self._stops]
        found = [(start, length) for start, length in found if start >= 0]
        begin = self.printed
        if found:
            self.stopped = True
            # Of texts that begin at one place, the longest.
            start, length = min(found, key=lambda place: (place[0], -place[1]))
            self.printed = start + length
            return text[begin:start]
        whole = whole_length(text)
        self.printed = max(begin, whole - self._begun(text[begin:whole]))
        given = text[begin : self.printed]
        self._forget(text)
        return given

    def finish(self) -> str:
        """Returns what was held back, for no token will follow; nothing after a stop text."""
        if self.stopped:
            return ""
        text = self._tokenizer.decode(self.context)
        begin, self.printed = self.printed, len(text)
        return text[begin:]

    def _begun(self, text: str) -> int:
        """Length of the longest end of a text with which a stop text begins."""
        lengths = (size for stop in self._stops for size in range(1, len(stop)))
        return max((n for n in lengths if text.endswith(_starts(self._stops, n))), default=0)

    def _forget(self, text: str) -> None:
        """Drops old tokens, if the newest ones alone end in the same text."""
        if len(self.context) <= LONGEST:
            return
        rest, short = text[self.printed :], self._tokenizer.decode(self.context[-CONTEXT:])
        if short.endswith(rest):
            self.context, self.printed = self.context[-CONTEXT:], len(short) - len(rest)


def whole_length(text: str) -> int:
    """Returns the length of a text without a last character that later bytes may complete."""
    missing = text[-MISSING:]
    return len(text) - (len(missing) - len(missing.rstrip(UNKNOWN)))


def _starts(stops: Sequence[str], size: int) -> tuple[str, ...]:
    return tuple(stop[:size] for stop in stops if len(stop) > size)
