"""Constant arrays as NumPy names them, casts, exchange with other libraries."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import IO, Any

import numpy as np

from genesis_fn.core import device as devices, dtypes
from genesis_fn.core.array import Array, ArrayImpl, from_numpy, live
from genesis_fn.core.device import Device
from genesis_fn.core.primitive import ctx
from genesis_fn.core.types.annotations import ArrayLike, DTypeLike, ShapeLike
from genesis_fn.lax.creation import (
    array,
    asarray,
    constant,
    full_like,
    on_device,
    shape_of,
    to_device,
)
from genesis_fn.lax.promotion import strong, value
from genesis_fn.primitives.elementwise import convert
from genesis_fn.primitives.shape import copy as copy_of


def ascontiguousarray(a: ArrayLike | Sequence[Any], dtype: DTypeLike | None = None) -> Array:
    """`a` as an array: all arrays are contiguous to their users."""
    return asarray(a, dtype)


def copy(a: ArrayLike | Sequence[Any], order: str | None = None) -> Array:
    """A copy of `a` in memory of its own."""
    return array(a, copy=True)


def astype(
    x: ArrayLike,
    dtype: DTypeLike | None,
    /,
    *,
    copy: bool = False,
    device: Device | str | None = None,
) -> Array:
    """`x` in another dtype. Floats to integers saturate, NaN becomes 0; complex to real drops the
    imaginary part; anything to bool is `x != 0`. None is float32, as in JAX."""
    x = value(x, "astype")
    d = dtypes.or_default_float(dtype)
    result = strong(convert(x, d))
    if copy and result is x and type(x) is ArrayImpl and ctx.trace is None:
        result = copy_of(x)
    return result if device is None else on_device(result, device)


# ---- constants ----


def zeros(
    shape: ShapeLike, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """An array of zeros, float32 by default."""
    return to_device(constant(shape_of(shape), 0, dtypes.or_default_float(dtype)), device)


def ones(
    shape: ShapeLike, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """An array of ones, float32 by default."""
    return to_device(constant(shape_of(shape), 1, dtypes.or_default_float(dtype)), device)


def empty(
    shape: ShapeLike, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """An array of zeros: there is no uninitialised memory in a functional program."""
    return zeros(shape, dtype, device=device)


def zeros_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """Zeros with the shape, dtype and device of `a` (or of anything with `.shape` and `.dtype`)."""
    return full_like(a, 0, dtype, shape, device=device)


def ones_like(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """Ones with the shape, dtype and device of `a`."""
    return full_like(a, 1, dtype, shape, device=device)


def empty_like(
    prototype: ArrayLike,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """Zeros with the shape and dtype of `prototype`."""
    return zeros_like(prototype, dtype, shape, device=device)


# ---- exchange ----


def fromiter(iterable: Iterable[Any], dtype: DTypeLike | None = None, count: int = -1) -> Array:
    """An array of the numbers that an iterable yields, float32 by default."""
    d = dtypes.or_default_float(dtype)
    return from_numpy(np.fromiter(iterable, d, count))


def frombuffer(
    buffer: bytes | bytearray | memoryview,
    dtype: DTypeLike = float,
    count: int = -1,
    offset: int = 0,
) -> Array:
    """An array with a copy of a buffer's bytes read as `dtype`."""
    return from_numpy(np.frombuffer(buffer, dtypes.dtype(dtype), count, offset))


def fromfile(
    file: str | os.PathLike[str] | IO[bytes],
    dtype: DTypeLike = float,
    count: int = -1,
    sep: str = "",
    offset: int = 0,
) -> Array:
    """An array of the numbers in a file, bytes or text.

    Args:
        file: path, or file opened for reading.
        dtype: what the numbers are, float32 by default.
        count: how many are read, all by default.
        sep: what stands between numbers of a text; without it the file holds bytes.
        offset: how many bytes are skipped first.

    Returns:
        A vector.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"1 2 3"), file.flush()
    ...     x = fromfile(file.name, int, sep=" ")
    >>> x
    Array([1, 2, 3], dtype=int32)
    """
    return from_numpy(np.fromfile(file, dtypes.dtype(dtype), count, sep, offset))


def fromstring(string: str, dtype: DTypeLike = float, count: int = -1, *, sep: str) -> Array:
    """An array of the numbers in a text.

    Args:
        string: the text.
        dtype: what the numbers are, float32 by default.
        count: how many are read, all by default.
        sep: what stands between them.

    Returns:
        A vector.

    >>> fromstring("1 2 3", int, sep=" ")
    Array([1, 2, 3], dtype=int32)
    """
    return from_numpy(np.fromstring(string, dtypes.dtype(dtype), count, sep=sep))


_CUDA_MEMORY = (2, 13)  # DLPack's device types of GPU and of managed memory


def from_dlpack(
    x: Any, /, *, device: Device | str | None = None, copy: bool | None = None
) -> Array:
    """An array over the memory of `x`, which must not be written any more; `copy=True` copies.

    Raises DTypeError for a dtype outside the library's list, ValueError for `copy=False` where the
    memory is on another device, or on a GPU and strided.
    """
    if isinstance(x, Array):
        return on_device(x, device) if device is not None else x
    kind, index = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (1, 0)
    on_gpu = kind in _CUDA_MEMORY and devices.cuda_usable()
    source = devices.cuda(int(index)) if on_gpu else devices.cpu()
    result = source.backend.from_dlpack(x, source, copy)
    return result if device is None else on_device(result, device)


def to_dlpack(x: ArrayImpl, **options: Any) -> Any:
    """The DLPack capsule of an array's values; shares memory where they are host memory."""
    if dtypes.is_key(x.dtype):
        raise TypeError(f"random keys, {x.aval}, have no DLPack form; {dtypes.KEY_REMEDY}")
    return live(x).device.backend.to_dlpack(x, **options)


def dlpack_device(x: ArrayImpl) -> tuple[int, int]:
    """(device type, index) by DLPack's numbering, for the memory that `to_dlpack` exports."""
    return live(x).device.backend.dlpack_device(x)


def cuda_array_interface(x: ArrayImpl) -> dict[str, Any]:
    """The `__cuda_array_interface__` of an array on a GPU, read-only; CPU arrays have none."""
    if dtypes.is_key(x.dtype):
        raise AttributeError(f"random keys, {x.aval}, have no __cuda_array_interface__")
    return live(x).device.backend.cuda_array_interface(x)
