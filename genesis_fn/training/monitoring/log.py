"""The log of a training run: a JSON object a line."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from typing import Any, Protocol

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import open_plain, parse_json
from genesis_fn.io.safetensors import atomic_write, name_file

_LONGEST_ROW = 1 << 22  # bytes, of which samples may fill many
_NUMBERS = ("loss", "lr", "grad_norm", "tokens_per_s", "mfu", "memory", "validation_loss")


class LogCopy(Protocol):
    """Another form in which the rows of a log are written."""

    def write(self, row: dict[str, Any]) -> None:
        """Add a row."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Log:
    """One JSON object a line. Opened at a step, it forgets what was logged after it.

    `copies` get each row that is written from then on, and are closed with the log.
    """

    def __init__(self, path: str, start: int = 0) -> None:
        self.path, self.rows = path, []
        self.copies: list[LogCopy] = []
        if start and os.path.exists(path):
            self.rows = [r for r in _rows(path) if r["step"] <= start]
        with atomic_write(path) as f:
            f.write("".join(json.dumps(r) + "\n" for r in self.rows).encode())
        self.file = open(path, "a", encoding="utf-8")

    @staticmethod
    def read(path: str) -> list[dict[str, Any]]:
        """The rows of a log; none where there is no file."""
        return list(_rows(path)) if os.path.lexists(path) else []

    def write(self, **row: Any) -> None:
        """Append a row, at once; numbers that are not finite, which JSON has not, are null.

        Raises OSError naming the file.
        """
        row = {name: as_logged(value) for name, value in row.items()}
        self.rows.append(row)
        try:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
        except OSError as error:
            name_file(error, self.path)
            raise
        for copy in self.copies:
            copy.write(row)

    def close(self) -> None:
        """Close the file, and the copies."""
        for copy in self.copies:
            copy.close()
        with contextlib.suppress(OSError):  # what did not fit was reported when it was written
            self.file.close()


class KeptLog(Log):
    """The rows of a log that another process writes."""

    def __init__(self) -> None:
        self.path, self.rows, self.copies = "", [], []

    def write(self, **row: Any) -> None:
        """Keep a row."""
        self.rows.append({name: as_logged(value) for name, value in row.items()})

    def close(self) -> None:
        """There is no file."""


def as_logged(value: Any) -> Any:
    """The value that a row has: None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rows(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a log; lines that are none, as where a run was killed, are passed over."""
    with open_plain(path) as f:
        while line := f.readline(_LONGEST_ROW):
            try:
                row = parse_json(line, path)
            except FileError:
                continue
            numbers = [row.get("step"), *[row[n] for n in _NUMBERS if n in row]]
            if type(numbers[0]) is int and all(map(_plottable, numbers)):
                yield row


def _plottable(x: Any) -> bool:
    return x is None or type(x) is float or type(x) is int and abs(x) < 2**53
