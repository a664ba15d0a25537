"""Exchange with other libraries by DLPack."""

from __future__ import annotations

from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.errors import DTypeError
from genesis_fn.core.types.annotations import DTypeLike
from genesis_fn.numpy.arrays.creation import from_dlpack as from_dlpack, to_dlpack as _capsule


def to_dlpack(x: ArrayImpl, stream: int | None = None, **options: Any) -> Any:
    """A DLPack capsule that shares the array's memory. The consumer must not write to it."""
    return _capsule(x, **options)


def is_supported_dtype(dtype: DTypeLike | None) -> bool:
    """Whether arrays of a dtype are exchanged by DLPack: those of random keys and of 8-bit floats
    are not. Raises TypeError for None."""
    if dtype is None:
        raise TypeError("is_supported_dtype takes a dtype, got None")
    try:
        found = dtypes.dtype(dtype)
    except DTypeError:  # none of the library's
        return False
    return not dtypes.is_key(found) and found not in (dtypes.F8E4, dtypes.F8E5)
