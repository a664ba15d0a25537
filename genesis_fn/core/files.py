"""Reading files that are not trusted: only plain files, and only up to a limit.

Whatever such a file holds, reading it ends in a value or in one FileError that names it.
"""

from __future__ import annotations

import io
import json
import os
import reprlib
import stat
from typing import Any

from genesis_fn.core.errors import FileError

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 80
_brief.maxlevel = 3


def brief(value: object) -> str:
    """`repr(value)` cut short, for messages about values of any size and depth."""
    try:
        return _brief.repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return f"<{type(value).__name__} with too many digits>"


def open_plain(path: str | os.PathLike[str]) -> io.BufferedReader:
    """The file at `path`, open for reading bytes.

    Raises FileError for a folder, a pipe, a device or a name that no file can have: reading them
    may block for ever or never end. Raises OSError where there is no such file.
    """
    name = os.fspath(path)
    try:
        # Opening a pipe without O_NONBLOCK waits for a writer.
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a zero byte, or what the file system's encoding lacks
        raise FileError(f"{brief(name)}: {error}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileError(f"{name}: not a plain file")
    return os.fdopen(handle, "rb")


def read_plain(path: str | os.PathLike[str], limit: int) -> bytes:
    """The bytes of a plain file. Raises FileError for one of more than `limit` bytes."""
    with open_plain(path) as f:
        size = os.fstat(f.fileno()).st_size
        found = f.read(limit + 1) if size <= limit else b""
    if size > limit or len(found) > limit:
        raise FileError(
            f"{os.fspath(path)}: {size:,} bytes, more than the {limit:,} that it may have"
        )
    return found


def read_json(path: str | os.PathLike[str], limit: int) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes. Raises FileError for anything else."""
    return parse_json(read_plain(path, limit), os.fspath(path))


class _Repeated(Exception):
    """A JSON object with one name twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _Repeated(next(n for n, _ in pairs if n in seen or seen.add(n)))
    return found


def parse_json(text: bytes, name: str) -> dict[str, Any]:
    """The JSON object that `text` is. Raises FileError for anything else, which it calls `name`."""
    # Nested brackets become objects of fifty times their size.
    if len(text) > 1 << 20 and text.count(b"[") + text.count(b"{") > len(text) // 12:
        raise FileError(f"{name} is not JSON that this library reads: little else than brackets")
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=_object)
    except _Repeated as error:
        raise FileError(f"{name} has {brief(error.args[0])} twice") from None
    except RecursionError:
        raise FileError(f"{name} is not JSON that this library reads: nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, an integer of thousands of digits
        raise FileError(f"{name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise FileError(f"{name} is not a JSON object: {brief(found)}")
    return found
