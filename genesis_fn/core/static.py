"""What a Python value is as part of a program: a key that two values share only where no function
could tell them apart.

Values are read by type and content at every depth: `2`, `2.0` and `True` are three keys, and so are
`0.0` and `-0.0`. What may change (lists, dataclasses, what functions close over) counts as it is
now. Objects that equal only themselves are compared by identity; those of users are listed, since
their attributes may change.
"""

from __future__ import annotations

import collections
import dataclasses
import dis
import enum
import functools
import hashlib
import struct
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np

from genesis_fn.core.array import Array, offers_array

_MOST = 512  # values that are read of a function before it counts as Unknowable
_LIBRARY = __name__.partition(".")[0]
# Packages whose functions and modules count as constant.
_CONSTANT = frozenset((*sys.stdlib_module_names, _LIBRARY, "numpy", "ml_dtypes", "torch")) - {
    "__main__", "sys",
}  # fmt: skip
# What these give is another value at every call.
_IMPURE = frozenset(("random", "numpy.random", "time", "datetime", "secrets", "uuid", "os", "io"))
# Names by which code reads what its own names do not say.
_DYNAMIC = frozenset(
    ("globals", "locals", "vars", "getattr", "eval", "exec", "open", "input", "__import__", "next")
)
_IMPORT = dis.opmap["IMPORT_NAME"]
_PYTHON_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class NotStatic(TypeError):
    """A value that cannot be part of a program's key, and the `steps` that lead to it."""

    def __init__(self, value: Any, why: str) -> None:
        super().__init__(why)
        self.value, self.why = value, why
        self.steps: list[str] = []

    @property
    def path(self) -> str:
        """`.layers[0].w`; "" for the value itself."""
        return "".join(reversed(self.steps))


class Unknowable(Exception):
    """What a function means cannot be told: it reads what may change unseen, or too much."""


