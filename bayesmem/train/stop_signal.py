"""SIGTERM and SIGINT as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Context in which SIGTERM and SIGINT set a flag instead of ending the process.

    A second signal acts as it would have without this context, so a run that hangs can still be
    interrupted. Outside the main thread, where Python allows no handlers, nothing is caught.
    With several processes under `jax.distributed`, JAX's preemption notice decides, so that all
    of them stop after the same step.
    """

    def __init__(self) -> None:
        """Starts with no signal seen."""
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignal:
        """Installs the handlers."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.getsignal(number) for number in SIGNALS}
            for number in SIGNALS:
                # jax.distributed has its own SIGTERM handler, which the sync point below asks.
                if jax.process_count() == 1 or number is not signal.SIGTERM:
                    signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        """Puts the previous handlers back."""
        self._restore()

    def requested(self, step: int) -> bool:
        """Says whether to stop after `step`; the answer is the same on all processes."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self.received is not None

    @property
    def name(self) -> str:
        """Name of the signal that was received."""
        return "preemption notice" if self.received is None else self.received.name

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
