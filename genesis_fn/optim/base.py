"""Gradient transformations: pairs of functions `init(params)` and `update(grads, state, params)`.

`update` returns (updates, new state); `apply_updates` adds the updates to the parameters. The
semantics are optax's, with the conventions of `tree_map_updates.py`, which is to be read first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, tree
from genesis_fn.errors import ArgumentError, ShapeError, TreeError
from genesis_fn.extend import as_array, default_device_of
from genesis_fn.optim.annotations import (
    Number,
    OptState,
    Params,
    TransformInitFn,
    TransformUpdateExtraArgsFn,
    TransformUpdateFn,
    Updates,
)
from genesis_fn.optim.state.summary import describe
from genesis_fn.optim.tree_map_updates import difference, is_inexact, is_none, map_updates, widen

T = TypeVar("T")


class _Pair(NamedTuple):
    """Holds the fields of `GradientTransformation`, which is a named tuple as optax's is."""

    init: TransformInitFn
    update: TransformUpdateFn


class GradientTransformation(_Pair):
    """A pair of functions: `init(params)` gives a state, `update` uses and renews it.

        updates, state = tx.update(grads, state, params)

    New arrays are on the device of the first argument's leaves.

    Args:
        init: function of the parameters that gives the first state.
        update: function (updates, state, params=None) -> (updates, state).
        state: the named tuple class of the states; `update` refuses states without its fields.
        reads_state: whether `update` depends on the old state; if not, any state is accepted.

    >>> tx = optim.GradientTransformation(
    ...     lambda params: jnp.array(0),
    ...     lambda updates, state, params=None: (-updates / (state + 1), state + 1),
    ... )
    >>> updates, state = tx.update(jnp.array([4.0]), tx.init(jnp.array([1.0])))
    >>> updates, tx.update(jnp.array([4.0]), state)[0]
    (Array([-4.], dtype=float32), Array([-2.], dtype=float32))
    """

    __slots__ = ()

    def __new__(
        cls,
        init: TransformInitFn,
        update: TransformUpdateFn | TransformUpdateExtraArgsFn,
        *,
        state: type | None = None,
        reads_state: bool = True,
    ) -> Self:
        return super().__new__(cls, _wrapped(init), _wrapped(update, state, reads_state))

    def describe(self, state: OptState, updates: Updates | None = None) -> dict[str, Any]:
        """Returns what a state says of step, learning rate and norms, as `optim.describe` does."""
        return describe(state, updates)


class GradientTransformationExtraArgs(GradientTransformation):
    """A transformation whose `update` takes keyword arguments too, such as `value=`.

    `chain` hands each of them all of its extra arguments, so `update` takes unknown ones as well.

    Args:
        init: function of the parameters that gives the first state.
        update: function (updates, state, params=None, **extra) -> (updates, state).
        state: the named tuple class of the states; `update` refuses states without its fields.
        reads_state: whether `update` depends on the old state; if not, any state is accepted.

    >>> tx = optim.GradientTransformationExtraArgs(
    ...     lambda params: optim.EmptyState(),
    ...     lambda updates, state, params=None, *, value, **extra: (-value * updates, state),
    ... )
    >>> updates, state = tx.update(jnp.array([4.0]), tx.init(jnp.array([1.0])), value=0.5)
    >>> updates
    Array([-2.], dtype=float32)
    """

    if TYPE_CHECKING:
        update: TransformUpdateExtraArgsFn  # pyright: ignore[reportIncompatibleVariableOverride]


def _wrapped(
    f: Callable[..., Any], state_type: type | None = None, reads_state: bool = True
) -> Callable[..., Any]:
    """Returns `f`, run on the device of its first argument after a check of the state's class."""
    if hasattr(f, "state_type"):
        return f

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else next(iter(kwargs.values()), None)
        if state_type is not None and reads_state and (len(args) > 1 or "state" in kwargs):
            check_state(args[1] if len(args) > 1 else kwargs["state"], state_type, name_of(call))
        with default_device_of(tree.leaves(first)):
            return f(*args, **kwargs)

    call.state_type = state_type  # pyright: ignore[reportAttributeAccessIssue]
    return call


def name_of(update: Callable[..., Any]) -> str:
    """Returns the name of the function that made a transformation, from its `update`."""
    return str(getattr(update, "__qualname__", "transformation")).partition(".")[0]


def check_state(state: OptState, state_type: type, name: str) -> None:
    """Raises ArgumentError where `state` lacks the fields of the named tuple class `state_type`."""
    if isinstance(state, state_type):
        return
    needed = state_type._fields  # pyright: ignore[reportAttributeAccessIssue]
    # Another class with the same fields will do: a loaded state may have a class of its own.
    if not {*needed} <= {*getattr(type(state), "_fields", ())} or not needed:
        raise ArgumentError(
            f"{describe_state(state)}; this {name} needs {state_type.__name__}\n"
            f"  make it by init of this {name}, and keep the one that update returns"
        )


