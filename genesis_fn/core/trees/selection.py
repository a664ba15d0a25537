"""Parts of pytrees: leaves by their paths, and trees with some nodes replaced."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, overload

from genesis_fn.core import tree as trees
from genesis_fn.core.errors import ArgumentError, TreeError
from genesis_fn.core.types.annotations import PyTree

IsLeaf = Callable[[Any], bool] | None


# ---- leaves by path ----


@functools.lru_cache(1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression of a glob over the parts of a dotted path."""
    text = ""
    for part in pattern.split("."):
        if part == "**":
            text += r"(?:\.[^.]+)*"
        else:
            pieces = [re.escape(p) for p in re.split(r"([*?])", part)]
            text += r"\." + "".join({r"\*": "[^.]*", r"\?": "[^.]"}.get(p, p) for p in pieces)
    return re.compile(text)


def _predicate(pattern: str | re.Pattern[str]) -> Callable[[str], bool]:
    """Whether a pattern matches a dotted path."""
    if isinstance(pattern, re.Pattern):
        return lambda path: pattern.search(path) is not None
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(
            f"a pattern of paths is text or a compiled regular expression, got {pattern!r:.60} of "
            f"type {type(pattern).__name__}\n  text matches dotted paths: 'layers.*.weight'"
        )
    compiled = _compiled(pattern)
    # Every part has a dot in front of it, so that `**` may stand for none.
    return lambda path: compiled.fullmatch(f".{path}" if path else "") is not None


def dotted(path: Sequence[Any]) -> str:
    """A path as its bare keys joined by dots: "layers.0.weight"."""
    return trees.keystr(path, simple=True, separator=".")


def _no_match(pattern: str | re.Pattern[str], paths: Sequence[str]) -> TreeError:
    """The error of a pattern that matches no leaf: near paths, and what to write instead."""
    text = pattern if isinstance(pattern, str) else pattern.pattern
    if not paths:
        return TreeError(f"the pattern {text!r} matches nothing: the tree has no leaves")
    remedy = ""
    if isinstance(pattern, str):
        below = _predicate(f"{pattern}.**")
        if any(below(p) for p in paths):
            remedy = f"\n  that is a node: {pattern + '.**'!r} matches the leaves in it"
        elif re.search(r"\[|'|\\", pattern):
            remedy = "\n  paths are dotted, 'layers.0.weight'; regular expressions are compiled"
    shown = difflib.get_close_matches(text, paths, 3, 0.3) or paths[:3]
    more = f", ... ({len(paths)} leaves in all)" if len(paths) > len(shown) else ""
    near = ", ".join(map(repr, shown))
    return TreeError(f"the pattern {text!r} matches no leaf; near it are {near}{more}{remedy}")


def _matches(
    tree: PyTree, pattern: str | re.Pattern[str], is_leaf: IsLeaf
) -> tuple[list[tuple[str, Any]], list[bool], trees.PyTreeDef]:
    """([(dotted path, leaf)], whether each matches, structure). Raises TreeError where none
    does."""
    matches = _predicate(pattern)
    found, treedef = trees.flatten_with_path(tree, is_leaf)
    named = [(dotted(path), x) for path, x in found]
    chosen = [matches(path) for path, _ in named]
    if not any(chosen):
        raise _no_match(pattern, [path for path, _ in named])
    return named, chosen, treedef


@overload
def select(
    tree: str | re.Pattern[str], pattern: None = None, *, is_leaf: IsLeaf = None
) -> Callable[[PyTree], dict[str, Any]]: ...
@overload
def select(
    tree: PyTree, pattern: str | re.Pattern[str], *, is_leaf: IsLeaf = None
) -> dict[str, Any]: ...
def select(
    tree: PyTree, pattern: str | re.Pattern[str] | None = None, *, is_leaf: IsLeaf = None
) -> Any:
    """List the leaves of a pytree whose paths match a pattern.

    Args:
        tree: pytree; or the pattern alone, for a function of a tree.
        pattern: text that matches whole dotted paths, as `keystr(path, simple=True, separator=".")`
            writes them: `*` stands for any text within one key, `?` for one character of it, and
            `**` for any number of keys, or none. Or a compiled regular expression, which is
            searched in the path.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        {path: leaf} in the order of the leaves; or a function of a tree that returns it.

    Raises:
        ArgumentError: `pattern` is neither text nor a compiled regular expression.
        TreeError: it matches no leaf, or two leaves of one dotted path.

    >>> params = {"layers": [{"weight": 1, "bias": 2}, {"weight": 3, "bias": 4}], "head": 5}
    >>> gf.tree.select(params, "layers.*.weight")
    {'layers.0.weight': 1, 'layers.1.weight': 3}
    >>> gf.tree.select("**.bias")(params)
    {'layers.0.bias': 2, 'layers.1.bias': 4}
    """
    if pattern is None:
        _predicate(tree)
        return lambda other: select(other, tree, is_leaf=is_leaf)
    named, chosen, _ = _matches(tree, pattern, is_leaf)
    result = dict[str, Any]()
    for (path, x), take in zip(named, chosen):
        if take and path in result:
            raise TreeError(
                f"two leaves have the dotted path {path!r}, since a key has a dot in it or is a "
                "number in one place and text in the other\n  select from the subtree of one"
            )
        if take:
            result[path] = x
    return result


