"""TrainState: named pytrees carried from step to step as one flat, frozen value.

`jit` passes a donated state through in constant time: what a step returned is a `Memory`, the
storages of all leaves, which the next call passes on as it is. Arrays are made of it when an
attribute is read.
"""

# The functions below the class read its private attributes: as methods they would take names that
# users may give to parts.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from genesis_fn.core import tree
from genesis_fn.core.array import ArrayImpl, Deleted
from genesis_fn.core.aval import Signature
from genesis_fn.core.trees.keys import GetAttrKey


@dataclasses.dataclass(frozen=True)
class LeafKey(GetAttrKey):
    """The path from a state to a leaf, as one key: the state keeps its leaves flat."""

    plain: str = ""

    @property
    def entry(self) -> str:
        """The bare names, joined by dots."""
        return self.plain


class Layout:
    """The names and structures of a state's parts. Interned: equal layouts are one object, so that
    a jitted call compares them by identity."""

    __slots__ = ("names", "treedefs", "starts", "count")

    def __init__(self, names: tuple[str, ...], treedefs: tuple[tree.PyTreeDef, ...]) -> None:
        self.names, self.treedefs = names, treedefs
        self.starts: dict[str, int] = {}
        self.count = 0
        for name, treedef in zip(names, treedefs, strict=True):
            self.starts[name] = self.count
            self.count += treedef.num_leaves

    def part(self, name: str, leaves: Sequence[Any]) -> Any:
        """One part of the state with those leaves."""
        treedef = self.treedefs[self.names.index(name)]
        start = self.starts[name]
        return tree.unflatten(treedef, leaves[start : start + treedef.num_leaves])

    def keys(self) -> list[LeafKey]:
        """The path of each leaf: `.params['w']`, or plainly `params.w`."""
        found = []
        for name, treedef in zip(self.names, self.treedefs, strict=True):
            numbered = tree.unflatten(treedef, range(treedef.num_leaves))
            for path, _ in tree.leaves_with_path(numbered):
                plain = tree.keystr(path, simple=True, separator=".")
                plain = f"{name}.{plain}" if plain else name
                found.append(LeafKey(name + tree.keystr(path), plain))
        return found


_layouts: dict[Any, Layout] = {}


def _layout(names: tuple[str, ...], treedefs: tuple[tree.PyTreeDef, ...]) -> Layout:
    key = (names, treedefs)
    found = _layouts.get(key)
    return _layouts.setdefault(key, Layout(names, treedefs)) if found is None else found


class Memory:
    """The storages of a state's leaves, which nothing else refers to, and the leaves'
    signatures."""

    __slots__ = ("storages", "sigs", "__weakref__")

    def __init__(self, storages: list[Any], sigs: Sequence[Signature]) -> None:
        self.storages, self.sigs = storages, sigs


