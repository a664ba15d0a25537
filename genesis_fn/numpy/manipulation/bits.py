"""Bits packed into bytes."""

from __future__ import annotations

import operator
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.creation import asarray
from genesis_fn.numpy.arrays.grids import arange
from genesis_fn.numpy.manipulation.padding import pad
from genesis_fn.numpy.manipulation.shapes import ravel, reshape, swapaxes
from genesis_fn.numpy.mathematics.reductions import sum as sum_over
from genesis_fn.numpy.mathematics.ufuncs import left_shift, not_equal, right_shift
from genesis_fn.primitives.shape import canonical_axis


def _along_last(a: Any, axis: int | None, name: str) -> tuple[Array, int]:
    """(the array with its axis at the end, that axis); all elements for None."""
    if axis is None or a.ndim == 0:
        return ravel(a), 0
    axis = canonical_axis(axis, a.ndim, name)
    return swapaxes(a, axis, -1), axis


def _shifts(bitorder: str, name: str) -> Array:
    if bitorder not in ("big", "little"):
        raise errors.ArgumentError(
            f"{name}: bitorder is 'big' or 'little', got {bitorder!r}\n"
            f"  at {user_line().describe()}"
        )
    shifts = arange(8, dtype=dtypes.U8)
    return shifts[::-1] if bitorder == "big" else shifts


def packbits(a: ArrayLike, axis: int | None = None, bitorder: str = "big") -> Array:
    """Every eight elements along `axis` as the bits of a byte: 1 where they are not 0.

    Args:
        a: array of integers or booleans.
        axis: an axis; None packs all elements in their order.
        bitorder: whether the first element is the highest bit, "big", or the lowest, "little".

    Returns:
        uint8, with zeros for elements that are missing in the last byte.

    Raises:
        DTypeError: for floats.
        ArgumentError: for another `bitorder`.

    >>> packbits(jnp.array([1, 0, 0, 0, 0, 0, 0, 1, 1]))
    Array([129, 128], dtype=uint8)
    """
    a = asarray(a)
    if not (dtypes.is_integer(a.dtype) or a.dtype == dtypes.BOOL):
        raise errors.DTypeError(
            f"packbits takes integers or booleans, got {a.aval}\n  at {user_line().describe()}"
        )
    shifts = _shifts(bitorder, "packbits")
    x, axis = _along_last(not_equal(a, 0).astype(dtypes.U8), axis, "packbits")
    missing = -x.aval.shape[-1] % 8
    if missing:
        x = pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    x = reshape(x, (*x.aval.shape[:-1], x.aval.shape[-1] // 8, 8))
    packed = sum_over(left_shift(x, shifts), -1, dtype=dtypes.U8)
    return swapaxes(packed, axis, -1)


def unpackbits(
    a: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Array:
    """The bits of bytes as elements, eight for each along `axis`.

    Args:
        a: array of uint8.
        axis: an axis; None unpacks all elements in their order.
        count: how many bits there are along the axis: others are cut off, missing ones are 0. A
            negative count is cut off from the end.
        bitorder: whether the highest bit comes first, "big", or the lowest, "little".

    Returns:
        uint8, zeros and ones.

    Raises:
        DTypeError: for another dtype.
        ArgumentError: for another `bitorder`.

    >>> unpackbits(jnp.array([129], dtype="uint8"))
    Array([1, 0, 0, 0, 0, 0, 0, 1], dtype=uint8)
    """
    a = asarray(a)
    if a.dtype != dtypes.U8:
        raise errors.DTypeError(
            f"unpackbits takes uint8, got {a.aval}\n  at {user_line().describe()}"
        )
    shifts = _shifts(bitorder, "unpackbits")
    x, axis = _along_last(a, axis, "unpackbits")
    bits = right_shift(x[..., None], shifts) & asarray(1, dtypes.U8)
    bits = reshape(bits, (*x.aval.shape[:-1], x.aval.shape[-1] * 8))
    if count is not None:
        missing = operator.index(count) - bits.aval.shape[-1]
        if missing > 0:
            bits = pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, missing)])
        else:
            bits = bits[..., :count]
    return swapaxes(bits, axis, -1)
