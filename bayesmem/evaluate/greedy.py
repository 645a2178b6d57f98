"""Greedy generation of a bounded number of tokens."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem.evaluate.scorer import padded_length, with_capacity
from bayesmem.models import LanguageModel

CHUNK = 512
"""Most tokens a row that are read at once."""


def greedy(
    model: LanguageModel,
    params: Any,
    prompts: Sequence[np.ndarray],
    max_new_tokens: int,
    stops: Sequence[int],
) -> list[np.ndarray]:
    """Writes the likeliest token again and again.

    Args:
      model: a language model.
      params: its parameters, unboxed.
      prompts: int [length] each, at least one token.
      max_new_tokens: most tokens written, at least 1; all are written if no stop comes first.
      stops: ids after which a row is done.

    Returns:
      int32 [<= max_new_tokens] for each prompt, the stop left out.

    Raises:
      ValueError: an empty prompt, or max_new_tokens below 1.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: found {max_new_tokens}, wanted at least 1")
    if not prompts:
        return []
    lengths = [len(prompt) for prompt in prompts]
    if min(lengths) < 1:
        raise ValueError(f"prompts: row {lengths.index(0)} is empty; wanted at least one token")
    longest = max(lengths)
    model = with_capacity(model, longest + max_new_tokens, CHUNK)
    total = -(-longest // CHUNK) * CHUNK if longest > CHUNK else padded_length(longest, CHUNK)
    tokens = np.zeros((len(prompts), total), np.int32)
    segments = np.full(tokens.shape, -1, np.int32)
    # Padding on the left: every row's last token is at the end.
    for row, prompt in enumerate(prompts):
        tokens[row, total - len(prompt) :] = prompt
        segments[row, total - len(prompt) :] = 0
    state, logits = None, None
    for start in range(0, total, CHUNK):
        part = slice(start, start + CHUNK)
        logits, state = _prefill(model, params, tokens[:, part], segments[:, part], state)
    ends = jnp.asarray(list(stops) or [-1], jnp.int32)
    written = np.asarray(_decode(model, params, logits, state, ends, max_new_tokens))
    return [row[: _length(row, stops)] for row in written]


@functools.partial(jax.jit, static_argnums=0)
def _prefill(
    model: LanguageModel, params: Any, tokens: jax.Array, segments: jax.Array, state: Any
) -> tuple[jax.Array, Any]:
    """Logits after the last token [B, V], and the state."""
    variables = {"params": params}
    h, state = model.apply(variables, tokens, state, segment_ids=segments, method="hidden_states")
    return cast(jax.Array, model.apply(variables, h[:, -1], method="logits")), state


@functools.partial(jax.jit, static_argnums=(0, 5))
def _decode(
    model: LanguageModel, params: Any, logits: jax.Array, state: Any, stops: jax.Array, count: int
) -> jax.Array:
    """Tokens written [B, count]; those after a row's stop mean nothing."""

    def going(carry: tuple[Any, ...]) -> jax.Array:
        return (carry[0] < count) & ~jnp.all(carry[3])

    def write(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        at, logits, state, done, written = carry
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        done |= jnp.any(token[:, None] == stops, axis=1)
        logits, state = model.apply({"params": params}, token[:, None], state)
        return at + 1, logits[:, 0], state, done, written.at[:, at].set(token)

    rows = logits.shape[0]
    carry = (0, logits, state, jnp.zeros(rows, bool), jnp.zeros((rows, count), jnp.int32))
    return jax.lax.while_loop(going, write, carry)[4]


def _length(row: np.ndarray, stops: Sequence[int]) -> int:
    """Tokens before the first stop."""
    found = np.flatnonzero(np.isin(row, list(stops)))
    return int(found[0]) if found.size else len(row)
