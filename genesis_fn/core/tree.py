"""Pytrees: nested containers of arrays, on optree in the namespace "genesis_fn".

`None` is an empty subtree. Tuples, lists, dicts, ordered dicts, deques and named tuples are nodes;
dataclasses become nodes by `dataclass` or `register_dataclass`.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, dataclass_transform, overload

import optree

from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.errors import TreeError
from genesis_fn.core.static import Aux
from genesis_fn.core.trees.fields import fields_of
from genesis_fn.core.trees.keys import key_of, keystr
from genesis_fn.core.types.annotations import PyTree

NAMESPACE = "genesis_fn"
# How registered node types come apart and together: see `node_functions`.
_NODE_TYPES: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {}
# A node as HTML for notebooks; `trees/html.py` puts a function here that knows of arrays.
node_html: Callable[[PyTree], str] | None = None
PyTreeDef: TypeAlias = optree.PyTreeSpec
Leaf: TypeAlias = Any
T = TypeVar("T")


# ---- trees ----


def flatten(
    tree: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], PyTreeDef]:
    """Take a pytree apart.

    Args:
        tree: pytree; None is a node without leaves.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        (leaves in order, structure).

    >>> leaves, structure = gf.tree.flatten({"w": 1, "b": [2, None]})
    >>> leaves, structure
    ([2, 1], PyTreeSpec({'b': [*, None], 'w': *}))
    """
    return optree.tree_flatten(tree, is_leaf, namespace=NAMESPACE)


def unflatten(treedef: PyTreeDef, leaves: Iterable[Leaf]) -> PyTree:
    """Put a pytree together: what `flatten` took apart.

    Args:
        treedef: structure.
        leaves: its leaves in order, any objects.

    Returns:
        The pytree.

    Raises:
        ValueError: there are more or fewer leaves than the structure has.

    >>> gf.tree.unflatten(gf.tree.structure({"w": 0, "b": [0, None]}), [2, 1])
    {'w': 1, 'b': [2, None]}
    """
    return optree.tree_unflatten(treedef, leaves)


def leaves(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """List the leaves of a pytree.

    Args:
        tree: pytree; None is a node without leaves.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        The leaves in order; those of a dict by its sorted keys.

    >>> gf.tree.leaves({"w": 1, "b": [2, None]})
    [2, 1]
    >>> gf.tree.leaves({"w": 1, "b": [2, None]}, is_leaf=lambda x: x is None)
    [2, None, 1]
    """
    return optree.tree_leaves(tree, is_leaf, namespace=NAMESPACE)


def structure(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> PyTreeDef:
    """Tell the structure of a pytree: all but its leaves.

    Args:
        tree: pytree; None is a node without leaves.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        The structure; equal for trees of the same nodes, keys and static fields.

    >>> gf.tree.structure({"w": 1}) == gf.tree.structure({"w": jnp.ones(3)})
    True
    """
    return optree.tree_structure(tree, is_leaf, namespace=NAMESPACE)


# Overloads, so that checkers report a function of another number of trees, and know the parameters
# of a lambda.
@overload
def map(
    f: Callable[[Any], Any], tree: PyTree, *, is_leaf: Callable[[Any], bool] | None = None
) -> PyTree: ...
@overload
def map(
    f: Callable[[Any, Any], Any],
    tree: PyTree,
    second: PyTree,
    /,
    *,
    is_leaf: Callable[[Any], bool] | None = None,
) -> PyTree: ...
@overload
def map(
    f: Callable[..., Any],
    tree: PyTree,
    second: PyTree,
    third: PyTree,
    /,
    *rest: PyTree,
    is_leaf: Callable[[Any], bool] | None = None,
) -> PyTree: ...
def map(
    f: Callable[..., Any], tree: PyTree, *rest: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> PyTree:
    """Apply `f` to the leaves of `tree`, with the corresponding subtrees of `rest`.

    Args:
        f: function of a leaf of `tree` and a subtree of each tree of `rest`.
        tree: pytree.
        *rest: pytrees with the nodes of `tree`; they may go on where it has a leaf.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        A pytree of the structure of `tree`, with what `f` returned as leaves.

    Raises:
        TreeError: a tree of `rest` lacks the structure of `tree`; the message names the path.

    >>> gf.tree.map(lambda x, y: x + y, {"w": 1, "b": [2]}, {"w": 10, "b": [20]})
    {'w': 11, 'b': [22]}
    """
    found, treedef = flatten(tree, is_leaf)
    others = [_flatten_up_to(treedef, tree, r, i + 1) for i, r in enumerate(rest)]
    return unflatten(treedef, [f(*xs) for xs in zip(found, *others, strict=True)])


def _flatten_up_to(treedef: PyTreeDef, tree: PyTree, other: PyTree, position: int) -> list[Any]:
    try:
        return treedef.flatten_up_to(other)
    except (ValueError, TypeError) as error:
        difference = first_difference(tree, other) or str(error)
        raise TreeError(
            f"tree {position} does not match the first tree: {difference}\n"
            f"  at {where().describe()}"
        ) from None


def first_difference(expected: PyTree, got: PyTree, prefix: str = "") -> str | None:
    """Where and how two pytrees differ in structure, or None."""
    a, b = _children(expected), _children(got)
    at = prefix or "the top"
    if a is None:
        return None if b is None else f"at {at}: expected a leaf, got {_kind(got)}"
    if b is None:
        return f"at {at}: expected {_kind(expected)}, got a leaf of type {type(got).__name__}"
    if type(expected) is not type(got):
        return f"at {at}: expected {_kind(expected)}, got {_kind(got)}"
    if a.keys() != b.keys():
        missing = [prefix + k for k in a if k not in b]
        extra = [prefix + k for k in b if k not in a]
        return f"at {at}: " + "; ".join(
            word + ", ".join(names)
            for word, names in (("missing ", missing), ("unexpected ", extra))
            if names
        )
    for k in a:
        found = first_difference(a[k], b[k], prefix + k)
        if found:
            return found
    return None


def _kind(tree: PyTree) -> str:
    children = _children(tree)
    return "None" if tree is None else f"a {type(tree).__name__} of {len(children or ())}"


def _children(tree: PyTree) -> dict[str, Any] | None:
    if tree is None:
        return {}
    flat = optree.tree_flatten_with_path(
        tree, lambda x: x is not tree, none_is_leaf=True, namespace=NAMESPACE
    )
    _, kids, spec = flat
    if spec.is_leaf():
        return None
    accessors = spec.accessors()
    return {keystr([key_of(e) for e in a]): kid for a, kid in zip(accessors, kids, strict=True)}


def flatten_with_path(
    tree: PyTree, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[tuple[Any, ...], Leaf]], PyTreeDef]:
    """Take a pytree apart, with the leaves' paths.

    Args:
        tree: pytree; None is a node without leaves.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.
        is_leaf_takes_path: whether `is_leaf` is a function of (path, node).

    Returns:
        ([(path, leaf)] in order, structure). A path is a tuple of `DictKey`, `SequenceKey`,
        `GetAttrKey` and `FlattenedIndexKey`.

    >>> gf.tree.flatten_with_path({"w": [1]})
    ([((DictKey(key='w'), SequenceKey(idx=0)), 1)], PyTreeSpec({'w': [*]}))
    """
    if is_leaf_takes_path and is_leaf is not None:
        is_leaf = _by_path(tree, is_leaf)
    accessors, found, treedef = optree.tree_flatten_with_accessor(
        tree, is_leaf, namespace=NAMESPACE
    )
    return [
        (tuple([key_of(e) for e in a]), x) for a, x in zip(accessors, found, strict=True)
    ], treedef


def leaves_with_path(
    tree: PyTree, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> list[tuple[tuple[Any, ...], Leaf]]:
    """List the leaves of a pytree with their paths.

    Args:
        tree: pytree; None is a node without leaves.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.
        is_leaf_takes_path: whether `is_leaf` is a function of (path, node).

    Returns:
        [(path, leaf)] in order, as of `flatten_with_path`.

    >>> gf.tree.leaves_with_path({"w": [1]})
    [((DictKey(key='w'), SequenceKey(idx=0)), 1)]
    """
    return flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def _by_path(tree: PyTree, is_leaf: Callable[[Any, Any], bool]) -> Callable[[Any], bool]:
    """`is_leaf(path, node)` as a function of the node alone, for one walk over `tree`."""
    answers: list[bool] = []

    def ask(path: tuple[Any, ...], node: PyTree) -> None:
        answers.append(bool(is_leaf(path, node)))
        if not answers[-1] and is_tree_node(type(node)):
            for key, child in flatten_one_level_with_keys(node)[0]:
                ask((*path, key), child)

    ask((), tree)
    in_order = iter(answers)  # optree asks of a node, then of its children
    return lambda _: next(in_order)


def paths(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> list[str]:
    """List the leaves' paths as text: what errors and reports call a leaf.

    Args:
        tree: pytree; None is a node without leaves.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        The paths in order, each as `keystr` writes it.

    >>> gf.tree.paths({"layers": [{"weight": 1}, {"weight": 2}]})
    ["['layers'][0]['weight']", "['layers'][1]['weight']"]
    """
    return [keystr(p) for p, _ in leaves_with_path(tree, is_leaf)]


def map_with_path(
    f: Callable[..., Any],
    tree: PyTree,
    *rest: PyTree,
    is_leaf: Callable[..., bool] | None = None,
    is_leaf_takes_path: bool = False,
) -> PyTree:
    """Apply a function to the leaves of a pytree and their paths: `map` with one argument more.

    Args:
        f: function of a path, a leaf of `tree` and a subtree of each tree of `rest`.
        tree: pytree.
        *rest: pytrees with the nodes of `tree`; they may go on where it has a leaf.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.
        is_leaf_takes_path: whether `is_leaf` is a function of (path, node).

    Returns:
        A pytree of the structure of `tree`, with what `f` returned as leaves.

    Raises:
        TreeError: a tree of `rest` lacks the structure of `tree`; the message names the path.

    >>> gf.tree.map_with_path(lambda path, x: (gf.tree.keystr(path), 2 * x), {"w": [1]})
    {'w': [("['w'][0]", 2)]}
    """
    found, treedef = flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    others = [_flatten_up_to(treedef, tree, r, i + 1) for i, r in enumerate(rest)]
    return unflatten(treedef, [f(p, x, *xs) for (p, x), *xs in zip(found, *others, strict=True)])


def is_tree_node(typ: type) -> bool:
    """Tell whether objects of a class are nodes of pytrees.

    Args:
        typ: the class.

    Returns:
        The answer: True of tuple, list, dict, NoneType, named tuples and registered classes.

    >>> gf.tree_util.is_tree_node(dict), gf.tree_util.is_tree_node(int)
    (True, False)
    """
    return typ is type(None) or is_sequence(typ) or node_functions(typ) is not None


def _one_level(tree: PyTree) -> tuple[list[Any], Any, Sequence[Any]]:
    """(children, static data, their keys) of a node. Raises ValueError for a leaf."""
    if not is_tree_node(type(tree)):
        raise ValueError(
            f"a leaf of type {type(tree).__name__} has no children\n  at {where().describe()}"
        )
    if tree is None:
        return [], None, ()
    children, static, *_ = optree.tree_flatten_one_level(tree, namespace=NAMESPACE)
    outside = lambda x: x is not tree
    accessors, *_ = optree.tree_flatten_with_accessor(
        tree, outside, none_is_leaf=True, namespace=NAMESPACE
    )
    static = static.value if type(static) is Aux else _hashable(static)
    return list(children), static, [key_of(e) for a in accessors for e in a]


def _hashable(static: Any) -> Any:
    """The static data of a container that Python has, with tuples for the lists of its keys."""
    if isinstance(static, (list, tuple)):
        return tuple([_hashable(x) for x in static])
    return static


def flatten_one_level(tree: PyTree) -> tuple[list[Any], Any]:
    """Take one node of a pytree apart.

    Args:
        tree: a node.

    Returns:
        (children, static data), which is what the node's type keeps besides them: the sorted keys
        of a dict, say.

    Raises:
        ValueError: `tree` is a leaf.

    >>> gf.tree_util.flatten_one_level({"w": [1, 2], "b": 3})
    ([3, [1, 2]], ('b', 'w'))
    """
    children, static, _ = _one_level(tree)
    return children, static


def flatten_one_level_with_keys(tree: PyTree) -> tuple[list[tuple[Any, Any]], Any]:
    """Take one node of a pytree apart, with the keys of its children.

    Args:
        tree: a node.

    Returns:
        ([(key, child)], static data).

    Raises:
        ValueError: `tree` is a leaf.

    >>> gf.tree_util.flatten_one_level_with_keys([4, {}])
    ([(SequenceKey(idx=0), 4), (SequenceKey(idx=1), {})], None)
    """
    children, static, keys = _one_level(tree)
    return list(zip(keys, children, strict=True)), static


_NOTHING = object()


def reduce(
    function: Callable[[Any, Any], Any],
    tree: PyTree,
    initializer: Any = _NOTHING,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Fold the leaves of a pytree from the left.

        function(... function(function(initializer, leaf 1), leaf 2) ..., leaf n)

    Args:
        function: function of the value so far and a leaf.
        tree: pytree.
        initializer: the first value; without it, the first leaf.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        The last value.

    Raises:
        TypeError: the tree has no leaves and there is no `initializer`.

    >>> gf.tree.reduce(lambda total, x: total + x, {"w": 1, "b": [2, 3]})
    6
    """
    start = () if initializer is _NOTHING else (initializer,)
    return functools.reduce(function, leaves(tree, is_leaf), *start)


