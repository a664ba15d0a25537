"""What a trace reads of objects that equal only themselves: their attributes may be others at the
next call.

`jit(model.apply)` and a jitted method see their object as it is now: while the function is traced,
each attribute that it reads is noted, and a later call whose object differs in one of them is
traced again. Attributes that it does not read may change.
"""

from __future__ import annotations

import contextlib
import inspect
import keyword
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from genesis_fn.core.static import NotStatic, Reader, Same, is_user_object

_NOTHING = object()
_MISSING = object()


class _Guard:
    """What a trace read, as it was when it ended: attribute `name` of `x`, or `x` itself where that
    is None. `fixed` says that the same object is the same value for ever."""

    __slots__ = ("x", "name", "value", "key", "fixed")

    def __init__(self, x: Any, name: str | None = None) -> None:
        self.x, self.name = x, name
        value = self.value = self._now()
        self.key, self.fixed, _ = _key(value)
        # Of an object that equals only itself, what was read is looked at itself.
        self.fixed = self.fixed or self.key == (type(value), Same(value))

    def _now(self) -> Any:
        return self.x if self.name is None else getattr(self.x, self.name, _MISSING)

    def holds(self) -> bool:
        """Whether the value is as it was."""
        now = self._now()
        return (now is self.value and self.fixed) or _key(now)[0] == self.key

    def source(self, name: Callable[[Any], str]) -> str:
        """`holds` as an expression: immutable values that are the same objects need no call."""
        x, attribute, value, call = self.x, self.name, self.value, f"{name(self.holds)}()"
        if attribute is not None:
            plain = attribute.isidentifier() and not keyword.iskeyword(attribute)
            if self.fixed and value is not _MISSING and plain:
                return f"({name(x)}.{attribute} is {name(value)} or {call})"
        elif type(x) is dict and all(_key(v)[1] for v in x.values()):
            items = [f"len({name(x)}) == {len(x)}"]
            items += [f"{name(x)}.get({name(k)}) is {name(v)}" for k, v in x.items()]
            return f"({' and '.join(items)} or {call})"
        return call


