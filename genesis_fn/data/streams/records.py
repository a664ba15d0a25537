"""Records of text, JSON-lines and Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from genesis_fn.core.errors import ArgumentError, FileError
from genesis_fn.data.streams.drawing import permutation
from genesis_fn.data.streams.files import check_unchanged, data_files, fingerprint, format_of
from genesis_fn.data.streams.readers import Cursor, FileReader, Record, open_reader, where
from genesis_fn.data.streams.stream import BadRecords, Item, Origin, Stream

_OPEN = 8  # files that are read again, for values that a stage made anew


class RecordFiles(Stream[Record]):
    """The records of files, one after another, as dicts.

    A line of a JSON-lines file is a record, and a row of a Parquet file, read by row groups. A text
    file is one record, {text_field: text}; of one of more than 1 MiB, pieces of whole lines are,
    the last of which has "ends" true.

    Args:
        paths: files, folders and patterns, as of `glob`.
        format: "auto" goes by the suffixes: .jsonl, .ndjson and .json, .parquet and .pq, others are
            text; "text", "jsonl" or "parquet" holds for all files.
        text_field: the name of the text of a text file.
        columns: the columns of Parquet files that are read; None: all.
        shard: (index, count): of every `count` records the one with that index, as when `count`
            processes share the data.
        epochs: how many times the files are read; None: for ever.
        seed: shuffles the order of the files, in each epoch anew; None keeps it.
        on_bad_line: "stop" raises what is wrong with a line, "skip" reports it and goes on.
        report: called with the message of each line that is skipped; None: nobody is told.

    Raises:
        ArgumentError: an argument is out of range.
        FileNotFoundError: a path names no file.
        FileError: a line is no JSON object, a text is not UTF-8, a file is no Parquet file: names
            file and line; or an epoch has no record.
        ImportError: Parquet files need pyarrow.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = open(path, "w").write('{"text": "one"}\\n{"text": "two"}\\n')
    >>> records = RecordFiles([path])
    >>> next(records)
    {'text': 'one'}
    >>> state = records.get_state()
    >>> again = RecordFiles([path])
    >>> again.set_state(state)
    >>> list(again)
    [{'text': 'two'}]
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        format: Literal["auto", "text", "jsonl", "parquet"] = "auto",
        text_field: str = "text",
        columns: Sequence[str] | None = None,
        shard: tuple[int, int] = (0, 1),
        epochs: int | None = 1,
        seed: int | None = None,
        on_bad_line: Literal["stop", "skip"] = "stop",
        report: Callable[[str], None] | None = None,
    ) -> None:
        if format not in ("auto", "text", "jsonl", "parquet"):
            raise ArgumentError(
                f'RecordFiles: format is "auto", "text", "jsonl" or "parquet", not {format!r}'
            )
        if not 0 <= shard[0] < shard[1]:
            raise ArgumentError(f"RecordFiles: shard is (index, count), got {shard}")
        if epochs is not None and epochs < 1:
            raise ArgumentError(f"RecordFiles: epochs must be positive or None, got {epochs}")
        self.files = data_files(paths, format)
        self.format, self.text_field = format, text_field
        self.columns = None if columns is None else tuple(columns)
        self.shard, self.epochs, self.seed = shard, epochs, seed
        self.bad = BadRecords(on_bad_line, report)
        self._fingerprints: list[str] | None = None
        self._again: dict[int, FileReader] = {}
        self._order: tuple[int, list[int]] = (-1, [])  # of the files, in an epoch
        self._reader: FileReader | None = None
        self._epoch, self._position = 0, 0
        self._cursor: Cursor | None = None
        self._count = self._given = 0  # records of this epoch: all, and those of the shard

    @property
    def epoch(self) -> int:
        return self._epoch

    # ---- reading ----

    def next_item(self) -> Item[Record]:
        while True:
            if self._position == len(self.files):
                self._end_epoch()
            file = self._file()
            if self._reader is None:
                self._reader = self._open(file)
            cursor = self._reader.first if self._cursor is None else self._cursor
            found = self._reader.read(cursor)
            if found is None:
                self._next_file()
                continue
            self._cursor = found.after
            number, self._count = self._count, self._count + 1
            if number % self.shard[1] != self.shard[0]:
                continue
            if isinstance(found.record, FileError):
                self.bad.handle(found.record)
                continue
            self._given += 1
            return Item(found.record, [file, list(cursor)])

    def _file(self) -> int:
        """The index of the file that is read."""
        if self.epochs is not None and self._epoch == self.epochs:
            raise StopIteration
        if self.seed is None:
            return self._position
        if self._order[0] != self._epoch:
            self._order = self._epoch, permutation(len(self.files), self.seed, self._epoch)
        return self._order[1][self._position]

    def _next_file(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader, self._cursor = None, None
        self._position += 1

    def _end_epoch(self) -> None:
        if not self._given:
            few = self.shard[1] > 1 and self._count > 0
            raise FileError(
                f"{self.files[0]}{' and others' if self.files[1:] else ''}: "
                + (
                    f"{self._count} records are too few for {self.shard[1]} shards"
                    if few
                    else "there is no record that can be used"
                )
            )
        self._epoch, self._position = self._epoch + 1, 0
        self._count = self._given = 0

    def _open(self, file: int) -> FileReader:
        return open_reader(self.files[file], self._format(file), self.text_field, self.columns)

    def _format(self, file: int) -> str:
        return format_of(self.files[file]) if self.format == "auto" else self.format

    # ---- origins ----

    def at(self, origin: Origin) -> Record:
        file, cursor = origin
        if file not in self._again:
            if len(self._again) == _OPEN:
                self._again.pop(next(iter(self._again))).close()
            self._again[file] = self._open(file)
        found = self._again[file].read(cursor)
        if found is None or isinstance(found.record, FileError):
            raise FileError(f"{self.where(origin)}: the record is not there any more")
        return found.record

    def where(self, origin: Origin) -> str:
        file, cursor = origin
        return where(self.files[file], self._format(file), cursor)

    # ---- state ----

    def get_state(self) -> dict[str, Any]:
        if self._fingerprints is None:
            self._fingerprints = [fingerprint(path) for path in self.files]
        return {
            "files": self._fingerprints,
            "epoch": self._epoch,
            "position": self._position,
            "cursor": self._cursor,
            "count": self._count,
            "given": self._given,
            "skipped": self.bad.skipped,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._fingerprints = [fingerprint(path) for path in self.files]
        check_unchanged(self.files, self._fingerprints, state["files"])
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._epoch, self._position = state["epoch"], state["position"]
        self._cursor = state["cursor"]
        self._count, self._given = state["count"], state["given"]
        self.bad.skipped = state["skipped"]
