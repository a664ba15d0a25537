"""Pytrees under the names of jax.tree_util."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import optree

from genesis_fn.core import tree as _tree
from genesis_fn.core.tree import (
    NAMESPACE,
    PyTreeDef as PyTreeDef,
    broadcast_prefix as broadcast_prefix,
    flatten_one_level as flatten_one_level,
    flatten_one_level_with_keys as flatten_one_level_with_keys,
    is_tree_node as is_tree_node,
    register_dataclass as register_dataclass,
    register_node,
)
from genesis_fn.core.trees.keys import (
    DictKey as DictKey,
    FlattenedIndexKey as FlattenedIndexKey,
    GetAttrKey as GetAttrKey,
    SequenceKey as SequenceKey,
    keystr as keystr,
)

_Class = TypeVar("_Class", bound=type)
KeyEntry: TypeAlias = DictKey | SequenceKey | GetAttrKey | FlattenedIndexKey
KeyPath: TypeAlias = tuple[KeyEntry, ...]

tree_all, tree_broadcast = _tree.all, _tree.broadcast
tree_reduce, tree_transpose = _tree.reduce, _tree.transpose
tree_reduce_associative = _tree.reduce_associative
tree_flatten, tree_unflatten = _tree.flatten, _tree.unflatten
tree_leaves, tree_structure, tree_map = _tree.leaves, _tree.structure, _tree.map
tree_flatten_with_path, tree_leaves_with_path = _tree.flatten_with_path, _tree.leaves_with_path
tree_map_with_path = _tree.map_with_path


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Iterable[Any], Hashable]],
    unflatten_func: Callable[[Any, Iterable[Any]], Any],
    flatten_with_keys_func: Callable[..., Any] | None = None,
) -> None:
    """Make `nodetype` a node: `flatten_func(x)` gives (children, static data)."""
    if flatten_with_keys_func is None:
        register_node(nodetype, flatten_func, unflatten_func)
        return
    with_keys = flatten_with_keys_func

    def entries(x: Any) -> list[Any]:
        return [k for k, _ in with_keys(x)[0]]

    register_node(nodetype, flatten_func, unflatten_func, entries)


def register_pytree_node_class(cls: _Class) -> _Class:
    """Decorator: a class with `tree_flatten` and a classmethod `tree_unflatten` becomes a node."""
    register_pytree_node(cls, lambda x: x.tree_flatten(), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Hashable]],
    unflatten_func: Callable[[Any, Iterable[Any]], Any],
    flatten_func: Callable[..., Any] | None = None,
) -> None:
    """Make `nodetype` a node whose children have keys: ([(key, child)], static data)."""

    def flat(x: Any) -> tuple[tuple[Any, ...], Hashable]:
        pairs, static = flatten_with_keys(x)
        return tuple([child for _, child in pairs]), static

    register_pytree_node(nodetype, flatten_func or flat, unflatten_func, flatten_with_keys)


def register_pytree_with_keys_class(cls: _Class) -> _Class:
    """Decorator: a class with `tree_flatten_with_keys` and `tree_unflatten` becomes a node."""
    flat = getattr(cls, "tree_flatten", None)
    register_pytree_with_keys(
        cls,
        lambda x: x.tree_flatten_with_keys(),
        cls.tree_unflatten,  # type: ignore[attr-defined]
        None if flat is None else lambda x: x.tree_flatten(),
    )
    return cls


def register_static(cls: _Class) -> _Class:
    """Decorator: instances have no children and are part of the structure; hashable ones only."""
    register_node(cls, lambda x: ((), x), lambda static, _: static)
    return cls


class _Whole:
    """A `functools.partial` as a function like any other, which another one does not merge with."""

    __slots__ = ("function",)

    def __init__(self, function: functools.partial[Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self.function == (other.function if type(other) is _Whole else other)

    def __hash__(self) -> int:
        return hash(self.function)

    def __repr__(self) -> str:
        return repr(self.function)


class Partial(functools.partial[Any]):
    """A `functools.partial` whose arguments are children, so that it may cross `jit` and `scan`.

    The arguments that a `functools.partial` given as `func` has are part of the function.
    """

    def __new__(cls, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Partial:
        whole = _Whole(func) if isinstance(func, functools.partial) else func
        return super().__new__(cls, whole, *args, **kwargs)


register_node(
    Partial,
    lambda p: ((p.args, p.keywords), p.func),
    lambda func, kids: (lambda args, keywords: Partial(func, *args, **keywords))(*kids),
)


def all_leaves(iterable: Iterable[Any], is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether every element is a leaf."""
    return all(treedef_is_leaf(tree_structure(x, is_leaf)) for x in iterable)


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether a structure is that of a single leaf."""
    return treedef.num_nodes == 1 and treedef.num_leaves == 1


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures of a node's children."""
    return treedef.children()


def treedef_tuple(treedefs: Sequence[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple of trees of these structures."""
    return optree.treespec_tuple(treedefs, namespace=NAMESPACE)


class PyTreeRegistry:
    """The types of nodes: `default_registry` is the one there is."""

    flatten, flatten_with_path = staticmethod(tree_flatten), staticmethod(tree_flatten_with_path)
    flatten_one_level = staticmethod(flatten_one_level)
    flatten_one_level_with_keys = staticmethod(flatten_one_level_with_keys)
    is_node, register_node = staticmethod(is_tree_node), staticmethod(register_pytree_node)


default_registry = PyTreeRegistry()
