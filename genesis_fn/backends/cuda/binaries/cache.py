"""The cache on disk: compiled kernels and tuning results.

Every entry is one file, written under a temporary name and renamed, so that concurrent processes
see whole entries or none. An entry whose checksum does not match is removed and counts as absent.
Entries are code that runs on the GPU, so folders and files are accessible to their owner only, and
an entry that another user wrote, or could write to, counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from genesis_fn.core.configuration import environment

_MAGIC = b"genesis-kernel-1\n"
_FOLDERS = ("kernels", "tuned")
_LIMIT = 4 << 30  # bytes of binaries on disk
_LOOKED_AT = 64  # entries stored between two looks at the sizes
_USED_AGAIN = 3600.0  # seconds after which a use is written down
_stored = 0


def cache_folder() -> Path:
    """`GENESIS_CACHE_DIR`, else `genesis_fn` in the user's cache folder."""
    named = environment.text("GENESIS_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "genesis_fn"


class BinaryCache:
    """Binaries with metadata, by key (a hexadecimal digest).

    Of more than `limit` bytes (`GENESIS_CACHE_BYTES`, else 4 GiB) those not used for longest are
    removed, a fifth more than must be. Sizes are looked at once for every few entries stored.
    """

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self._folder = (folder or cache_folder()) / "kernels"
        named = environment.text("GENESIS_CACHE_BYTES")
        self._limit = limit if limit is not None else int(named) if named else _LIMIT

    def get(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """(metadata, binary) of an entry, or None if it is absent or damaged."""
        path = self._path(key)
        content = _own(path)
        if content is None:
            return None
        entry = _decode(content, key)
        if entry is None:
            with suppress(OSError):
                path.unlink()
            return None
        # `trim` takes the modification time for that of the last use; written at most once an hour.
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _USED_AGAIN:
                os.utime(path)
        return entry

    def put(self, key: str, metadata: Mapping[str, Any], binary: bytes) -> None:
        """Stores an entry; where the folder cannot be written, nothing is stored."""
        header = {
            "key": key,
            "metadata": dict(metadata),
            "size": len(binary),
            "sha256": hashlib.sha256(binary).hexdigest(),
        }
        text = json.dumps(header, sort_keys=True).encode()
        digest = hashlib.sha256(text).hexdigest().encode()
        _write(self._path(key), _MAGIC + digest + b"\n" + text + b"\n" + binary)
        global _stored
        _stored += 1
        if _stored % _LOOKED_AT == 0:
            self.trim()

    def trim(self) -> None:
        """Removes what was not used for longest, if the entries are larger than the limit."""
        entries: list[tuple[float, int, Path]] = []
        for path in self._folder.glob("*/*"):
            with suppress(OSError):  # another process may remove it first
                found = path.stat()
                entries.append((found.st_mtime, found.st_size, path))
        total = sum([size for _, size, _ in entries])
        if total <= self._limit:
            return
        for _, size, path in sorted(entries, key=lambda e: e[0]):
            # A fifth more than needed, so that the next entries do not trim again.
            if total <= 0.8 * self._limit:
                return
            with suppress(OSError):
                path.unlink()
            total -= size

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key[2:]


def _decode(content: bytes, key: str) -> tuple[dict[str, Any], bytes] | None:
    if not content.startswith(_MAGIC):
        return None
    digest, _, rest = content[len(_MAGIC) :].partition(b"\n")
    text, _, binary = rest.partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    try:
        header = json.loads(text)
        metadata = header["metadata"]
        whole = header["key"] == key and header["size"] == len(binary)
        if not whole or header["sha256"] != hashlib.sha256(binary).hexdigest():
            return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (metadata, binary) if isinstance(metadata, dict) else None


def _own(path: Path) -> bytes | None:
    """The bytes of a file that this user, and nobody else, can write; None where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            others = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or others:
                return None
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)
    except OSError:
        return None


def _make_private(folder: Path) -> None:
    """Make a folder, and those above it that are not there, for their owner only."""
    if folder.is_dir():
        if folder.name in _FOLDERS:  # made when it was open to others
            with suppress(OSError):  # another user's
                folder.chmod(0o700)
        return
    _make_private(folder.parent)
    with suppress(FileExistsError):  # another process was faster
        folder.mkdir(mode=0o700)


def _write(path: Path, content: bytes) -> None:
    # A cache that cannot be written (read-only home, full disk) costs time, never correctness.
    try:
        _make_private(path.parent)
        _make_private(path.parent.parent)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except OSError:
        with suppress(OSError):
            os.unlink(name)
