"""Signals that end a training run after the step that is running."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A run that a signal ended; what it had computed is saved. `status` is the exit status."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


class Interrupt:
    """`with Interrupt() as interrupt:` Ctrl-C, SIGTERM and SIGHUP set `interrupt.asked`, the
    signal's number, for the loop to end where its state is whole.

    A second Ctrl-C ends it at once, by KeyboardInterrupt. SIGTERM and SIGHUP may follow each other,
    as when a machine shuts down. Those that are ignored, as under `nohup`, stay ignored.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.asked is not None:
            raise KeyboardInterrupt
        if self.asked is None:
            self.asked = number

    def __exit__(self, *exc: Any) -> None:
        for number, before in self._before.items():
            if before is not None:  # a handler that is not Python's cannot be put back
                signal.signal(number, before)
