"""Programs of a cooperative launch in Triton's interpreter, which wait for each other.

The interpreter runs the programs of a grid one after the other. Here each has a thread of its own,
of which one runs at a time: at a barrier of its threads (`tl.debug_barrier`) a program lets the
others go on, in turn.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any


def run_together(function: Any, grid: tuple[int, int, int], arguments: Mapping[str, Any]) -> None:
    """Run the programs of an interpreted kernel, which may wait for what others do."""
    from triton.runtime.interpreter import GridExecutor

    _watch()
    programs = _Programs(function.rewrite(), grid)
    GridExecutor(programs, function.arg_names, (1, 1, 1), [])(**arguments)


class _Abandoned(BaseException):
    """Ends a program's thread when another one has failed."""


class _Programs:
    """The programs of one launch, as a function that runs them all."""

    def __init__(self, function: Callable[..., None], grid: tuple[int, int, int]) -> None:
        self.function, self.grid = function, grid
        # What the interpreter asks of a kernel.
        self.__name__ = function.__name__
        self.__signature__ = inspect.signature(function)
        self.__annotations__ = function.__annotations__
        self.__globals__ = function.__globals__

    def __call__(self, **arguments: Any) -> None:
        global _running
        from triton.runtime.interpreter import interpreter_builder

        interpreter_builder.set_grid_dim(*self.grid)
        numbers = itertools.product(*map(range, self.grid))
        waiting = [(number, _Program(self.function, arguments)) for number in numbers]
        try:
            while waiting:
                for number, program in waiting:
                    interpreter_builder.set_grid_idx(*number)
                    _running = program
                    program.go_on()
                    if program.error is not None:
                        raise program.error
                waiting = [(number, program) for number, program in waiting if not program.done]
        finally:
            _running = None
            for _, program in waiting:
                program.abandon()


class _Program:
    """A program in a thread, which runs from `go_on` to its next barrier."""

    def __init__(self, function: Callable[..., None], arguments: Mapping[str, Any]) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._abandoned = False
        self._turn, self._over = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        work = functools.partial(context.run, self._run, function, arguments)
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., None], arguments: Mapping[str, Any]) -> None:
        self._turn.acquire()
        try:
            if not self._abandoned:
                function(**arguments)
        except _Abandoned:
            pass
        except BaseException as error:  # for the thread that launched it
            self.error = error
        self.done = True
        self._over.release()

    def go_on(self) -> None:
        """Let it run to its next barrier, or its end."""
        self._turn.release()
        self._over.acquire()

    def pause(self) -> None:
        """Called in its thread: wait for the next turn."""
        self._over.release()
        self._turn.acquire()
        if self._abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """End its thread."""
        self._abandoned = True
        if not self.done:
            self.go_on()
        self._thread.join()


_running: _Program | None = None


@functools.cache
def _watch() -> None:
    """Let a barrier of the interpreter, which does nothing by itself, end a program's turn."""
    from triton.runtime.interpreter import InterpreterBuilder

    def barrier(self: Any) -> None:
        if _running is not None:
            _running.pause()

    InterpreterBuilder.create_barrier = barrier