@overload
def mask(
    tree: str | re.Pattern[str], pattern: None = None, *, is_leaf: IsLeaf = None
) -> Callable[[PyTree], PyTree]: ...
@overload
def mask(tree: PyTree, pattern: str | re.Pattern[str], *, is_leaf: IsLeaf = None) -> PyTree: ...
def mask(
    tree: PyTree, pattern: str | re.Pattern[str] | None = None, *, is_leaf: IsLeaf = None
) -> Any:
    """Say of each leaf of a pytree whether its path matches a pattern.

    Given the pattern alone, it is what optimizers take as a mask:
    `optim.masked(transformation, tree.mask("**.bias"))`.

    Args:
        tree: pytree; or the pattern alone, for a function of a tree.
        pattern: as of `select`.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        A pytree of the structure of `tree` with bools as leaves; or a function that returns it.

    Raises:
        ArgumentError: `pattern` is neither text nor a compiled regular expression.
        TreeError: it matches no leaf.

    >>> gf.tree.mask({"layers": [{"weight": 1, "bias": 2}], "head": 5}, "**.bias")
    {'layers': [{'weight': False, 'bias': True}], 'head': False}
    """
    if pattern is None:
        _predicate(tree)
        return lambda other: mask(other, tree, is_leaf=is_leaf)
    _, chosen, treedef = _matches(tree, pattern, is_leaf)
    return trees.unflatten(treedef, chosen)


# ---- trees with nodes replaced ----


