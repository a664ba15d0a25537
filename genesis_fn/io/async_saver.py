"""Checkpoints saved by a background thread, whose errors always reach the caller or stderr."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Collection
from typing import Any

from genesis_fn.core.types.annotations import PyTree
from genesis_fn.io.checkpoint import Snapshot, snapshot, write


class AsyncSaver:
    """Saves in a thread, one at a time: `save` copies the values to the host and returns.

    An error of a save is raised by the next `save`, `wait` or `close`; `with AsyncSaver(root) as
    saver:` closes it. If none of these follows, it is printed when the program ends, and the exit
    status is 1.

        with io.AsyncSaver("runs/a", keep=2) as saver:
            for step in range(1000):
                state = train_step(state)
                if step % 100 == 0:
                    saver.save(step, state)
    """

    def __init__(self, root: str | os.PathLike[str], keep: int | None = None) -> None:
        self.root, self.keep = os.fspath(root), keep
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.closed = False

    def save(
        self,
        step: int,
        state: PyTree,
        values: dict[str, Any] | None = None,
        spare: Collection[int] = (),
    ) -> None:
        """Start saving, after waiting for the save before; raises what that one raised.

        `spare` are steps that are not removed whatever `keep` says.
        """
        if self.closed:
            raise ValueError(f"the AsyncSaver of {self.root} is closed")
        self.wait()
        held = snapshot(step, state, values, copy=True)
        self.thread = threading.Thread(
            target=self._run, args=(held, tuple(spare)), name="checkpoint"
        )
        self.thread.start()

    def _run(self, held: Snapshot, spare: Collection[int]) -> None:
        try:
            write(self.root, held, self.keep, spare)
        except BaseException as error:
            self.error = error
            _unreported.append(self)

    def wait(self) -> None:
        """Return when nothing is being saved; raise what the last save raised."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            _unreported.remove(self)
            raise error

    def close(self) -> None:
        """`wait`, and refuse further saves."""
        self.closed = True
        self.wait()

    def __enter__(self) -> AsyncSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        try:
            self.close()
        except Exception as lost:
            if error is None:
                raise
            error.add_note(f"and a checkpoint in {self.root} was not written: {lost}")


_unreported: list[AsyncSaver] = []  # whose last save failed, and has not raised yet


def _report() -> None:
    """Print the errors that were never raised, and end the process with status 1."""
    if not _unreported:
        return
    for saver in _unreported:
        print(f"a checkpoint in {saver.root} was not written:", file=sys.stderr)
        traceback.print_exception(saver.error)
    # Exit functions cannot change the exit status: run the remaining ones here and end the process.
    atexit.unregister(_report)
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # there is no public way
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)


atexit.register(_report)
