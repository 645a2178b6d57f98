"""Jobs of a preparation: each makes one shard of some documents, in processes of their own."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from bayesmem.data import shards, text
from bayesmem.data.documents import Document
from bayesmem.data.mqar import SPLITS
from bayesmem.data.tokenizers import Tokenizer, load_tokenizer
from bayesmem.files import write_json

NOTE = ".json"
"""What the name of a shard's note has more than the shard's; it says that the shard is done."""


class Place(NamedTuple):
    """Where shards go and what tokenizes them; small, for it is sent with every job.

    Attributes:
        folder: Of the shards.
        tokenizer: A spec of `load_tokenizer`.
        fingerprint: That of the tokenizer; another one is an error.
    """

    folder: Path
    tokenizer: str
    fingerprint: str


class Job(NamedTuple):
    """One shard to be made: a split, the shard's number in it, and its documents."""

    split: str
    number: int
    contents: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(map(len, self.contents))


def cut_jobs(stream: Iterable[tuple[str, Document]], shard_bytes: int) -> Iterator[Job]:
    """Consecutive documents of each split, of at least so many bytes together.

    Args:
        stream: Splits and documents.
        shard_bytes: The bytes of text.

    Yields:
        Jobs; the last of a split may be smaller.
    """
    numbers = dict.fromkeys(SPLITS, 0)
    waiting: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    sizes = dict.fromkeys(SPLITS, 0)

    def take(split: str) -> Job:
        job = Job(split, numbers[split], waiting[split])
        numbers[split], waiting[split], sizes[split] = numbers[split] + 1, [], 0
        return job

    for split, document in stream:
        waiting[split].append(document.content)
        sizes[split] += len(document.content)
        if sizes[split] >= shard_bytes:
            yield take(split)
    yield from (take(split) for split in SPLITS if waiting[split])


def run_jobs(
    jobs: Iterable[Job],
    earlier: dict[str, shards.ShardCounts],
    processes: int,
    place: Place,
) -> Iterator[tuple[Job, shards.ShardCounts]]:
    """Does the jobs that are not done yet.

    Args:
        jobs: All jobs, drawn as they are needed.
        earlier: The shards that are done, by file name.
        processes: How many work at once; 1: this one.
        place: Where the shards go.

    Yields:
        Every job with its shard, as they end.

    Raises:
        ValueError: The tokenizer's file has changed, or it gives ids outside of its vocabulary.
        OSError: A shard cannot be written.
    """
    if processes == 1:
        for job in jobs:
            yield job, earlier.get(_name(job)) or _write(job, place)
        return
    # Not forked: a fork of a process with threads, as JAX's, may hang.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_start_worker)
    pending: dict[Future[shards.ShardCounts], Job] = {}
    try:
        for job in jobs:
            if shard := earlier.get(_name(job)):
                yield job, shard
                continue
            with _interrupts_held_back():
                pending[pool.submit(_write, job, place)] = job
            # Two jobs a process: one is done, one waits in memory.
            while len(pending) >= 2 * processes:
                yield from _ended(pending)
        while pending:
            yield from _ended(pending)
    finally:
        pool.shutdown(cancel_futures=True)


def _ended(
    pending: dict[Future[shards.ShardCounts], Job],
) -> Iterator[tuple[Job, shards.ShardCounts]]:
    for future in wait(pending, return_when=FIRST_COMPLETED).done:
        yield pending.pop(future), future.result()


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A process started in this context never sees Ctrl-C, this one sees it at the end.

    A new process has the signal mask of the thread that started it, while a handler of its own
    would come only after it has imported what it runs. The mask alone does not hold the signal back
    here, where other threads take it.
    """
    received: list[int] = []
    # Python runs and sets handlers in the main thread alone.
    main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGINT, lambda n, _: received.append(n)) if main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if main:
            signal.signal(signal.SIGINT, previous)
    if received:
        signal.raise_signal(signal.SIGINT)


def _start_worker() -> None:
    """Ends with the process that started this one even if that is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


_loaded: dict[tuple[str, str], Tokenizer] = {}


def _write(job: Job, place: Place) -> shards.ShardCounts:
    """Tokenizes a job, writes its shard and then the note that it is done."""
    key = (place.tokenizer, place.fingerprint)
    if key not in _loaded:
        _loaded[key] = load_tokenizer(place.tokenizer)
    tokenizer = _loaded[key]
    if tokenizer.fingerprint != place.fingerprint:
        raise ValueError(
            f"tokenizer: found another file at {place.tokenizer} than at first, wanted it kept"
        )
    tokens, starts = text.join(job.contents, tokenizer)
    path = place.folder / _name(job)
    shard = shards.write_shard(path, tokens, starts, job.size)
    write_json(path.with_name(path.name + NOTE), shard._asdict())
    return shard


def _name(job: Job) -> str:
    return shards.shard_name(job.split, job.number)
