"""Where the messages of a chat come from: a terminal, with editing, or a pipe, line by line.

A message is a line. It goes on behind a backslash at the end of a line, and between two lines with
three double quotes.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol, TextIO

_LONGEST_LINE = 1 << 20  # characters
_QUOTES = '"""'


class TakenBack(KeyboardInterrupt):
    """Ctrl-C took back a message of which something was typed."""


class LineSource(Protocol):
    """Where lines come from."""

    interactive: bool

    def read(self, prompt: str) -> str | None:
        """The next line, without its end; None where there is none."""
        ...


def read_message(source: LineSource, prompt: str, more: str) -> str | None:
    """The next message, of one line or several; None at the end of the input.

    Args:
        source: where lines come from.
        prompt: shown for the first line.
        more: shown for the lines after it.

    Raises:
        ValueError: the input ends within a message.
        TakenBack: Ctrl-C, where a part of the message was there already.
    """
    line = source.read(prompt)
    if line is None:
        return None
    try:
        return _whole(source, line, more)
    except KeyboardInterrupt as interrupt:
        raise TakenBack from interrupt


def _whole(source: LineSource, line: str, more: str) -> str:
    """The message that begins with `line`."""
    if line.lstrip().startswith(_QUOTES):
        return _quoted(source, line.lstrip().removeprefix(_QUOTES), more)
    lines: list[str] = []
    while line.endswith("\\"):
        lines.append(line[:-1])
        following = source.read(more)
        if following is None:
            raise ValueError("the input ends behind a backslash, within a message")
        line = following
    return "\n".join([*lines, line])


def _quoted(source: LineSource, line: str, more: str) -> str:
    lines = [line]
    while not lines[-1].rstrip().endswith(_QUOTES):
        following = source.read(more)
        if following is None:
            raise ValueError(f"the input ends within a message that began with {_QUOTES}")
        lines.append(following)
    lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
    # Quotes that stand on lines of their own add no lines.
    text = "\n".join(lines).removeprefix("\n") if len(lines) > 1 else lines[0]
    return text.removesuffix("\n") if len(lines) > 1 else text


class Lines:
    """The lines of a pipe or a file. The prompt is not shown."""

    interactive = False

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.count = stream, 0

    def read(self, prompt: str) -> str | None:
        """The next line. Raises ValueError for one that is too long or not UTF-8."""
        self.count += 1
        try:
            line = self.stream.readline(_LONGEST_LINE + 1)
        except UnicodeDecodeError:
            raise ValueError(
                f"the input is not UTF-8, at line {self.count} or soon after"
            ) from None
        if len(line) > _LONGEST_LINE:
            raise ValueError(
                f"line {self.count} of the input has more than {_LONGEST_LINE:,} characters"
            )
        if self.count == 1:
            line = line.removeprefix("\ufeff")  # a byte order mark: how a file is written, no text
        return line.removesuffix("\n").removesuffix("\r") if line else None


class Keyboard:
    """The lines that are typed at a terminal, edited by readline where Python has it.

    Args:
        words: what the tabulator completes at the beginning of a line.
    """

    interactive = True

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self._readline: Any = None

    def __enter__(self) -> Keyboard:
        with contextlib.suppress(ImportError):
            import readline

            self._readline = readline
            self._before = readline.get_completer(), readline.get_completer_delims()
            readline.set_completer(self._complete)
            readline.set_completer_delims(" \n")
            readline.parse_and_bind("tab: complete")
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._readline is not None:
            self._readline.set_completer(self._before[0])
            self._readline.set_completer_delims(self._before[1])

    def _complete(self, text: str, state: int) -> str | None:
        begins = self._readline.get_begidx() == 0
        found = [w for w in self.words if begins and text and w.startswith(text)]
        return found[state] if state < len(found) else None

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        typed = self._readline is not None and self._readline.get_line_buffer().strip()
        raise TakenBack if typed else KeyboardInterrupt

    def read(self, prompt: str) -> str | None:
        """The next line; Ctrl-C raises TakenBack where something was typed, else
        KeyboardInterrupt."""
        ask: Callable[[], str] = lambda: input(prompt)
        if not sys.stdout.isatty():  # its reader asked for the answers alone
            sys.stderr.write(prompt)
            sys.stderr.flush()
            ask = input
        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:  # and not ignored
            signal.signal(signal.SIGINT, self._interrupted)
        try:
            return ask()
        except EOFError:
            return None
        except UnicodeDecodeError:
            raise ValueError("the line is not UTF-8") from None
        finally:
            if before is signal.default_int_handler:
                signal.signal(signal.SIGINT, before)
