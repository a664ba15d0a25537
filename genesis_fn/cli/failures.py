"""What a command may fail with, and how that is said."""

from __future__ import annotations

from genesis_fn.core.configuration import environment
from genesis_fn.core.errors import GenesisError, said

# Files, settings, memory and the machine. Anything else is a defect.
EXPECTED = (OSError, ValueError, MemoryError, GenesisError)
_SHOWN = environment.text("GENESIS_TRACEBACK").lower() == "full"


def line_of(error: BaseException) -> str:
    """The message of an error, as one line; that of a defect says how to see its traceback."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    lines = [line.strip() for line in said(error).splitlines()]
    text = "; ".join(filter(None, lines))
    if isinstance(error, (*EXPECTED, ImportError)):
        return text or type(error).__name__
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"a defect of this program, {named} (GENESIS_TRACEBACK=full shows where)"


def wants_traceback(error: BaseException) -> bool:
    """Whether an error is a defect, and the environment asks to see where."""
    return _SHOWN and not isinstance(error, EXPECTED)
