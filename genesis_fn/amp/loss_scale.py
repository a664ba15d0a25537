"""Loss scaling: keeping small float16 gradients above zero, and skipping steps that overflowed.

The semantics are those of JMP. A scale is a pytree whose values, the scale among them, are leaves:
it travels through `jit`, `tree.map` and checkpoints whole, and a new value never retraces. All
choices are selects in the program; nothing waits for the device.

    loss, grads, finite = scaled_value_and_grad(loss_fn)(scale, params, batch)
    updates, new_state = tx.update(grads, state, params)
    new_params = optim.apply_updates(params, updates)
    params, state = select_tree(finite, (new_params, new_state), (params, state))
    scale = scale.adjust(finite)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.errors import ShapeError
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.transforms.autodiff.derivatives import value_and_grad

T = TypeVar("T")


class LossScale(Protocol):
    """What every loss scale does."""

    @property
    def loss_scale(self) -> Array | float:
        """The current factor."""
        ...

    def scale(self, values: T) -> T:
        """The tree times the factor."""
        ...

    def unscale(self, values: T) -> T:
        """The tree divided by the factor."""
        ...

    def adjust(self, grads_finite: ArrayLike) -> LossScale:
        """The scale for the next step, given whether all gradients of this one were finite."""
        ...


def _times(values: Any, factor: Any) -> Any:
    def at(x: Any) -> Any:
        x = as_array(x)
        return x * factor if dtypes.is_inexact(x.dtype) else x

    return tree.map(at, values)


@tree.dataclass
class NoOpLossScale:
    """The scale 1 that never changes, for where bfloat16 or float32 needs none."""

    @property
    def loss_scale(self) -> int:
        """1."""
        return 1

    def scale(self, values: T) -> T:
        """The tree as it is."""
        return values

    def unscale(self, values: T) -> T:
        """The tree as it is."""
        return values

    def adjust(self, grads_finite: ArrayLike) -> NoOpLossScale:
        """This."""
        return self


def _scalar(x: Any, dtype: Any) -> Any:
    """A Python number as a scalar array; arrays and what is not a number as they are."""
    return as_array(x, dtype) if isinstance(x, (bool, int, float)) else x


@tree.dataclass
class StaticLossScale:
    """A scale that never changes. 16-bit values times it are float32."""

    loss_scale: Array | float

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss_scale", _scalar(self.loss_scale, dtypes.F32))

    def scale(self, values: T) -> T:
        """The tree times the factor."""
        return _times(values, self.loss_scale)

    def unscale(self, values: T) -> T:
        """The tree divided by the factor."""
        return _times(values, 1 / self.loss_scale)

    def adjust(self, grads_finite: ArrayLike) -> StaticLossScale:
        """This."""
        return self


@tree.dataclass
class DynamicLossScale:
    """A scale that grows by `factor` after `period` finite steps and shrinks by it at overflow.

    It never falls below `min_loss_scale`, and does not grow to infinity.
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
        object.__setattr__(self, "loss_scale", _scalar(self.loss_scale, dtypes.F32))
        object.__setattr__(self, "counter", _scalar(self.counter, dtypes.I32))
        object.__setattr__(self, "min_loss_scale", _scalar(self.min_loss_scale, dtypes.F32))

    def scale(self, values: T) -> T:
        """The tree times the factor."""
        return _times(values, self.loss_scale)

    def unscale(self, values: T) -> T:
        """The tree divided by the factor."""
        return _times(values, 1 / self.loss_scale)

    def adjust(self, grads_finite: ArrayLike) -> DynamicLossScale:
        """The scale for the next step, given whether all gradients of this one were finite."""
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
    """Whether all elements of the floating leaves are finite, a boolean scalar; true of none."""
    arrays = [as_array(x) for x in tree.leaves(values)]
    finite = [jnp.all(jnp.isfinite(x)) for x in arrays if dtypes.is_inexact(x.dtype)]
    return functools.reduce(jnp.logical_and, finite, jnp.ones((), dtypes.BOOL))


def select_tree(pred: ArrayLike, a: T, b: T) -> T:
    """The tree `a` where the boolean scalar `pred` is true, else `b`: no branch, no waiting.

    With `pred` = `all_finite(grads)`, a = the values after a step and b = those before it, this is
    skipping a step on overflow. Raises TreeError where the structures differ.
    """
    chosen = _boolean(pred, "select_tree")
    return tree.map(lambda x, y: jnp.where(chosen, x, y), a, b)


def scaled_value_and_grad(
    fun: Callable[..., PyTree],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., tuple[PyTree, PyTree, Array]]:
    """g(loss_scale, *args) -> (value, gradient, whether the gradient is finite).

    The loss is scaled before it is differentiated, the gradient unscaled (in float32) after; the
    value is that of `fun`, or (value, aux) with `has_aux`. Options are those of `value_and_grad`.
    """

    @functools.wraps(fun)
    def g(loss_scale: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        def scaled(*inner: Any, **inner_kwargs: Any) -> tuple[Any, ...]:
            out = fun(*inner, **inner_kwargs)
            value, aux = out if has_aux else (out, None)
            return loss_scale.scale(value), (value, aux)

        (_, (value, aux)), grads = value_and_grad(scaled, argnums, has_aux=True, **options)(
            *args, **kwargs
        )
        grads = loss_scale.unscale(grads)
        return ((value, aux) if has_aux else value), grads, all_finite(grads)

    return g
