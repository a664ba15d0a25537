"""Pytrees as text: their structure with the dtypes and shapes of the leaves, and sizes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from genesis_fn.core import dtypes, tree as trees
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Described
from genesis_fn.core.errors import ArgumentError
from genesis_fn.core.primitive import running
from genesis_fn.core.train_state import TrainState
from genesis_fn.core.trees.keys import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.core.types.extended import is_key

# Of a node with more entries than this, the first ones are shown; of the text, the first lines.
MOST_ENTRIES, MOST_LINES = 64, 1000


class Size(NamedTuple):
    """How many elements the arrays of a tree have, and how many bytes."""

    elements: int
    nbytes: int


class Group(NamedTuple):
    """Children of a node: one, or a run of alike ones, of which `child` is the first."""

    first: Any
    last: Any
    length: int
    child: Any


def size_of(tree: PyTree) -> Size:
    """The elements and bytes of the arrays of a tree; numbers count as one element of no bytes."""
    elements = nbytes = 0
    for x in trees.leaves(tree):
        shape = getattr(x, "shape", None)
        if isinstance(shape, tuple):
            elements += math.prod(shape)
            nbytes += math.prod(shape) * getattr(getattr(x, "dtype", None), "itemsize", 0)
    return Size(elements, nbytes)


def bytes_text(n: float) -> str:
    """Bytes for people: `12.3 MB`, powers of 1000."""
    return f"{n:.0f} B" if n < 1000 else f"{scaled(n)}B"


def scaled(n: float) -> str:
    """A number with three digits and a unit: `12.3 M`."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if abs(n) < 999.5 or unit == "P":
            return f"{n:.0f} {unit}" if abs(n) >= 99.95 or not unit else f"{n:.3g} {unit}"
        n /= 1000
    raise AssertionError


def is_array(x: Any) -> bool:
    """Whether a leaf is an array, or stands for one."""
    return isinstance(x, (Described, np.ndarray)) or (
        hasattr(x, "dtype") and isinstance(getattr(x, "shape", None), tuple)
    )


def leaf_text(x: Any) -> str:
    """A leaf in one line: `f32[2,3]` of an array, else what Python shows, cut."""
    if isinstance(x, Described):
        return repr(x.aval)
    if is_array(x):
        name = str(x.dtype)
        try:
            name = dtypes.SHORT.get(dtypes.dtype(x.dtype)) or name
        except (TypeError, ValueError):  # a dtype outside of the library's list
            pass
        module = type(x).__module__.partition(".")[0]
        prefix = {"numpy": "np:", "genesis_fn": ""}.get(module, f"{module}:")
        return f"{prefix}{name}[{','.join(map(str, x.shape))}]"
    text = repr(x).replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}..."


def to_numpy(x: Any) -> np.ndarray | None:
    """The values of an array, in host memory; None where they are not known or no numbers: of
    tracers, shapes, keys, and arrays that were given up."""
    if isinstance(x, ArrayImpl):
        return None if x.is_deleted() or is_key(x.dtype) else np.asarray(x)
    return x if isinstance(x, np.ndarray) else None


def first_values(x: Any, count: int) -> np.ndarray | None:
    """The first values of an array, or None as of `to_numpy`."""
    if isinstance(x, ArrayImpl) and x.size > count and not x.is_deleted() and not is_key(x.dtype):
        with running(None):  # the values are known, though a function may be traced around
            x = x.reshape(-1)[:count]
    values = to_numpy(x)
    return None if values is None else values.reshape(-1)[:count]


def entries_of(node: Any) -> list[tuple[Any, Any]] | None:
    """[(key, child)] of a node, keys as in paths, those of a dict in its own order; None of a
    leaf."""
    if node is None:
        return []
    if isinstance(node, TrainState):  # a node of leaves alone, which people know by its parts
        return [(GetAttrKey(name), part) for name, part in node.as_dict().items()]
    if type(node) in (dict, collections.OrderedDict, collections.defaultdict):
        return [(DictKey(key), child) for key, child in node.items()]
    found, structure = trees.flatten_with_path(node, lambda x: x is not node)
    return None if structure.is_leaf() else [(path[-1], child) for path, child in found]


