"""Warns before a fork that may leave the child hanging.

A forked child inherits the state of torch's thread pool but not its threads: its first large
operation would wait for them forever.
"""

from __future__ import annotations

import os
import threading
import warnings

import torch

from genesis_fn.core.primitive import PRIMITIVES

_TASKS = "/proc/self/task"  # where Linux lists the threads of a process
_warned = False


def _before_fork() -> None:
    global _warned
    if _warned or torch.get_num_threads() == 1 or not _computed() or not _has_pool():
        return
    _warned = True
    warnings.warn(
        "os.fork() after genesis_fn computed with several threads: the child process would hang at "
        "its first large operation\n  start processes by "
        'multiprocessing.get_context("spawn"), or set OMP_NUM_THREADS=1',
        RuntimeWarning,
        stacklevel=2,
    )


def _computed() -> bool:
    return any(p.eager_cache for p in PRIMITIVES.values()) or compiled


def _has_pool() -> bool:
    """Whether there are threads that Python did not start (a pool's); yes if that is unknown."""
    try:
        return len(os.listdir(_TASKS)) > threading.active_count()
    except OSError:
        return True


compiled = False  # whether a program was ever compiled


def note_compiled() -> None:
    """Note that a program was compiled: from now on threads may have been started."""
    global compiled
    compiled = True


os.register_at_fork(before=_before_fork)
