"""Numerics of single arrays that optimizers share: counters, norms, bias corrections."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, dtypes
from genesis_fn.dtypes import DType
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array, real_of
from genesis_fn.optim.annotations import Number
from genesis_fn.optim.tree_map_updates import widen


def abs_sq(x: ArrayLike) -> Array:
    """Computes the squared magnitude, without the root that `abs` takes.

        |x|**2 elementwise

    Args:
        x: array or number.

    Returns:
        An array of the shape of `x`, real for complex `x`.

    >>> optim.abs_sq(jnp.array([3.0 + 4.0j]))
    Array([25.], dtype=float32)
    """
    x = as_array(x)
    if dtypes.is_complex(x.dtype):
        real, imag = jnp.real(x), jnp.imag(x)
        return real * real + imag * imag
    return x * x


def safe_increment(count: ArrayLike) -> Array:
    """Counts a step, without an overflow.

        min(count + 1, largest value of the dtype)

    Args:
        count: integer or floating array or number.

    Returns:
        An array of the shape and dtype of `count`.

    Raises:
        ArgumentError: `count` is neither integer nor floating.

    >>> optim.safe_increment(jnp.array([3, 2**31 - 1]))
    Array([         4, 2147483647], dtype=int32)
    """
    count = as_array(count)
    if dtypes.is_integer(count.dtype):
        top: Any = int(dtypes.iinfo(count.dtype).max)
    elif dtypes.is_float(count.dtype):
        top = float(dtypes.finfo(count.dtype).max)
    else:
        raise ArgumentError(
            f"safe_increment takes an integer or float count, got {count.dtype.name}"
        )
    return jnp.where(count < top, count + 1, top).astype(count.dtype)


safe_int32_increment = safe_increment


def one_minus_power(decay: Number, count: ArrayLike) -> Callable[[DType], Number]:
    """Returns the function dtype -> 1 - decay**count, the bias correction of a moment.

    It is computed as -expm1(count * log(decay)), which does not cancel where decay is near 1, once
    per dtype.
    """
    corrections: dict[DType, Number] = {}

    def at(dtype: DType) -> Number:
        real = real_of(dtype)
        if real not in corrections:
            corrections[real] = _one_minus_power(decay, as_array(count).astype(real))
        return corrections[real]

    return at


def _one_minus_power(decay: Number, count: Array) -> Number:
    if isinstance(decay, (int, float)):
        if not 0 <= decay < 1:
            raise ArgumentError(f"a decay rate lies in [0, 1), got {decay}")
        return 1.0 if decay == 0 else -jnp.expm1(count * math.log(decay))
    return -jnp.expm1(count * jnp.log(as_array(decay).astype(count.dtype)))


def root(x: Array) -> Array:
    """Returns the square root, whose derivative here is 0 at 0, where steps begin."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0)


def safe_norm(
    x: ArrayLike,
    min_norm: Number,
    ord: float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Array:
    """Computes a norm with a lower bound; its derivative is 0 where the norm is at most the bound.

        max(|x|, min_norm)

    Args:
        x: array or number.
        min_norm: least value, >= 0.
        ord, axis, keepdims: as of `jnp.linalg.norm`.

    Returns:
        The norm, a scalar or an array of the axes that remain.

    >>> optim.safe_norm(jnp.array([3.0, 4.0]), 0.0), optim.safe_norm(jnp.zeros(2), 0.1)
    (Array(5., dtype=float32), Array(0.1, dtype=float32))
    >>> gf.grad(lambda x: optim.safe_norm(x, 0.1))(jnp.zeros(2))
    Array([0., 0.], dtype=float32)
    """
    x = widen(as_array(x))
    small = _norm(x, ord, axis, True) <= min_norm
    value = _norm(jnp.where(small, jnp.ones_like(x), x), ord, axis, keepdims)
    if not keepdims:
        small = small.reshape(value.shape)
    return jnp.where(small, min_norm, value)


def _norm(
    x: Array, ord: float | str | None, axis: int | tuple[int, ...] | None, keepdims: bool
) -> Array:
    if ord is None or (ord == 2 and (isinstance(axis, int) or x.ndim == 1)):
        return jnp.sqrt(jnp.sum(abs_sq(x), axis=axis, keepdims=keepdims))
    return jnp.linalg.norm(x, ord=ord, axis=axis, keepdims=keepdims)


def safe_root_mean_squares(x: ArrayLike, min_rms: Number) -> Array:
    """Computes a root mean square with a lower bound; its derivative is 0 at the bound.

        max(sqrt(mean(|x|**2)), min_rms)

    Args:
        x: array or number.
        min_rms: least value, >= 0.

    Returns:
        A scalar, float32 or wider.

    >>> optim.safe_root_mean_squares(jnp.array([1.0, 7.0]), 0.0)
    Array(5., dtype=float32)
    >>> optim.safe_root_mean_squares(jnp.zeros(2), 0.1)
    Array(0.1, dtype=float32)
    """
    x = widen(as_array(x))
    small = jnp.sqrt(jnp.mean(abs_sq(x))) <= min_rms
    value = jnp.sqrt(jnp.mean(abs_sq(jnp.where(small, jnp.ones_like(x), x))))
    return jnp.where(small, min_rms, value)