def runs(entries: Sequence[tuple[Any, Any]]) -> Iterator[Group]:
    """The children in order; three and more alike ones in a row, such as layers, as one group."""
    kinds = [_kind(child) if isinstance(key, _NUMBERED) else None for key, child in entries]
    start = 0
    while start < len(entries):
        end = start + 1
        while kinds[start] is not None and end < len(entries) and kinds[end] == kinds[start]:
            end += 1
        end = end if end - start >= 3 else start + 1
        yield Group(entries[start][0], entries[end - 1][0], end - start, entries[start][1])
        start = end


_NUMBERED = (SequenceKey, FlattenedIndexKey)


def _kind(node: Any) -> tuple[Any, ...] | None:
    """What nodes have in common that differ in the values of arrays alone; None without arrays."""
    found, structure = trees.flatten(node)
    if not any(is_array(x) for x in found):
        return None
    return type(node), structure, tuple([leaf_text(x) for x in found])


def brackets(node: Any) -> tuple[str, str]:
    """What stands around the children of a node."""
    kind = type(node)
    plain = {dict: ("{", "}"), list: ("[", "]"), tuple: ("(", ")")}
    return plain.get(kind) or (f"{kind.__name__}(", ")")


def label(key: Any, node: Any) -> str:
    """What stands in front of a child of `node`: `'weight': ` in a dict, `weight=` elsewhere."""
    if isinstance(key, GetAttrKey):
        return f"{key.name}="
    return f"{key.key!r}: " if isinstance(key, DictKey) else ""


def static_fields(node: Any) -> list[tuple[str, str]]:
    """(name, value as text) of the fields of a dataclass that are no children of it."""
    if not dataclasses.is_dataclass(node):
        return []
    children = {key.name for key, _ in entries_of(node) or () if isinstance(key, GetAttrKey)}
    names = [f.name for f in dataclasses.fields(node) if f.name not in children]
    return [(n, leaf_text(getattr(node, n))) for n in names if getattr(node, n, None) is not None]


def sizes_text(tree: PyTree) -> str:
    """`28 leaves, 1.23 M elements, 4.92 MB`."""
    leaves, size = len(trees.leaves(tree)), size_of(tree)
    return (
        f"{leaves} {'leaf' if leaves == 1 else 'leaves'}, {scaled(size.elements).strip()} "
        f"elements, {bytes_text(size.nbytes)}"
    )


class _Printer:
    """Writes a tree within a width; `leaf` writes a leaf."""

    def __init__(self, width: int, leaf: Callable[[Any], str]) -> None:
        self.width, self.leaf = width, leaf

    def one_line(self, node: Any, room: int) -> str | None:
        """A tree in one line; None where that is longer than `room`."""
        entries = entries_of(node)
        if entries is None:
            return self.leaf(node)
        if node is None:
            return "None"
        opening, closing = brackets(node)
        parts = [f"{name}={value}" for name, value in static_fields(node)]
        room -= len(opening) + len(closing) + sum(len(p) + 2 for p in parts)
        shown = list[str]()
        for key, child in entries:
            text = self.one_line(child, room) if room > 0 else None
            if text is None:
                return None
            shown.append(label(key, node) + text)
            room -= len(shown[-1]) + 2
        inside = ", ".join(shown + parts)
        if type(node) is tuple and len(shown) == 1:
            inside += ","
        return f"{opening}{inside}{closing}" if room > -2 else None

    def lines(self, node: Any, indent: str, prefix: str, depth: float) -> Iterator[tuple[str, str]]:
        """A tree in as few lines as fit, each with its comment; `prefix` stands in front, `depth`
        levels are shown."""
        entries = entries_of(node) or []
        if depth >= _height(node):
            text = self.one_line(node, self.width - len(indent) - len(prefix) - 1)
            if text is not None:
                yield f"{indent}{prefix}{text}", ""
                return
        opening, closing = brackets(node)
        if depth <= 0:
            yield f"{indent}{prefix}{opening}...{closing}", sizes_text(node)
            return
        yield f"{indent}{prefix}{opening}", sizes_text(node)
        inner = f"{indent}  "
        groups = list(itertools.islice(runs(entries), MOST_ENTRIES + 1))
        for group in groups[:MOST_ENTRIES]:
            if group.length > 1:
                yield inner, f"{group.first} ... {group.last}: {group.length} alike, the first:"
            *most, (text, comment) = self.lines(
                group.child, inner, label(group.first, node), depth - 1
            )
            yield from most
            yield f"{text},", comment
        if len(groups) > MOST_ENTRIES:
            yield f"{inner}...", f"{len(entries)} entries in all"
        else:
            yield from ((f"{inner}{name}={value},", "") for name, value in static_fields(node))
        yield f"{indent}{closing}", ""


