"""Operands of distributions: floats of one dtype, and NaN where a parameter has no meaning."""

from __future__ import annotations

from collections.abc import Callable

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import promote_arrays


def in_floats(name: str, formula: Callable[..., Array], *operands: ArrayLike) -> Array:
    """`formula` of the operands in their common floating dtype.

    16-bit floats are computed on as float32 and rounded once, since differences of logarithms of
    gamma functions lose what 16 bits hold.
    """
    arrays = promote_arrays(name, operands, inexact=True)
    dtype = arrays[0].dtype
    if dtypes.is_complex(dtype):
        shown = ", ".join(str(x.aval) for x in arrays)
        raise errors.DTypeError(
            f"{name} takes real numbers, got operands that promote to {shown}; "
            "give the real parts, with .real"
        )
    wide = dtypes.widened(dtype)
    return formula(*[x.astype(wide) for x in arrays]).astype(dtype)


def positive(x: Array) -> Array:
    """`x`, NaN where it is not positive."""
    return np.where(x > 0, x, np.nan)


def proportion(x: Array) -> Array:
    """`x`, NaN outside of [0, 1]."""
    return np.where((x >= 0) & (x <= 1), x, np.nan)


def count(x: Array) -> Array:
    """`x`, NaN where it is no integer from 0 on."""
    return np.where((x >= 0) & (np.floor(x) == x), x, np.nan)
