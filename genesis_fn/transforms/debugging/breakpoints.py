"""debug.breakpoint: stop a running program at a line and look at the values that are in scope."""

from __future__ import annotations

import cmd
import sys
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from genesis_fn.core import tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.diagnostics.source_info import SourceLocation, user_frame
from genesis_fn.core.primitive import SCALARS, Tracer
from genesis_fn.transforms.custom.callback import debug_callback


class Prompt(cmd.Cmd):
    """The command line of the debugger: Python expressions of the local values, and a few
    commands."""

    intro = "stopped at a breakpoint; type help for the commands, c to continue"
    prompt = "(genesis) "

    def __init__(
        self,
        line: SourceLocation,
        arrays: dict[str, Any],
        others: dict[str, Any],
        stdin: IO[str] | None,
        stdout: IO[str] | None,
    ) -> None:
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self.line, self.names = line, {"np": np, **others, **arrays}
        self.shown = arrays

    def say(self, text: object) -> None:
        """Write one line of output."""
        print(text, file=self.stdout)

    def default(self, line: str) -> bool | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Evaluate a Python expression."""
        if line == "EOF":
            return True
        try:
            self.say(repr(eval(line, {}, self.names)))
        except Exception as error:
            self.say(f"{type(error).__name__}: {error}")
        return None

    def emptyline(self) -> bool:
        """Do nothing on an empty line; `cmd.Cmd` would repeat the last command."""
        return False

    def do_p(self, text: str) -> None:
        """p EXPRESSION: print its value."""
        self.default(text)

    def do_locals(self, _: str) -> None:
        """locals: print the arrays in scope."""
        for name, value in self.shown.items():
            self.say(f"{name} = {value!r}")

    def do_l(self, _: str) -> None:
        """l: print the source around the breakpoint."""
        import linecache

        for n in range(max(self.line.line - 5, 1), self.line.line + 6):
            text = linecache.getline(self.line.file, n).rstrip()
            self.say(f"{'->' if n == self.line.line else '  '} {n:5d}  {text}")

    def do_c(self, _: str) -> bool:
        """c: continue."""
        return True

    def do_q(self, _: str) -> None:
        """q: end the program (raises SystemExit)."""
        raise SystemExit("stopped at a breakpoint")

    do_continue, do_quit = do_c, do_q


def breakpoint(
    *,
    stdin: IO[str] | None = None,
    stdout: IO[str] | None = None,
    prompt: Callable[..., Any] = Prompt,
    **_: object,
) -> None:
    """Stop here when the program runs, with the values of the local arrays at a prompt.

    Works in traced code: the values of arrays are those of the run, other local names are as they
    were while tracing. At the prompt, `help` lists the commands and `c` goes on.

    Args:
        stdin, stdout: text files to talk through instead of the terminal.
        prompt: class of the prompt, called as `Prompt` is.
        **_: ignored, as JAX's arguments.

    >>> import io
    >>> def f(x):
    ...     y = x + 1
    ...     gf.debug.breakpoint(stdin=io.StringIO("y * 2"), stdout=(out := io.StringIO()))
    ...     return y, out.getvalue()
    >>> "6.0" in f(jnp.array(2.0))[1]
    True
    """
    frame = user_frame(2)
    line = SourceLocation(frame.f_code, frame.f_lineno)
    arrays, others = {}, {}
    for name, value in frame.f_locals.items():
        leaves = tree.leaves(value)
        traced = any(type(x) is ArrayImpl or isinstance(x, Tracer) for x in leaves)
        plain = all(
            type(x) is ArrayImpl or type(x) in SCALARS or (isinstance(x, Tracer) and x.owner.alive)
            for x in leaves
        )
        (arrays if traced and plain else others)[name] = value

    def stop(**values: Any) -> None:
        if stdout is None:
            print(f"at {line.describe()}", file=sys.stdout)
        prompt(line, values, others, stdin, stdout).cmdloop()

    debug_callback(stop, **arrays)
