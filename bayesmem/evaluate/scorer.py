"""Log-probabilities of token rows under a language model, in batches of a few padded lengths.

A row is read in chunks, the recurrent state handed from one to the next, so that a row may be
longer than anything that fits into memory at once and the number of programs compiled does not
grow with the lengths of the rows. Chunks are padded on the right; padding leaves a state alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.train.sharding import batch_shards, put_batch

SMALLEST = 32
"""Tokens of the shortest padded length; every further one doubles it, up to the chunk."""
HEAD_TOKENS = 32
"""Tokens a row whose logits are held at once: [B, 32, V] float32."""


class Row(NamedTuple):
    """Tokens to read, of which those from `first` on are scored.

    Attributes:
      tokens: int [N], N >= 1; the first one is only read.
      first: index in 1..N of the first token scored.
    """

    tokens: np.ndarray
    first: int = 1


class Scored(NamedTuple):
    """Scores of a row's tokens from `first` on.

    Attributes:
      log_probs: float32 [N - first], nats, of each token given those before it.
      hits: bool [N - first], whether the token has the largest logit.
    """

    log_probs: np.ndarray
    hits: np.ndarray

    @property
    def log_prob(self) -> float:
        """Sum of the log-probabilities, in nats."""
        return float(np.sum(self.log_probs, dtype=np.float64))

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding would write these tokens."""
        return bool(np.all(self.hits))


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A model with what decides the shapes it is run at.

    Attributes:
      model: a language model.
      params: its parameters, unboxed.
      mesh: from `bayesmem.train.sharding.make_mesh`; rows are split over it.
      batch_size: rows a batch; short batches are filled up with padding.
      chunk: most tokens a row that are read at once, a power of two times `SMALLEST`.

    Raises:
      ValueError: a size that does not fit.
    """

    model: LanguageModel
    params: Any
    mesh: Mesh
    batch_size: int = 8
    chunk: int = 512

    def __post_init__(self) -> None:
        """Checks the sizes."""
        if self.batch_size < 1 or self.batch_size % batch_shards(self.mesh):
            raise ValueError(
                f"batch_size: found {self.batch_size}, wanted a positive multiple of the "
                f"{batch_shards(self.mesh)} devices that rows are split over"
            )
        if self.chunk not in padded_lengths(self.chunk):
            raise ValueError(f"chunk: found {self.chunk}, wanted {SMALLEST} times a power of two")

    def score(self, rows: Sequence[Row]) -> Iterator[tuple[int, Scored]]:
        """Scores rows; those of similar length are run together, the longest first.

        Args:
          rows: any number of rows, of ids below the model's vocabulary.

        Yields:
          (index into `rows`, its scores), a batch at a time.

        Raises:
          ValueError: a row without tokens, a `first` outside of it, or an id that the model does
            not have.
        """
        for index, row in enumerate(rows):
            _check_row(index, row, self.model.config.vocab_size)
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index].tokens))
        for start in range(0, len(order), self.batch_size):
            indices = order[start : start + self.batch_size]
            found = self._score_batch([rows[index] for index in indices])
            yield from zip(indices, found, strict=True)

    def _score_batch(self, rows: Sequence[Row]) -> list[Scored]:
        """Scores at most `batch_size` rows, chunk after chunk."""
        longest = max(len(row.tokens) for row in rows) - 1
        model = with_capacity(self.model, longest, self.chunk)
        state, parts = None, []
        for start in range(0, longest, self.chunk):
            width = padded_length(min(longest - start, self.chunk), self.chunk)
            batch = _chunk_batch(rows, start, width, self.batch_size)
            scored = any(start + width >= row.first for row in rows)
            placed = put_batch(self.mesh, batch)
            result, state = _read_chunk(model, self.params, placed, state, scored)
            parts.append(jax.device_get(result))
        return [_collect(row, [(p[0][i], p[1][i]) for p in parts]) for i, row in enumerate(rows)]


def padded_lengths(chunk: int) -> list[int]:
    """Lengths that chunks are padded to: 32, 64, 128, ... up to `chunk`."""
    lengths = [SMALLEST]
    while 2 * lengths[-1] <= chunk:
        lengths.append(2 * lengths[-1])
    return lengths


def padded_length(length: int, chunk: int) -> int:
    """The smallest of `padded_lengths` that holds `length` tokens."""
    return next(padded for padded in padded_lengths(chunk) if padded >= length)


def attention_layers(config: ModelConfig) -> list[str]:
    """Names of the mixers that hold a cache of limited length."""
    return [name for name in config.mixers if name.partition("/")[0] == "attention"]


def with_capacity(model: LanguageModel, tokens: int, chunk: int) -> LanguageModel:
    """A model whose attention caches hold rows of so many tokens; others are returned as they are.

    Parameters do not depend on a cache's size. Capacities are doubled from one chunk on, so that
    few programs are compiled.

    Args:
      model: a language model.
      tokens: longest row.
      chunk: most tokens read at once.

    Returns:
      The model, or a copy with a larger `max_length`.

    Raises:
      ValueError: a layer has a capacity of its own that is too small.
    """
    config, attention = model.config, attention_layers(model.config)
    if not attention:
        return model
    capacity = chunk
    while capacity < tokens:
        capacity *= 2
    for name in attention:
        own = config.mixer_options.get(name, {}).get("max_length", capacity)
        if own < capacity:
            raise ValueError(
                f"max_length of {name}: found {own}, wanted {capacity} for a row of {tokens} tokens"
            )
    return LanguageModel(dataclasses.replace(config, max_length=capacity))


@functools.partial(jax.jit, static_argnums=(0, 4))
def _read_chunk(
    model: LanguageModel, params: Any, batch: dict[str, jax.Array], state: Any, scored: bool
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    """Log-probability and hit of each target [B, T], zeros if not `scored`, and the state."""
    variables, targets = {"params": params}, batch["targets"]
    h, state = model.apply(
        variables,
        batch["inputs"],
        state,
        segment_ids=batch["segment_ids"],
        method="hidden_states",
    )
    if not scored:
        return (jnp.zeros(targets.shape, jnp.float32), jnp.zeros(targets.shape, bool)), state

    def read(block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits = cast(jax.Array, model.apply(variables, block[0], method="logits"))
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        picked = jnp.take_along_axis(log_probs, block[1][..., None], axis=-1)[..., 0]
        return picked, jnp.argmax(logits, axis=-1) == block[1]

    # Of a vocabulary of 32,000, the logits of a whole chunk would be the largest array by far.
    log_probs, hits = (
        jnp.moveaxis(x, 0, 1).reshape(targets.shape)
        for x in jax.lax.map(read, (_blocks(h), _blocks(targets)))
    )
    return (log_probs, hits), state


def _blocks(x: jax.Array) -> jax.Array:
    """[B, T, ...] as [T / 32, B, 32, ...]."""
    return jnp.moveaxis(x.reshape(x.shape[0], -1, HEAD_TOKENS, *x.shape[2:]), 1, 0)


def _chunk_batch(
    rows: Sequence[Row], start: int, width: int, batch_size: int
) -> dict[str, np.ndarray]:
    """Inputs, targets and segments of one chunk [batch_size, width]; padding has segment -1."""
    batch = {name: np.zeros((batch_size, width), np.int32) for name in ("inputs", "targets")}
    batch["segment_ids"] = np.full((batch_size, width), -1, np.int32)
    for index, row in enumerate(rows):
        part = row.tokens[start : start + width + 1]
        count = max(len(part) - 1, 0)
        batch["inputs"][index, :count] = part[:-1]
        batch["targets"][index, :count] = part[1:]
        batch["segment_ids"][index, :count] = 0
    return batch


def _collect(row: Row, parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Scored:
    """Joins a row's chunks and cuts out what is scored; score i is of token i + 1."""
    if len(row.tokens) == row.first:
        return Scored(np.zeros(0, np.float32), np.zeros(0, bool))
    wanted = slice(row.first - 1, len(row.tokens) - 1)
    return Scored(*(np.concatenate(column)[wanted] for column in zip(*parts, strict=True)))


def _check_row(index: int, row: Row, vocab_size: int) -> None:
    if not 1 <= row.first <= len(row.tokens):
        raise ValueError(
            f"rows[{index}]: found {len(row.tokens)} tokens and first = {row.first}; wanted "
            f"first in 1..{max(len(row.tokens), 1)}"
        )
    low, high = int(np.min(row.tokens)), int(np.max(row.tokens))
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"rows[{index}]: found the id {low if low < 0 else high}; wanted ids in "
            f"[0, {vocab_size}), the model's vocabulary"
        )
