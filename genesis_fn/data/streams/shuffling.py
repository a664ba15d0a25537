"""The order of a stream by chance: a buffer that shuffles, and mixtures of streams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from genesis_fn.core.errors import ArgumentError
from genesis_fn.data.streams.drawing import below, draw
from genesis_fn.data.streams.stream import Item, Origin, Stage, Stream

T = TypeVar("T")
_NOT_MADE: Any = object()


class Shuffled(Stage[T]):
    """A stream in an order that a buffer shuffles: each value is drawn from the next `buffer_size`
    of its epoch.

    A value moves forward by at most `buffer_size` and backward without a bound. Epochs do not mix:
    each has every value once, in an order of its own, however large the buffer is. The state has
    the origins of the buffer's values, not the values.

    Args:
        upstream: stream.
        buffer_size: values in the buffer, positive.
        seed: integer; the same seed, the same order.

    Raises:
        ArgumentError: `buffer_size` is not positive.

    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = open(path, "w").writelines('{"text": "%d"}\\n' % i for i in range(6))
    >>> shuffled = Shuffled(gf.data.RecordFiles([path]), buffer_size=3, seed=0)
    >>> sorted(record["text"] for record in shuffled)
    ['0', '1', '2', '3', '4', '5']
    """

    def __init__(self, upstream: Stream[T], buffer_size: int, seed: int = 0) -> None:
        super().__init__(upstream)
        if buffer_size < 1:
            raise ArgumentError(f"Shuffled: buffer_size must be positive, got {buffer_size}")
        self.buffer_size, self.seed = buffer_size, seed
        self._buffer: list[Item[T]] = []
        self._first: Item[T] | None = None  # of the next epoch, which begins when this one is out
        self._drawn = 0
        self._ended = False

    def next_item(self) -> Item[T]:
        if not self._buffer and self._first is not None:
            self._buffer, self._first = [self._first], None
        while self._first is None and not self._ended and len(self._buffer) < self.buffer_size:
            self._read()
        if not self._buffer:
            raise StopIteration
        chosen = below(len(self._buffer), self.seed, self._drawn)
        self._drawn += 1
        last = self._buffer.pop()
        if chosen == len(self._buffer):
            found = last
        else:
            found, self._buffer[chosen] = self._buffer[chosen], last
        if found.value is _NOT_MADE:
            found = Item(self.upstream.at(found.origin), found.origin)
        return found

    def _read(self) -> None:
        """Take one more value."""
        epoch = self.upstream.epoch
        try:
            item = self.upstream.next_item()
        except StopIteration:
            self._ended = True
            return
        if self._buffer and self.upstream.epoch != epoch:
            self._first = item
        else:
            self._buffer.append(item)

    def at(self, origin: Origin) -> T:
        return self.upstream.at(origin)

    def get_state(self) -> dict[str, Any]:
        return {
            "upstream": self.upstream.get_state(),
            "drawn": self._drawn,
            "ended": self._ended,
            "buffer": [item.origin for item in self._buffer],
            "first": None if self._first is None else self._first.origin,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.upstream.set_state(state["upstream"])
        self._drawn, self._ended = state["drawn"], state["ended"]
        # Made when they are drawn: a buffer of ten thousand is not read again at once.
        self._buffer = [Item(_NOT_MADE, origin) for origin in state["buffer"]]
        first = state["first"]
        self._first = None if first is None else Item(_NOT_MADE, first)


class Mixture(Stream[T]):
    """Several streams as one: each value comes from one that is drawn with its weight.

    Weights count values: records, not tokens.

    Args:
        streams: streams.
        weights: positive number for each, in any unit; None: all alike.
        seed: integer; the same seed, the same draws.
        stopping_strategy: what ends the mixture: "first_exhausted", the end of any of the streams;
            "all_exhausted_without_replacement", the end of all, those that have ended are left out.
            The names are those of Hugging Face's `interleave_datasets`.

    Raises:
        ArgumentError: there is no stream, or the weights do not fit.

    >>> import tempfile, os
    >>> paths = [os.path.join(tempfile.mkdtemp(), name) for name in ("a.jsonl", "b.jsonl")]
    >>> for path in paths:
    ...     _ = open(path, "w").write('{"text": "%s"}\\n' % os.path.basename(path)[0])
    >>> streams = [gf.data.RecordFiles([path], epochs=None) for path in paths]
    >>> mixture = Mixture(streams, weights=[3, 1], seed=0)
    >>> texts = [next(mixture)["text"] for _ in range(1000)]
    >>> 700 < texts.count("a") < 800
    True
    """

    def __init__(
        self,
        streams: Sequence[Stream[T]],
        weights: Sequence[float] | None = None,
        seed: int = 0,
        stopping_strategy: Literal[
            "first_exhausted", "all_exhausted_without_replacement"
        ] = "first_exhausted",
    ) -> None:
        weights = [1.0] * len(streams) if weights is None else [float(w) for w in weights]
        if not streams or len(weights) != len(streams):
            raise ArgumentError(
                f"Mixture: {len(weights)} weights for {len(streams)} streams; give one for each"
            )
        if not all(math.isfinite(w) and w > 0 for w in weights):
            raise ArgumentError(f"Mixture: weights have to be positive, got {weights}")
        if stopping_strategy not in ("first_exhausted", "all_exhausted_without_replacement"):
            raise ArgumentError(
                'Mixture: stopping_strategy is "first_exhausted" or '
                f'"all_exhausted_without_replacement", not {stopping_strategy!r}'
            )
        self.streams, self.weights, self.seed = list(streams), weights, seed
        self.stopping_strategy = stopping_strategy
        self._drawn = 0
        self._going = [True] * len(self.streams)

    def next_item(self) -> Item[T]:
        while any(self._going):
            which = self._choose()
            try:
                value, origin = self.streams[which].next_item()
            except StopIteration:
                self._going[which] = False
                if self.stopping_strategy == "first_exhausted":
                    self._going = [False] * len(self.streams)
                continue
            return Item(value, [which, origin])
        raise StopIteration

    def _choose(self) -> int:
        going = [i for i, on in enumerate(self._going) if on]
        ends = list(itertools.accumulate(self.weights[i] for i in going))
        point = draw(self.seed, self._drawn) / 2.0**64 * ends[-1]
        self._drawn += 1
        return going[next(n for n, end in enumerate(ends) if point < end or n == len(ends) - 1)]

    def at(self, origin: Origin) -> T:
        return self.streams[origin[0]].at(origin[1])

    def where(self, origin: Origin) -> str:
        return self.streams[origin[0]].where(origin[1])

    @property
    def epoch(self) -> int:
        return min(stream.epoch for stream in self.streams)

    def get_state(self) -> dict[str, Any]:
        return {
            "streams": [stream.get_state() for stream in self.streams],
            "drawn": self._drawn,
            "going": list(self._going),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        for stream, inner in zip(self.streams, state["streams"], strict=True):
            stream.set_state(inner)
        self._drawn, self._going = state["drawn"], list(state["going"])
