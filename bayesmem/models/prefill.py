"""Reading prompts of any lengths in chunks, padded on the left."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bayesmem.array_types import SegmentIds, Tokens
from bayesmem.layers.attention import KVCache
from bayesmem.layers.options import require_positive
from bayesmem.models.language_model import LanguageModel, LMState

CHUNK = 512
"""Tokens of a row that are read in one call."""

Rows = Sequence[Sequence[int] | np.ndarray]


def prefill(
    model: LanguageModel, params: Any, state: LMState, rows: Rows, chunk_size: int = CHUNK
) -> LMState:
    """Lets the model read rows of tokens.

    The padding is on the left. Rows of more than a chunk are read in whole chunks, by one program,
    which takes as long for a few more tokens but not as long to compile; shorter ones at once, in
    the smallest power of two that holds the longest.

    Args:
      model: a language model, unbound.
      params: its parameters, unboxed.
      state: of B rows; consumed.
      rows: B rows of any number of token ids each.
      chunk_size: most tokens of a row that are read in one call; caches that hold fewer cut it.

    Returns:
      The state after the last token of each row.

    Raises:
      ValueError: there are no rows, or chunk_size is below 1.
    """
    if not rows:
        raise ValueError("rows: found none, wanted at least one")
    require_positive(chunk_size=chunk_size)
    longest = max(map(len, rows))
    chunk_size = min([chunk_size, *(room for _, room, _ in _caches(state))])
    if 0 < longest < chunk_size:
        chunk_size = min(1 << (longest - 1).bit_length(), chunk_size)
    total = -(-longest // chunk_size) * chunk_size
    tokens, ids = np.zeros((len(rows), total), np.int32), np.full((len(rows), total), -1, np.int32)
    for number, row in enumerate(rows):
        tokens[number, total - len(row) :], ids[number, total - len(row) :] = row, 0
    for begin in range(0, total, chunk_size):
        part = slice(begin, begin + chunk_size)
        state = _read(model, params, state, tokens[:, part], ids[:, part])
    return state


@functools.partial(jax.jit, static_argnames="model", donate_argnames="state")
def _read(
    model: LanguageModel, params: Any, state: LMState, tokens: Tokens, segment_ids: SegmentIds
) -> LMState:
    """Returns the state after a chunk. No logits are made: drawing begins at a later token."""
    read = functools.partial(model.apply, method=LanguageModel.hidden_states)
    result: Any = read({"params": params}, tokens, state, segment_ids=segment_ids)
    return result[1]


@functools.partial(jax.jit, static_argnames=("model", "batch"))
def fresh_state(model: LanguageModel, batch: int) -> LMState:
    """Returns the state of rows that have read nothing, each leaf with memory of its own."""
    return model.init_state(batch)


def _caches(state: LMState) -> list[tuple[int, int, Any]]:
    """Layer, capacity and tokens held of every cache; of scanned layers of the first turn's.

    The caches of all turns are as long and hold as much.
    """
    return [
        (number, layer.document.shape[-1], _of_one_turn(layer.length))
        for number, layer in enumerate(state.layers)
        if isinstance(layer, KVCache)
    ]


def _of_one_turn(length: Any) -> Any:
    return length[0] if isinstance(length, jax.Array) and length.ndim > 1 else length


def check_capacity(state: LMState, wanted: Sequence[int]) -> None:
    """Checks that the caches of attention layers have room.

    Args:
      state: arrays, or the shapes of a fresh one.
      wanted: how many tokens each of the B rows is to read.

    Raises:
      ValueError: they have not; names the layer, its `max_length` and the tokens.
    """
    for number, room, length in _caches(state):
        held = 0 if isinstance(length, jax.ShapeDtypeStruct) else np.asarray(length)
        total = held + np.asarray(wanted)
        row = int(np.argmax(total))
        if total[row] > room:
            raise ValueError(
                f"max_length: the cache of layer {number} holds {room} tokens, wanted {total[row]} "
                f"for row {row}, those to be generated included; build the model with a larger "
                f"max_length, or ask for fewer"
            )


def checked_rows(
    name: str, rows: Rows, vocab_size: int, batch: int | None = None
) -> list[np.ndarray]:
    """Returns rows of token ids as int32 arrays.

    Raises:
      ValueError: a row is no list of whole numbers in [0, vocab_size), or there are not `batch`
        rows where a number is given; names the argument and the row.
    """
    if batch is not None and len(rows) != batch:
        raise ValueError(
            f"{name}: found {len(rows)} rows, wanted {batch}, one for each of the batch"
        )
    checked = []
    for number, row in enumerate(rows):
        ids = np.asarray(row)
        if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            raise ValueError(
                f"{name}: found shape {ids.shape} and dtype {ids.dtype} in row {number}, wanted a "
                f"list of token ids"
            )
        beyond = ids[(ids < 0) | (ids >= vocab_size)]
        if beyond.size:
            raise ValueError(
                f"{name}: found the id {beyond[0]} in row {number}, wanted ids in [0, {vocab_size})"
            )
        checked.append(ids.astype(np.int32))
    return checked
