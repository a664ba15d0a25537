"""Loss scaling: keep small float16 gradients above zero, and skip steps that overflowed.

The semantics are those of JMP. A scale is a pytree whose leaves are arrays: it passes through
`jit`, `tree.map` and checkpoints, and a new factor never retraces. All choices are selects in the
program, so that the host never waits for the device.

    loss, grads, finite = scaled_value_and_grad(loss_fn)(scale, params, batch)
    updates, new_state = tx.update(grads, state, params)
    new_params = optim.apply_updates(params, updates)
    params, state = select_tree(finite, (new_params, new_state), (params, state))
    scale = scale.adjust(finite)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.errors import ArgumentError, ShapeError
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.transforms.autodiff.derivatives import value_and_grad

T = TypeVar("T")


class LossScale(Protocol):
    """The protocol of StaticLossScale, DynamicLossScale and NoOpLossScale.

    Args:
        *args, **kwargs: none: a protocol is not instantiated.

    Raises:
        TypeError: the protocol itself is instantiated.

    >>> scale = gf.amp.DynamicLossScale(loss_scale=8.0)
    >>> scale.scale(jnp.array(0.5)), scale.unscale(jnp.array(4.0))
    (Array(4., dtype=float32), Array(0.5, dtype=float32))
    """

    @property
    def loss_scale(self) -> Array | float:
        """The current factor."""
        ...

    def scale(self, values: T) -> T:
        """Return the tree with its floating leaves multiplied by the factor."""
        ...

    def unscale(self, values: T) -> T:
        """Return the tree with its floating leaves divided by the factor."""
        ...

    def adjust(self, grads_finite: ArrayLike) -> LossScale:
        """Return the scale for the next step; `grads_finite`: whether this one's gradients were."""
        ...


def _times(values: Any, factor: Any) -> Any:
    def at(x: Any) -> Any:
        x = as_array(x)
        return x * factor if dtypes.is_inexact(x.dtype) else x

    return tree.map(at, values)


@tree.dataclass
class NoOpLossScale:
    """The constant scale 1, for where bfloat16 or float32 needs no scaling."""

    @property
    def loss_scale(self) -> int:
        """The factor, 1."""
        return 1

    def scale(self, values: T) -> T:
        """Return the tree as it is."""
        return values

    def unscale(self, values: T) -> T:
        """Return the tree as it is."""
        return values

    def adjust(self, grads_finite: ArrayLike) -> NoOpLossScale:
        """Return this scale."""
        return self


def _scalar(x: Any, dtype: Any) -> Any:
    """A Python number as a scalar array; arrays and what is not a number as they are."""
    return as_array(x, dtype) if isinstance(x, (bool, int, float)) else x


def _factor(x: Any, name: str) -> Any:
    """`_scalar` of a factor, which gradients are divided by: a Python number has to be positive."""
    if isinstance(x, (int, float)) and not x > 0:
        raise ValueError(f"{name} must be positive, got {x}")
    return _scalar(x, dtypes.F32)


@tree.dataclass
class StaticLossScale:
    """A constant scale. Floating leaves times it are float32 at least."""

    loss_scale: Array | float

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss_scale", _factor(self.loss_scale, "StaticLossScale"))

    def scale(self, values: T) -> T:
        """Return the tree with its floating leaves multiplied by the factor."""
        return _times(values, self.loss_scale)

    def unscale(self, values: T) -> T:
        """Return the tree with its floating leaves divided by the factor."""
        return _times(values, 1 / self.loss_scale)

    def adjust(self, grads_finite: ArrayLike) -> StaticLossScale:
        """Return this scale."""
        return self


@tree.dataclass
class DynamicLossScale:
    """A scale that grows by `factor` after `period` finite steps and shrinks by it at overflow.

    It never falls below `min_loss_scale`, and never grows to infinity.

    Source: Micikevicius et al., "Mixed precision training", 2017.

    Args:
        loss_scale: the factor, a float32 scalar.
        counter: finite steps since the factor last changed, an int32 scalar.
        period: finite steps after which the factor grows.
        factor: by which the scale grows and shrinks, above 1.
        min_loss_scale: the least factor.

    >>> scale = gf.amp.DynamicLossScale(loss_scale=8.0)
    >>> scale.adjust(jnp.array(False)).loss_scale
    Array(4., dtype=float32)
    """

    loss_scale: Array | float = 2.0**15
    counter: Array | int = 0
    period: int = tree.static_field(default=2000)
    factor: float = tree.static_field(default=2)
    min_loss_scale: Array | float = 1.0

    def __post_init__(self) -> None:
        if self.period < 1 or not self.factor > 1:
            raise ValueError(
                f"DynamicLossScale: period must be positive and factor above 1, got {self.period} "
                f"and {self.factor}"
            )
        object.__setattr__(self, "counter", _scalar(self.counter, dtypes.I32))
        for name in ("loss_scale", "min_loss_scale"):
            value = _factor(getattr(self, name), f"DynamicLossScale: {name}")
            object.__setattr__(self, name, value)

    def scale(self, values: T) -> T:
        """Return the tree with its floating leaves multiplied by the factor."""
        return _times(values, self.loss_scale)

    def unscale(self, values: T) -> T:
        """Return the tree with its floating leaves divided by the factor."""
        return _times(values, 1 / self.loss_scale)

    def adjust(self, grads_finite: ArrayLike) -> DynamicLossScale:
        """Return the scale for the next step; `grads_finite`: whether this one's gradients were."""
        finite = _boolean(grads_finite, "adjust")
        now: Any = self.loss_scale
        grown = now * self.factor
        grown = jnp.where(jnp.isfinite(grown), grown, now)
        shrunk = jnp.maximum(self.min_loss_scale, now / self.factor)
        due = self.counter == self.period - 1
        counter = jnp.where(finite, (self.counter + 1) % self.period, 0)
        return DynamicLossScale(
            jnp.where(finite, jnp.where(due, grown, now), shrunk).astype(now.dtype),
            counter.astype(dtypes.I32),
            self.period,
            self.factor,
            self.min_loss_scale,
        )


