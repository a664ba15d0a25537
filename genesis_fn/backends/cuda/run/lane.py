"""The second stream of a capture, for collectives."""

from __future__ import annotations

from collections.abc import Callable

from genesis_fn.backends.cuda.driver.driver import Driver, EventHandle, StreamHandle


class Lane:
    """The second stream of a capture, for collectives: it forks from the `main` one before each of
    them, which joins it again where the result is needed.

    It is urgent: a collective holds few processors, and the other processes wait for it too. Else
    the kernel that starts with it takes all processors, and it waits for that one's end.
    """

    def __init__(self, driver: Driver, main: StreamHandle) -> None:
        self._driver, self._main = driver, main
        self._side: StreamHandle | None = None
        self._ended: dict[int | None, EventHandle] = {}  # by number, when it has ended
        self._events: list[EventHandle] = []

    def start(self, number: int | None, enqueue: Callable[[StreamHandle], object]) -> None:
        """Have `enqueue` put collectives on the second stream, behind what is on the main one now.
        Those without a number are waited for at once."""
        driver = self._driver
        if self._side is None:
            self._side = driver.new_stream(urgent=True)
        ready = self._event(self._main)
        driver.wait(self._side, ready)
        enqueue(self._side)
        self._ended[number] = self._event(self._side)
        if number is None:
            self.join(None)

    def join(self, number: int | None) -> None:
        """Have the main stream wait for a collective; for none where it has waited already."""
        ended = self._ended.pop(number, None)
        if ended is not None:
            self._driver.wait(self._main, ended)

    def join_all(self) -> None:
        """Wait for all: a capture ends with one stream."""
        for number in list(self._ended):
            self.join(number)

    def _event(self, stream: StreamHandle) -> EventHandle:
        event = self._driver.new_event()
        self._events.append(event)
        self._driver.record(event, stream)
        return event

    def close(self) -> None:
        """Destroy the stream and the events, which a graph does not need."""
        for event in self._events:
            self._driver.destroy_event(event)
        if self._side is not None:
            self._driver.destroy_stream(self._side)
