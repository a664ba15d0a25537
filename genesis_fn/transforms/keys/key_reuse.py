"""Detection of reused random keys.

A key is used when numbers are drawn from it or when it is split. Deriving from it (`fold_in`) and
passing it on are no uses, nor is anything that the library computes again. The line of each key's
first use is in a table by array, not in the array, so that only operations on keys pay for it.

While a program is being recorded, uses are marked on the arrays that it captures, apart from those
outside of it. A finished program (`jit`, a loop, a branch) knows which of its inputs it uses
(`key_uses.py`); a call marks them, at the user's line.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from genesis_fn.core import errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.configuration import config
from genesis_fn.core.diagnostics.source_info import SourceLocation, warn, where
from genesis_fn.core.primitive import Trace, Tracer, ctx
from genesis_fn.core.types.annotations import Key
from genesis_fn.transforms.staging.stage_trace import StageTrace, StageTracer


class KeyReuseWarning(UserWarning):
    """A random key was used twice, so two samples are the same or correlated."""


_MAX_MARKED = 4096  # the keys of a larger array share one mark


class _Use:
    """The line of a key's first use. (NumPy would take a bare SourceLocation, a tuple, for several
    elements.)"""

    __slots__ = ("line",)

    def __init__(self, line: SourceLocation) -> None:
        self.line = line


class _Marks:
    """The first uses of an array's keys, an object array of its shape; for a part of an array, a
    view.

    `own` are the uses where the array was made, `inside` = (program, uses) those in a program that
    is being recorded and captured it. `purpose` says that the array is a copy that was made to draw
    the same numbers again.
    """

    __slots__ = ("array", "own", "inside", "purpose")

    def __init__(self, array: Any, own: np.ndarray | None = None, purpose: bool = False) -> None:
        number = id(array)
        self.array = weakref.ref(array, lambda _: _table.pop(number, None))
        self.own = (
            np.full(array.shape if array.size <= _MAX_MARKED else (), None) if own is None else own
        )
        self.inside: tuple[Trace | None, np.ndarray] | None = None
        self.purpose = purpose

    def seen_from(self, x: Any, program: Trace | None) -> np.ndarray:
        """Return the uses that count in `program`, or outside of any (None)."""
        if isinstance(x, Tracer) and not (type(x) is StageTracer and x.owner is not program):
            return self.own
        if type(x) is not StageTracer and program is None:
            return self.own
        inside = self.inside
        if inside is None or inside[0] is not program:
            inside = self.inside = program, np.full(self.own.shape, None)
        return inside[1]


# By id, as arrays are not hashable; an entry goes when its array does, by the weak reference.
_table: dict[int, _Marks] = {}


def _marks_of(x: Any, make: bool = True) -> Any:
    marks = _table.get(id(x))
    if (marks is None or marks.array() is not x) and make:
        marks = _table[id(x)] = _Marks(x)
    return marks


def _current_program() -> StageTrace | None:
    """The program that is being recorded, if one is."""
    trace = ctx.trace
    while trace is not None and not isinstance(trace, StageTrace):
        trace = getattr(trace, "parent", None)
    return trace


def _wrapped_value(x: Any) -> Any:
    """The value inside a tracer of a derivative or of a batch; None for other values."""
    if type(x) is StageTracer or not isinstance(x, Tracer):
        return None
    inner = getattr(x, "value", None)
    inner = getattr(x, "primal", None) if inner is None else inner
    return inner if hasattr(inner, "aval") else None


def use(x: Key, which: np.ndarray | None = None) -> None:
    """Mark keys as used, or only those of the mask `which`. Warns, or raises KeyReuseError, if one
    of them was used before."""
    now, program, before, purpose = _Use(where()), _current_program(), None, False
    while True:
        inner = _wrapped_value(x)
        if inner is None or id(x) in _table:  # else the marks are on the value inside
            marks = _marks_of(x)
            uses = marks.seen_from(x, program)
            at = ... if which is None or not uses.ndim else which
            before = before or next((u for u in np.ravel(uses[at]) if u is not None), None)
            uses[at] = now
            purpose = purpose or marks.purpose
        if inner is None or purpose:
            break
        dim = getattr(x, "batch_dim", None)
        if which is not None and dim is not None:
            which = np.broadcast_to(np.expand_dims(which, dim), inner.shape)
        x = inner
    if before is not None:
        reused(
            f"a random key was used twice: first at {before.line.describe()}\n"
            f"  and again at {now.line.describe()}\n"
            "  split it, derive from it (key['name'], fold_in), or pass key.copy() on purpose"
        )
    elif not purpose and _same_each_iteration(x, program):
        reused(
            "a random key from outside a loop is used in its body: every turn draws the same\n"
            f"  at {now.line.describe()}\n"
            "  scan over split(key, n), derive from it (key[i]), or pass key.copy() on purpose"
        )


def reused(message: str) -> None:
    """Warn of a key that is used again; raise under the setting `check_keys`."""
    if config.current().check_keys:
        raise errors.KeyReuseError(message)
    warn(message, KeyReuseWarning)


def _same_each_iteration(x: Any, program: StageTrace | None) -> bool:
    """Whether a loop's body is being recorded that captured the key from outside."""
    if program is None or not program.repeated:
        return False
    return not (type(x) is StageTracer and x.owner is program)


def on_purpose(copy: Key) -> Key:
    """Mark `copy`, a copy of keys, as one whose repeated draws are intended, and return it."""
    _table[id(copy)] = _Marks(copy, purpose=True)
    return copy


def drawn_on_purpose(x: Key) -> bool:
    """Whether keys are such a copy."""
    marks = _marks_of(x, make=False)
    return marks is not None and marks.purpose


def unmarked(x: Key) -> Key:
    """The same keys without marks, for a function that draws twice in what is one use to its
    caller."""
    if type(x) is ArrayImpl:
        return on_purpose(ArrayImpl(x.data, x.sig))
    assert isinstance(x, Tracer)
    return on_purpose(x.with_weak_type(x.weak))


def part_of(x: Key, index: object, part: Key) -> Key:
    """Let `part`, which is x[index], share the marks of `x` where `index` is static, and
    return it."""
    entries = index if isinstance(index, tuple) else (index,)
    if any([type(e) not in (int, slice) and e is not None and e is not ... for e in entries]):
        return part
    marks = _marks_of(x)
    inside = type(part) is StageTracer and (type(x) is not StageTracer or x.owner is not part.owner)
    uses = marks.seen_from(x, part.owner) if inside else marks.own  # pyright: ignore[reportAttributeAccessIssue]
    if uses.ndim and part is not x:
        # With an ellipsis a single element is a view too.
        uses = uses[entries if any([e is ... for e in entries]) else (*entries, ...)]
        _table[id(part)] = _Marks(part, uses, marks.purpose)
    return part


def same_keys(given: Key, returned: Key) -> None:
    """Let keys that a program returns unchanged share the marks of those that it was given."""
    if returned is not given and _wrapped_value(given) is None and _wrapped_value(returned) is None:
        marks = _marks_of(given)
        _table[id(returned)] = _Marks(returned, marks.own, marks.purpose)
