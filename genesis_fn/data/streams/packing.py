"""Rows of one length made of examples of any length."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from genesis_fn.core.errors import ArgumentError
from genesis_fn.data.examples.example import Example
from genesis_fn.data.streams.stream import Item, Origin, Stage, Stream

Row = dict[str, np.ndarray]
IGNORED = -100  # the label of a token that the loss does not count
_OPEN_ROWS = 16  # rows that whole examples are fitted into at once


@dataclasses.dataclass
class _Piece:
    """Tokens of an example that go into a row, from `start` on."""

    example: Example
    origin: Origin
    start: int = 0

    @property
    def size(self) -> int:
        return self.example.tokens.size - self.start

    def state(self) -> list[Any]:
        return [self.origin, self.start]


class Packed(Stage[Row]):
    """Rows of `length` tokens, each with the labels that follow.

    A row is a dict of int32 arrays [length]: "tokens"; "labels", the token that follows each, or
    -100 where it is not counted; with `separate` "segment_ids", 1, 2, ... for the examples of a row
    and 0 for padding behind them.

    Args:
        upstream: stream of `Example`s.
        length: tokens of a row, positive.
        packing: "cut" joins examples, and cuts them where a row ends: the rest goes on in the next
            one, as for documents in pretraining. "fit" puts whole examples into rows, each into
            that of the 16 open ones where it leaves the least room, as for chats. "off" gives each
            a row of its own. An example of more than `length` + 1 tokens is cut there by "fit" and
            "off".
        separate: whether rows have "segment_ids", so that the examples of a row do not attend to
            each other; with "cut", without it, the label of an example's last token is the first
            of the next.
        pad: token of padding, which nothing attends to.

    Raises:
        ArgumentError: `length` is not positive, or `packing` another.

    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = open(path, "w").write('{"n": 3}\\n{"n": 2}\\n{"n": 4}\\n')
    >>> example = lambda record: gf.data.Example(np.arange(record["n"]), np.ones(record["n"], bool))
    >>> rows = Packed(gf.data.Mapped(gf.data.RecordFiles([path]), example), 4, packing="fit")
    >>> for name, values in next(rows).items():
    ...     print(name, values.tolist())
    tokens [0, 1, 0, 0]
    labels [1, 2, 1, -100]
    segment_ids [1, 1, 2, 0]
    """

    def __init__(
        self,
        upstream: Stream[Example],
        length: int,
        *,
        packing: Literal["cut", "fit", "off"] = "fit",
        separate: bool = True,
        pad: int = 0,
    ) -> None:
        super().__init__(upstream)
        if length < 1:
            raise ArgumentError(f"Packed: length must be positive, got {length}")
        if packing not in ("cut", "fit", "off"):
            raise ArgumentError(f'Packed: packing is "cut", "fit" or "off", not {packing!r}')
        self.length, self.packing, self.separate, self.pad = length, packing, separate, pad
        self._rows: list[list[_Piece]] = []  # open ones; of "cut" the one that is filled
        self._ended = False

    def next_item(self) -> Item[Row]:
        pieces = self._cut() if self.packing == "cut" else self._whole()
        row = self._row(pieces)
        return Item(row, [piece.state() for piece in pieces])

    def at(self, origin: Origin) -> Row:
        return self._row([self._piece(state) for state in origin])

    def where(self, origin: Origin) -> str:
        return self.upstream.where(origin[0][0])

    # ---- what goes into a row ----

    def _cut(self) -> list[_Piece]:
        """The pieces of the next row and the one whose first token is its last label; what the row
        leaves stays."""
        pieces = self._rows.pop() if self._rows else []
        while not self._ended and self._slots(pieces) < self.length + (not self.separate):
            piece = self._next_piece()
            if piece is not None and piece.size > self.separate:
                pieces.append(piece)
        if not pieces or (not self.separate and self._slots(pieces) < 2):
            raise StopIteration
        left, used = [], 0
        for piece in pieces:
            size = piece.size - self.separate
            rest = used + size - self.length
            if rest > 0:
                start = piece.start + size - min(rest, size)
                left.append(_Piece(piece.example, piece.origin, start))
            used += size
        if left:
            self._rows.append(left)
        return pieces

    def _slots(self, pieces: list[_Piece]) -> int:
        """The tokens of a row that pieces take: a separate one has no label for its last token."""
        return sum(piece.size - self.separate for piece in pieces)

    def _whole(self) -> list[_Piece]:
        """The pieces of the next row that is full, or of the fullest one at the end."""
        limit = 1 if self.packing == "off" else _OPEN_ROWS
        while not self._ended:
            piece = self._next_piece()
            if piece is None or piece.size < 2:
                continue
            slots = min(piece.size - 1, self.length)
            room = [self.length - self._taken(row) - slots for row in self._rows]
            fitting = [i for i, r in enumerate(room) if r >= 0 and self.packing == "fit"]
            if fitting:
                self._rows[min(fitting, key=room.__getitem__)].append(piece)
                continue
            self._rows.append([piece])
            if len(self._rows) > limit or self.packing == "off":
                return self._rows.pop(self._fullest(len(self._rows) - (self.packing == "fit")))
        if not self._rows:
            raise StopIteration
        return self._rows.pop(self._fullest(len(self._rows)))

    def _taken(self, row: list[_Piece]) -> int:
        return sum(min(piece.size - 1, self.length) for piece in row)

    def _fullest(self, count: int) -> int:
        return max(range(count), key=lambda i: self._taken(self._rows[i]))

    def _next_piece(self) -> _Piece | None:
        try:
            item = self.upstream.next_item()
        except StopIteration:
            self._ended = True
            return None
        return _Piece(item.value, item.origin)

    # ---- the row ----

    def _row(self, pieces: list[_Piece]) -> Row:
        tokens = np.full(self.length, self.pad, np.int32)
        labels = np.full(self.length, IGNORED, np.int32)
        segments = np.zeros(self.length, np.int32)
        if not self.separate and self.packing == "cut":
            self._fill(tokens, labels, pieces)
            return {"tokens": tokens, "labels": labels}
        at = 0
        for number, piece in enumerate(pieces, 1):
            size = min(piece.size - 1, self.length - at)
            span = slice(at, at + size)
            found, counted = piece.example.tokens, piece.example.counted
            inside = slice(piece.start, piece.start + size)
            behind = slice(piece.start + 1, piece.start + size + 1)
            tokens[span] = found[inside]
            labels[span] = np.where(counted[behind], found[behind], IGNORED)
            segments[span] = number
            at += size
        row = {"tokens": tokens, "labels": labels}
        alone = self.packing == "off"  # padding behind one example is seen by nothing
        return row if alone or not self.separate else {**row, "segment_ids": segments}

    def _fill(self, tokens: np.ndarray, labels: np.ndarray, pieces: list[_Piece]) -> None:
        """Joined documents, whose labels go on across their ends."""
        limit = self.length + 1
        joined = np.concatenate([p.example.tokens[p.start :][:limit] for p in pieces])[:limit]
        counted = np.concatenate([p.example.counted[p.start :][:limit] for p in pieces])[:limit]
        tokens[: min(joined.size, self.length)] = joined[: self.length]
        labels[: joined.size - 1] = np.where(counted[1:], joined[1:], IGNORED)

    # ---- state ----

    def get_state(self) -> dict[str, Any]:
        return {
            "upstream": self.upstream.get_state(),
            "rows": [[piece.state() for piece in row] for row in self._rows],
            "ended": self._ended,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.upstream.set_state(state["upstream"])
        self._rows = [[self._piece(inner) for inner in row] for row in state["rows"]]
        self._ended = state["ended"]

    def _piece(self, state: list[Any]) -> _Piece:
        origin, start = state
        return _Piece(self.upstream.at(origin), origin, start)
