"""Exchange with other libraries by DLPack."""

from __future__ import annotations

from typing import Any

from genesis_fn.core.array import ArrayImpl
from genesis_fn.numpy.arrays.creation import from_dlpack as from_dlpack, to_dlpack as _capsule


def to_dlpack(x: ArrayImpl, stream: int | None = None, **options: Any) -> Any:
    """A DLPack capsule that shares the array's memory. The consumer must not write to it."""
    return _capsule(x, **options)
