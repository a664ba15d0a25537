"""The log of each process of a run: its messages, warnings, records of `logging`, and errors."""

from __future__ import annotations

import contextlib
import logging
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
    """`with rank_log(folder):` what this process says, warns of, logs and fails with goes to
    `folder/logs/rank-0003.log`; the first process alone shows it, too. In a world of one nothing
    is written."""
    here = world()
    if here.size == 1:
        yield
        return
    path = os.path.join(folder, "logs", f"rank-{here.rank:04d}.log")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    shown = here.rank == 0
    with (
        open(path, "a", encoding="utf-8", buffering=1) as file,
        progress.noting(file, shown=shown),
        _warnings_noted(shown),
        _records_noted(shown),
    ):
        progress.note(f"rank {here.rank} of {here.size}: {' '.join(sys.argv)}")
        try:
            yield
        except BaseException as error:
            progress.note("".join(traceback.format_exception(error)).rstrip())
            raise


@contextlib.contextmanager
def _warnings_noted(shown: bool) -> Generator[None]:
    before = warnings.showwarning
    if before.__module__ == "logging":  # `captureWarnings`: they are records
        yield
        return

    def show(message: Any, *args: Any, **kwargs: Any) -> None:
        progress.note(f"warning: {message}")
        if shown:
            before(message, *args, **kwargs)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


@contextlib.contextmanager
def _records_noted(shown: bool) -> Generator[None]:
    """Note what any logger hands to its handlers; unless `shown`, those leave the terminal alone.

    A handler of the root would not do: some loggers pass nothing on to it, and it would keep
    `basicConfig` from adding one, and `logging` from showing what has none.
    """
    notes = _Notes()
    call, handle = logging.Logger.callHandlers, logging.Handler.handle

    def call_handlers(self: logging.Logger, record: logging.LogRecord) -> None:
        notes.handle(record)
        call(self, record)

    def handle_elsewhere(self: logging.Handler, record: logging.LogRecord) -> bool:
        return not _on_terminal(self) and handle(self, record)

    logging.Logger.callHandlers = call_handlers
    if not shown:
        logging.Handler.handle = handle_elsewhere
    try:
        yield
    finally:
        logging.Logger.callHandlers, logging.Handler.handle = call, handle


class _Notes(logging.Handler):
    """Writes records to the log of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # of a wrong call, which the handlers that show it report
            text = f"{record.levelname} {record.name}: {record.msg!r} % {record.args!r}"
        progress.note(text)


def _on_terminal(handler: logging.Handler) -> bool:
    stream = getattr(handler, "stream", None)
    try:
        return stream is not None and stream.fileno() in (1, 2)
    except (AttributeError, OSError, ValueError):  # it is of no file, or closed
        return stream in (sys.stdout, sys.stderr)
