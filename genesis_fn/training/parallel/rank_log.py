"""The log of each process of a run: its messages, warnings and errors."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Generator
from typing import Any

from genesis_fn.core.sharding.world import world
from genesis_fn.training.monitoring import progress


@contextlib.contextmanager
def rank_log(folder: str) -> Generator[None]:
    """`with rank_log(folder):` what this process says, warns of and fails with goes to
    `folder/logs/rank-0003.log`; the first process alone shows it, too. In a world of one nothing
    is written."""
    here = world()
    if here.size == 1:
        yield
        return
    path = os.path.join(folder, "logs", f"rank-{here.rank:04d}.log")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    before = warnings.showwarning
    with open(path, "a", encoding="utf-8", buffering=1) as file:

        def show(message: Any, *args: Any, **kwargs: Any) -> None:
            progress.note(f"warning: {message}")
            if here.rank == 0:
                before(message, *args, **kwargs)

        warnings.showwarning = show
        try:
            with progress.noting(file, shown=here.rank == 0):
                progress.note(f"rank {here.rank} of {here.size}: {' '.join(sys.argv)}")
                try:
                    yield
                except BaseException as error:
                    progress.note("".join(traceback.format_exception(error)).rstrip())
                    raise
        finally:
            warnings.showwarning = before
