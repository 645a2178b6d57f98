"""One process at a time in a run: two that continue it would write over each other's files."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from bayesmem.train.workdir import make_workdir

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)


@contextmanager
def sole_use(workdir: Path, part: str = "") -> Iterator[None]:
    """Holds a run for this process until the block ends; whatever ends the process lets go of it.

    Of the processes of one run (`jax.process_count()`) the first one holds it. Where the file
    system has no locks a warning is all that happens.

    Args:
      workdir: the run's directory, made with its parents if missing.
      part: name of a part of the run, which is held alone; "" for the whole.

    Raises:
      BlockingIOError: another process holds it; names the process.
      NotADirectoryError: the path, or a parent of it, is a file.
    """
    if fcntl is None or jax.process_index() != 0:
        yield
        return
    make_workdir(workdir)
    path = workdir / (f".lock-{part}" if part else ".lock")
    with path.open("a+", encoding="utf-8") as stream:
        _lock(stream, path)
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        stream.flush()
        yield


def _lock(stream, path: Path) -> None:
    """Takes a lock that forked processes do not share, and that its process cannot outlive."""
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.seek(0)
        holder = stream.read().strip() or "another process"
        raise BlockingIOError(
            f"workdir: found {holder} at work in {path.parent}; wanted one process at a time"
        ) from error
    except OSError as error:
        logger.warning("%s cannot be locked (%s): start one process at a time", path, error)
