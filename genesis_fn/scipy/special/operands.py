"""Operands of special functions: floats of one shape and dtype, narrow ones computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike


def inexact(x: ArrayLike) -> Array:
    """Integers and booleans as floats (`dtypes.inexact_of`); floats and complex numbers as they
    are."""
    x = as_array(x)
    return x if dtypes.is_inexact(x.dtype) else x.astype(dtypes.inexact_of(x.dtype))


def real_operand(x: ArrayLike, name: str) -> Array:
    """`x` as a float, for a function that takes no complex numbers."""
    x = inexact(x)
    if dtypes.is_complex(x.dtype):
        raise errors.DTypeError(
            f"{name} takes real numbers, got {x.aval}\n  at {where().describe()}"
        )
    return x


def together(*xs: ArrayLike) -> list[Array]:
    """Floats of one shape and dtype."""
    d = np.result_type(*[x if type(x) in (int, float) else inexact(x) for x in xs])
    return np.broadcast_arrays(*[np.asarray(x, dtype=d) for x in xs])


def reals_together(name: str, *xs: ArrayLike) -> list[Array]:
    """`together`, for a function that takes no complex numbers."""
    return together(*[x if type(x) in (int, float) else real_operand(x, name) for x in xs])


def wide(x: Array) -> Array:
    """Narrow floats as float32, to be rounded once."""
    return x if x.dtype.itemsize >= 4 else x.astype("float32")


def rounded_once(f: Callable[..., Any], *xs: Array) -> Any:
    """`f` of floats, narrow ones in float32, in their own dtype."""
    result = f(*map(wide, xs))
    if isinstance(result, tuple):
        return tuple([y.astype(xs[0].dtype) for y in result])
    return result.astype(xs[0].dtype)


def at_least_half(x: Array) -> float:
    """The largest relative error of rounding to the dtype of `x`."""
    return float(np.finfo(x.dtype).eps) / 2
