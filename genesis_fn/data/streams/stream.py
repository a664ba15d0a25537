"""What a stream is: values in an order, where each came from, and a state to go on from.

A state holds cursors, counters and origins, never the values themselves: a stage that holds values
back makes them again from where they came, so that a state is small, is JSON, and a stream that is
restored continues exactly as one that was never stopped.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from genesis_fn.core.errors import ArgumentError, FileError, GenesisError, said
from genesis_fn.core.files import brief

T = TypeVar("T")
Origin = list[Any]  # nested lists of integers


class Item(NamedTuple, Generic[T]):
    """A value of a stream, and where it came from."""

    value: T
    origin: Origin


class Stream(abc.ABC, Generic[T]):
    """Values in an order. `for value in stream` takes them; `get_state` and `set_state`, which have
    the names of Grain, let another stream of the same arguments go on behind the last one taken.

    A stage of your own defines `next_item`, `at`, `where`, `get_state` and `set_state`.
    """

    @abc.abstractmethod
    def next_item(self) -> Item[T]:
        """The next value and its origin. Raises StopIteration at the end."""

    @abc.abstractmethod
    def at(self, origin: Origin) -> T:
        """The value of an origin, made again."""

    @abc.abstractmethod
    def where(self, origin: Origin) -> str:
        """An origin for people: `data.jsonl: line 7`."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """What `set_state` takes to go on behind the last value that was taken. It is JSON."""

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Go on behind the value after which `get_state` gave the state.

        Raises FileError where a file is not the one that the state is of.
        """

    @property
    @abc.abstractmethod
    def epoch(self) -> int:
        """How many times the data was read to its end."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self.next_item().value


class Stage(Stream[T]):
    """A stream over another one."""

    def __init__(self, upstream: Stream[Any]) -> None:
        if not isinstance(upstream, Stream):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"{type(self).__name__}: expected a stream, such as data.RecordFiles, got "
                f"{brief(upstream)}"
            )
        self.upstream = upstream

    @property
    def epoch(self) -> int:
        return self.upstream.epoch

    def where(self, origin: Origin) -> str:
        return self.upstream.where(origin)


class BadRecords:
    """What happens to a record that cannot be used: it ends the stream, or is reported and skipped.

    Args:
        action: "stop" raises its error, "skip" counts it.
        report: called with the message of each that is skipped.
    """

    def __init__(self, action: str = "stop", report: Callable[[str], None] | None = None) -> None:
        if action not in ("stop", "skip"):
            raise ArgumentError(f'a bad line does "stop" or "skip", not {brief(action)}')
        self.action, self.report, self.skipped = action, report, 0

    def handle(self, error: Exception) -> None:
        """Raise the error, or count and report it."""
        if self.action == "stop":
            raise error
        self.skipped += 1
        if self.report is not None:
            self.report(str(error))


class Mapped(Stage[T]):
    """`function` of each value of a stream.

    Args:
        upstream: stream.
        function: value -> value, a list of values, or None, which leaves it out; a pure function,
            since values may be made again.
        bad: what happens where it raises an error; None: the stream raises it, with file and line.
        seen: called with the values of each record when it is first met; None: nobody is told.

    Raises:
        FileError: a value that the function refuses; names its file and line.

    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = open(path, "w").write('{"text": "one"}\\n{"text": "two"}\\n')
    >>> list(Mapped(gf.data.RecordFiles([path]), lambda record: record["text"].upper()))
    ['ONE', 'TWO']
    """

    def __init__(
        self,
        upstream: Stream[Any],
        function: Callable[[Any], Any],
        bad: BadRecords | None = None,
        seen: Callable[[list[Any]], None] | None = None,
    ) -> None:
        super().__init__(upstream)
        self.function, self.bad, self.seen = function, bad or BadRecords(), seen
        self._origin: Origin | None = None  # of the values that are left of the last record
        self._left: list[Any] = []
        self._index = 0
        self._barren = -1  # the epoch in which a value was last given

    def next_item(self) -> Item[T]:
        while not self._left:
            item = self.upstream.next_item()
            self._origin, self._index = item.origin, 0
            try:
                self._left = self._values(item)
            except FileError as error:
                self.bad.handle(error)
            else:
                if self.seen is not None:
                    self.seen(self._left)
            if not self._left:
                self._check_progress()
        self._barren = self.upstream.epoch
        value = self._left.pop(0)
        assert self._origin is not None
        self._index += 1
        return Item(value, [self._origin, self._index - 1])

    def _values(self, item: Item[Any]) -> list[Any]:
        try:
            found = self.function(item.value)
        except (GenesisError, ValueError, TypeError, KeyError) as error:
            text = f"no {error}" if isinstance(error, KeyError) else said(error)
            raise FileError(f"{self.upstream.where(item.origin)}: {text}") from error
        if found is None:
            return []
        return list(found) if isinstance(found, list) else [found]

    def _check_progress(self) -> None:
        """Raise FileError where a whole epoch gave nothing, and the next ones would not either."""
        if self._barren < 0:
            self._barren = self.upstream.epoch
        if self.upstream.epoch > self._barren + 1:
            raise FileError(
                f"{self.where([self._origin, 0])}: no record of the data can be used: each is "
                "skipped, empty, or cut off before what counts of it"
            )

    def at(self, origin: Origin) -> T:
        inner, index = origin
        return self._values(Item(self.upstream.at(inner), inner))[index]

    def where(self, origin: Origin) -> str:
        return self.upstream.where(origin[0])

    def get_state(self) -> dict[str, Any]:
        left = [self._origin, self._index] if self._left else None
        return {
            "upstream": self.upstream.get_state(),
            "left": copy.deepcopy(left),
            "skipped": self.bad.skipped,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.upstream.set_state(state["upstream"])
        self.bad.skipped, self._barren = state["skipped"], -1
        self._origin, self._index, self._left = None, 0, []
        if state["left"] is not None:
            self._origin, self._index = state["left"]
            assert self._origin is not None
            values = self._values(Item(self.upstream.at(self._origin), self._origin))
            self._left = values[self._index :]
