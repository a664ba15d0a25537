"""What a trace reads of objects that equal only themselves: their attributes may be others at the
next call.

`jit(model.apply)` and a jitted method see their object as it is now: while the function is traced,
each attribute that it reads is noted, and a later call whose object differs in one of them is
traced again. Attributes that it does not read may change.
"""

from __future__ import annotations

import inspect
import keyword
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from genesis_fn.core.static import NotStatic, Reader, Same, is_user_object

_NOTHING = object()
_MISSING = object()


class Reads:
    """The attributes that a trace read, as they were when it ended."""

    __slots__ = ("objects", "names", "guards", "held")

    def __init__(self, objects: Iterable[Any], held: Iterable[Any] = ()) -> None:
        self.objects: dict[int, Any] = {}
        self.names: dict[tuple[int, str], None] = {}
        self.guards: list[tuple[Any, str, Any, Any, bool]] = []
        self.held = [(x, *_key(x)[:2]) for x in held]
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

    def close(self) -> None:
        """Stop noting. What the trace itself changed counts as it left it."""
        for x in self.objects.values():
            _close(type(x))
        for k, name in self.names:
            x = self.objects[k]
            value = _value(x, name)
            key, fixed, _ = _key(value)
            # Of an object that equals only itself, what was read is looked at itself.
            fixed = fixed or key == (type(value), Same(value))
            self.guards.append((x, name, value, key, fixed))
        self.held = [(x, *_key(x)[:2]) for x, _, _ in self.held]
        self.objects, self.names = {}, {}

    def same(self) -> bool:
        """Whether all that was read is as it was."""
        return all(_is_same(g) for g in self.guards) and all(_is_held_same(h) for h in self.held)

    def text(self, name: Callable[[Any], str]) -> str:
        """`same` as an expression, in which objects have the names that `name` gives: immutable
        values that are the same objects need no more than that. Where an attribute is gone, it may
        raise AttributeError."""
        parts = []
        for guard in self.guards:
            x, attribute, value, _, fixed = guard
            part = f"{name(partial(_is_same, guard))}()"
            if fixed and value is not _MISSING and _is_plain(attribute):
                part = f"({name(x)}.{attribute} is {name(value)} or {part})"
            parts.append(part)
        for held in self.held:
            x, _, fixed = held
            if fixed:
                continue
            part = f"{name(partial(_is_held_same, held))}()"
            if type(x) is dict and all(_key(v)[1] for v in x.values()):
                items = [f"len({name(x)}) == {len(x)}"]
                items += [f"{name(x)}.get({name(k)}) is {name(v)}" for k, v in x.items()]
                part = f"({' and '.join(items)} or {part})"
            parts.append(part)
        return " and ".join(parts) or "True"

    def changed(self) -> list[str]:
        """The names of the attributes that differ now."""
        return [
            f"{type(x).__name__}.{name}"
            for x, name, _, key, _ in self.guards if _key(_value(x, name))[0] != key
        ]  # fmt: skip

    def __enter__(self) -> Reads:
        _noting.stack.append(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        _noting.stack.remove(self)
        self.close()


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


def _is_same(guard: tuple[Any, str, Any, Any, bool]) -> bool:
    x, name, value, key, fixed = guard
    now = _value(x, name)
    return (now is value and fixed) or _key(now)[0] == key


def _is_held_same(held: tuple[Any, Any, bool]) -> bool:
    x, key, fixed = held
    return fixed or _key(x)[0] == key


def _is_plain(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _value(x: Any, name: str) -> Any:
    return getattr(x, name, _MISSING)


def _key(x: Any) -> tuple[Any, bool, list[Any]]:
    """(key, whether it stays for the same value, objects within that equal only themselves)."""
    reader = Reader(arrays=True)
    try:
        key = reader.read(x)
        hash(key)
        return key, reader.fixed, reader.objects
    except (NotStatic, TypeError):
        return Same(x), False, []


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
                for cell in f.__closure__ or ():
                    try:
                        inside = cell.cell_contents
                    except ValueError:
                        continue
                    if callable(inside) and not isinstance(inside, type):
                        todo.append(inside)
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


__all__ = ["Reads", "owners", "reads_of"]
