"""The transcript of a chat: a file of JSON lines that grows turn by turn."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from genesis_fn.core.errors import FileError
from genesis_fn.io.safetensors import name_file


class Transcript:
    """Appends JSON objects to a file, one a line; what it has returned from is in the file.

    A file that is there is continued, behind a line that a killed process left half written.

    Raises:
        FileError: the path is that of a folder, a pipe or a device.
        OSError: the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # Opening a pipe without O_NONBLOCK waits for a reader.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        self.handle = os.open(path, flags, 0o644)
        found = os.fstat(self.handle)
        if not stat.S_ISREG(found.st_mode):
            os.close(self.handle)
            raise FileError(f"{path}: not a plain file")
        if found.st_size and os.pread(self.handle, 1, found.st_size - 1) != b"\n":
            self._append(b"\n")

    def write(self, *rows: dict[str, Any]) -> None:
        """Append rows, at once. Raises OSError naming the file."""
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        # A name of a file that is no text has halves of characters, which JSON writes in this way.
        self._append("".join(lines).encode(errors="backslashreplace"))

    def _append(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self.handle, data) :]
        except OSError as error:
            name_file(error, self.path)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self.handle)