def is_empty(state: OptState) -> bool:
    """Whether a state is None or (): enough for a transformation that only writes its state."""
    return state is None or state == ()


def describe_state(state: OptState) -> str:
    """Describes a state for an error message: its class, or the optimizer whose state it is."""
    cls = type(state)
    fields = getattr(cls, "_fields", None) if isinstance(state, tuple) else None
    if type(state) is tuple:
        return f"the state is a tuple of {len(state)}"
    if fields is None:
        return f"the state is {'None' if state is None else f'of type {cls.__name__}'}"
    optimizer = getattr(cls, "optimizer", "")
    if not optimizer:
        return f"the state is {cls.__name__}"
    return f"the state is of {optimizer} ({', '.join(type(x).__name__ for x in state)})"


class EmptyState(NamedTuple):
    """The state of a transformation that keeps nothing."""


def init_empty_state(params: Params) -> EmptyState:
    """Makes the state of a transformation that keeps nothing.

    Args:
        params: tree of arrays, which is not read.

    Returns:
        EmptyState().

    >>> optim.init_empty_state(jnp.zeros(2))
    EmptyState()
    """
    return EmptyState()


def require_positive(name: str, **numbers: Any) -> None:
    """Raises ArgumentError where a Python number is not positive; arrays pass."""
    for argument, value in numbers.items():
        if isinstance(value, (int, float)) and not value > 0:
            raise ArgumentError(f"{name}: {argument} must be positive, got {value}")


def require_not_negative(name: str, **numbers: Any) -> None:
    """Raises ArgumentError where a Python number is negative or NaN; arrays pass."""
    for argument, value in numbers.items():
        if isinstance(value, (int, float)) and not value >= 0:
            raise ArgumentError(f"{name}: {argument} must not be negative, got {value}")


def require_params(params: Params | None, name: str) -> Params:
    """Returns `params`; raises ArgumentError if `update` of `name` was called without them."""
    if params is None:
        raise ArgumentError(
            f"{name} needs the current parameters: call update(grads, state, params) with them"
        )
    return params


def identity() -> GradientTransformation:
    """Returns updates unchanged.

    Returns:
        The transformation, without a state.

    >>> tx, g = optim.identity(), jnp.array([0.5, -3.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates
    Array([ 0.5, -3. ], dtype=float32)
    """
    return GradientTransformation(
        init_empty_state, lambda updates, state, params=None: (updates, state)
    )


def set_to_zero() -> GradientTransformation:
    """Replaces all updates by zeros, which freezes the parameters.

        update = 0

    Returns:
        The transformation, without a state.

    >>> tx, g = optim.set_to_zero(), jnp.array([0.5, -3.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates
    Array([0., 0.], dtype=float32)
    """

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        return tree.map(lambda u: jnp.zeros_like(as_array(u)), updates), state

    return GradientTransformation(init_empty_state, update)


def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation:
    """Makes the transformation `updates -> f(updates, params)`, without a state.

    Args:
        f: function (updates, params or None) -> updates.

    Returns:
        The transformation, without a state.

    >>> tx, g = optim.stateless(lambda updates, params: -0.1 * updates), jnp.array([0.5, -3.0])
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates.round(4)
    Array([-0.05,  0.3 ], dtype=float32)
    """

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        return f(updates, params), EmptyState()

    return GradientTransformation(init_empty_state, update)


def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """Makes the transformation that applies `f(update, parameter)` to each leaf, without a state.

    Args:
        f: function of two arrays; the parameter is None if `update` is called without parameters.

    Returns:
        The transformation, without a state.

    >>> w, g = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([0.5, -3.0])}
    >>> tx = optim.stateless_with_tree_map(lambda u, p: u + 0.1 * p)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates["w"].round(4)
    Array([ 0.6, -3.2], dtype=float32)
    """

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        if params is None:
            return map_updates(lambda u: f(u, None), updates), EmptyState()
        return map_updates(f, updates, extras=(params,)), EmptyState()

    return GradientTransformation(init_empty_state, update)


def per_leaf(f: Callable[..., Any], *, params_for: str = "") -> GradientTransformation:
    """Makes the stateless transformation that applies `f(update)` to each leaf.

    With `params_for`, the transformation's name, it applies `f(update, parameter)`, and `update`
    requires the parameters.
    """

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        extras = (require_params(params, params_for),) if params_for else ()
        return map_updates(f, updates, extras=extras), state

    return GradientTransformation(init_empty_state, update)


