"""Batches for training and evaluation, by Grain.

`examples` says what a batch holds. The last batch of a finite pass is filled up with blank rows
(targets -100, segments -1), so shapes never change and no example is lost.

The order is decided over whole batches, of which every host takes an equal part: neither the
batches of a run nor its stored state depend on the number of hosts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from bayesmem.data.examples import Batch, Examples, load_examples

_ROWS = 2**62
"""Rows after which a loader ends: no run gets there."""


@dataclass(frozen=True)
class HostShare:
    """The part of every batch that one host takes.

    Raises:
        ValueError: Sizes below 1, an index outside the hosts, or a batch that does not divide.
    """

    batch_size: int
    process_index: int = 0
    process_count: int = 1

    def __post_init__(self) -> None:
        """Checks the three numbers."""
        if self.batch_size < 1:
            raise ValueError(f"batch_size: found {self.batch_size}, wanted at least 1")
        if not 0 <= self.process_index < self.process_count:
            raise ValueError(
                f"process_index: found {self.process_index}, wanted 0 to process_count - 1 = "
                f"{self.process_count - 1}"
            )
        if self.batch_size % self.process_count:
            raise ValueError(
                f"batch_size: found {self.batch_size}, wanted a multiple of process_count "
                f"{self.process_count}"
            )

    def of(self, indices: np.ndarray) -> np.ndarray:
        """This host's indices of a batch [<= B]; -1 where the batch is short."""
        size = self.batch_size // self.process_count
        whole = np.pad(indices, (0, self.batch_size - len(indices)), constant_values=-1)
        return whole[self.process_index * size : (self.process_index + 1) * size]


class BatchLoader:
    """Iterator of batches whose position can be stored and restored exactly.

    The state is a dict that JSON can hold: the position, and with it what it is a position in
    (seed, batch size, split, number and checksum of the examples).
    """

    def __init__(self, batches: grain.DatasetIterator, identity: Mapping[str, Any]) -> None:
        """Wraps a Grain iterator; `make_loader` makes both arguments."""
        self._batches = batches
        self._identity = dict(identity)

    def __iter__(self) -> "BatchLoader":
        """Itself."""
        return self

    def __next__(self) -> Batch:
        """The next batch."""
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """The position after the batches taken so far, and what it is a position in."""
        return {**self._identity, "position": self._batches.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from a stored position, bit for bit.

        Args:
            state: What `get_state` returned, in this process or another.

        Raises:
            ValueError: The state is no such state, or one of another seed, batch size, split or
                content; the message names both.
        """
        wanted = {*self._identity, "position"}
        if set(state) != wanted:
            raise ValueError(f"state: found the keys {sorted(state)}, wanted {sorted(wanted)}")
        for name, own in self._identity.items():
            if state[name] != own:
                raise ValueError(f"state: stored with {name} {state[name]!r}, wanted {own!r}")
        self._batches.set_state(dict(state["position"]))


@dataclass(frozen=True)
class EvalBatches:
    """The batches of a split in a fixed order; can be iterated any number of times."""

    examples: Examples
    share: HostShare
    max_batches: int | None = None

    def __len__(self) -> int:
        """How many batches one pass has."""
        count = -(-len(self.examples) // self.share.batch_size)
        return count if self.max_batches is None else min(count, self.max_batches)

    def __iter__(self) -> Iterator[Batch]:
        """One pass from the start."""
        size = self.share.batch_size
        for start in range(0, len(self) * size, size):
            indices = np.arange(start, min(start + size, len(self.examples)))
            yield self.examples.take(self.share.of(indices))


def make_loader(
    data_config: Mapping[str, Any],
    *,
    batch_size: int,
    seed: int,
    split: str = "train",
    repeat: bool = True,
    process_index: int = 0,
    process_count: int = 1,
) -> BatchLoader:
    """Shuffled batches of a split, in another order every epoch.

    Args:
        data_config: The `data` block of a config.
        batch_size: Examples a batch over all hosts, B; at most the examples of the split.
        seed: Integer >= 0 that decides the order.
        split: "train", "valid" or "test".
        repeat: Whether to go on for ever; a batch may then span two epochs. If not, one epoch.
        process_index: This host, from 0.
        process_count: Hosts; B must be a multiple. A batch here has B / process_count rows.

    Returns:
        An iterator with `get_state` and `set_state`.

    Raises:
        ValueError: A bad argument or config (see `load_examples`), or fewer examples than B.
    """
    share = HostShare(batch_size, process_index, process_count)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed: found {seed!r}, wanted an integer >= 0")
    examples = load_examples(data_config, split)
    count = len(examples)
    if batch_size > count:
        raise ValueError(
            f"batch_size: found {batch_size}, wanted at most the {count} examples of {split!r}"
        )
    # Grain shuffles epoch e by seed + e: hashing keeps runs of neighbouring seeds unrelated.
    order_seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    order = grain.MapDataset.range(count).shuffle(seed=order_seed)
    # Not without end: Grain gives that as many rows as an index may have, and rounds them up.
    order = order.repeat(_ROWS // count) if repeat else order
    batches = order.batch(batch_size).map(lambda indices: examples.take(share.of(indices)))
    # No reading threads: a batch is one gather from memory, or a few blocks from disk.
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    identity = {
        "seed": int(seed),
        "batch_size": batch_size,
        "split": split,
        "examples": count,
        "checksum": examples.checksum(),
    }
    return BatchLoader(iter(batches.to_iter_dataset(options)), identity)


def make_eval_batches(
    data_config: Mapping[str, Any],
    *,
    batch_size: int,
    split: str = "valid",
    max_batches: int | None = None,
    process_index: int = 0,
    process_count: int = 1,
) -> EvalBatches:
    """All examples of a split once, in a fixed order.

    The split is read here, once: keep the result and iterate it at every evaluation.

    Args:
        data_config: The `data` block of a config.
        batch_size: Rows a batch over all hosts, B.
        split: "train", "valid" or "test".
        max_batches: None for all batches, or how many of the first.
        process_index: This host, from 0.
        process_count: Hosts; B must be a multiple.

    Returns:
        An iterable of batches with a length; the last one is filled up with blank rows.

    Raises:
        ValueError: A bad argument or config (see `load_examples`).
    """
    share = HostShare(batch_size, process_index, process_count)
    if max_batches is not None and max_batches < 1:
        raise ValueError(f"max_batches: found {max_batches}, wanted None or at least 1")
    return EvalBatches(load_examples(data_config, split), share, max_batches)
