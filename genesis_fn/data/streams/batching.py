"""Batches of rows, and the thread that makes them ahead."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from genesis_fn.core.errors import ArgumentError
from genesis_fn.data.streams.packing import IGNORED, Row
from genesis_fn.data.streams.stream import Item, Origin, Stage, Stream

T = TypeVar("T")
_PATIENCE = 0.1  # seconds between two looks at whether a thread has to end


class BatchedRows(Stage[Row]):
    """`batch` rows as one: a dict of arrays [batch, ...].

    Args:
        upstream: stream of rows, as of `Packed`.
        batch: rows of a batch, positive.
        drop_last: what happens to the last rows of a stream, if they are fewer: True leaves them
            out, False fills the batch with rows whose labels are all -100, so that shapes stay.

    Raises:
        ArgumentError: `batch` is not positive.

    >>> rows = [{"tokens": np.arange(3), "labels": np.arange(3)}] * 2
    >>> BatchedRows.stack(rows)["tokens"].shape
    (2, 3)
    """

    def __init__(self, upstream: Stream[Row], batch: int, *, drop_last: bool = False) -> None:
        super().__init__(upstream)
        if batch < 1:
            raise ArgumentError(f"BatchedRows: batch must be positive, got {batch}")
        self.batch, self.drop_last = batch, drop_last

    def next_item(self) -> Item[Row]:
        rows: list[Item[Row]] = []
        with contextlib.suppress(StopIteration):
            while len(rows) < self.batch:
                rows.append(self.upstream.next_item())
        if not rows or (self.drop_last and len(rows) < self.batch):
            raise StopIteration
        return Item(self._full([r.value for r in rows]), [r.origin for r in rows])

    def _full(self, rows: list[Row]) -> Row:
        missing = self.batch - len(rows)
        if missing:
            empty = {name: np.zeros_like(x) for name, x in rows[0].items()}
            empty["labels"] = np.full_like(rows[0]["labels"], IGNORED)
            rows = rows + [empty] * missing
        return self.stack(rows)

    @staticmethod
    def stack(rows: list[Row]) -> Row:
        """Rows as one dict of arrays [rows, ...]."""
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def at(self, origin: Origin) -> Row:
        return self._full([self.upstream.at(inner) for inner in origin])

    def where(self, origin: Origin) -> str:
        return self.upstream.where(origin[0])

    def get_state(self) -> dict[str, Any]:
        return {"upstream": self.upstream.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.upstream.set_state(state["upstream"])


class _Worker:
    """A thread that takes values ahead, each with the state of the stream behind it."""

    def __init__(self, stream: Stream[Any], depth: int, transfer: Callable[[Any], Any]) -> None:
        self.stream, self.transfer = stream, transfer
        self.made: queue.Queue[tuple[Item[Any] | None, Any]] = queue.Queue(depth)
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.ending.is_set():
            try:
                value, origin = self.stream.next_item()
                made = Item(self.transfer(value), origin), self.stream.get_state()
            except BaseException as error:  # StopIteration too: it is the consumer's
                made = None, error
            while not self.ending.is_set():
                with contextlib.suppress(queue.Full):
                    self.made.put(made, timeout=_PATIENCE)
                    break
            if made[0] is None:
                return

    def take(self) -> tuple[Item[Any] | None, Any]:
        """The next value and the state behind it, or None and an error."""
        while True:
            with contextlib.suppress(queue.Empty):
                # With a limit, so that Ctrl-C is seen while nothing comes.
                return self.made.get(timeout=_PATIENCE)

    def end(self) -> None:
        """End the thread, behind the value that it is making."""
        self.ending.set()
        if self.thread is not threading.current_thread():
            self.thread.join()


class Prefetch(Stage[T]):
    """A stream whose next values a thread makes ahead.

    The state is that behind the last value that was taken, whatever the thread has made since. An
    error of the stream is raised in place of the value that it kept from being made. `close()`,
    the end of a `with`, garbage collection and the end of the program end the thread.

    Args:
        upstream: stream, which belongs to the thread from now on.
        depth: values that are made ahead, positive.
        transfer: applied to each value in the thread, as `genesis_fn.device_put`.

    Raises:
        ArgumentError: `depth` is not positive.

    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = open(path, "w").write('{"text": "one"}\\n{"text": "two"}\\n')
    >>> with Prefetch(gf.data.RecordFiles([path]), depth=2) as records:
    ...     print(next(records), next(records))
    {'text': 'one'} {'text': 'two'}
    """

    def __init__(
        self, upstream: Stream[Any], depth: int = 2, transfer: Callable[[Any], T] | None = None
    ) -> None:
        super().__init__(upstream)
        if depth < 1:
            raise ArgumentError(f"Prefetch: depth must be positive, got {depth}")
        self.depth, self.transfer = depth, transfer or _as_it_is
        self._state = upstream.get_state()
        self._worker: _Worker | None = None
        self._finalizer: Any = None
        self._error: BaseException | None = None

    @property
    def epoch(self) -> int:
        """Of the thread: how many times the data was read to its end, with what is made ahead."""
        return self.upstream.epoch

    def next_item(self) -> Item[T]:
        if self._error is not None:
            raise self._error
        if self._worker is None:
            self._worker = _Worker(self.upstream, self.depth, self.transfer)
            # Of the worker, which does not refer to this object.
            self._finalizer = weakref.finalize(self, self._worker.end)
        item, state = self._worker.take()
        if item is None:
            self._error = state
            self.close()
            raise state
        self._state = state
        return item

    def at(self, origin: Origin) -> T:
        return self.transfer(self.upstream.at(origin))

    def get_state(self) -> dict[str, Any]:
        return self._state

    def set_state(self, state: dict[str, Any]) -> None:
        self.close()
        self.upstream.set_state(state)
        self._state, self._error = state, None

    def close(self) -> None:
        """End the thread. What it had made ahead is lost; `set_state(get_state())` goes on."""
        if self._finalizer is not None:
            self._finalizer()
        self._worker = self._finalizer = None
        if self._error is None:  # the stream stands behind what was taken
            self._error = ArgumentError("Prefetch: closed; set_state(get_state()) goes on")

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _as_it_is(value: Any) -> Any:
    return value
