"""The caches of jit: the programs of each function with their executables, and the programs that
functions with equal fingerprints share."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from genesis_fn.core import tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.jaxpr import Jaxpr, e_jaxprs
from genesis_fn.core.primitive import with_weak_types
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.core.static import Fingerprint, fingerprint_of
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.primitives.indexing.constants import constant_p
from genesis_fn.transforms.custom.custom_call import CustomCall
from genesis_fn.transforms.jitting.argspec import ProgramKey
from genesis_fn.transforms.jitting.guards import Guard
from genesis_fn.transforms.keys.key_uses import Uses

CAPACITY = 256  # programs per function
LARGE = 64 << 20  # bytes of captured arrays from which on jit warns
_VARIANTS = 4  # programs per key, for different values of what their guards compare
_CALLS = 16  # generated functions per program, for different forms of calls
FAST = 32  # generated functions that the fast path of a jitted function tries, newest first
MOST_SHARED = 4096  # programs kept for functions with equal fingerprints
# Bytes of captured arrays, and of constants, that may outlive the functions that captured them.
_SMALL = 1 << 16


@dataclasses.dataclass(slots=True, eq=False)
class Program:
    """One trace of a function: its jaxpr, captured values, output structure, and key.

    `guards` tell whether what it read besides its arguments is unchanged; `key_uses` is None if it
    neither uses nor returns random keys; `mesh` is what it refers to. `executables` are {(device,
    donated): executable}, `calls` {form of a call: generated function}. Both hold no captured
    arrays, so that copies of a program for other captured arrays share them.
    """

    jaxpr: Jaxpr
    captured: Sequence[Any]
    key: ProgramKey
    paths: list[str]
    out_tree: tree.PyTreeDef
    outs_weak: Sequence[bool]
    guards: list[Guard]
    key_uses: Uses | None
    mesh: Mesh | None
    executables: dict[Any, Executable] = dataclasses.field(default_factory=dict)
    calls: OrderedDict[Any, Callable[..., Any]] = dataclasses.field(default_factory=OrderedDict)

    def output(self, outs: Sequence[Any]) -> PyTree:
        """The pytree that the function returns, from the results of the program."""
        return tree.unflatten(self.out_tree, with_weak_types(outs, self.outs_weak))

    def add_call(self, form: Hashable, call: Callable[..., Any]) -> None:
        """Keep the function generated for a form of a call; the oldest one goes."""
        self.calls[form] = call
        if len(self.calls) > _CALLS:
            self.calls.popitem(last=False)


class Cache:
    """The programs of one function: `variants` maps a key to the programs that differ in what their
    guards compare, newest first. `fast` lists (settings, current mesh, generated call), newest
    first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fast: list[tuple[Any, Any, Callable[..., Any]]] = []
        self.variants: OrderedDict[ProgramKey, list[Program]] = OrderedDict()

    @property
    def programs(self) -> list[Program]:
        """All programs, newest last."""
        return [p for found in self.variants.values() for p in reversed(found)]

    def put(self, program: Program) -> None:
        """Keep a program; the least recently used key goes if there are too many."""
        key = program.key
        self.variants[key] = [program, *self.variants.pop(key, ())][:_VARIANTS]
        if len(self.variants) > CAPACITY:
            self.variants.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self.variants.clear()
        self.fast.clear()


# ---- programs shared by functions with equal fingerprints ----


class _Shared(NamedTuple):
    """A program without its captured arrays, and these apart: small ones themselves, the others as
    weak references, so that only the functions keep them alive. `lent` are weak references to all
    that the fingerprint compares by identity; the entry dies with the first of them."""

    program: Program
    captured: list[Any]
    lent: list[weakref.ref]


# {(key of a fingerprint, key of a program): the program}, the most recently used last.
SHARED: OrderedDict[Any, _Shared] = OrderedDict()
# Keys of entries whose `lent` references died. The callback of a reference may run at any time, in
# the middle of a change of SHARED too, so it only notes the key; the next lookup removes the entry.
_gone: deque[Any] = deque()
_lock = threading.RLock()


def shared(known: Fingerprint, key: ProgramKey) -> Program | None:
    """The program that functions with this fingerprint have for a key, or None."""
    name = known.key, key
    with _lock:
        while _gone:
            SHARED.pop(_gone.popleft(), None)
        entry = SHARED.get(name)
        if entry is None:
            return None
        SHARED.move_to_end(name)
    captured = [x() if type(x) is weakref.ref else x for x in entry.captured]
    if any(x is None for x in captured):  # died since, its callback has not been seen yet
        return None
    return dataclasses.replace(entry.program, captured=captured) if captured else entry.program


def share(known: Fingerprint, program: Program) -> None:
    """Keep a program for other functions, unless it would keep large arrays alive."""
    name = known.key, program.key
    lent = {id(x): weakref.ref(x, lambda _: _gone.append(name)) for x in known.lent}
    captured: list[Any] = [lent.get(id(x), x) for x in program.captured]
    size = sum(x.nbytes for x in captured if type(x) is not weakref.ref)
    size += constant_bytes(program.jaxpr)
    if size > _SMALL or (lent and not _holds_no_arrays(program.jaxpr)):
        return
    program = dataclasses.replace(program, captured=[]) if captured else program
    with _lock:
        SHARED[name] = _Shared(program, captured, list(lent.values()))
        if len(SHARED) > MOST_SHARED:
            SHARED.popitem(last=False)


def constant_bytes(jaxpr: Jaxpr) -> int:
    """The bytes of the constants in a program and in those that it runs."""
    own = sum([e.outs[0].aval.nbytes for e in jaxpr.eqns if e.prim is constant_p])
    return own + sum([constant_bytes(j) for e in jaxpr.eqns for j in e_jaxprs(e)])


def _holds_no_arrays(jaxpr: Jaxpr) -> bool:
    """Whether no function among the parameters of a program (a custom rule, say) holds arrays."""

    def light(x: Any) -> bool:
        if type(x) is tuple:
            return all(map(light, x))
        if type(x) is Jaxpr:
            return _holds_no_arrays(x)
        if isinstance(x, CustomCall):
            return light(x.batch)
        if callable(x) and not isinstance(x, type):
            known = fingerprint_of(x)
            return known is not None and not known.lent and not known.keeps
        return type(x) is not ArrayImpl

    return all(light(v) for e in jaxpr.eqns for v in e.params.values())


def forget(cache: Cache) -> None:
    """Stop sharing the programs of this cache."""
    mine = {id(x.jaxpr) for x in cache.programs}
    with _lock:
        for name in [k for k, x in SHARED.items() if id(x.program.jaxpr) in mine]:
            del SHARED[name]


def forget_all() -> None:
    """Stop sharing any program."""
    with _lock:
        SHARED.clear()
        _gone.clear()
