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
    """Returns |x|**2 elementwise, real for complex x and without the root that `abs` takes."""
    x = as_array(x)
    if dtypes.is_complex(x.dtype):
        real, imag = jnp.real(x), jnp.imag(x)
        return real * real + imag * imag
    return x * x


def safe_increment(count: ArrayLike) -> Array:
    """Returns count + 1, or the largest value of its dtype once that is reached.

    Raises:
        ArgumentError: `count` is neither integer nor floating.
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


def safe_norm(
    x: ArrayLike,
    min_norm: Number,
    ord: float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Array:
    """Returns max(norm(x), min_norm), with derivative 0 where the norm is at most `min_norm`.

    Args:
        x: array or number.
        min_norm: least value, >= 0.
        ord, axis, keepdims: as of `jnp.linalg.norm`.
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
    """Returns max(sqrt(mean(|x|**2)), min_rms), with derivative 0 where that is `min_rms`."""
    x = widen(as_array(x))
    small = jnp.sqrt(jnp.mean(abs_sq(x))) <= min_rms
    value = jnp.sqrt(jnp.mean(abs_sq(jnp.where(small, jnp.ones_like(x), x))))
    return jnp.where(small, min_rms, value)
