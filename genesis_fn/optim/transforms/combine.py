"""Chains: transformations applied one after another."""

from __future__ import annotations

import collections
import functools
import inspect
from collections.abc import Mapping
from typing import Any

from genesis_fn.errors import ArgumentError
from genesis_fn.optim import base
from genesis_fn.optim.annotations import OptState, Params, Updates


def _inner_field(state: OptState, name: str) -> Any:
    """Returns the value of the one field called `name` inside the state of a named chain."""
    if not name.startswith("_"):
        matches = list(_fields(state, name))
        if len(matches) == 1:
            return matches[0][1]
        if matches:
            paths = ", ".join("state." + p for p, _ in matches)
            raise AttributeError(f"{name!r} is found {len(matches)} times: write {paths}")
    raise AttributeError(
        f"no {name!r} in the optimizer state, whose parts are {', '.join(state._fields)}"
    )


def _fields(state: OptState, name: str, prefix: str = "") -> Any:
    if not isinstance(state, tuple):
        return
    keys = getattr(type(state), "_fields", None) or range(len(state))
    for key, value in zip(keys, state, strict=True):
        if key == name:  # pyright: ignore[reportUnnecessaryComparison]
            yield f"{prefix}{key}", value
        yield from _fields(value, name, f"{prefix}{key}.")


def _rebuild(names: tuple[str, ...], optimizer: str, values: tuple[Any, ...]) -> Any:
    return chain_state(names, optimizer)(*values)


@functools.cache
def chain_state(names: tuple[str, ...], optimizer: str = "") -> type:
    """Returns the named tuple class of the states of `chain(name=..., ...)`, or of an `optimizer`.

    A field of an inner state can be read from the whole, as in `state.mu` or `state.learning_rate`,
    where only one inner state has it.
    """
    fields: Any = collections.namedtuple("ChainState", names)  # pyright: ignore[reportUntypedNamedTuple]
    # `tuple.count`, a method, would hide the number of steps taken.
    count = {} if "count" in names else {"count": property(lambda s: _inner_field(s, "count"))}
    return type(
        "ChainState",
        (fields,),
        {
            "__slots__": (),
            "__doc__": "The states of a named chain, one field each.",
            "__module__": __name__,
            "__getattr__": _inner_field,
            "__reduce__": lambda self: (_rebuild, (names, optimizer, tuple(self))),
            "optimizer": optimizer,
            **count,
        },
    )


def chain(
    *args: base.GradientTransformation, **named: base.GradientTransformation
) -> base.GradientTransformationExtraArgs:
    """Applies transformations one after another: the updates of one are the input of the next.

    Args:
        *args: transformations; the state is the tuple of their states.
        **named: transformations by name; the state is a named tuple, read as `state.adam.mu`.

    Returns:
        The transformation; its `update` passes extra arguments to those that take them.

    Raises:
        ArgumentError: some are named and some not, or one is no transformation; or `update` is
            called with another state than the chain's.

    >>> tx, g = optim.chain(clip=optim.clip(1.0), sgd=optim.sgd(0.1)), jnp.array([0.5, 3.0])
    >>> tx.update(g, tx.init(g))[0]
    Array([-0.05, -0.1 ], dtype=float32)
    """
    if args and named:
        raise ArgumentError("chain: name all of the transformations or none")
    return _chain("chain", args, named)


def optimizer(
    name: str, **transforms: base.GradientTransformation
) -> base.GradientTransformationExtraArgs:
    """Chains the transformations of the optimizer called `name`, whose states carry that name."""
    return _chain(name, (), transforms)


def _state_name(tx: base.GradientTransformation) -> str:
    """Names the state of a transformation for an error message."""
    state_type = getattr(tx.update, "state_type", None)
    if state_type is not None:
        return str(state_type.__name__)
    empty = inspect.unwrap(tx.init) is base.init_empty_state
    return "EmptyState" if empty else f"what init of {base.name_of(tx.update)} returns"


def _chain(
    name: str, args: tuple[Any, ...], named: dict[Any, Any]
) -> base.GradientTransformationExtraArgs:
    """Chains transformations; errors call the chain `name`."""
    for key, tx in [*enumerate(args), *named.items()]:
        if not (hasattr(tx, "init") and hasattr(tx, "update")):
            raise ArgumentError(
                f"{name}: {key!r} is a {type(tx).__name__}, not a transformation\n"
                "  pass what a function of optim returns: chain(clip(1.0), sgd(0.1))"
            )
    txs = [base.with_extra_args_support(_as_transformation(t)) for t in args or named.values()]
    fields = tuple(named)
    make = chain_state(fields, "" if name == "chain" else name)._make if named else tuple
    needed = [_state_name(tx) for tx in txs]

    def init(params: Params) -> OptState:
        return make([tx.init(params) for tx in txs])

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        whole = isinstance(state, tuple) and len(state) == len(txs)
        if not whole or getattr(type(state), "_fields", fields) != fields:
            names = ", ".join(needed)
            raise ArgumentError(
                f"{base.describe_state(state)}; this {name} needs "
                f"{names if len(txs) == 1 else f'({names})'}\n"
                f"  make it by init of this {name}, and keep the one that update returns"
            )
        new = []
        for tx, s in zip(txs, state, strict=True):
            updates, s = tx.update(updates, s, params, **extra)
            new.append(s)
        return updates, make(new)

    update.__qualname__ = name
    chained = base.GradientTransformationExtraArgs(init, update)
    if named:
        chained.update.state_type = chain_state(fields)  # pyright: ignore[reportAttributeAccessIssue]
    return chained


def _as_transformation(tx: Any) -> base.GradientTransformation:
    """Returns `tx`, or the pair of methods of an object such as MultiSteps."""
    if isinstance(tx, base.GradientTransformation):
        return tx
    return base.GradientTransformationExtraArgs(tx.init, tx.update)


def named_chain(
    *args: tuple[str, base.GradientTransformation],
) -> base.GradientTransformationExtraArgs:
    """Chains (name, transformation) pairs; see `chain`, which takes names too.

    Args:
        *args: pairs of a name and a transformation; each name once.

    Returns:
        The transformation, whose states are dicts by name.

    Raises:
        ArgumentError: two names are equal, or an argument is no such pair; or `update` is called
            with another state than a dict of these names.

    >>> tx = optim.named_chain(("clip", optim.clip(1.0)), ("sgd", optim.sgd(0.1)))
    >>> g = jnp.array([0.5, 3.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates, [*state]
    (Array([-0.05, -0.1 ], dtype=float32), ['clip', 'sgd'])
    """
    for pair in args:
        if not (len(pair) == 2 and isinstance(pair[0], str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"named_chain takes pairs (name, transformation), got a {type(pair).__name__}\n"
                '  write named_chain(("clip", clip(1.0)), ("sgd", sgd(0.1)))'
            )
    names = [name for name, _ in args]
    if len(names) != len({*names}):
        raise ArgumentError(f"named_chain: the names must differ, got {names}")
    txs = {name: base.with_extra_args_support(_as_transformation(tx)) for name, tx in args}

    def init(params: Params) -> OptState:
        return collections.OrderedDict((n, tx.init(params)) for n, tx in txs.items())

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        if not isinstance(state, Mapping) or {*state} != {*txs}:
            raise ArgumentError(
                f"{base.describe_state(state)}; this named_chain needs a dict of {list(txs)}\n"
                "  make it by init of this named_chain, and keep the one that update returns"
            )
        new = collections.OrderedDict()
        for name, tx in txs.items():
            updates, new[name] = tx.update(updates, state[name], params, **extra)
        return updates, new

    return base.GradientTransformationExtraArgs(init, update)
