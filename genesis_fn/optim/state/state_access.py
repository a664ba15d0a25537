"""Finding and replacing values in optimizer states: `optim.tree.get`, `set`, `map_params`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from genesis_fn import PyTree, tree
from genesis_fn.optim.annotations import OptState
from genesis_fn.optim.tree_map_updates import is_none


@dataclasses.dataclass(frozen=True)
class NamedTupleKey:
    """A path entry: the field `name` of the named tuple class `tuple_name`."""

    tuple_name: str
    name: str

    def __str__(self) -> str:
        return f"{self.tuple_name}.{self.name}"


class StateEntry(NamedTuple):
    """A field or item of a state: the path to it, its last key, and its value."""

    path: tuple[Any, ...]
    key: Any
    value: PyTree


def dotted(path: tuple[Any, ...]) -> str:
    """Returns a path as text: its keys joined by dots."""
    return ".".join(str(e.name if isinstance(e, NamedTupleKey) else e) for e in path)


def _is_named_tuple(x: Any) -> bool:
    return isinstance(x, tuple) and hasattr(x, "_fields")


def _children(node: Any) -> list[tuple[Any, Any, Any]]:
    """Returns (path entry, key, child) of each child of a node; leaves have none."""
    if _is_named_tuple(node):
        name = type(node).__name__
        return [(NamedTupleKey(name, n), n, getattr(node, n)) for n in node._fields]
    if isinstance(node, dict):
        return [(k, k, v) for k, v in node.items()]
    if isinstance(node, (tuple, list)):
        return [(i, i, v) for i, v in enumerate(node)]
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        name = type(node).__name__
        names = [f.name for f in dataclasses.fields(node)]
        return [(NamedTupleKey(name, n), n, getattr(node, n)) for n in names]
    return []


def walk(node: Any, path: tuple[Any, ...] = ()) -> Iterator[StateEntry]:
    """Yields every field and item below `node`, outer before inner."""
    for entry, key, child in _children(node):
        here = (*path, entry)
        yield StateEntry(here, key, child)
        yield from walk(child, here)


def get_all_with_path(
    tree: PyTree, key: Any, filtering: Callable[[tuple[Any, ...], Any], bool] | None = None
) -> list[tuple[tuple[Any, ...], Any]]:
    """Finds fields and dict items called `key`, and named tuples so called, in a state.

    What a transformation records of an injected hyperparameter (see `inject_hyperparams`) is left
    out: it is that hyperparameter.

    Args:
        tree: optimizer state.
        key: name of a field, key of a dict or name of a named tuple class.
        filtering: function (path, value) that is true for those to keep; None: all.

    Returns:
        [(path, value)], the outer before the inner. An entry of a path is a `NamedTupleKey`, the
        key of a dict or an index.

    >>> state = optim.adam(0.1).init(jnp.zeros(2))
    >>> [(path, value)] = optim.tree.get_all_with_path(state, "mu")
    >>> [str(entry) for entry in path], value
    (['ChainState.adam', 'ScaleByAdamState.mu'], Array([0., 0.], dtype=float32))
    """
    entries = [StateEntry((), None, tree), *walk(tree)]
    matches = [
        (p.path, p.value)
        for p in entries
        if (p.path and _is(p.key, key)) or _class_name(p.value) == key
    ]
    holders = [
        p[:-2] for p, _ in matches if [str(e.name) for e in p[-2:-1] if _named(e)] == [_INJECTED]
    ]
    matches = [(p, v) for p, v in matches if not any(_is_record(p, h) for h in holders)]
    return [(p, v) for p, v in matches if filtering is None or filtering(p, v)]


# The field of a state in which `inject_hyperparams` keeps hyperparameters by name.
_INJECTED = "hyperparams"


def _named(entry: Any) -> bool:
    return isinstance(entry, NamedTupleKey)


def _is_record(path: tuple[Any, ...], holder: tuple[Any, ...]) -> bool:
    """Whether a path leads to a field of the inner state of the injecting state at `holder`."""
    inner = path[len(holder) : len(holder) + 1]
    return (
        path[: len(holder)] == holder
        and any(_named(e) and e.name == "inner_state" for e in inner)
        and _named(path[-1])
    )


def _is(a: Any, key: Any) -> bool:
    return type(a) is type(key) and a == key


def _class_name(x: Any) -> str | None:
    return type(x).__name__ if _is_named_tuple(x) else None


def get(
    tree: PyTree,
    key: Any,
    default: Any = None,
    filtering: Callable[[tuple[Any, ...], Any], bool] | None = None,
) -> Any:
    """Finds the one value called `key` in a state.

    Args:
        tree: optimizer state.
        key: name of a field, key of a dict or name of a named tuple class.
        default: what to return where nothing is called so.
        filtering: function (path, value) that is true for those to consider; None: all.

    Returns:
        The value, or `default`.

    Raises:
        KeyError: several values are called so; the message lists their paths.

    >>> state = optim.adam(0.1).init(jnp.zeros(2))
    >>> optim.tree.get(state, "learning_rate")
    Array(0.1, dtype=float32)
    """
    matches = get_all_with_path(tree, key, filtering)
    if len(matches) > 1:
        paths = ", ".join(dotted(p) or "the top" for p, _ in matches)
        raise KeyError(f"{key!r} is found {len(matches)} times, at {paths}; pass filtering=")
    return matches[0][1] if matches else default


def set(
    tree: PyTree, filtering: Callable[[tuple[Any, ...], Any], bool] | None = None, /, **kwargs: Any
) -> Any:
    """Replaces every value in a state that is called by one of the keywords.

    Args:
        tree: optimizer state.
        filtering: function (path, value) that is true for those to replace; None: all.
        **kwargs: the new values by name.

    Returns:
        The new state.

    Raises:
        KeyError: a keyword names nothing in the state.

    >>> state = optim.inject_hyperparams(optim.sgd)(learning_rate=0.1).init(jnp.zeros(2))
    >>> optim.tree.get(optim.tree.set(state, learning_rate=0.01), "learning_rate")
    0.01
    """
    for key in kwargs:
        if not get_all_with_path(tree, key, filtering):
            names = sorted({str(p.key) for p in walk(tree) if isinstance(p.key, str)})
            raise KeyError(f"nothing called {key!r} in the state; the names are {', '.join(names)}")
    return _replaced(tree, (), None, kwargs, filtering)


def _replaced(
    node: Any,
    path: tuple[Any, ...],
    key: Any,
    values: dict[Any, Any],
    filtering: Callable[..., Any] | None,
) -> Any:
    accepted = filtering is None or filtering(path, node)
    for name in (key if path else None, _class_name(node)):
        if isinstance(name, str) and name in values and accepted:
            return values[name]
    children = _children(node)
    if not children:
        return node
    new = [_replaced(child, (*path, e), k, values, filtering) for e, k, child in children]
    if all(a is b for a, (_, _, b) in zip(new, children, strict=True)):
        return node
    if _is_named_tuple(node):
        return type(node)(*new)
    if isinstance(node, dict):
        new_dict = dict(zip([k for _, k, _ in children], new, strict=True))
        return new_dict if type(node) is dict else type(node)(new_dict)
    if isinstance(node, (tuple, list)):
        return type(node)(new)
    fields = {k: v for (_, k, _), v in zip(children, new, strict=True)}
    return dataclasses.replace(node, **fields)


class ParamsPlaceholder:
    """Stands for the parameter tree in `init`, to find where a state holds such trees."""


tree.register_node(
    ParamsPlaceholder, lambda x: ((), None), lambda static, kids: ParamsPlaceholder()
)


def map_params(
    initable: Any,
    f: Callable[..., Any],
    state: OptState,
    /,
    *rest: Any,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Applies `f` to what a state holds per parameter: moments, copies of parameters.

    Args:
        initable: the transformation or its `init`.
        f: function (leaf of the state, *leaves of `rest`) -> new leaf.
        state: optimizer state; frozen leaves (None) stay None.
        *rest: trees of the parameters' structure.
        transform_non_params: function of the other leaves; None keeps them.
        is_leaf: predicate of nodes to pass to `f` whole.

    Returns:
        The new state.

    >>> tx = optim.adam(0.1)
    >>> state = optim.tree.map_params(tx, lambda x: x + 1, tx.init(jnp.zeros(2)))
    >>> state.mu, state.adam.count
    (Array([1., 1.], dtype=float32), Array(0, dtype=int32))
    """
    init = initable.init if hasattr(initable, "init") else initable
    marked = init(ParamsPlaceholder())

    def leaf(x: Any) -> bool:
        return x is None or (is_leaf is not None and is_leaf(x))

    def at(mark: Any, value: Any) -> Any:
        if isinstance(mark, ParamsPlaceholder):
            return tree.map(
                lambda x, *others: None if x is None else f(x, *others), value, *rest, is_leaf=leaf
            )
        return (
            value if transform_non_params is None or mark is None else transform_non_params(value)
        )

    return tree.map(
        at, marked, state, is_leaf=lambda x: is_none(x) or isinstance(x, ParamsPlaceholder)
    )
