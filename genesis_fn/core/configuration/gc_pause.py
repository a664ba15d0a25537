"""Suspends Python's cyclic garbage collector while programs are traced and compiled.

Tracing and compiling a program of many thousand equations allocates so many objects that survive
that the collector, which scans all of them whenever their number has grown by a quarter, takes a
fifth of that time.
"""

from __future__ import annotations

import gc
import os
import threading


class no_collection:
    """`with no_collection():` suspends the collector, for all threads, and so the destructors of
    objects in cycles. Blocks nest, and may overlap in several threads: the last to end resumes it,
    if it was enabled when the first began."""

    lock = threading.Lock()
    _inside = 0  # blocks entered and not left, over all threads
    _was_enabled = False

    def __enter__(self) -> None:
        kind = no_collection
        with kind.lock:
            if kind._inside == 0:
                kind._was_enabled = gc.isenabled()
                gc.disable()
            kind._inside += 1

    def __exit__(self, *_: object) -> None:
        kind = no_collection
        with kind.lock:
            kind._inside -= 1
            if kind._inside == 0 and kind._was_enabled:
                gc.enable()


def _after_fork() -> None:
    # The child has one thread: a lock that another thread held in the parent is never released.
    no_collection.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