class Same:
    """Equal to what refers to the same object, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)  # no other object has it: `value` is alive as long as this is

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.value is self.value


class Weak:
    """Equal to what refers to the same object, as long as that lives."""

    __slots__ = ("ref", "hash")

    def __init__(self, value: Any) -> None:
        # The hash must not change when the object dies: it is a key in dictionaries.
        self.ref, self.hash = weakref.ref(value), id(value)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        value = self.ref()
        return value is not None and type(other) is Weak and other.ref() is value


# Types of which each value is its own key, with the type.
_PLAIN = frozenset((str, bytes, int, bool, type(None), type(Ellipsis), range, type(NotImplemented)))


class Reader:
    """Reads keys. `fixed` says that all that was read is immutable, so that the same object has the
    same key for ever; `objects` are those of users' classes that are compared by identity.

    With `whole`, a key tells everything that the code of a function reads, or reading raises
    Unknowable: containers count by their contents and by where else they occur, and what counts by
    identity is not kept alive but listed in `lent`; `keeps` says that some of it had to be. `weak`
    says whether something is read that may be large, or may become so. With `deep`, the attributes
    of users' objects belong to the key.
    """

    __slots__ = (
        "whole",
        "deep",
        "fixed",
        "weak",
        "objects",
        "lent",
        "keeps",
        "_arrays",
        "_open",
        "_seen",
    )

    def __init__(self, *, arrays: bool = False, whole: bool = False, deep: bool = False) -> None:
        self.whole, self.deep, self._arrays = whole, deep, arrays or whole
        self.fixed, self.weak = True, False
        self.objects: list[Any] = []
        self.lent: list[Any] = []
        self.keeps = False
        self._open: dict[int, int] = {}  # what is being read: it may hold itself
        self._seen: dict[int, tuple[int, Any]] = {}  # what was read, which must stay alive

    def read(self, x: Any) -> Any:
        """The key of `x`. Raises NotStatic."""
        kind = type(x)
        if kind in _PLAIN:
            return kind, x
        rule = _RULES.get(kind)
        if rule is not None:
            return rule(self, x, kind)
        return self._other(x, kind)

    def all(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """The keys of several values, which `[i]` leads to."""
        found = []
        for i, v in enumerate(values):
            try:
                found.append(self.read(v))
            except NotStatic as error:
                error.steps.append(f"[{i}]")
                raise
        return tuple(found)

    def identity(self, x: Any) -> Any:
        """A key that `x` shares with nothing."""
        self.weak = True
        if self.whole:
            try:
                key = Weak(x)
                self.lent.append(x)
                return key
            except TypeError:
                self.keeps = True
        return Same(x)

    # ---- one kind of value each ----

    def _sequence(self, x: Any, kind: type) -> Any:
        return kind, *self.all(x)

    def _list(self, x: Any, kind: type) -> Any:
        return self._within(x, lambda: (kind, *self.all(x)))

    def _set(self, x: Any, kind: type) -> Any:
        # A frozenset of keys: the order in which a set gives its elements is not part of it.
        key = lambda: (kind, frozenset([self.read(v) for v in x]))
        return key() if kind is frozenset else self._within(x, key)

    def _dict(self, x: Any, kind: type) -> Any:
        return self._within(x, lambda: (kind, *self._items(x)))

    def _items(self, x: Any) -> Iterable[Any]:
        for k, v in x.items():
            try:
                yield self.read(k), self.read(v)
            except NotStatic as error:
                error.steps.append(f"[{k!r}]")
                raise

    def _bytearray(self, x: Any, kind: type) -> Any:
        return self._within(x, lambda: (kind, bytes(x)))

    # By their bytes: 0.0 == -0.0 would share a key, and NaN would have none that is found again.

    def _float(self, x: float, kind: type) -> Any:
        return kind, struct.pack("<d", x)

    def _complex(self, x: complex, kind: type) -> Any:
        return kind, struct.pack("<2d", x.real, x.imag)

    def _slice(self, x: slice, kind: type) -> Any:
        return kind, self.read(x.start), self.read(x.stop), self.read(x.step)

    def _decimal(self, x: Decimal, kind: type) -> Any:
        return kind, str(x)

    def _identical(self, x: Any, kind: type) -> Any:
        return kind, Same(x)

    def _module(self, x: types.ModuleType, kind: type) -> Any:
        return kind, Same(x)

    def _builtin(self, x: Any, kind: type) -> Any:
        owner = x.__self__
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            return kind, Same(x)
        return kind, x.__name__, self._admitting(owner)

    def _method(self, x: Any, kind: type) -> Any:
        return kind, self.read(x.__func__), self._admitting(x.__self__)

    def _partial(self, x: Any, kind: type) -> Any:
        self.fixed = False  # its keywords are a dict
        args, kwargs = self._admitting(x.args), self._admitting(x.keywords)
        return kind, self.read(x.func), args, kwargs

    def _function(self, f: Any, kind: type) -> Any:
        whose = f.__module__ or ""
        if whose.partition(".")[0] in _CONSTANT and whose not in _IMPURE:
            # Made once with its module, it is what its name says.
            if getattr(sys.modules.get(whose), f.__name__, None) is f:
                return kind, Same(f)
        return self._within(f, lambda: (kind, Same(f.__code__), *self._held(f)), changes=False)

    def _held(self, f: Any) -> Iterable[Any]:
        """What a function holds, and what it reads by the names of its module."""
        for cell in f.__closure__ or ():
            self.fixed = False
            try:
                yield self._admitting(cell.cell_contents)
            except ValueError:  # not filled yet
                yield None
        for held in (f.__defaults__, f.__kwdefaults__):
            if held:
                yield self._admitting(held)
            else:
                yield None
        more = {k: v for k, v in vars(f).items() if k != "__wrapped__"}
        if more:
            self.fixed = False
            yield self._admitting(more)
        yield Same(f.__globals__)
        if (f.__module__ or "").partition(".")[0] not in _CONSTANT:
            yield self._globals(f)

    def _globals(self, f: Any) -> Any:
        if self.whole:
            return self._named(f)
        # For one function object what its module holds is as it was; another one shares its
        # programs only where all of that is known to be equal.
        inner = Reader(whole=True)
        inner._seen = {k: (n, None) for k, n in self._open.items()}
        try:
            found = inner._named(f)
        except (Unknowable, NotStatic, RecursionError):
            return Same(f)
        if inner.weak:
            return Same(f)
        if any(type(k) is not Same for k in found):
            self.fixed = False
        return found

    def _named(self, f: Any) -> tuple[Any, ...]:
        """The keys of the globals that the code of `f` mentions. Raises Unknowable."""
        names = _mentioned(f.__code__)
        if names is None:
            raise Unknowable
        space, found = f.__globals__, []
        for name in names:
            if name in space:
                x = space[name]
                if isinstance(x, types.ModuleType):
                    found += self._attributes(x, names)
                else:  # the name may be given to another function or class
                    found.append(Same(x) if _is_constant(x) else self._admitting(x))
        return tuple(found)

    def _attributes(self, module: types.ModuleType, names: Iterable[str]) -> list[Any]:
        """The keys of what code that mentions `names` may read in a module."""
        whose = module.__name__
        if whose in _IMPURE:
            raise Unknowable
        inside, found = vars(module), []
        constant = whose.partition(".")[0] in _CONSTANT
        for name in names:
            x = inside.get(name)
            if isinstance(x, types.ModuleType):
                found += self._attributes(x, names)
            elif not constant and name in inside:
                found.append(self._admitting(x))
            elif constant and type(x) in (bool, int, float, str):
                found.append(self.read(x))
        return found

    def _admitting(self, x: Any) -> Any:
        """The key of what a function holds, where arrays count by identity."""
        before, self._arrays = self._arrays, True
        try:
            return self.read(x)
        finally:
            self._arrays = before

    def _within(self, x: Any, key: Callable[[], Any], changes: bool = True) -> Any:
        """The key of something that may hold itself."""
        self.fixed = self.fixed and not changes
        if self.whole:
            self.weak = self.weak or changes
            seen = self._seen.get(id(x))
            if seen is not None:
                return "again", seen[0]
            if len(self._seen) > _MOST:
                raise Unknowable
            self._seen[id(x)] = len(self._seen), x
            return key()
        if id(x) in self._open:
            return "again", self._open[id(x)]
        self._open[id(x)] = len(self._open)
        try:
            return key()
        finally:
            del self._open[id(x)]

    def _array(self, x: Any, kind: type) -> Any:
        if not self._arrays:
            raise NotStatic(x, "an array")
        if isinstance(x, Array):
            return kind, self.identity(x)
        self.fixed = False
        values = np.ascontiguousarray(x)
        if values.dtype.hasobject:
            raise Unknowable if self.whole else NotStatic(x, "an array of objects")
        # A digest, since a key with the bytes would keep a copy of the array in every cache.
        digest = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        return kind, values.dtype, values.shape, digest

    def _dataclass(self, x: Any, kind: type) -> Any:
        def fields() -> Iterable[Any]:
            for f in dataclasses.fields(kind):
                value = getattr(x, f.name, None)
                try:
                    yield self.read(value)
                except NotStatic as error:
                    if f.compare:
                        error.steps.append(f".{f.name}")
                        raise
                    yield self.identity(value)
            if not frozen:
                known = kind.__dataclass_fields__  # pyright: ignore[reportAttributeAccessIssue]
                more = [k for k in getattr(x, "__dict__", ()) if k not in known]
                for k in more:
                    if not isinstance(getattr(kind, k, None), functools.cached_property):
                        yield k, self.read(vars(x)[k])

        frozen = kind.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
        return self._within(x, lambda: (kind, *fields()), changes=not frozen)

    def _other(self, x: Any, kind: type) -> Any:
        rule = _learned.get(kind)
        if rule is None:
            rule = _learned[kind] = _rule_for(kind)
        return rule(self, x, kind)

    def _class(self, x: Any, kind: type) -> Any:
        if self.whole and not _is_constant(x):
            raise Unknowable  # its attributes may change
        return type, Same(x)

    def _flags(self, x: Any, kind: type) -> Any:
        return kind, x._value_

    def _number(self, x: Any, kind: type) -> Any:
        return kind, x.dtype, x.tobytes()

    def _dtype(self, x: Any, kind: type) -> Any:
        return np.dtype, x

    def _unhashable(self, x: Any, kind: type) -> Any:
        raise NotStatic(x, "neither an array nor hashable")

    def _promised(self, x: Any, kind: type) -> Any:
        """Equal as the class says, which a user's may do of what holds arrays."""
        # By its own `__eq__`: a user's may read what changes, or hide it, so that nothing is known
        # of a function that holds one.
        if self.whole and not _is_constant(kind):
            raise Unknowable
        try:
            hash(x)
        except TypeError:
            raise NotStatic(x, "neither an array nor hashable") from None
        return kind, x

    def _library(self, x: Any, kind: type) -> Any:
        if self.whole:
            # A function with rules of its own, say: they may be set anew.
            held = [getattr(x, name, None) for name in ("fun", "rule", "fwd", "bwd")]
            return self._within(x, lambda: (kind, self.identity(x), *self.all(held)))
        return kind, self.identity(x)

    def _object(self, x: Any, kind: type) -> Any:
        if self.whole:
            raise Unknowable
        if self.deep:
            held = getattr(x, "__dict__", None) or {}
            return self._within(x, lambda: (kind, Same(x), self._admitting(dict(held))))
        self.objects.append(x)
        self.fixed = False
        return kind, self.identity(x)

    def _opaque(self, x: Any, kind: type) -> Any:
        if self.whole:
            raise Unknowable
        if not self._arrays and not callable(x):
            raise NotStatic(x, "of a type whose changes cannot be seen")
        self.fixed = False
        return kind, self.identity(x)

    def _derived(self, x: Any, kind: type) -> Any:
        """An instance of a class derived from a builtin one: its value and its attributes."""
        base = next(c for c in kind.__mro__ if c in _RULES or c in _PLAIN)
        own = (base, base(x)) if base in _PLAIN else _RULES[base](self, x, base)
        more = getattr(x, "__dict__", None)
        if not more:
            return kind, own
        self.fixed = False
        return kind, own, self._within(x, lambda: tuple(self._items(more)))

    # How values of these types are read: what users derive of them is read by `_derived`.
    rules: ClassVar[dict[type, Callable[..., Any]]] = {
        tuple: _sequence,
        list: _list,
        dict: _dict,
        collections.OrderedDict: _dict,
        collections.defaultdict: _dict,
        types.MappingProxyType: _dict,
        collections.deque: _list,
        set: _set,
        frozenset: _set,
        bytearray: _bytearray,
        float: _float,
        complex: _complex,
        slice: _slice,
        Decimal: _decimal,
        types.ModuleType: _module,
        types.FunctionType: _function,
        types.MethodType: _method,
        types.BuiltinFunctionType: _builtin,
        functools.partial: _partial,
        types.MethodDescriptorType: _identical,
        types.WrapperDescriptorType: _identical,
        types.CodeType: _identical,
        np.ufunc: _identical,
    }

    @staticmethod
    def rule_for(kind: type) -> Callable[..., Any]:
        """How values of a class that is not in the table are read."""
        if issubclass(kind, type):
            return Reader._class
        if issubclass(kind, enum.Enum):
            return Reader._flags if issubclass(kind, enum.Flag) else Reader._identical
        if issubclass(kind, np.generic):
            return Reader._number
        if issubclass(kind, np.dtype):
            return Reader._dtype
        if _offers_array(kind):
            return Reader._array
        if any(base in _PLAIN or base in _RULES for base in kind.__mro__):
            return Reader._derived
        if hasattr(kind, "__dataclass_fields__") and _generated(kind):
            return Reader._dataclass
        if kind.__hash__ is None:
            return Reader._unhashable
        if kind.__eq__ is not object.__eq__:
            return Reader._promised
        if kind.__module__.partition(".")[0] == _LIBRARY:
            return Reader._library
        return Reader._object if kind.__flags__ & _PYTHON_CLASS else Reader._opaque