class Reads:
    """The attributes that a trace read, and values that the function brings along."""

    __slots__ = ("objects", "names", "guards", "held")

    def __init__(self, objects: Iterable[Any], held: Sequence[Any] = ()) -> None:
        self.objects: dict[int, Any] = {}
        self.names: dict[tuple[int, str], None] = {}
        self.guards: list[_Guard] = []
        self.held = held
        for x in objects:
            self.watch(x)

    def watch(self, x: Any) -> None:
        """Note what is read of `x` too."""
        if id(x) not in self.objects:
            self.objects[id(x)] = x
            _open(type(x))

    def note(self, x: Any, name: str, value: Any) -> None:
        """Attribute `name` of `x` was read."""
        if (id(x), name) in self.names or (name[:2] == "__" and name != "__dict__"):
            return
        if not _is_held(x, name):
            return  # a method or a property, whose own reads are noted
        self.names[id(x), name] = None
        if value is not _MISSING:
            for inner in _key(value)[2]:
                self.watch(inner)

    def same(self) -> bool:
        """Whether all that was read is as it was."""
        return all(g.holds() for g in self.guards)

    def source(self, name: Callable[[Any], str]) -> str:
        """`same` as an expression, in which objects have the names that `name` gives. Where an
        attribute is gone, it may raise AttributeError."""
        return " and ".join(g.source(name) for g in self.guards) or "True"

    def changed(self) -> list[str]:
        """The names of the attributes that differ now."""
        return [
            f"{type(g.x).__name__}.{g.name}"
            for g in self.guards if g.name is not None and not g.holds()
        ]  # fmt: skip

    def __enter__(self) -> Reads:
        _noting.stack.append(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        """Stop noting. What the trace itself changed counts as it left it."""
        _noting.stack.remove(self)
        for x in self.objects.values():
            _close(type(x))
        held = [g for g in map(_Guard, self.held) if not g.fixed]
        self.guards = [_Guard(self.objects[k], name) for k, name in self.names] + held
        self.objects, self.names, self.held = {}, {}, ()


class _Noting(threading.local):
    """The traces of this thread that note what they read, innermost last."""

    def __init__(self) -> None:
        self.stack: list[Reads] = []


_noting = _Noting()
_lock = threading.RLock()
_opened: dict[type, list[Any]] = {}  # class -> [how many objects, its own __getattribute__]


def _open(kind: type) -> None:
    """Have reads of the attributes of instances of `kind` noted."""
    with _lock:
        if kind in _opened:
            _opened[kind][0] += 1
            return
        before: Any = kind.__getattribute__

        def __getattribute__(self: Any, name: str) -> Any:
            try:
                value = before(self, name)
            except AttributeError:
                _note(self, name, _MISSING)
                raise
            _note(self, name, value)
            return value

        own = kind.__dict__.get("__getattribute__", _NOTHING)
        try:
            type.__setattr__(kind, "__getattribute__", __getattribute__)
        except TypeError:  # a class of C code
            return
        _opened[kind] = [1, own]


def _close(kind: type) -> None:
    with _lock:
        found = _opened.get(kind)
        if found is None:
            return
        found[0] -= 1
        if not found[0]:
            del _opened[kind]
            if found[1] is _NOTHING:
                type.__delattr__(kind, "__getattribute__")
            else:
                type.__setattr__(kind, "__getattribute__", found[1])


def _note(x: Any, name: str, value: Any) -> None:
    for reads in _noting.stack:
        if id(x) in reads.objects:
            reads.note(x, name, value)


def _is_held(x: Any, name: str) -> bool:
    """Whether an attribute is the object's or its class's own value, or is missing."""
    if name == "__dict__":
        return True
    try:
        if name in object.__getattribute__(x, "__dict__"):
            return True
    except AttributeError:
        pass
    found = inspect.getattr_static(type(x), name, _NOTHING)
    return (
        found is _NOTHING
        or isinstance(found, types.MemberDescriptorType)
        or not hasattr(type(found), "__get__")
    )


def _key(x: Any) -> tuple[Any, bool, list[Any]]:
    """(key, whether it stays for the same value, objects within that equal only themselves)."""
    reader = Reader(arrays=True)
    try:
        key = reader.read(x)
        hash(key)
        return key, reader.fixed, reader.objects
    except (NotStatic, TypeError):
        return Same(x), False, []


def closed_over(f: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """(name, value) of the variables that a function closes over and that are filled."""
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def owners(fun: Callable) -> Iterator[Any]:
    """The objects and arguments that a callable brings along: of a bound method its instance, of a
    partial its arguments, of a callable object itself; also of those that a transform wraps."""
    todo, seen = [fun], set()
    while todo:
        f = todo.pop()
        if id(f) in seen:
            continue
        seen.add(id(f))
        if isinstance(f, types.MethodType):
            yield f.__self__
            todo.append(f.__func__)
        elif isinstance(f, partial):
            yield f.args
            yield f.keywords
            todo.append(f.func)
        elif isinstance(f, types.FunctionType):
            if (f.__module__ or "").startswith("genesis_fn") or hasattr(f, "__wrapped__"):
                held = [x for _, x in closed_over(f)]
                todo += [x for x in held if callable(x) and not isinstance(x, type)]
        elif is_user_object(f):
            yield f


def reads_of(fun: Callable, objects: Iterable[Any]) -> Reads | None:
    """What is to be watched while `fun` is traced with these objects among its static arguments;
    None for nothing."""
    watched, held = {id(x): x for x in objects}, []
    for x in owners(fun):
        _, fixed, inner = _key(x)
        if fixed:
            continue
        if is_user_object(x):
            watched[id(x)] = x
        else:
            watched |= {id(y): y for y in inner}
            held.append(x)
    return Reads(watched.values(), held) if watched or held else None
