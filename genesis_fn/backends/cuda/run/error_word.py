"""Error words: a 64-bit word of pinned memory in which kernels report a failed check.

A kernel that meets an index out of range does an atomic maximum of its program's word with
`site << 40 | index` (`kernels/language/error_word.py` is the device side). The host reads the words
where it waits for the device anyway, so a program without failures costs nothing more.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from genesis_fn.backends.cuda.driver.driver import Driver

_INDEX_BITS = 40
_WORDS = 1 << 16
# Words of dead programs are reused only after so many others: queued work of theirs may still
# report a failure, which belongs to the old program.
_KEPT = 64

Describe = Callable[[int, int], BaseException]


class ErrorWords:
    """The error words of a device."""

    def __init__(self, driver: Driver) -> None:
        self._start = driver.pin(8 * _WORDS)
        memory = (ctypes.c_int64 * _WORDS).from_address(self._start)
        self._words = np.ctypeslib.as_array(memory)
        self._words[:] = 0
        self._describe: list[Describe] = []
        self._retired: deque[int] = deque()
        self._lock = threading.Lock()

    def register(self, program: object, describe: Describe) -> int:
        """The address of a word that is `program`'s while that is alive.

        `describe(site, index)` makes the exception to raise. It must not refer to the program,
        since a failure may be seen after the program is gone.
        """
        with self._lock:
            used = len(self._describe)
            if len(self._retired) > (_KEPT if used < _WORDS else 0):
                number = self._retired.popleft()
                self._describe[number] = describe
            elif used < _WORDS:
                number = used
                self._describe.append(describe)
            else:
                raise RuntimeError(f"more than {_WORDS} programs with checks are alive")
            self._words[number] = 0
        weakref.finalize(program, self._retired.append, number).atexit = False
        return self._start + 8 * number

    def raise_if_set(self) -> None:
        """Raises the exception of a failed check, once, and clears the words.

        Only failures of work that the host has waited for are certain to be seen. If several
        programs failed, the first one's exception has the others' as notes.
        """
        words = self._words[: len(self._describe)]
        if not words.any():
            return
        with self._lock:
            numbers = np.flatnonzero(words)
            failed = [(self._describe[n], decode(int(words[n]))) for n in numbers]
            words[numbers] = 0
        if not failed:
            return
        first, *others = [describe(site, index) for describe, (site, index) in failed]
        for other in others:
            first.add_note(f"and {type(other).__name__}: {other}")
        raise first


def decode(word: int) -> tuple[int, int]:
    """(site, index) of a word that is not zero."""
    index = word & (1 << _INDEX_BITS) - 1
    return word >> _INDEX_BITS, index - (index >> _INDEX_BITS - 1 << _INDEX_BITS)
