"""Readers of data files: records behind a cursor, and the record of a cursor again.

A cursor is a list of integers. `first` is that of the first record; `read(cursor)` gives the record
there and the cursor behind it, or None at the end of the file; a record that cannot be read is a
FileError, behind which `skip(cursor)` goes on.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import open_plain, parse_json

if TYPE_CHECKING:
    import pyarrow.parquet

Record = dict[str, Any]
Cursor = list[int]
LONGEST_LINE = 1 << 28  # bytes
_PIECE = 1 << 20  # bytes of a text file that make a record, if it has more
_ROWS = 1024  # of a Parquet file that are converted at once


class Read(NamedTuple):
    """A record, or why there is none, and the cursor behind it."""

    record: Record | FileError
    after: Cursor


class FileReader(Protocol):
    """The records of a file."""

    first: Cursor

    def read(self, cursor: Cursor) -> Read | None:
        """The record at a cursor; None at the end of the file."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def where(path: str, format: str, cursor: Cursor) -> str:
    """A cursor in a file of a format, for people."""
    if format == "jsonl":
        return f"{path}: line {cursor[1]}"
    if format == "parquet":
        return f"{path}: row {cursor[0]}"
    return f"{path}: byte {cursor[0]}" if cursor[0] else path


class JsonLines:
    """A JSON object a line; empty lines are none. A cursor is [byte, line]."""

    first: Cursor = [0, 1]

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = open_plain(path)

    def read(self, cursor: Cursor) -> Read | None:
        """The record at a cursor; None at the end of the file."""
        at, number = cursor
        if self.file.tell() != at:
            self.file.seek(at)
        while True:
            line = self.file.readline(LONGEST_LINE + 1)
            if not line:
                return None
            if len(line) > LONGEST_LINE:
                text = (
                    f"{where(self.path, 'jsonl', [at, number])}: more than {LONGEST_LINE:,} bytes"
                )
                raise FileError(text)
            at += len(line)
            if line.strip():
                break
            number += 1
        after = [at, number + 1]
        try:
            return Read(parse_json(line, where(self.path, "jsonl", [at, number])), after)
        except FileError as error:
            return Read(error, after)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class TextFile:
    """A text file as a document, or as several pieces of one, cut behind lines. A cursor is
    [byte]. The last piece has `ends` true."""

    first: Cursor = [0]

    def __init__(self, path: str, field: str) -> None:
        self.path, self.field = path, field
        self.file = open_plain(path)

    def read(self, cursor: Cursor) -> Read | None:
        """The record at a cursor; None at the end of the file."""
        (at,) = cursor
        self.file.seek(at)
        raw = self.file.read(_PIECE)
        more = self.file.read(1) if len(raw) == _PIECE else b""
        if not raw:
            return None
        if more:
            raw = self._whole_lines(raw)
        after = [at + len(raw)]
        try:
            # A beginning of UTF-8's mark is no text.
            text = raw.decode("utf-8-sig" if at == 0 and raw[:3] == codecs.BOM_UTF8 else "utf-8")
        except UnicodeDecodeError as error:
            text = f"{self.path}: byte {at + error.start}: not UTF-8"
            return Read(FileError(text), after)
        return Read({self.field: text, "ends": not more}, after)

    def _whole_lines(self, raw: bytes) -> bytes:
        """The lines that are whole, or else the characters."""
        end = raw.rfind(b"\n") + 1
        if not end:
            end = len(raw)
            while end > len(raw) - 4 and raw[end - 1] & 0xC0 == 0x80:
                end -= 1
            end = end - 1 if raw[end - 1] >= 0xC0 else len(raw)
        return raw[:end]

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class ParquetFile:
    """The rows of a Parquet file, read by row groups. A cursor is [row]."""

    first: Cursor = [0]

    def __init__(self, path: str, columns: tuple[str, ...] | None) -> None:
        self.path = path
        self.columns = columns
        self.file = _open_parquet(path)
        if columns is not None:
            known = self.file.schema_arrow.names
            missing = [c for c in columns if c not in known]
            if missing:
                raise FileError(
                    f"{path}: there is no column {missing[0]!r}, only {', '.join(known[:10])}"
                )
        groups = range(self.file.metadata.num_row_groups)
        self.sizes = [self.file.metadata.row_group(i).num_rows for i in groups]
        self._group, self._start, self._rows = -1, 0, []

    def read(self, cursor: Cursor) -> Read | None:
        """The record at a cursor; None at the end of the file."""
        (row,) = cursor
        inside, group = row, 0
        while group < len(self.sizes) and inside >= self.sizes[group]:
            inside -= self.sizes[group]
            group += 1
        if group == len(self.sizes):
            return None
        block = inside - inside % _ROWS
        if (group, block) != (self._group, self._start) or not self._rows:
            self._load(group, block)
        return Read(self._rows[inside - block], [row + 1])

    def _load(self, group: int, block: int) -> None:
        import pyarrow

        try:
            if group != self._group:
                columns = None if self.columns is None else list(self.columns)
                self._table = self.file.read_row_group(group, columns=columns)
            self._rows = self._table.slice(block, _ROWS).to_pylist()
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise FileError(f"{self.path}: row group {group} cannot be read: {error}") from None
        self._group, self._start = group, block

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _open_parquet(path: str) -> pyarrow.parquet.ParquetFile:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            f"{path}: Parquet files are read by pyarrow: pip install pyarrow", name="pyarrow"
        ) from None
    with open_plain(path):  # a folder or a pipe is refused as for other files
        pass
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise FileError(f"{path}: no Parquet file: {str(error)[:200]}") from None


def open_reader(path: str, format: str, field: str, columns: tuple[str, ...] | None) -> FileReader:
    """The reader of a file of a format."""
    if format == "jsonl":
        return JsonLines(path)
    return ParquetFile(path, columns) if format == "parquet" else TextFile(path, field)
