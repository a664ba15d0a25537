"""The arrays that a traced function captured from outside: names, sizes, the lines that read them.

Tracing records none of this. Lines are taken from the equations of the program, and names from the
closure, defaults and globals of the function, where it could have found the arrays.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from genesis_fn.core import tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.diagnostics.source_info import is_internal
from genesis_fn.core.jaxpr import Jaxpr, Var, e_jaxprs
from genesis_fn.primitives.shape import barrier_p
from genesis_fn.transforms.jitting.guards import closed_over

_MOST = 256  # functions searched for names of captured arrays


class Captured(NamedTuple):
    """A captured array: its `name` in the program ("" if it has none), its `type`, its bytes, and
    the `line` that reads it first."""

    name: str
    type: str
    nbytes: int
    line: str

    def __str__(self) -> str:
        return f"{f'{self.name}, ' if self.name else ''}{self.type} ({self.nbytes:,} bytes)"


def captures_of(
    fun: Callable[..., Any], programs: Iterable[tuple[Jaxpr, Sequence[Any]]]
) -> list[Captured]:
    """What the programs of a function captured, each array once, in the order of the reads."""
    names, captures = _names(fun), {}
    for jaxpr, values in programs:
        for v, x in zip(jaxpr.invars, values):
            if id(x) not in captures:
                line = _line(jaxpr, v) or "returned as it is"
                nbytes = getattr(x, "nbytes", x.aval.nbytes)
                captures[id(x)] = Captured(names.get(id(x), ""), str(x.aval), nbytes, line)
    return list(captures.values())


def _line(jaxpr: Jaxpr, v: Var) -> str | None:
    """The line of the first equation that reads `v`, within calls and loops where possible."""
    call = None
    for e in jaxpr.eqns:
        if v not in e.ins:
            continue
        if e.prim is barrier_p:  # it returns its operands: follow the result
            v = e.outs[list(e.ins).index(v)]
            continue
        programs = list(e_jaxprs(e))
        for inner in programs:
            # Sub-programs take the last operands of their equation, whatever primitive it is; the
            # types tell where this does not hold.
            position = list(e.ins).index(v) - (len(e.ins) - len(inner.invars))
            if 0 <= position < len(inner.invars) and inner.invars[position].aval == v.aval:
                line = _line(inner, inner.invars[position])
                if line is not None:
                    return line
        if e.where is not None and not programs:
            return e.where.describe()
        call = call or e.where
    return None if call is None else call.describe()


def _names(fun: Callable[..., Any]) -> dict[int, str]:
    """{id of an array: its name} in the scope of `fun` and of the functions that it refers to."""
    name_of: dict[int, str] = {}
    seen, todo = set(), [fun]
    while todo and len(seen) < _MOST:
        f = getattr(todo[0], "__func__", todo[0])
        held, todo = list(_held(todo[0])), todo[1:]
        if id(f) in seen:
            continue
        seen.add(id(f))
        for name, value in held:
            if callable(value) and not isinstance(value, type):
                todo.append(value)
            for path, x in _arrays(value):
                name_of.setdefault(id(x), f"{name}{path}")
    return name_of


def _held(f: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of what a function can read besides its arguments."""
    if isinstance(f, types.MethodType):
        yield "self", f.__self__
        f = f.__func__
    inner = getattr(f, "__wrapped__", None)
    if inner is not None:
        yield "", inner
    if not isinstance(f, types.FunctionType):
        return
    code = f.__code__
    yield from closed_over(f)
    for name, value in zip(
        reversed(code.co_varnames[: code.co_argcount]), reversed(f.__defaults__ or ())
    ):
        yield name, value
    if not is_internal(code):
        for name in _mentioned(code):
            if name in f.__globals__:
                yield name, f.__globals__[name]


def _mentioned(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from _mentioned(c)


def _arrays(value: Any) -> Iterator[tuple[str, Any]]:
    """(path, array) in a pytree, or in the attributes of an object."""
    if isinstance(value, (types.ModuleType, types.FunctionType, type)):
        return
    try:
        leaves = tree.leaves_with_path(value)
    except Exception:  # a node of the user's that cannot be taken apart
        return
    for path, x in leaves:
        if type(x) is ArrayImpl:
            yield tree.keystr(path), x
        elif x is value and isinstance(getattr(x, "__dict__", None), dict):
            for name, held in vars(x).items():
                if held is not x and isinstance(held, (ArrayImpl, dict, list, tuple)):
                    yield from ((f".{name}{inner}", y) for inner, y in _arrays(held))
