"""Multi-query associative recall (MQAR): rows of key-value writes, then queries of every key.

A row holds its writes first. After them come the queries: a query is a key by itself, and the
output wanted at its position is that key's value. Where the writes end, the rest of the row is
cut into slots of two tokens; a query sits on the first token of its slot, and slot g = 1, 2, ...
is taken with probability proportional to a g^(a-1), without replacement (the form of Zoology:
Arora et al. 2023, "Zoology: Measuring and improving recall in efficient language models").

What differs from Zoology, and why:

- Keys and values come from ONE vocabulary, 0 to vocab_size - 1, so a token does not tell which
  of the two it is.
- Filler (every token that is neither a write nor a query) is uniform over the tokens that are not
  keys of the row, so no filler is an unmarked query; it comes from the given seed.
- Values are uniform over the same tokens, so a token has one role in a row but any role across
  rows. `values_may_be_keys=True` draws them from the whole vocabulary: then a token's position
  must be used to tell a value from a key.

Three variants: "base" writes `k v k v ...`; "update" then writes a fraction of the keys again,
each with a new value, and the last value counts; "block" writes all keys of a block, then all
their values in the same order.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bayesmem.data.checks import check_count

VARIANTS = ("base", "update", "block")
SPLITS = ("train", "valid", "test")
# Rows are drawn in chunks, each from a generator of its own: the first rows of a seed are the
# same however many are asked for, and a chunk fits the cache. Changing it changes every row.
_CHUNK_ROWS = 1024


class MqarBatch(NamedTuple):
    """Rows of MQAR; N rows of T tokens with Q = num_pairs queries each."""

    inputs: np.ndarray  # [N, T] int32
    targets: np.ndarray  # [N, Q] int32: the value of the key queried
    query_positions: np.ndarray  # [N, Q] int32, ascending in a row


@dataclass(frozen=True)
class MqarTask:
    """One MQAR distribution; raises ValueError with the numbers where the sizes cannot fit.

    Attributes:
        variant: "base", "update" or "block".
        seq_len: Tokens a row, even.
        num_pairs: Keys a row; each is queried once.
        vocab_size: Tokens in the one vocabulary.
        power_a: Exponent a > 0 of the power law of the query gaps; 1 is uniform.
        passes: How many times the first writes are presented, in the same order.
        update_fraction: "update" only: the fraction of keys written again, in (0, 1]; at least
            one key is.
        block_size: "block" only: pairs a block (the last may be smaller); None is one block.
        values_may_be_keys: Whether a value may equal a key of its row.
    """

    variant: str = "base"
    seq_len: int = 64
    num_pairs: int = 4
    vocab_size: int = 256
    power_a: float = 0.01
    passes: int = 1
    update_fraction: float = 0.5
    block_size: int | None = None
    values_may_be_keys: bool = False

    def __post_init__(self) -> None:
        """Checks every field, then that the row and the vocabulary are large enough."""
        if self.variant not in VARIANTS:
            raise ValueError(f"variant: found {self.variant!r}, wanted one of {list(VARIANTS)}")
        for name in ("seq_len", "num_pairs", "vocab_size", "passes"):
            check_count(name, getattr(self, name), minimum=1)
        if self.block_size is not None:
            if self.variant != "block":
                raise ValueError(f"block_size: found {self.block_size} with {self.variant!r}, "
                                 "wanted None, or variant 'block'")  # fmt: skip
            check_count("block_size", self.block_size, minimum=1)
            if self.block_size > self.num_pairs:
                raise ValueError(
                    f"block_size: found {self.block_size}, wanted at most num_pairs "
                    f"{self.num_pairs}"
                )
        if not (np.isfinite(self.power_a) and self.power_a > 0):
            raise ValueError(f"power_a: found {self.power_a}, wanted a finite number > 0")
        if not 0 < self.update_fraction <= 1:
            raise ValueError(f"update_fraction: found {self.update_fraction}, wanted (0, 1]")
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.seq_len % 2:
            raise ValueError(f"seq_len: found {self.seq_len}, wanted an even number")
        needed = self.context_length + 2 * self.num_pairs
        if needed > self.seq_len:
            raise ValueError(
                f"seq_len: found {self.seq_len}, wanted at least {needed} for num_pairs "
                f"{self.num_pairs}: {self.context_length} tokens of writes (passes "
                f"{self.passes}, updates {self.num_updates}) and {2 * self.num_pairs} of queries"
            )
        smallest = self.num_pairs + (2 if self.num_updates else 1)
        if self.vocab_size < smallest:
            raise ValueError(
                f"vocab_size: found {self.vocab_size}, wanted at least {smallest}: num_pairs "
                f"{self.num_pairs} keys and {smallest - self.num_pairs} other"
            )

    @property
    def num_updates(self) -> int:
        """Keys a row that are written again; 0 but for "update"."""
        if self.variant != "update":
            return 0
        return max(1, round(self.update_fraction * self.num_pairs))

    @property
    def context_length(self) -> int:
        """Tokens of writes before the first slot of the queries."""
        return 2 * (self.passes * self.num_pairs + self.num_updates)

    def write_order(self) -> np.ndarray:
        """Columns of the table [keys | values] in the order in which they are presented.

        Returns:
            int64 [passes * 2 * num_pairs]; column i is key i, column num_pairs + i its value.
        """
        block = self.num_pairs if self.block_size is None else self.block_size
        if self.variant != "block":
            block = 1
        columns = np.arange(self.num_pairs)
        order = [
            np.concatenate([part, part + self.num_pairs])
            for part in np.split(columns, range(block, self.num_pairs, block))
        ]
        return np.tile(np.concatenate(order), self.passes)


def make_mqar(
    variant: str = "base",
    *,
    num_examples: int,
    seq_len: int,
    num_pairs: int,
    vocab_size: int,
    seed: int,
    **options: Any,
) -> MqarBatch:
    """Draws MQAR rows; equal bytes for equal arguments, whatever was drawn before.

    `8 7 4 6` gives key 8 the value 7 and key 4 the value 6; key 4 is queried at position 4 and
    key 8 at position 14, where the outputs wanted are 6 and 7; the rest is filler:

    >>> batch = make_mqar(num_examples=1, seq_len=16, num_pairs=2, vocab_size=12, seed=0)
    >>> batch.inputs[0].tolist()
    [8, 7, 4, 6, 4, 6, 5, 5, 2, 5, 6, 6, 0, 3, 8, 3]
    >>> batch.query_positions[0].tolist(), batch.targets[0].tolist()
    ([4, 14], [6, 7])

    Args:
        variant: "base", "update" or "block".
        num_examples: Rows N, at least 0. The first rows do not depend on it.
        seq_len: Tokens a row T, even, at least the writes and 2 * num_pairs: 4 * num_pairs for
            one pass of "base".
        num_pairs: Keys a row, Q.
        vocab_size: Tokens in the one vocabulary, more than num_pairs.
        seed: Integer >= 0. Other seeds give independent rows; see `split_seed`.
        **options: The other fields of `MqarTask`: power_a=0.01, passes=1, update_fraction=0.5,
            block_size=None, values_may_be_keys=False.

    Returns:
        MqarBatch of int32 arrays: inputs [N, T], targets [N, Q], query_positions [N, Q].

    Raises:
        ValueError: A size that cannot fit, with the numbers; an unknown variant; a negative seed.
        TypeError: An option that does not exist.
    """
    task = MqarTask(variant, seq_len, num_pairs, vocab_size, **options)
    return sample_mqar(task, num_examples=num_examples, seed=seed)


def sample_mqar(task: MqarTask, *, num_examples: int, seed: int) -> MqarBatch:
    """Draws rows of a task; `make_mqar` with its sizes already in a `MqarTask`.

    Args:
        task: The distribution.
        num_examples: Rows N, at least 0.
        seed: Integer >= 0.

    Returns:
        MqarBatch of int32 arrays: inputs [N, T], targets [N, Q], query_positions [N, Q].

    Raises:
        ValueError: num_examples or seed is negative or no integer.
    """
    check_count("num_examples", num_examples, minimum=0)
    check_count("seed", seed, minimum=0)
    batch = MqarBatch(
        inputs=np.empty((num_examples, task.seq_len), np.int32),
        targets=np.empty((num_examples, task.num_pairs), np.int32),
        query_positions=np.empty((num_examples, task.num_pairs), np.int32),
    )
    for chunk, start in enumerate(range(0, num_examples, _CHUNK_ROWS)):
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(chunk,))))
        rows = _sample_rows(task, rng, _CHUNK_ROWS)
        for whole, part in zip(batch, rows, strict=True):
            whole[start : start + _CHUNK_ROWS] = part[: num_examples - start]
    return batch


def split_seed(seed: int, split: str) -> int:
    """The seed of a split's rows: the first 64 bits of NumPy's SeedSequence of (seed, split).

    The splits of one seed, and one split of two seeds, are then independent streams; two rows
    coincide only by chance.

    Args:
        seed: Integer >= 0.
        split: "train", "valid" or "test".

    Returns:
        An integer in [0, 2^64).

    Raises:
        ValueError: An unknown split, or a seed that is negative or no integer.
    """
    if split not in SPLITS:
        raise ValueError(f"split: found {split!r}, wanted one of {list(SPLITS)}")
    check_count("seed", seed, minimum=0)
    sequence = np.random.SeedSequence((seed, SPLITS.index(split)))
    return int(sequence.generate_state(1, np.uint64)[0])


def _sample_rows(task: MqarTask, rng: np.random.Generator, rows: int) -> MqarBatch:
    pairs, context = task.num_pairs, task.context_length
    keys = _distinct_tokens(rng, rows, pairs, task.vocab_size)
    sorted_keys = np.sort(keys, axis=1)
    num_others = task.vocab_size - pairs
    num_values = task.vocab_size if task.values_may_be_keys else num_others

    def as_values(ranks: np.ndarray) -> np.ndarray:
        return ranks if task.values_may_be_keys else _skip_tokens(ranks, sorted_keys)

    ranks = rng.integers(num_values, size=(rows, pairs))
    writes = [np.concatenate([keys, as_values(ranks)], axis=1)[:, task.write_order()]]
    if task.num_updates:
        # A prefix of a random permutation: which keys are written again, and in which order.
        again = np.argsort(rng.random((rows, pairs)), axis=1)[:, : task.num_updates]
        old = np.take_along_axis(ranks, again, axis=1)
        new = rng.integers(num_values - 1, size=old.shape)
        np.put_along_axis(ranks, again, new + (new >= old), axis=1)
        updated = [np.take_along_axis(table, again, axis=1) for table in (keys, as_values(ranks))]
        writes.append(np.stack(updated, axis=2).reshape(rows, -1))

    slots = _query_slots(rng, rows, task)
    order = np.argsort(slots, axis=1)
    slots, queries, answers = (
        np.take_along_axis(table, order, axis=1) for table in (slots, keys, as_values(ranks))
    )
    filler = rng.integers(num_others, size=(rows, task.seq_len - context), dtype=np.int32)
    rest = _skip_tokens(filler, sorted_keys)
    np.put_along_axis(rest, 2 * slots, queries, axis=1)
    return MqarBatch(np.concatenate([*writes, rest], axis=1), answers, context + 2 * slots)


def _distinct_tokens(
    rng: np.random.Generator, rows: int, count: int, vocab_size: int
) -> np.ndarray:
    """Ordered draws without replacement [rows, count], by Floyd's algorithm over all rows."""
    chosen = np.empty((rows, count), np.int64)
    for step, last in enumerate(range(vocab_size - count, vocab_size)):
        draw = rng.integers(last + 1, size=rows)
        taken = (chosen[:, :step] == draw[:, None]).any(axis=1)
        chosen[:, step] = np.where(taken, last, draw)
    return rng.permuted(chosen, axis=1)


def _skip_tokens(ranks: np.ndarray, sorted_keys: np.ndarray) -> np.ndarray:
    """Token of each rank [rows, C] among the tokens that are not in sorted_keys [rows, K]."""
    tokens = ranks.copy()
    for key in sorted_keys.T:
        tokens += tokens >= key[:, None]
    return tokens


def _query_slots(rng: np.random.Generator, rows: int, task: MqarTask) -> np.ndarray:
    """Slot of each key's query [rows, num_pairs], 0-based: power law without replacement."""
    gaps = np.arange(1, (task.seq_len - task.context_length) // 2 + 1)
    weights = task.power_a * gaps ** (task.power_a - 1.0)
    # Exponential clocks of these rates ring in the order of successive weighted draws.
    clocks = rng.standard_exponential((rows, len(gaps))) / weights
    return np.argsort(clocks, axis=1)[:, : task.num_pairs]
