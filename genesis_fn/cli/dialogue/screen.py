"""Where a chat writes: answers and what was asked for to stdout, notices to stderr."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _BOLD, _RED, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[0m"


def visible(text: str) -> str:
    """`text` with its control characters written out: to a terminal they are orders."""
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


def coloured(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours, and nobody set NO_COLOR."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return wanted and stream.isatty()


class Screen:
    """stdout and stderr. What does not go to a terminal is written as it is, without colours."""

    def __init__(self) -> None:
        self.at_line_start = True

    def prompt(self, text: str) -> str:
        """A prompt for readline, which must know what of it takes no room."""
        if not coloured(sys.stdout):
            return text
        return f"\001{_BOLD}\002{text}\001{_PLAIN}\002"

    def piece(self, text: str) -> None:
        """The next piece of an answer, at once."""
        if not text:
            return
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
        self.at_line_start = text.endswith("\n")

    def end(self) -> None:
        """End the line of an answer."""
        if not self.at_line_start:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self.at_line_start = True

    def show(self, text: str) -> None:
        """Something that was asked for."""
        self.piece(text + "\n")

    def notice(self, text: str) -> None:
        """A line about the chat itself."""
        self._say(text, _DIM)

    def error(self, text: str) -> None:
        """A line about what went wrong."""
        self._say(text, _RED)

    def _say(self, text: str, style: str) -> None:
        self.end()
        line = visible(" ".join(text.split("\n")))
        sys.stderr.write(f"{style}{line}{_PLAIN}\n" if coloured(sys.stderr) else f"{line}\n")
        sys.stderr.flush()