_RULES, _rule_for = Reader.rules, Reader.rule_for
_learned: weakref.WeakKeyDictionary[type, Callable[..., Any]] = weakref.WeakKeyDictionary()


def _offers_array(kind: type) -> bool:
    return issubclass(kind, (Array, np.ndarray)) or offers_array(kind)


def is_array(x: object) -> bool:
    """Whether `x` holds values of an array: of this library, or of another."""
    return _offers_array(type(x))


def is_user_object(x: object) -> bool:
    """Whether `x` is an instance of a class that a user wrote, other than of a builtin one."""
    kind = type(x)
    return (
        bool(kind.__flags__ & _PYTHON_CLASS)
        and kind.__module__.partition(".")[0] != _LIBRARY
        and not isinstance(x, (type, enum.Enum))
        and not any(base in _PLAIN or base in _RULES for base in kind.__mro__)
        and not _offers_array(kind)
    )


def _generated(kind: type) -> bool:
    """Whether a dataclass compares its fields, rather than as its author wrote."""
    code = getattr(kind.__eq__, "__code__", None)
    return code is not None and code.co_filename == "<string>" or kind.__hash__ is None


def _is_constant(x: Any) -> bool:
    """Whether a global is taken for what never changes: a function or class of the library, NumPy,
    torch or Python. Their instances are read as any value."""
    if isinstance(x, (types.BuiltinFunctionType, np.ufunc, np.dtype)):
        return True
    if not isinstance(x, (type, types.FunctionType)):
        return False
    if isinstance(x, types.FunctionType) and x.__closure__ is not None:
        return False
    whose = x.__module__ or ""
    return whose.partition(".")[0] in _CONSTANT - {"builtins"} and whose not in _IMPURE


