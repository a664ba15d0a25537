"""Finding and replacing parts of optimizer states: `optim.tree.get`, `set`, `map_params`."""

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
    """A path as text: the bare keys joined by dots."""
    return ".".join(str(e.name if isinstance(e, NamedTupleKey) else e) for e in path)


def _is_named_tuple(x: Any) -> bool:
    return isinstance(x, tuple) and hasattr(x, "_fields")


def _children(node: Any) -> list[tuple[Any, Any, Any]]:
    """(path entry, key, child) of each child of one node; arrays and other leaves have none."""
    if _is_named_tuple(node):
        kind = type(node).__name__
        return [(NamedTupleKey(kind, n), n, getattr(node, n)) for n in node._fields]
    if isinstance(node, dict):
        return [(k, k, v) for k, v in node.items()]
    if isinstance(node, (tuple, list)):
        return [(i, i, v) for i, v in enumerate(node)]
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        kind = type(node).__name__
        names = [f.name for f in dataclasses.fields(node)]
        return [(NamedTupleKey(kind, n), n, getattr(node, n)) for n in names]
    return []


def walk(node: Any, path: tuple[Any, ...] = ()) -> Iterator[StateEntry]:
    """Every field and item below `node`, outer before inner."""
    for entry, key, child in _children(node):
        here = (*path, entry)
        yield StateEntry(here, key, child)
        yield from walk(child, here)


def get_all_with_path(
    tree: PyTree, key: Any, filtering: Callable[[tuple[Any, ...], Any], bool] | None = None
) -> list[tuple[tuple[Any, ...], Any]]:
    """[(path, value)] of every field or dict key called `key`, and every named tuple of that class.

    `filtering(path, value)` keeps those for which it is true. What a transformation records of an
    injected hyperparameter (see `inject_hyperparams`) is that hyperparameter, and not found again.
    """
    places = [StateEntry((), None, tree), *walk(tree)]
    found = [
        (p.path, p.value)
        for p in places
        if (p.path and _is(p.key, key)) or _class_name(p.value) == key
    ]
    holders = [
        p[:-2] for p, _ in found if [str(e.name) for e in p[-2:-1] if _named(e)] == [_INJECTED]
    ]
    found = [(p, v) for p, v in found if not any(_is_record(p, h) for h in holders)]
    return [(p, v) for p, v in found if filtering is None or filtering(p, v)]


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
    """The one value called `key` in a state, `default` where there is none.

    Raises KeyError listing the places where there are several.
    """
    found = get_all_with_path(tree, key, filtering)
    if len(found) > 1:
        places = ", ".join(dotted(p) or "the top" for p, _ in found)
        raise KeyError(f"{key!r} is found {len(found)} times, at {places}; pass filtering=")
    return found[0][1] if found else default


def set(
    tree: PyTree, filtering: Callable[[tuple[Any, ...], Any], bool] | None = None, /, **kwargs: Any
) -> Any:
    """The state `tree` with every value called by one of the keywords replaced.

    Raises KeyError where a keyword names nothing in it.
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
        made = dict(zip([k for _, k, _ in children], new, strict=True))
        return made if type(node) is dict else type(node)(made)
    if isinstance(node, (tuple, list)):
        return type(node)(new)
    fields = {k: v for (_, k, _), v in zip(children, new, strict=True)}
    return dataclasses.replace(node, **fields)


class ParamsPlaceholder:
    """Stands for the whole parameter tree in `init`, to find where a state holds such trees."""


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
    """The state with `f` applied to what it holds per parameter (moments, copies of parameters).

    `initable` is the transformation or its `init`; `rest` are trees of the parameters' structure.
    Other leaves go through `transform_non_params`. Frozen places (None) stay None.
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
