"""Where Python's garbage collector waits.

A program of many thousand equations makes so many objects that stay that the collector, which
looks at all of them whenever their number has grown by a quarter, takes a fifth of the time of
tracing and compiling it.
"""

from __future__ import annotations

import gc
import os
import threading


class no_collection:
    """Inside, in any thread, the collector does not run, and so no destructors of cycles do."""

    _lock = threading.Lock()
    _inside = 0
    _was_enabled = False

    def __enter__(self) -> None:
        kind = no_collection
        with kind._lock:
            if kind._inside == 0:
                kind._was_enabled = gc.isenabled()
                gc.disable()
            kind._inside += 1

    def __exit__(self, *_: object) -> None:
        kind = no_collection
        with kind._lock:
            kind._inside -= 1
            if kind._inside == 0 and kind._was_enabled:
                gc.enable()


def _after_fork() -> None:
    no_collection._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
