"""Greedy generation of a bounded number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayesmem.evaluate.scorer import with_capacity
from bayesmem.models import LanguageModel
from bayesmem.models.generate import generate
from bayesmem.models.prefill import CHUNK


def greedy(
    model: LanguageModel,
    params: Any,
    prompts: Sequence[np.ndarray],
    max_new_tokens: int,
    stops: Sequence[int],
) -> list[np.ndarray]:
    """Writes the likeliest token again and again.

    Args:
      model: a language model; attention is given caches that hold prompts and new tokens.
      params: its parameters, unboxed.
      prompts: int [length] each, at least one token.
      max_new_tokens: most tokens written, at least 1; all are written if no stop comes first.
      stops: ids after which a row is done.

    Returns:
      int32 [<= max_new_tokens] for each prompt, the stop left out.

    Raises:
      ValueError: see `bayesmem.models.generate.generate`.
    """
    if not prompts:
        return []
    model = with_capacity(model, max(map(len, prompts)) + max_new_tokens, CHUNK)
    rows = generate(model, params, prompts, max_new_tokens=max_new_tokens, stop_tokens=list(stops))
    return [row[:-1] if row[-1] in stops else row for row in rows]
