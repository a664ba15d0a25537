"""What a command may fail with, and how that is said."""

from __future__ import annotations

from genesis_fn.core.errors import GenesisError

# Files, settings, memory and the machine. Anything else is a defect, and shows its traceback.
EXPECTED = (OSError, ValueError, MemoryError, GenesisError)


def line_of(error: BaseException) -> str:
    """The message of an error, as one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    lines = [line.strip() for line in str(error).splitlines()]
    return "; ".join(filter(None, lines)) or type(error).__name__