_names: weakref.WeakKeyDictionary[types.CodeType, Any] = weakref.WeakKeyDictionary()


def _mentioned(code: types.CodeType) -> tuple[str, ...] | None:
    """The names that `code` and the functions in it mention; None if it reads more than that."""
    try:
        return _names[code]
    except KeyError:
        pass
    found: dict[str, None] = dict.fromkeys(code.co_names)
    known = _IMPORT not in code.co_code[::2] and _DYNAMIC.isdisjoint(found)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _mentioned(inner)
            known = known and more is not None
            found |= dict.fromkeys(more or ())
    result = _names[code] = tuple(found) if known else None
    return result


class Frozen:
    """A static value as it is now: hashable, and equal to those of the same key. `fixed`, `weak`
    and `objects` are as its reader found them."""

    __slots__ = ("key", "hash", "value", "fixed", "weak", "objects", "_text")

    def __init__(self, x: Any) -> None:
        reader = Reader()
        self.key = reader.read(x)
        self.hash = hash(self.key)
        self.value, self.objects = x, reader.objects
        self.fixed, self.weak = reader.fixed, reader.weak
        self._text: str | None = None

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Frozen and self.hash == other.hash and self.key == other.key
        )

    @property
    def lonely(self) -> bool:
        """Whether the value equals only itself."""
        kind = type(self.value)
        return kind.__eq__ is object.__eq__ and self.value is not None and kind not in _RULES

    @property
    def is_int(self) -> bool:
        """Whether the value is a Python int."""
        return type(self.value) is int

    def settle(self) -> Frozen:
        """Itself, once it remembers how the value reads today."""
        self._text = repr(self.value)
        return self

    def __repr__(self) -> str:
        return repr(self.value) if self._text is None else self._text