def _boolean(condition: ArrayLike, name: str) -> Array:
    x: Array = as_array(condition)
    if x.shape != () or x.dtype != dtypes.BOOL:
        raise ShapeError(f"{name} takes a boolean scalar, got {x.aval}")
    return x


def all_finite(values: PyTree) -> Array:
    """Tell whether all elements of the floating leaves are finite.

    Args:
        values: pytree of arrays or numbers; integer and boolean leaves do not count.

    Returns:
        A boolean scalar; true for a tree without floating leaves.

    >>> gf.amp.all_finite({"w": jnp.array([1.0, jnp.inf]), "step": 3})
    Array(False, dtype=bool)
    """
    arrays = [as_array(x) for x in tree.leaves(values)]
    finite = [jnp.all(jnp.isfinite(x)) for x in arrays if dtypes.is_inexact(x.dtype)]
    return functools.reduce(jnp.logical_and, finite, jnp.ones((), dtypes.BOOL))


def select_tree(pred: ArrayLike, a: T, b: T) -> T:
    """Choose between two trees by a traced condition, without a branch and without waiting for it.

    With `pred` = `all_finite(grads)`, `a` = the values after a step and `b` = those before it, this
    skips a step on overflow.

    Args:
        pred: boolean scalar.
        a, b: pytrees of one structure.

    Returns:
        The tree `a` where `pred` is true, else `b`.

    Raises:
        ShapeError: `pred` is no boolean scalar.
        TreeError: the structures differ.

    >>> gf.amp.select_tree(jnp.array(False), {"w": jnp.ones(2)}, {"w": jnp.zeros(2)})
    {'w': Array([0., 0.], dtype=float32)}
    """
    chosen = _boolean(pred, "select_tree")
    return tree.map(lambda x, y: jnp.where(chosen, x, y), a, b)


def scaled_value_and_grad(
    fun: Callable[..., PyTree],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., tuple[PyTree, PyTree, Array]]:
    """Differentiate a scaled loss: g(loss_scale, *args) -> (value, gradient, whether it is finite).

    The loss is scaled before it is differentiated, the gradient unscaled after; the value is that
    of `fun`.

    Args:
        fun: function that returns a scalar loss, or (loss, aux).
        argnums: position or positions of the arguments that are differentiated.
        has_aux: whether `fun` returns (loss, aux).
        **options: as in `value_and_grad`.

    Returns:
        A function of a loss scale and the arguments of `fun` that returns (value, gradient, boolean
        scalar); with `has_aux` the value is (loss, aux).

    Raises:
        ArgumentError: that function is called without a loss scale first.

    >>> loss = lambda w: (w ** 2).sum()
    >>> gf.amp.scaled_value_and_grad(loss)(gf.amp.StaticLossScale(1024.0), jnp.array([3.0]))
    (Array(9., dtype=float32), Array([6.], dtype=float32), Array(True, dtype=bool))
    """

    @functools.wraps(fun)
    def g(loss_scale: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if not hasattr(loss_scale, "unscale"):
            raise ArgumentError(
                f"the function of scaled_value_and_grad takes a loss scale first, got a "
                f"{type(loss_scale).__name__}\n"
                "  call it with gf.amp.DynamicLossScale(), then the arguments of the loss"
            )

        def scaled(*inner: Any, **inner_kwargs: Any) -> tuple[Any, ...]:
            out = fun(*inner, **inner_kwargs)
            value, aux = out if has_aux else (out, None)
            return loss_scale.scale(value), (value, aux)

        (_, (value, aux)), grads = value_and_grad(scaled, argnums, has_aux=True, **options)(
            *args, **kwargs
        )
        grads = loss_scale.unscale(grads)
        return ((value, aux) if has_aux else value), grads, all_finite(grads)

    # `jit` counts static arguments' positions in the signature; that of `fun` lacks the scale.
    with contextlib.suppress(TypeError, ValueError):  # a function in C may have none
        signature = inspect.signature(fun)
        first = inspect.Parameter("loss_scale", inspect.Parameter.POSITIONAL_ONLY)
        positional = [first, *signature.parameters.values()]
        g.__signature__ = signature.replace(parameters=positional)  # type: ignore[attr-defined]
    return g