def with_extra_args_support(tx: GradientTransformation) -> GradientTransformationExtraArgs:
    """Lets `update` of a transformation accept extra keyword arguments, which it ignores.

    Args:
        tx: transformation.

    Returns:
        The transformation, with the states of `tx`; `tx` itself where it takes extra arguments.

    Raises:
        ArgumentError: `tx` has no `init` and `update`.

    >>> tx, g = optim.with_extra_args_support(optim.sgd(0.1)), jnp.array([0.5, -3.0])
    >>> updates, state = tx.update(g, tx.init(g), value=3.0)
    >>> updates.round(4)
    Array([-0.05,  0.3 ], dtype=float32)
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    if not (hasattr(tx, "init") and hasattr(tx, "update")):
        raise ArgumentError(
            f"a {type(tx).__name__} is no transformation: {tx!r:.60}\n"
            "  pass what a function of optim returns: optim.sgd(0.1)"
        )

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        return tx.update(updates, state, params)

    update.__qualname__ = name_of(tx.update)
    wrapped = GradientTransformationExtraArgs(tx.init, update)
    state_type = getattr(tx.update, "state_type", None)
    wrapped.update.state_type = state_type  # pyright: ignore[reportAttributeAccessIssue]
    return wrapped


def apply_updates(params: T, updates: Updates) -> T:
    """Adds updates to parameters, in the parameters' dtypes.

        p + u

    Sums are in float32 or wider and rounded once; a parameter whose update is None is kept.

    Args:
        params: tree of arrays.
        updates: tree of the same structure; each leaf broadcasts to its parameter, or is None.

    Returns:
        The new parameters.

    Raises:
        TreeError: the structures differ.
        ShapeError: an update does not broadcast to its parameter; the message names the leaf.

    >>> optim.apply_updates({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([-0.5, 0.5])})
    {'w': Array([0.5, 2.5], dtype=float32)}
    """
    whole: Any = params
    us, treedef = tree.flatten(updates, is_none)
    if updates is None and tree.leaves(params):
        raise TreeError(_mismatch(params, updates))
    try:
        ps = treedef.flatten_up_to(whole)
    except (ValueError, TypeError):
        raise TreeError(_mismatch(params, updates)) from None
    return tree.unflatten(
        treedef, [_add_leaf(p, u, updates, i) for i, (u, p) in enumerate(zip(us, ps, strict=True))]
    )


def _add_leaf(p: Any, u: Any, updates: Updates, i: int) -> Array | None:
    if u is None or p is None:
        return p
    p, u = as_array(p), as_array(u)
    if u.shape != p.shape and not _broadcasts(u.shape, p.shape):
        path = tree.paths(updates, is_none)[i]
        raise ShapeError(
            f"apply_updates: params{path} is {p.aval}, but updates{path} is {u.aval}\n"
            "  an update has its parameter's shape: give update the gradients of these parameters"
        )
    return (widen(p) + u).astype(p.dtype)


def _broadcasts(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Whether `shape` broadcasts to `into`."""
    pairs = zip(reversed(shape), reversed(into), strict=False)
    return len(shape) <= len(into) and all(a in (1, b) for a, b in pairs)


def _mismatch(params: Params, updates: Updates) -> str:
    if updates is None:
        return "apply_updates(params, updates): updates is None, where the parameters are a tree"
    if type(updates) is tuple and len(updates) == 2:
        first = difference("updates", updates[0], "the parameters", params)
        if not first:
            return (
                "apply_updates(params, updates): updates is the pair (updates, state) that "
                "update(...) returns\n  unpack it: updates, state = tx.update(grads, state, params)"
            )
    return f"apply_updates: {difference('the updates', updates, 'the parameters', params)}"


def incremental_update(new_tensors: Params, old_tensors: Params, step_size: Number) -> Params:
    """Moves old parameters towards new ones, as for Polyak averages and target networks.

        step_size * new + (1 - step_size) * old

    Source: Polyak & Juditsky, "Acceleration of stochastic approximation by averaging", 1992.

    Args:
        new_tensors, old_tensors: trees of arrays of one structure.
        step_size: share of the new parameters, in [0, 1].

    Returns:
        The averages, in the dtypes of `old_tensors`; leaves that are not floating are the new ones.

    >>> optim.incremental_update(jnp.array([1.0]), jnp.array([0.0]), step_size=0.25)
    Array([0.25], dtype=float32)
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
    new_tensors: Params, old_tensors: Params, steps: ArrayLike, update_period: int
) -> Params:
    """Replaces old parameters by new ones at every `update_period`-th step.

        new where steps % update_period == 0, else old

    Args:
        new_tensors, old_tensors: trees of arrays of one structure.
        steps: number of steps taken, an integer scalar.
        update_period: positive number of steps between updates.

    Returns:
        The chosen tree.

    Raises:
        ArgumentError: `update_period` is not positive.
        TreeError: the structures differ.

    >>> optim.periodic_update(jnp.array([1.0]), jnp.array([0.0]), steps=4, update_period=2)
    Array([1.], dtype=float32)
    """
    require_positive("periodic_update", update_period=update_period)
    take = as_array(steps) % update_period == 0
    return tree.map(lambda new, old: jnp.where(take, new, old), new_tensors, old_tensors)
