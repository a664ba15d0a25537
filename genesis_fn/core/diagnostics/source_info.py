"""Where in the user's program something happened: the frame that every equation and error names."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

_PYTHON = os.path.dirname(os.__file__) + os.sep
_PACKAGE = os.path.abspath(sys.modules["genesis_fn"].__path__[0]) + os.sep
# Layers, optimizers and models are written as a user would write them; their lines are worth
# showing.
_SHOWN = tuple(_PACKAGE + part + os.sep for part in ("nn", "optim", "models"))


class SourceLocation(NamedTuple):
    """A line of a program: code object, line number and the `named_scope` it ran under.

    For a line of the library's own layers, optimizers and models, `user` is the line outside the
    library that called them.
    """

    code: CodeType
    line: int
    scope: str = ""
    user: SourceLocation | None = None

    def __str__(self) -> str:
        return f"{os.path.relpath(self.file) if self.near else self.file}:{self.line}"

    @property
    def file(self) -> str:
        """The source file's path."""
        return self.code.co_filename

    @property
    def near(self) -> bool:
        """Whether the file lies below the current folder, so that a relative path reads better."""
        return self.file.startswith(os.getcwd() + os.sep)

    @property
    def function(self) -> str:
        """The qualified name of the function."""
        return self.code.co_qualname

    def text(self) -> str:
        """The source line itself, or "" where the file cannot be read."""
        import linecache

        return linecache.getline(self.file, self.line).strip()

    def describe(self) -> str:
        """`file:line  source text`; the user's line first where this is one of the library's."""
        if self.user is not None:
            return f"{self.user.describe()}  (in {self.file[len(_PACKAGE) :]}:{self.line})"
        text = self.text()
        return f"{self}  {text}" if text else str(self)


class _ShownCode:
    """What is known of a code object whose lines are shown: those that it was seen at, by
    instruction. In the library's own the line depends on the user's too, whose code object and
    instruction follow."""

    __slots__ = ("lines", "of_library")

    def __init__(self, of_library: bool) -> None:
        self.lines: dict[Any, SourceLocation] = {}
        self.of_library = of_library


# By identity, since hashing a code object reads all of it; `_known` keeps the objects alive, so
# that no other gets their address. None: internal. Every allocation asks where it is: lines are
# made once.
_kinds: dict[int, _ShownCode | None] = {}
_UNKNOWN: Any = object()
_known: list[CodeType] = []


def is_internal(code: CodeType) -> bool:
    """Whether `code` belongs to the library's inside rather than to a user, layer or model."""
    return _kind_of(code) is None


def _kind_of(code: CodeType) -> _ShownCode | None:
    found = _kinds.get(id(code), _UNKNOWN)
    if found is _UNKNOWN:
        name = code.co_filename
        internal = name.startswith(_PACKAGE) and not name.startswith(_SHOWN)
        internal = internal or name.startswith("<genesis") or name.endswith(f"{os.sep}functools.py")
        # What `dataclasses` generates: the user's line is the one that makes the object.
        internal = internal or (name == "<string>" and code.co_name == "__init__")
        if len(_known) > 8192:  # generated functions come and go
            _known.clear()
            _kinds.clear()
        _known.append(code)
        found = None if internal else _ShownCode(name.startswith(_PACKAGE))
        _kinds[id(code)] = found
    return found


def user_frame(depth: int = 2) -> FrameType:
    """The nearest frame above the caller that is not the library's own."""
    # Documented, but for its underscore; `inspect.stack` would read source files.
    first = frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    while is_internal(frame.f_code):
        if frame.f_back is None:
            return first
        frame = frame.f_back
    return frame