def reduce_associative(
    operation: Callable[[Any, Any], Any],
    tree: PyTree,
    *,
    identity: Any = ...,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Combine the leaves of a pytree pairwise, in logarithmic depth.

    Args:
        operation: associative function of two leaves, or of what it returned.
        tree: pytree.
        identity: the result for a tree without leaves.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        The last value.

    Raises:
        ValueError: the tree has no leaves and there is no `identity`.

    >>> gf.tree.reduce_associative(lambda x, y: x + y, {"w": 1, "b": [2, 3]})
    6
    """
    found = leaves(tree, is_leaf)
    if not found:
        if identity is ...:
            raise ValueError(
                f"reduce_associative of no leaves needs identity=\n  at {where().describe()}"
            )
        return identity
    while len(found) > 1:
        pairs = [operation(a, b) for a, b in zip(found[::2], found[1::2])]
        found = pairs + found[2 * len(pairs) :]
    return found[0]


def all(tree: PyTree, *, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Tell whether every leaf is true.

    Args:
        tree: pytree of bools, or of what `bool` takes.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        The answer; True of a tree without leaves.

    >>> gf.tree.all({"w": True, "b": [False]})
    False
    """
    return builtins.all(bool(x) for x in leaves(tree, is_leaf))


def transpose(
    outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: PyTree
) -> PyTree:
    """Turn a tree of trees inside out: its outer nodes become the inner ones.

    Args:
        outer_treedef: structure of the outer tree.
        inner_treedef: structure of each inner tree; None: that of the first.
        pytree_to_transpose: tree of the outer structure whose leaves are trees of the inner one.

    Returns:
        A tree of the inner structure whose leaves are trees of the outer one.

    Raises:
        ValueError: the tree does not have these structures.

    >>> outer, inner = gf.tree.structure([0, 0]), gf.tree.structure({"w": 0, "b": 0})
    >>> gf.tree.transpose(outer, inner, [{"w": 1, "b": 2}, {"w": 3, "b": 4}])
    {'w': [1, 3], 'b': [2, 4]}
    """
    outer, inner = outer_treedef, inner_treedef
    try:
        columns = outer.flatten_up_to(pytree_to_transpose)
        inner = structure(columns[0]) if inner is None else inner
        rows = [inner.flatten_up_to(c) for c in columns]
    except ValueError as error:
        found = leaves(pytree_to_transpose)
        count = inner.num_leaves if inner is not None else len(found) // max(outer.num_leaves, 1)
        # Static data of a node may tell of what is below it: then the order of the leaves counts.
        if "custom node data" not in str(error) or len(found) != outer.num_leaves * count:
            raise TreeError(
                f"transpose: the tree has structure {structure(pytree_to_transpose)}, which is not "
                f"{outer} of {inner}"
            ) from None
        rows = [found[i : i + count] for i in builtins.range(0, len(found), count)]
        if inner is None:
            raise
    return unflatten(inner, [unflatten(outer, list(r)) for r in zip(*rows, strict=True)])


def broadcast(
    prefix_tree: PyTree, full_tree: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> PyTree:
    """Repeat each leaf of a tree over the subtree of another tree that it stands for.

    Args:
        prefix_tree: pytree with the uppermost nodes of `full_tree`; None in it is a leaf.
        full_tree: pytree.
        is_leaf: function of a node that is true where it counts as a leaf; None: of none.

    Returns:
        A tree of the structure of `full_tree` with the leaves of `prefix_tree`.

    Raises:
        TreeError: `prefix_tree` is not a prefix of `full_tree`.

    >>> gf.tree.broadcast({"w": 0, "b": 1}, {"w": [7, 8], "b": 9})
    {'w': [0, 0], 'b': 1}
    """
    leaves_of = broadcast_prefix(prefix_tree, full_tree, is_leaf)
    return unflatten(structure(full_tree, is_leaf), leaves_of)


def broadcast_prefix(
    prefix: PyTree, tree: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> list[Any]:
    """One leaf of `prefix` per leaf of `tree`; None in the prefix is a leaf.

    Raises TreeError where `prefix` is not a prefix of `tree`.
    """

    def leaf(x: Any) -> bool:
        return x is None or (is_leaf is not None and is_leaf(x))

    result: list[Any] = []
    try:
        optree.tree_map_(
            lambda p, sub: result.extend([p] * len(leaves(sub, is_leaf))),
            prefix,
            tree,
            is_leaf=leaf,
            none_is_leaf=True,
            namespace=NAMESPACE,
        )
    except (ValueError, TypeError):
        difference = first_difference(prefix, tree)
        raise TreeError(f"not a prefix of the tree: {difference}") from None
    return result


def leaves_or_none(tree: PyTree, treedef: PyTreeDef) -> list[Any]:
    """The leaves of `tree`, which has the structure `treedef`, or None for each leaf of a subtree
    that it has None in place of.

    Raises TreeError where it has another structure.
    """
    found, structure = flatten(tree)
    if structure == treedef:
        return found
    whole, result = unflatten(treedef, range(treedef.num_leaves)), []

    def take(x: Any, part: Any) -> None:
        if x is not None and type(part) is not int:
            raise TreeError(f"a leaf of type {type(x).__name__} stands for a subtree")
        result.extend([x] * len(leaves(part)))

    try:
        optree.tree_map_(
            take, tree, whole, is_leaf=lambda x: x is None, none_is_leaf=True, namespace=NAMESPACE
        )
    except (ValueError, TypeError) as error:
        raise TreeError(first_difference(whole, tree) or str(error)) from None
    return result


def register_node(
    kind: type[T],
    flatten_node: Callable[[T], tuple[Iterable[Any], Hashable]],
    unflatten_node: Callable[[Any, Iterable[Any]], T],
    entries: Callable[[T], Sequence[Any]] | None = None,
) -> type[T]:
    """Make a class a type of pytree nodes.

    Args:
        kind: the class; it is neither registered yet nor a container that Python has.
        flatten_node: function of an object that returns (children, hashable static data).
        unflatten_node: function (static data, children) that makes an object.
        entries: function of an object that returns the children's keys in paths; None: positions.

    Returns:
        `kind`.

    Raises:
        TypeError: `kind` is no class.
        ValueError: `kind` is registered, or built in as tuple, list and dict are.

    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> _ = gf.tree.register_node(
    ...     Pair, lambda x: ((x.a, x.b), None), lambda static, children: Pair(*children)
    ... )
    >>> gf.tree.map(lambda x: 2 * x, Pair(1, 2)).b
    4
    """

    def flat(x: T) -> tuple[Any, ...]:
        children, static = flatten_node(x)
        return (children, static) if entries is None else (children, static, entries(x))

    _register(kind, flat, unflatten_node)
    return kind


def _register(
    kind: type, flat: Callable[..., Any], rebuild: Callable[..., Any], **options: Any
) -> None:
    """Tell optree of a node type, whose static data is compared by type and content."""

    def taken_apart(x: Any) -> tuple[Any, ...]:
        children, static, *entries = flat(x)
        return (children, Aux(static), *entries)

    with warnings.catch_warnings():
        # A named tuple would be a node without being registered: this one is to be another.
        warnings.filterwarnings("ignore", message=".*is a subclass of .*namedtuple")
        optree.register_pytree_node(
            kind,
            taken_apart,
            # Its static data is the Aux that `taken_apart` makes.
            lambda aux, kids: rebuild(aux.value, kids),  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
            namespace=NAMESPACE,
            **options,
        )
    _NODE_TYPES[kind] = (flat, rebuild)


def node_functions(kind: type) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """(flatten to (children, static data, ...), rebuild(static data, children)) of a type of nodes;
    None for a type of leaves."""
    found = _NODE_TYPES.get(kind)
    if found is None:
        entry = optree.register_pytree_node.get(kind, namespace=NAMESPACE)
        return None if entry is None else (entry.flatten_func, entry.unflatten_func)
    return found


def is_sequence(kind: type) -> bool:
    """Whether nodes of a type are tuples, lists or named tuples, whose children are what they
    hold."""
    named = optree.is_namedtuple_class(kind) and kind not in _NODE_TYPES
    return kind is tuple or kind is list or named


def register_dataclass(
    nodetype: type[T],
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> type[T]:
    """Make a dataclass a type of pytree nodes, or another class whose fields are named.

    Each field that `__init__` takes is a child or static, but for those of `drop_fields`.
    `unflatten` and transforms make objects without `__init__`.

    Args:
        nodetype: the dataclass.
        data_fields: names of the children; None: the fields that are not static.
        meta_fields: names of the static fields, part of the structure; None: those that are not in
            `data_fields`, or without it those that `static_field` made.
        drop_fields: names of fields that are neither: they are None in new objects.

    Returns:
        `nodetype`.

    Raises:
        TreeError: `data_fields` and `meta_fields` lack a field, name one twice, or what is none; a
            field that `__init__` does not take is neither named nor dropped.
        TypeError: `nodetype` is no dataclass, and its fields are not named.
        ValueError: it is registered.

    >>> import dataclasses
    >>> @dataclasses.dataclass
    ... class Scaled:
    ...     w: float
    ...     factor: float
    >>> _ = gf.tree.register_dataclass(Scaled, data_fields=["w"], meta_fields=["factor"])
    >>> gf.tree.map(lambda x: x + 1, Scaled(1, 10))
    Scaled(w=2, factor=10)
    """
    data, meta = fields_of(nodetype, data_fields, meta_fields, drop_fields)

    def flat(x: T) -> tuple[Any, ...]:
        kids = tuple([getattr(x, n) for n in data])
        return kids, tuple([getattr(x, n) for n in meta]), data

    def rebuild(static: Any, kids: Iterable[Any]) -> T:
        # Without `__init__`, which may check or convert: transforms put tracers, None and other
        # objects where the fields promise arrays.
        x = object.__new__(nodetype)
        for n, v in zip(data, kids, strict=True):
            object.__setattr__(x, n, v)
        for n, v in zip(meta, static, strict=True):
            object.__setattr__(x, n, v)
        for n in drop_fields:
            object.__setattr__(x, n, None)
        return x

    _register(nodetype, flat, rebuild, path_entry_type=optree.GetAttrEntry)
    return nodetype


def static_field(**options: Any) -> Any:
    """Make a dataclass field that is part of the tree's structure, not a child.

    Its value counts by type and content, at every depth of containers; NumPy's arrays count by
    content, this library's by identity.

    Args:
        **options: as of `dataclasses.field`: `default`, `default_factory`, `metadata`, ...

    Returns:
        What `dataclasses.field` returns.

    >>> @gf.tree.dataclass
    ... class Scaled:
    ...     w: float
    ...     factor: float = gf.tree.static_field(default=10.0)
    >>> gf.tree.leaves(Scaled(1))
    [1]
    """
    metadata = {**(options.pop("metadata", None) or {}), "static": True}
    return dataclasses.field(metadata=metadata, **options)


static = static_field


@overload
def dataclass(kind: type[T], /, **options: Any) -> type[T]: ...
@overload
def dataclass(kind: None = None, /, **options: Any) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(static_field, dataclasses.field))
def dataclass(kind: type[T] | None = None, /, **options: Any) -> Any:
    """Make a class a frozen dataclass and a type of pytree nodes.

    Fields are children, but for those that `static_field` made.

    Args:
        kind: the class; None: the result is a decorator, as of `@dataclass(repr=False)`.
        **options: as of `dataclasses.dataclass`, but for `frozen`.

    Returns:
        The dataclass, or the decorator.

    >>> @gf.tree.dataclass
    ... class Layer:
    ...     w: float
    ...     b: float
    >>> gf.tree.map(lambda x: 2 * x, Layer(1, 2))
    Layer(w=2, b=4)
    """
    if kind is None:
        return functools.partial(dataclass, **options)
    if not hasattr(kind, "_repr_html_"):
        kind._repr_html_ = _repr_html  # type: ignore[attr-defined]
    return register_dataclass(dataclasses.dataclass(kind, frozen=True, **options))  # type: ignore[call-overload]


def _repr_html(self: Any) -> str | None:
    return None if node_html is None else node_html(self)