class _Place:
    """Stands for a leaf while `where` is asked: which leaf, never what it holds."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TreeError(
            f"at: `where` looks into the leaf {self.path or 'tree'}, but says which nodes are "
            "meant by keys, indices and attributes alone\n"
            "  parts of an array are replaced by replace_fn=lambda x: x.at[...].set(...)"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python asks of any object
            raise AttributeError(name)
        return self._refuse()

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse  # pyright: ignore[reportAssignmentType]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __neg__ = __abs__ = __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _refuse
    __int__ = __float__ = __index__ = __array__ = _refuse
    __hash__ = object.__hash__


_NOTHING = object()


def at(
    where: Callable[[Any], PyTree] | str | re.Pattern[str],
    tree: PyTree,
    replace: PyTree = _NOTHING,
    *,
    replace_fn: Callable[[Any], PyTree] | None = None,
    is_leaf: IsLeaf = None,
) -> PyTree:
    """Replace nodes of a pytree: a new tree, and the old one as it was.

    As `equinox.tree_at` (Kidger and Garcia, "Equinox: neural networks in JAX via callable PyTrees
    and filtered transformations", 2021).

    Args:
        where: function of the tree that returns a node of it, leaf or subtree, or a tuple or list
            of nodes. Or a pattern of paths, as of `select`, for the leaves that it matches.
        tree: pytree.
        replace: what takes the node's place; for several nodes a sequence of as many values. For
            a pattern: the value of its leaf where it is a path without `*` and `?`, else a
            sequence of values or a dict {path: value}.
        replace_fn: function of a node that returns what takes its place; instead of `replace`.
        is_leaf: function of a node that is true where it counts as a leaf, so that a None may be
            selected; None: of none.

    Returns:
        The new tree.

    Raises:
        ArgumentError: not exactly one of `replace` and `replace_fn` is given.
        TreeError: `where` selects nothing, what is no node of the tree, one node twice, or depends
            on what leaves hold; or `replace` has another number of values.

    >>> params = {"body": {"weight": 1}, "head": {"weight": 2, "bias": 3}}
    >>> gf.tree.at(lambda t: t["head"]["bias"], params, 0)
    {'body': {'weight': 1}, 'head': {'weight': 2, 'bias': 0}}
    >>> gf.tree.at("**.weight", params, replace_fn=lambda w: 10 * w)
    {'body': {'weight': 10}, 'head': {'weight': 20, 'bias': 3}}
    """
    if (replace is _NOTHING) == (replace_fn is None):
        raise ArgumentError("at takes one of replace= and replace_fn=")
    found, treedef = trees.flatten_with_path(tree, is_leaf)
    # One new object for each leaf: equal leaves, and one object at two places, differ here; nodes
    # are new objects as well.
    places = [_Place(trees.keystr(path)) for path, _ in found]
    whole = trees.unflatten(treedef, places)
    known = {id(p): x for p, (_, x) in zip(places, found)}
    if callable(where):
        nodes, several = _selected(where, whole, tree, known, is_leaf)
    else:
        named, chosen, _ = _matches(tree, where, is_leaf)
        nodes = [p for p, take in zip(places, chosen) if take]
        several = not isinstance(where, str) or re.search(r"[*?]", where) is not None
        if isinstance(replace, dict) and several:
            replace = _by_path(replace, [path for (path, _), take in zip(named, chosen) if take])

    def original(node: Any) -> PyTree:
        return trees.map(lambda p: known[id(p)], node)

    if replace_fn is not None:
        values = [replace_fn(original(node)) for node in nodes]
    else:
        values = _values(replace, len(nodes)) if several else [replace]
    new = {id(node): value for node, value in zip(nodes, values)}
    parts, outer = trees.flatten(whole, lambda x: id(x) in new)
    return trees.unflatten(outer, [new[id(p)] if id(p) in new else known[id(p)] for p in parts])


def _values(replace: PyTree, count: int) -> list[Any]:
    if isinstance(replace, (tuple, list)) and len(replace) == count:
        return list(replace)
    length = f" of {len(replace)}" if isinstance(replace, (tuple, list)) else ""
    raise TreeError(
        f"at: `where` selects {count} nodes, so that `replace` is a tuple or list of {count} "
        f"values, not a {type(replace).__name__}{length}\n"
        "  one value for all of them: replace_fn=lambda node: value"
    )


def _by_path(replace: dict[str, Any], paths: list[str]) -> list[Any]:
    if replace.keys() != set(paths):
        unknown, missing = sorted(replace.keys() - set(paths)), sorted(set(paths) - replace.keys())
        raise TreeError(
            "at: `replace` has a value for each path that the pattern matches; left out "
            f"{missing[:3]}, unknown {unknown[:3]}"
        )
    return [replace[path] for path in paths]


def _selected(
    where: Callable[[Any], Any], whole: PyTree, tree: PyTree, known: dict[int, Any], is_leaf: IsLeaf
) -> tuple[list[Any], bool]:
    """(the nodes of `whole` that `where` selects, whether it returned a sequence of them)."""
    result = where(whole)
    several = type(result) in (tuple, list) and not _within(whole, [result])
    nodes = list(result) if several else [result]
    if not nodes:
        raise TreeError("at: `where` selects nothing: it returned an empty sequence")
    counts = _within(whole, nodes)
    for node in nodes:
        count = counts.get(id(node), 0)
        if node is None:
            raise TreeError(
                "at: `where` selects a None, which is no leaf\n"
                "  let it be one: is_leaf=lambda x: x is None"
            )
        if count > 1 and not trees.leaves(node):
            raise TreeError(
                f"at: `where` selects {node!r:.60}, which Python has one object of and the tree "
                "several\n  select the node that holds it"
            )
        if count != 1:
            inside = any(id(node) in _within(n, [node]) for n in nodes if n is not node)
            raise TreeError(
                "at: `where` selects a node and one inside of it"
                if inside
                else f"at: `where` returned {_described(node)}, which is no node of the tree\n"
                "  return nodes as they are: lambda tree: tree['layers'][0]"
            )
    if len({id(node) for node in nodes}) < len(nodes):
        raise TreeError("at: `where` selects one node twice")
    _check_independent(where, tree, known, result, is_leaf)
    return nodes, several


def _described(node: Any) -> str:
    if isinstance(node, _Place):
        return f"the leaf {node.path}"
    return f"a new {type(node).__name__}" if trees.leaves(node) else f"{node!r:.60}"


def _within(whole: PyTree, nodes: Sequence[Any]) -> dict[int, int]:
    """{id: number of places} of those objects among `nodes` that are nodes of `whole` and not
    inside of another one of them."""
    ids = {id(node) for node in nodes}
    counts = dict[int, int]()
    for part in trees.leaves(whole, lambda x: id(x) in ids):
        if id(part) in ids:
            counts[id(part)] = counts.get(id(part), 0) + 1
    return counts


def _check_independent(
    where: Callable[[Any], Any], tree: PyTree, known: dict[int, Any], result: Any, is_leaf: IsLeaf
) -> None:
    """Raise TreeError where `where` selects others than `result` when it sees the leaves."""
    seen, structure = trees.flatten(where(tree), is_leaf)
    expected, wanted = trees.flatten(result)
    same = len(seen) == len(expected) and structure == wanted
    if not same or any(x is not known[id(p)] for x, p in zip(seen, expected)):
        raise TreeError(
            "at: `where` selects other nodes when it sees what the leaves hold, but says which "
            "are meant by keys, indices and attributes alone"
        )