def _commented(text: str, comment: str) -> str:
    gap = "  " if text.strip() else ""
    return f"{text}{gap}# {comment}" if comment else text


def _height(node: Any) -> int:
    """The levels of nodes below and with this one."""
    entries = entries_of(node)
    return 1 + max([_height(child) for _, child in entries], default=0) if entries else 0


def _with_values(x: Any) -> str:
    values = first_values(x, 6) if is_array(x) else None
    if values is None:
        return leaf_text(x)
    if not x.shape:
        return f"{leaf_text(x)} = {values[0]}"
    shown = np.array2string(
        values, precision=4, separator=", ", max_line_width=10**6, threshold=100
    )
    more = ", ...]" if math.prod(x.shape) > len(values) else "]"
    return f"{leaf_text(x)} = {shown[:-1]}{more}"


def pformat(
    tree: PyTree, *, depth: int | None = None, width: int = 100, values: bool = False
) -> str:
    """Write a pytree as text: its nodes, with dtype and shape for each array.

    What does not fit into a line stands in several, with sizes: the elements and bytes of its
    arrays. Three and more alike entries of a list, such as layers, are written once. Of a huge tree
    the first entries of each node are written, at most 1000 lines in all, and the text says so.

    Args:
        tree: pytree; arrays, tracers or ShapeDtypeStructs as leaves, or any objects.
        depth: levels of nodes that are shown; None: all.
        width: columns of a line, but for comments.
        values: whether the first values of each array are shown; they are copied to the host.

    Returns:
        The text.

    Raises:
        ArgumentError: `depth` or `width` is negative or no integer.

    >>> print(gf.tree.pformat({"weight": jnp.ones((2, 3)), "steps": [1, None]}))
    {'weight': f32[2,3], 'steps': [1, None]}
    >>> layers = [{"weight": jnp.ones((2, 2)), "bias": jnp.ones(2)} for _ in range(5)]
    >>> print(gf.tree.pformat({"layers": layers}, width=50))
    {  # 10 leaves, 30 elements, 120 B
      'layers': [  # 10 leaves, 30 elements, 120 B
        # [0] ... [4]: 5 alike, the first:
        {'weight': f32[2,2], 'bias': f32[2]},
      ],
    }
    """
    for name, n in (("depth", depth), ("width", width)):
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"pformat: {name} is {n!r:.60}, but is an integer, not negative")
    printer = _Printer(width, _with_values if values else leaf_text)
    lines = printer.lines(tree, "", "", math.inf if depth is None else depth)
    shown = list(itertools.islice(lines, MOST_LINES + 1))
    if len(shown) > MOST_LINES:
        shown[-1] = "...", f"{sizes_text(tree)} in all; depth= shows less of more"
    return "\n".join([_commented(*line) for line in shown])


def pprint(
    tree: PyTree, *, depth: int | None = None, width: int = 100, values: bool = False
) -> None:
    """Print a pytree: its nodes, with dtype and shape for each array.

    Args:
        tree: pytree; arrays, tracers or ShapeDtypeStructs as leaves, or any objects.
        depth: levels of nodes that are shown; None: all.
        width: columns of a line, but for comments.
        values: whether the first values of each array are shown; they are copied to the host.

    >>> gf.tree.pprint({"weight": jnp.ones((2, 3)), "steps": [1, None]})
    {'weight': f32[2,3], 'steps': [1, None]}
    >>> gf.tree.pprint({"bias": jnp.arange(3.0)}, values=True)
    {'bias': f32[3] = [0., 1., 2.]}
    """
    print(pformat(tree, depth=depth, width=width, values=values))
