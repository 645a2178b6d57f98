"""Folders that are there as a whole or not at all."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(name: str, path: Path) -> Iterator[Path]:
    """Yields a folder to write into, which becomes `path` when the block ends without an error.

    After an error, Ctrl-C or SIGTERM it is removed; kill -9 leaves a `.NAME.partial-PID` beside
    `path`.

    Args:
      name: the argument's name, for errors.
      path: the folder; not there yet, or empty.

    Raises:
      FileExistsError: there is something at `path`.
    """
    taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if taken or path.is_symlink():
        kinds = {"a link": path.is_symlink(), "a folder that is not empty": path.is_dir()}
        kind = next((kind for kind, found in kinds.items() if found), "a file")
        raise FileExistsError(f"{name}: found {kind} at {path}, wanted a new folder")
    path = path.absolute()
    partial = path.parent / f".{path.name}.partial-{os.getpid()}"
    partial.mkdir(parents=True)
    try:
        with _terminated_by_an_exception():
            yield partial
        os.replace(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def _terminated_by_an_exception() -> Iterator[None]:
    """SIGTERM, of which nobody has taken care, ends the process as Ctrl-C does: blocks are left."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