class Aux:
    """The static data of a pytree node, compared by type and content as they are when the
    structure is first compared. Arrays in it count by identity."""

    __slots__ = ("value", "_key", "_hash", "_fixed")

    def __init__(self, value: Any) -> None:
        self.value, self._key = value, None

    def key(self) -> Any:
        """What tells the data from others. Raises NotStatic."""
        if self._key is None:
            self._key, self._fixed = aux_key(self.value)
            self._hash = hash(self._key)
        return self._key

    def __hash__(self) -> int:
        self.key()
        return self._hash

    def __eq__(self, other: object) -> bool:
        if type(other) is not Aux:
            return False
        key, theirs = self.key(), other.key()
        if self._fixed and self.value is other.value:
            return True
        return self._hash == other._hash and key == theirs

    def __repr__(self) -> str:
        return repr(self.value)

    def __reduce__(self) -> Any:
        return Aux, (self.value,)


def aux_key(x: Any) -> tuple[Any, bool]:
    """(key, whether the same object has it for ever) of a node's static data."""
    reader = Reader(arrays=True, deep=True)
    return reader.read(x), reader.fixed


class Fingerprint:
    """Identifies what a function does now: `key` is equal for functions that do the same, whatever
    objects they are, as long as the objects `lent` to it live. `keeps` says that the key keeps
    alive what may be large."""

    __slots__ = ("key", "lent", "keeps")

    def __init__(self, key: Any, lent: list[Any], keeps: bool) -> None:
        self.key, self.lent, self.keeps = key, lent, keeps


def fingerprint_of(fun: Any) -> Fingerprint | None:
    """The fingerprint of what `fun` does now; None where that cannot be told."""
    reader = Reader(whole=True)
    try:
        key = reader.read(fun)
        hash(key)
    except (Unknowable, NotStatic, RecursionError, TypeError):
        return None
    return Fingerprint(key, reader.lent, reader.keeps)
