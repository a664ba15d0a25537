"""How kernels say that something was wrong: a 64-bit word of pinned memory for each program.

A kernel that meets an index it cannot use raises its program's word to `site << 40 | index` (an
integer maximum; `kernels.error_word` is the device side). The host looks at the words where it
waits for the device anyway, so a word that stays zero costs nothing.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable

import numpy as np

from genesis_fn.backends.cuda.driver import Driver

_INDEX_BITS = 40
_WORDS = 1 << 16


class Checks:
    """The checks of one program; `describe(site, index)` makes the exception to raise.

    `address` is the word that its kernels get, once registered.
    """

    def __init__(self, describe: Callable[[int, int], BaseException]) -> None:
        self.describe = describe
        self.address = 0


class ErrorWords:
    """The error words of a device."""

    def __init__(self, driver: Driver) -> None:
        self._start = driver.pin(8 * _WORDS)
        memory = (ctypes.c_int64 * _WORDS).from_address(self._start)
        self._words = np.ctypeslib.as_array(memory)
        self._words[:] = 0
        self._known: dict[int, weakref.ref[Checks]] = {}
        self._free: list[int] = []
        self._used = 0
        self._lock = threading.Lock()

    def register(self, checks: Checks) -> None:
        """Gives a program its word, for as long as `checks` is alive."""
        with self._lock:
            number = self._free.pop() if self._free else self._used
            if number == _WORDS:
                raise RuntimeError(f"more than {_WORDS} programs with checks are alive")
            self._used = max(self._used, number + 1)
            self._known[number] = weakref.ref(checks)
            self._words[number] = 0
            checks.address = self._start + 8 * number
        weakref.finalize(checks, self._free.append, number).atexit = False

    def raise_if_set(self) -> None:
        """Raises, once, what a program says of a failed check, and clears its word.

        Sees the failures of work that the host has waited for.
        """
        words = self._words[: self._used]
        if not words.any():
            return
        with self._lock:
            numbers = np.flatnonzero(words)
            if not len(numbers):
                return
            number = int(numbers[0])
            word = int(words[number])
            words[number] = 0
            checks = self._known[number]()
        site, index = decode(word)
        if checks is None:
            raise RuntimeError(
                f"check {site} of a program that no longer exists failed with index {index}"
            )
        raise checks.describe(site, index)


def decode(word: int) -> tuple[int, int]:
    """(site, index) of a word that is not zero."""
    index = word & (1 << _INDEX_BITS) - 1
    return word >> _INDEX_BITS, index - (index >> _INDEX_BITS - 1 << _INDEX_BITS)
