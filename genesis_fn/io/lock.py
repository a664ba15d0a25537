"""Locks on folders, for one process at a time.

A lock is an flock of the open file `.lock`: the system releases it when its process ends, in
whatever way, so that none outlives a crash and no stored process id has to be trusted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Generator

_NAME = ".lock"
# EBADF: NFS locks no folder, since it cannot be opened for writing.
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
_held: set[int] = set()


def _close_in_child() -> None:
    """Close the lock files in the child of a fork, whose copies would keep the locks held."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def locked(folder: str, wait: bool = True) -> Generator[bool | None]:
    """`with locked(folder) as held:` this thread holds the folder's lock to the end of the block.

    `held` is False where another holds it and `wait` is false, None where the folder cannot be
    written or its file system has no locks.
    """
    try:
        path = os.path.join(folder, _NAME)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError:
        yield None
        return
    with _holding(handle, wait) as held:
        yield held


@contextlib.contextmanager
def folder_locked(folder: str) -> Generator[bool | None]:
    """`with folder_locked(folder):` this thread holds the lock of the folder itself to the end of
    the block: no file is left in it. Where the file system has no locks, everyone is let in."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with _holding(handle, wait=True) as held:
        yield held


@contextlib.contextmanager
def _holding(handle: int, wait: bool) -> Generator[bool | None]:
    """Hold the lock of an open file, which is closed at the end."""
    _held.add(handle)
    try:
        yield _acquired(handle, wait)
    finally:
        if handle in _held:  # not in the child of a fork
            _held.remove(handle)
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # also of a child's copies
            os.close(handle)


def _acquired(handle: int, wait: bool) -> bool | None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return None
    return True


@contextlib.contextmanager
def exclusive(folder: str) -> Generator[None]:
    """`with exclusive(folder):` no other process may enter the same block for the folder.

    Raises BlockingIOError, which says who is inside, where one is. A file system without locks lets
    everyone in.
    """
    path = os.path.join(folder, _NAME)
    with locked(folder, wait=False) as held:
        if held is False:
            raise BlockingIOError(
                f"{folder} is in use by another run ({_holder(path)}): wait for its end, or choose "
                "another folder"
            )
        if held:
            with open(path, "w", encoding="utf-8") as f:
                f.write(f"process {os.getpid()} on {socket.gethostname()}")
        yield


def _holder(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(200).replace("\n", " ") or "its process is starting"
    except OSError:
        return "its process is not known"