def where(scope: str = "", depth: int = 3) -> SourceLocation:
    """The user's line that is running now."""
    first = frame = sys._getframe(depth - 1)  # pyright: ignore[reportPrivateUsage]
    known, unknown = _kinds.get, _UNKNOWN
    while True:
        code = frame.f_code
        kind = known(id(code), unknown)
        if kind is unknown:
            kind = _kind_of(code)
        if kind is not None:
            break
        frame = frame.f_back
        if frame is None:
            return at_frame(first, scope)
    if scope:
        return at_frame(frame, scope)
    key = frame.f_lasti
    if kind.of_library:
        outer = _outside(frame, _of_library)
        key = key, id(outer.f_code), outer.f_lasti
    line = kind.lines.get(key)
    if line is None:
        line = kind.lines[key] = at_frame(frame)
    return line


def where_read() -> SourceLocation:
    """The line that asked for a value: the nearest one that is neither the library's own nor
    NumPy's, torch's or Python's, whose functions ask on behalf of it."""
    return at_frame(_outside(user_frame(2), _of_readers))


def _outside(frame: FrameType, hidden: Callable[[CodeType], bool]) -> FrameType:
    """The nearest frame from this one up whose code is not hidden; the outermost if all is."""
    while frame.f_back is not None and hidden(frame.f_code):
        frame = frame.f_back
    return frame


def _of_readers(code: CodeType) -> bool:
    file = code.co_filename
    if is_internal(code):
        return True
    if "site-packages" in file or "dist-packages" in file:
        return f"{os.sep}numpy{os.sep}" in file or f"{os.sep}torch{os.sep}" in file
    return file.startswith(_PYTHON)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """`warnings.warn` at the user's line, however deep in the library."""
    frame = _outside(user_frame(2), _of_library)
    names = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        names.get("__name__"),
        names.setdefault("__warningregistry__", {}),
    )


def at_frame(frame: FrameType, scope: str = "") -> SourceLocation:
    """The line that a frame is at."""
    code = frame.f_code
    if code.co_filename.startswith(_PACKAGE):
        outer = _outside(frame, _of_library)
        if not _of_library(outer.f_code):
            return SourceLocation(
                code, frame.f_lineno, scope, SourceLocation(outer.f_code, outer.f_lineno, scope)
            )
    return SourceLocation(code, frame.f_lineno, scope)


def _of_library(code: CodeType) -> bool:
    kind = _kinds.get(id(code), _UNKNOWN)
    if kind is _UNKNOWN:
        kind = _kind_of(code)
    return kind is None or kind.of_library


# What only passes on a call of the user's line.
_PASSING = tuple(
    os.path.join(_PACKAGE, *file.split("/"))
    for file in (
        "lax/structural.py",
        "numpy/arrays/methods.py",
        "core/diagnostics/torch_habits.py",
        "transforms/staging/one_call.py",
    )
)


def within_library() -> bool:
    """Whether the operation whose helper calls this is a step of another of the library's
    functions, and not what a line of the user's program calls itself.

    Operators, methods of arrays and functions of the operation's own name pass on what the user's
    line calls. Frames are read: only for what is about to fail or to warn.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    helpers = (frame.f_code.co_filename, *_PASSING)
    operation = name = ""
    while frame.f_back is not None:
        code = frame.f_code
        file = code.co_filename
        if not _of_library(code):
            return False
        if file not in helpers and code.co_name[:2] != "__":
            operation = operation or file
            if file != operation and code.co_name != name:
                return True
            name = code.co_name
        frame = frame.f_back
    return False


def equation_of(error: BaseException) -> Any:
    """The equation that raised `error` inside a generated function, if one that has a line did.

    Such functions map their own line numbers to equations in the global EQUATIONS.
    """
    found, step = None, error.__traceback__
    while step is not None:
        equations = step.tb_frame.f_globals.get("EQUATIONS")
        if equations is not None and step.tb_lineno in equations:
            e = equations[step.tb_lineno]
            found = found if e.where is None else e
        step = step.tb_next
    return found


def line_of(error: BaseException) -> SourceLocation | None:
    """The user's line of the equation that raised `error` inside a generated function."""
    found = equation_of(error)
    return None if found is None else found.where
