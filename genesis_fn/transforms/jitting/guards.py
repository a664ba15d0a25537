"""Guards: a program is valid as long as the attributes that its trace read are unchanged.

`jit(model.apply)` and a jitted method see their object as it is at the call. While the function is
traced, each attribute that it reads is recorded, and a later call whose object differs in one of
them is traced again. Attributes that were not read may change.

Only objects compared by identity need guards: the content of any other value is part of the key.
"""

from __future__ import annotations

import contextlib
import inspect
import keyword
import threading
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any

from genesis_fn.core.static import NotStatic, Reader, Same, is_user_object

_MISSING = object()


class Guard:
    """A value that a trace read, as it was at the end of the trace: attribute `name` of `x`, or `x`
    itself if that is None. `fixed`: the same object has the same value for ever, so that identity
    suffices."""

    __slots__ = ("x", "name", "value", "key", "fixed")

    def __init__(self, x: Any, name: str | None = None) -> None:
        self.x, self.name = x, name
        value = self.value = self._now()
        self.key, self.fixed, _ = _key(value)
        # An object compared by identity may change, but what was read of it has guards of its own.
        self.fixed = self.fixed or self.key == (type(value), Same(value))

    def _now(self) -> Any:
        return self.x if self.name is None else getattr(self.x, self.name, _MISSING)

    def holds(self) -> bool:
        """Whether the value is unchanged."""
        now = self._now()
        return (now is self.value and self.fixed) or _key(now)[0] == self.key

    def source(self, name: Callable[[Any], str]) -> str:
        """`holds` as a Python expression, in which `name(x)` is the name of an object. Immutable
        values are compared by `is` first, which saves the call. Evaluating it raises
        AttributeError if the attribute is gone."""
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


@contextlib.contextmanager
def guards_of(fun: Callable[..., Any], objects: Iterable[Any]) -> Generator[list[Guard]]:
    """Record what is read while `fun` is traced with these objects among its static arguments.

    Yields a list, which holds the guards after the block. Guards are made at the end, so that
    attributes that the trace itself assigned count with their final value.
    """
    recorder, held, guards = _Recorder(), [], []
    _recorders.stack.append(recorder)
    try:
        for x in objects:
            recorder.watch(x)
        for x in owners(fun):
            _, fixed, inner = _key(x)
            if fixed:
                continue
            # An object is watched attribute by attribute. A container (the arguments of a partial)
            # is compared as a whole, and the objects in it are watched.
            whole = is_user_object(x)
            for y in (x,) if whole else inner:
                recorder.watch(y)
            if not whole:
                held.append(x)
        yield guards
    finally:
        _recorders.stack.remove(recorder)
        for x in recorder.objects.values():
            _unpatch(type(x))
    guards += [Guard(recorder.objects[k], name) for k, name in recorder.names]
    guards += [g for g in map(Guard, held) if not g.fixed]


class _Recorder:
    """The objects whose attributes are watched, by id, and (id, attribute) of what was read."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self.names: dict[tuple[int, str], None] = {}

    def watch(self, x: Any) -> None:
        """Record the attributes that are read of `x` too."""
        if id(x) not in self.objects:
            self.objects[id(x)] = x
            _patch(type(x))

    def note(self, x: Any, name: str, value: Any) -> None:
        """Record that attribute `name` of `x` was read."""
        # Python reads dunders by itself all the time; of them only `__dict__` (as by `vars`) is
        # state.
        if (id(x), name) in self.names or (name[:2] == "__" and name != "__dict__"):
            return
        if not _is_held(x, name):
            return  # a method or a property, whose own reads are noted
        self.names[id(x), name] = None
        if value is not _MISSING:
            for inner in _key(value)[2]:  # `self.layer.w` reads an attribute of `self.layer` next
                self.watch(inner)


class _Recorders(threading.local):
    """The recorders of the traces that run in this thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[_Recorder] = []


_recorders = _Recorders()
_lock = threading.RLock()
# {class: [number of watched objects, its own __getattribute__ or _MISSING]}
_patched: dict[type, list[Any]] = {}


def _patch(kind: type) -> None:
    """Replace `kind.__getattribute__` by one that records reads, until `_unpatch`.

    The class is patched, since special methods are looked up there: other threads and instances run
    through the patch too, which `_note` ignores.
    """
    with _lock:
        if kind in _patched:  # counted: traces nest, and watch several objects of a class
            _patched[kind][0] += 1
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

        own = kind.__dict__.get("__getattribute__", _MISSING)
        try:
            type.__setattr__(kind, "__getattribute__", __getattribute__)
        except TypeError:  # a class defined in C: its attributes cannot be watched
            return
        _patched[kind] = [1, own]


def _unpatch(kind: type) -> None:
    with _lock:
        entry = _patched.get(kind)
        if entry is None:
            return
        entry[0] -= 1
        if not entry[0]:
            del _patched[kind]
            if entry[1] is _MISSING:
                type.__delattr__(kind, "__getattribute__")
            else:
                type.__setattr__(kind, "__getattribute__", entry[1])


def _note(x: Any, name: str, value: Any) -> None:
    for recorder in _recorders.stack:
        if id(x) in recorder.objects:
            recorder.note(x, name, value)


def _is_held(x: Any, name: str) -> bool:
    """Whether an attribute is a stored value (of the object or its class) or missing, and not
    computed by a descriptor such as a property or a method."""
    if name == "__dict__":
        return True
    try:
        if name in object.__getattribute__(x, "__dict__"):
            return True
    except AttributeError:
        pass
    static = inspect.getattr_static(type(x), name, _MISSING)
    return (
        static is _MISSING
        or isinstance(static, types.MemberDescriptorType)
        or not hasattr(type(static), "__get__")
    )


def _key(x: Any) -> tuple[Any, bool, list[Any]]:
    """(key, whether the same object always has it, objects within that are compared by
    identity)."""
    reader = Reader(arrays=True)
    try:
        key = reader.read(x)
        hash(key)
        return key, reader.fixed, reader.objects
    except (NotStatic, TypeError):
        return Same(x), False, []


def closed_over(f: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """(name, value) of the variables in the closure of a function that are assigned."""
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def owners(fun: Callable[..., Any]) -> Iterator[Any]:
    """The objects that a callable carries: the instance of a bound method, the arguments of a
    partial, a callable object itself; those of the callables that a wrapper or transform holds
    too."""
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
