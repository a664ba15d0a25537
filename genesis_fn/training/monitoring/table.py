"""The numbers of a training run as CSV: a row for each step that is logged."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable
from typing import Any

from genesis_fn.io.safetensors import atomic_write, name_file


class MetricsTable:
    """A CSV file with the numbers of a log. A step's evaluation stands in the row of the step.

    It is opened with the rows that the log has kept, and made anew of them: what was written about
    later steps is forgotten. Events are left out, numbers that are not finite are empty cells.
    """

    def __init__(self, path: str, rows: Iterable[dict[str, Any]] = ()) -> None:
        self.path = path
        self._columns = ["step"]
        self._rows: list[dict[str, Any]] = []  # of the steps, for when a column is added
        self._last = 0  # where the last row begins
        for row in rows:
            self._take(row)
        self._rewrite()

    def write(self, row: dict[str, Any]) -> None:
        """Add a row of the log, at once. Raises OSError naming the file."""
        columns, steps = len(self._columns), len(self._rows)
        if not self._take(row):
            return
        if len(self._columns) > columns:
            self.close()
            self._rewrite()
            return
        try:
            if len(self._rows) > steps:
                self._last = self._file.seek(0, io.SEEK_END)
            self._file.seek(self._last)
            self._file.truncate()
            self._file.write(self._line(self._rows[-1]))
        except OSError as error:
            name_file(error, self.path)
            raise

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what did not fit was reported when it was written
            self._file.close()

    def _take(self, row: dict[str, Any]) -> bool:
        """Keep a row, unless it is an event's. Returns whether it is kept."""
        if "event" in row:
            return False
        self._columns += [name for name in row if name not in self._columns]
        if self._rows and self._rows[-1]["step"] == row["step"]:
            self._rows[-1] = {**self._rows[-1], **row}
        else:
            self._rows.append(dict(row))
        return True

    def _rewrite(self) -> None:
        lines = [_csv_line(self._columns), *map(self._line, self._rows)]
        with atomic_write(self.path) as f:
            f.write(b"".join(lines))
        self._last = sum(map(len, lines[:-1]))
        # Not buffered: a row can be read as soon as it is written.
        self._file = open(self.path, "r+b", buffering=0)

    def _line(self, row: dict[str, Any]) -> bytes:
        return _csv_line([row.get(name) for name in self._columns])


def _csv_line(cells: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)  # floats in full, None as nothing
    return text.getvalue().encode()
