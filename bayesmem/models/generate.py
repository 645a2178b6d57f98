"""Generation: chunked prefill of prompts of any lengths, then a jitted loop of decoding.

Between two calls a row stands at its last token, which its model has not read yet: prefill reads
all of a prompt but its last token, and every step of decoding reads one token and draws the next.
So a prompt of one token needs no prefill, and a `Generation` alone is what can be continued.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from bayesmem.array_types import RowCounts
from bayesmem.layers.options import require_positive
from bayesmem.models.cast_once import cast_once
from bayesmem.models.language_model import LanguageModel, LMState
from bayesmem.models.prefill import CHUNK, Rows, check_capacity, checked_rows, fresh_state, prefill
from bayesmem.models.sampling import GREEDY, RowKeys, Sampling, row_keys, sample

BLOCK = 16
"""Tokens of a row that are decoded before they are handed on."""
LONG_BLOCK = 256
"""The same, where nobody waits for them."""
ENDED = -2
"""In a block of tokens: the row had ended before. (-1 is a token that could not be drawn.)"""

OnTokens = Callable[[list[np.ndarray]], bool | None]


class Generation(NamedTuple):
    """B rows between two tokens; all that continuing them needs.

    Attributes:
      state: of the model, after all tokens of each row but the last.
      token: [B] int32, the last token of each row.
      keys: [B] typed random keys.
      drawn: [B] int32, tokens drawn with each key so far: the next one takes the key folded with
        this number, whatever other rows do.
    """

    state: LMState
    token: RowCounts
    keys: RowKeys
    drawn: RowCounts


@dataclasses.dataclass(frozen=True)
class _Choice:
    """How tokens are chosen, how many at most in a block, whether rows end before each other."""

    sampling: Sampling
    size: int
    rows_may_end: bool


def generate(
    model: LanguageModel,
    params: Any,
    prompts: Rows,
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    keys: RowKeys | None = None,
    stop_tokens: Sequence[Any] = (),
) -> list[np.ndarray]:
    """Continues prompts of any lengths; each row gets the tokens it would get alone.

    Args:
      model: a language model, unbound.
      params: its parameters, unboxed.
      prompts: B rows of at least one token id each.
      max_new_tokens: most tokens a row is continued by, >= 1.
      sampling: how tokens are chosen.
      keys: [B], from `row_keys`; None: those of seed 0.
      stop_tokens: ids that end a row, for all rows, or one sequence a row.

    Returns:
      B int32 arrays of 1 to max_new_tokens ids; a stop token is the last of its row.

    Raises:
      ValueError: a prompt is empty or holds an id beyond the vocabulary, the caches of attention
        layers cannot hold prompt and new tokens, or another argument does not fit; all before
        anything runs. Or the model's logits are not finite.
    """
    choice, stops = _checked(model, len(prompts), max_new_tokens, sampling, stop_tokens, LONG_BLOCK)
    keys = row_keys(0, len(prompts)) if keys is None else keys
    generation = start(model, params, prompts, keys, max_new_tokens=max_new_tokens)
    return _decode(model, params, generation, max_new_tokens, choice, stops)[0]


def start(
    model: LanguageModel,
    params: Any,
    prompts: Rows,
    keys: RowKeys,
    *,
    max_new_tokens: int = 1,
    chunk_size: int = CHUNK,
) -> Generation:
    """Lets the model read prompts.

    Args:
      model: a language model, unbound.
      params: its parameters, unboxed.
      prompts: B rows of at least one token id each.
      keys: [B], from `row_keys`.
      max_new_tokens: of the decoding that follows, for which caches must have room.
      chunk_size: most tokens of a row that are read in one call.

    Returns:
      The rows, standing at the last tokens of their prompts.

    Raises:
      ValueError: see `generate`; before anything runs.
    """
    require_positive(max_new_tokens=max_new_tokens, chunk_size=chunk_size)
    rows = checked_rows("prompts", prompts, model.config.vocab_size)
    if not rows:
        raise ValueError("prompts: found no row, wanted at least one")
    for number, row in enumerate(rows):
        if not len(row):
            raise ValueError(
                f"prompts: row {number} is empty; wanted at least one token, the mark of a start"
            )
    if keys.shape != (len(rows),):
        raise ValueError(
            f"keys: found shape {keys.shape}, wanted a key for each of {len(rows)} rows"
        )
    empty = jax.eval_shape(lambda: model.init_state(len(rows)))
    check_capacity(empty, [len(row) - 1 + max_new_tokens for row in rows])
    state = fresh_state(model, len(rows))
    state = prefill(model, params, state, [row[:-1] for row in rows], chunk_size)
    last = jnp.asarray([row[-1] for row in rows], jnp.int32)
    return Generation(state, last, jnp.copy(keys), jnp.zeros(len(rows), jnp.int32))


def extend(
    model: LanguageModel,
    params: Any,
    generation: Generation,
    prompts: Rows,
    *,
    max_new_tokens: int = 1,
    chunk_size: int = CHUNK,
) -> Generation:
    """Lets the model read more tokens; the given rows stay as they were.

    Args, beside those of `start`:
      generation: B rows.
      prompts: B rows of any number of token ids each, none included.

    Returns:
      The rows, standing at the last tokens of their prompts.

    Raises:
      ValueError: see `generate`; before anything runs.
    """
    require_positive(max_new_tokens=max_new_tokens, chunk_size=chunk_size)
    tokens = np.asarray(generation.token)
    rows = checked_rows("prompts", prompts, model.config.vocab_size, len(tokens))
    check_capacity(generation.state, [len(row) + max_new_tokens for row in rows])
    rows = [np.append(token, row) for token, row in zip(tokens, rows, strict=True)]
    state = jax.tree.map(jnp.copy, generation.state)
    state = prefill(model, params, state, [row[:-1] for row in rows], chunk_size)
    last = jnp.asarray([row[-1] for row in rows], jnp.int32)
    return generation._replace(state=state, token=last)


def decode(
    model: LanguageModel,
    params: Any,
    generation: Generation,
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop_tokens: Sequence[Any] = (),
    block_size: int = BLOCK,
    on_tokens: OnTokens | None = None,
) -> tuple[list[np.ndarray], Generation]:
    """Draws tokens; the given rows stay as they were.

    Args, beside those of `generate`:
      generation: B rows.
      block_size: most tokens of a row between two calls of `on_tokens`.
      on_tokens: called with the new tokens of every row, B int32 arrays; True ends all rows.

    Returns:
      B int32 arrays as of `generate`, and the rows that stand at their last tokens.

    Raises:
      ValueError: see `generate`.
    """
    batch = len(generation.token)
    choice, stops = _checked(model, batch, max_new_tokens, sampling, stop_tokens, block_size)
    check_capacity(generation.state, [max_new_tokens] * batch)
    owned = jax.tree.map(jnp.copy, generation)
    return _decode(model, params, owned, max_new_tokens, choice, stops, on_tokens)


def _checked(
    model: LanguageModel,
    batch: int,
    max_new_tokens: int,
    sampling: Sampling,
    stop_tokens: Sequence[Any],
    block_size: int,
) -> tuple[_Choice, Int[np.ndarray, "B N"]]:
    """Checks how to decode; returns what is compiled for, and stop tokens padded by `ENDED`."""
    require_positive(max_new_tokens=max_new_tokens, block_size=block_size)
    vocab_size = model.config.vocab_size
    if (sampling.vocab_size or 0) > vocab_size:
        raise ValueError(
            f"vocab_size: found {sampling.vocab_size} ids of a tokenizer and a model of "
            f"{vocab_size}; wanted at most as many"
        )
    shared = not any(np.ndim(stop) for stop in stop_tokens)
    rows = [stop_tokens] * batch if shared else stop_tokens
    stops = checked_rows("stop_tokens", rows, vocab_size, batch)
    padded = np.full((batch, max(map(len, stops), default=0)), ENDED, np.int32)
    for row, stop in zip(padded, stops, strict=True):
        row[: len(stop)] = stop
    return _Choice(sampling, block_size, batch > 1 and padded.size > 0), padded


def _decode(
    model: LanguageModel,
    params: Any,
    generation: Generation,
    max_new_tokens: int,
    choice: _Choice,
    stop_tokens: Int[np.ndarray, "B N"],
    on_tokens: OnTokens | None = None,
) -> tuple[list[np.ndarray], Generation]:
    """`decode` without checks; the given rows are consumed."""
    done = jnp.zeros(len(generation.token), bool)
    blocks: list[list[np.ndarray]] = []
    left = max_new_tokens
    while left:
        limit = jnp.asarray(min(left, choice.size), jnp.int32)
        generation, done, drawn, steps = _decode_block(
            model, params, generation, done, stop_tokens, limit, choice=choice
        )
        tokens = np.asarray(drawn)[:, : int(steps)]
        if (tokens == -1).any():
            row = np.flatnonzero((tokens == -1).any(axis=1))[0]
            raise ValueError(
                f"logits: found NaN or infinity in row {row} of the batch, wanted finite ones: "
                f"parameters that are not finite, or a state that has overflowed"
            )
        blocks.append([row[row != ENDED] for row in tokens])
        left -= tokens.shape[1]
        if (on_tokens is not None and on_tokens(blocks[-1])) or np.all(done):
            break
    return [np.concatenate(parts) for parts in zip(*blocks, strict=True)], generation


@functools.partial(
    jax.jit, static_argnames=("model", "choice"), donate_argnames=("generation", "done")
)
def _decode_block(
    model: LanguageModel,
    params: Any,
    generation: Generation,
    done: Bool[Array, " B"],
    stop_tokens: Int[Array, "B N"],
    limit: Int[Array, ""],
    *,
    choice: _Choice,
) -> tuple[Generation, Bool[Array, " B"], Int[Array, "B size"], Int[Array, ""]]:
    """Draws up to `limit` tokens a row; rows that are done, or that a stop token ends, rest."""

    def unfinished(carry):
        steps, _, done, _ = carry
        return (steps < limit) & ~jnp.all(done)

    def step(params, carry):
        steps, (state, token, keys, drawn), done, tokens = carry
        # As padding, a row that has ended leaves its state as it was. One row ends the loop.
        ids = jnp.where(done, -1, 0)[:, None] if choice.rows_may_end else None
        read: Any = model.apply({"params": params}, token[:, None], state, segment_ids=ids)
        logits, state = read
        step_keys = jax.vmap(jax.random.fold_in)(keys, drawn)
        new = sample(step_keys, logits[:, 0], choice.sampling)
        tokens = tokens.at[:, steps].set(jnp.where(done, ENDED, new))
        ends = jnp.any(new[:, None] == stop_tokens, axis=1) | (new < 0)
        token, drawn = jnp.where(done, token, new), drawn + ~done
        return steps + 1, Generation(state, token, keys, drawn), done | ends, tokens

    tokens = jnp.full((done.shape[0], choice.size), ENDED, jnp.int32)
    carry = jnp.zeros((), jnp.int32), generation, done, tokens
    one = functools.partial(step, cast_once(lambda params: step(params, carry), params))
    steps, generation, done, tokens = jax.lax.while_loop(unfinished, one, carry)
    return generation, done, tokens, steps
