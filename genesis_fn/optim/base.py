"""Gradient transformations: pairs of functions `init(params)`, `update(grads, state, params)`.

`update` returns (updates, new state); `apply_updates` adds the updates to the parameters. Optax's
semantics, with the conventions of `leaves.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeAlias

import genesis_fn.numpy as jnp
from genesis_fn.core import tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.primitive import beside
from genesis_fn.optim.describe import describe
from genesis_fn.optim.leaves import is_inexact, is_none, map_updates, widen

PyTree: TypeAlias = Any
OptState: TypeAlias = Any
Params: TypeAlias = Any
Updates: TypeAlias = Any
Schedule: TypeAlias = Callable[[Any], Any]
ScalarOrSchedule: TypeAlias = Any
TransformInitFn: TypeAlias = Callable[[Params], OptState]
TransformUpdateFn: TypeAlias = Callable[..., tuple[Updates, OptState]]
TransformUpdateExtraArgsFn: TypeAlias = Callable[..., tuple[Updates, OptState]]


class _Pair(NamedTuple):
    """The fields of `GradientTransformation`."""

    init: TransformInitFn
    update: TransformUpdateFn


class GradientTransformation(_Pair):
    """`init(params)` makes a state; `update(updates, state, params)` uses and renews it. What they
    make is on the device of their first argument's leaves."""

    __slots__ = ()

    def __new__(cls, init: TransformInitFn, update: TransformUpdateFn) -> Self:
        return super().__new__(cls, _on_first_device(init), _on_first_device(update))

    def describe(self, state: OptState, updates: Updates | None = None) -> dict[str, Any]:
        """What can be read from a state: step, learning rate, norms. See `optim.describe`."""
        return describe(state, updates)


class GradientTransformationExtraArgs(GradientTransformation):
    """A transformation whose `update` also takes keyword arguments, and ignores those unknown."""


def _on_first_device(f: Callable) -> Callable:
    """`f`, making arrays where those of its first argument are."""
    if getattr(f, "on_first_device", False):
        return f

    @functools.wraps(f)
    def call(tree_: PyTree, *args: Any, **kwargs: Any) -> Any:
        with beside(tree.leaves(tree_)):
            return f(tree_, *args, **kwargs)

    call.on_first_device = True  # type: ignore[attr-defined]
    return call


class EmptyState(NamedTuple):
    """The state of a transformation that keeps nothing."""


def init_empty_state(params: Params) -> EmptyState:
    """An EmptyState."""
    return EmptyState()


def require_params(params: Params | None, name: str) -> Params:
    """`params`; raises ValueError where `update` of transformation `name` was not given them."""
    if params is None:
        raise ValueError(
            f"{name} needs the current parameters: call update(grads, state, params) with them"
        )
    return params


def identity() -> GradientTransformation:
    """A transformation that returns the updates as they are."""
    return GradientTransformation(
        init_empty_state, lambda updates, state, params=None: (updates, state)
    )


def set_to_zero() -> GradientTransformation:
    """A transformation whose updates are all zero."""

    def update(updates: Updates, state: Any, params: Params | None = None) -> tuple:
        return tree.map(lambda u: jnp.zeros_like(as_array(u)), updates), state

    return GradientTransformation(init_empty_state, update)


def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation:
    """The transformation `updates -> f(updates, params)`."""

    def update(updates: Updates, state: Any, params: Params | None = None) -> tuple:
        return f(updates, params), EmptyState()

    return GradientTransformation(init_empty_state, update)


def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """The transformation applying `f(update, parameter)` to leaves; the parameter may be None."""

    def update(updates: Updates, state: Any, params: Params | None = None) -> tuple:
        if params is None:
            return map_updates(lambda u: f(u, None), updates), EmptyState()
        return map_updates(f, updates, extras=(params,)), EmptyState()

    return GradientTransformation(init_empty_state, update)


def per_leaf(f: Callable[..., Any], *, params_for: str = "") -> GradientTransformation:
    """The stateless transformation applying `f(update)` to each leaf.

    With `params_for`, the transformation's name, it is `f(update, parameter)` and the parameters
    are required.
    """

    def update(updates: Updates, state: Any, params: Params | None = None) -> tuple:
        extras = (require_params(params, params_for),) if params_for else ()
        return map_updates(f, updates, extras=extras), state

    return GradientTransformation(init_empty_state, update)


def with_extra_args_support(tx: GradientTransformation) -> GradientTransformationExtraArgs:
    """`tx`, accepting (and ignoring, if it takes none) extra keyword arguments of `update`."""
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx

    def update(updates: Updates, state: Any, params: Params | None = None, **extra: Any) -> tuple:
        return tx.update(updates, state, params)

    return GradientTransformationExtraArgs(tx.init, update)


def apply_updates(params: Params, updates: Updates) -> Params:
    """params + updates, in the parameters' dtypes; where an update is None the parameter is kept.

    The sum is made in float32 or wider and rounded once.
    """

    def add(u: Any, p: Any) -> Any:
        if u is None or p is None:
            return p
        p = as_array(p)
        return (widen(p) + u).astype(p.dtype)

    return tree.map(add, updates, params, is_leaf=is_none)


def incremental_update(new_tensors: Params, old_tensors: Params, step_size: Any) -> Params:
    """step_size * new + (1 - step_size) * old: Polyak averaging of parameters.

    Leaves have the dtypes of `old_tensors`; leaves that are not floating are taken from
    `new_tensors`.
    """

    def average(old: Any, new: Any) -> Any:
        if old is None or new is None:
            return new
        old, new = as_array(old), as_array(new)
        if not is_inexact(old):
            return new
        return (step_size * widen(new) + (1.0 - step_size) * widen(old)).astype(old.dtype)

    return tree.map(average, old_tensors, new_tensors, is_leaf=is_none)


def periodic_update(
    new_tensors: Params, old_tensors: Params, steps: Any, update_period: int
) -> Params:
    """`new_tensors` at every `update_period`-th step, else `old_tensors`."""
    take = as_array(steps) % update_period == 0
    return tree.map(lambda new, old: jnp.where(take, new, old), new_tensors, old_tensors)