class TrainState:
    """Named pytrees as one value: `TrainState(params=..., opt_state=...)`, then `state.params`.

    It is frozen: `replace` makes another one. It is a pytree whose leaves are those of its parts in
    the order given, so that every transform takes it; passed to a jitted function that donates it,
    it costs as much as one array.
    """

    # `_leaves` or `_memory` is None: arrays are made of the memory when they are first read.
    __slots__ = ("_layout", "_leaves", "_memory")

    _layout: Layout
    _leaves: list[Any] | None
    _memory: Memory | Deleted | None

    def __init__(self, **parts: Any) -> None:
        if not parts:
            raise TypeError("TrainState takes its parts by name: TrainState(params=params)")
        taken = [name for name in parts if name.startswith("_") or hasattr(TrainState, name)]
        if taken:
            raise TypeError(f"a part of a TrainState cannot be named {taken[0]!r}")
        flat = [tree.flatten(part) for part in parts.values()]
        layout = _layout(tuple(parts), tuple([treedef for _, treedef in flat]))
        _set(self, layout, [x for leaves, _ in flat for x in leaves], None)

    def __getattr__(self, name: str) -> Any:
        layout = self._layout
        if name not in layout.starts:
            known = ", ".join(layout.names)
            raise AttributeError(f"the state has no part {name!r}; its parts are {known}")
        return layout.part(name, _leaves(self))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a TrainState is frozen: use state.replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a TrainState is frozen")

    def replace(self, **parts: Any) -> TrainState:
        """A state with some parts replaced. Raises TypeError for a name that it does not have."""
        unknown = [name for name in parts if name not in self._layout.starts]
        if unknown:
            raise TypeError(
                f"the state has no part {unknown[0]!r}; its parts are "
                f"{', '.join(self._layout.names)}"
            )
        return TrainState(**(self.as_dict() | parts))

    def as_dict(self) -> dict[str, Any]:
        """{name: part}."""
        leaves = _leaves(self)
        return {name: self._layout.part(name, leaves) for name in self._layout.names}

    def __iter__(self) -> Iterator[str]:
        raise TypeError("a TrainState is no sequence; state.as_dict() gives its parts")

    def __copy__(self) -> TrainState:
        return self

    def __reduce__(self) -> Any:
        return _from_dict, (self.as_dict(),)

    def __repr__(self) -> str:
        if isinstance(self._memory, Deleted):
            return f"<TrainState, {self._memory.why}>"
        parts = zip(self._layout.names, self._layout.treedefs, strict=True)
        counts = ", ".join(f"{name}: {t.num_leaves} leaves" for name, t in parts)
        return f"<TrainState {counts}>"


def _from_dict(parts: Mapping[str, Any]) -> TrainState:
    return TrainState(**parts)


_slots = [TrainState.__dict__[name].__set__ for name in TrainState.__slots__]


def _set(state: TrainState, layout: Layout, leaves: list[Any] | None, memory: Any) -> None:
    for put, value in zip(_slots, (layout, leaves, memory)):
        put(state, value)


def _leaves(state: TrainState) -> list[Any]:
    """The leaves, as arrays from now on. Raises DonatedError."""
    leaves = state._leaves
    if leaves is None:
        memory = state._memory
        if not isinstance(memory, Memory):
            assert memory is not None
            raise memory.error()
        leaves = [ArrayImpl(b, s) for b, s in zip(memory.storages, memory.sigs, strict=True)]
        _set(state, state._layout, leaves, None)
    return leaves


# ---- what `jit` does with states ----


def layout_of(state: TrainState) -> Layout:
    """Where the parts of a state are among its leaves. A function, since attributes are parts."""
    return state._layout


def from_buffers(layout: Layout, memory: Memory) -> TrainState:
    """A state whose leaves are still storages: no arrays are made until they are read."""
    state = object.__new__(TrainState)
    _set(state, layout, None, memory)
    return state


def buffers_of(
    state: object, layout: Layout, sigs: list[Signature]
) -> Memory | list[ArrayImpl] | None:
    """The memory of a state, or its leaves if they have been read; None for anything but a
    state of this layout with leaves of these signatures. Raises DonatedError."""
    if type(state) is not TrainState or state._layout is not layout:
        return None
    memory = state._memory
    if type(memory) is Memory:
        return memory if memory.sigs is sigs or list(memory.sigs) == sigs else None
    leaves = _leaves(state)
    if any(type(x) is not ArrayImpl for x in leaves) or [x.sig for x in leaves] != sigs:
        return None
    return leaves


def mark_donated(state: TrainState, mark: Deleted) -> None:
    """Record that the state's memory was donated: reading it raises DonatedError."""
    _set(state, state._layout, None, mark)


def _flatten(state: TrainState) -> tuple[list[Any], Layout]:
    return list(_leaves(state)), state._layout


def _unflatten(layout: Layout, leaves: Iterable[Any]) -> TrainState:
    state = object.__new__(TrainState)
    _set(state, layout, list(leaves), None)
    return state


tree.register_node(TrainState, _flatten, _unflatten, lambda state: state._layout.keys())
