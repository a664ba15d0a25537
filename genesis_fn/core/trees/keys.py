"""Paths to the leaves of pytrees: tuples of keys, with JAX's names."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import optree


@dataclasses.dataclass(frozen=True)
class DictKey:
    """A step into a dictionary."""

    key: Hashable

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    @property
    def entry(self) -> Hashable:
        """The bare key."""
        return self.key


@dataclasses.dataclass(frozen=True)
class SequenceKey:
    """A step into a list or tuple."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx}]"

    @property
    def entry(self) -> int:
        """The bare index."""
        return self.idx


@dataclasses.dataclass(frozen=True)
class GetAttrKey:
    """A step to an attribute of a dataclass or named tuple."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    @property
    def entry(self) -> str:
        """The bare name."""
        return self.name


@dataclasses.dataclass(frozen=True)
class FlattenedIndexKey:
    """A step into a node that names its children by position only."""

    key: int

    def __str__(self) -> str:
        return f"[{self.key}]"

    @property
    def entry(self) -> int:
        """The bare position."""
        return self.key


_KEYS = (DictKey, SequenceKey, GetAttrKey, FlattenedIndexKey)


def key_of(e: Any) -> Any:
    """The key for one of optree's path entries."""
    if isinstance(e.entry, _KEYS):
        return e.entry
    if isinstance(e, (optree.NamedTupleEntry, optree.DataclassEntry)):
        return GetAttrKey(e.field)
    if isinstance(e, optree.GetAttrEntry):
        return GetAttrKey(e.name)
    if isinstance(e, optree.SequenceEntry):
        return SequenceKey(e.entry)
    if isinstance(e, optree.MappingEntry):
        return DictKey(e.entry)
    # A position; anything else is a key that the node's own function gave.
    return FlattenedIndexKey(e.entry) if isinstance(e.entry, int) else e.entry


def keystr(keys: Sequence[Any], *, simple: bool = False, separator: str = "") -> str:
    """Write a path as Python would index it.

    Args:
        keys: path, as `leaves_with_path` gives it.
        simple: whether the bare keys are written, without brackets, quotes and dots.
        separator: text between the bare keys; not read without `simple`.

    Returns:
        The path as text.

    >>> path, leaf = gf.tree.leaves_with_path({"layers": [{"weight": 1}]})[0]
    >>> gf.tree.keystr(path), gf.tree.keystr(path, simple=True, separator=".")
    ("['layers'][0]['weight']", 'layers.0.weight')
    """
    if simple:
        return separator.join(str(getattr(e, "entry", e)) for e in keys)
    return separator.join(map(str, keys))
