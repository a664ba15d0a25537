"""Arrays from Python and NumPy values, and constant arrays."""

from __future__ import annotations

import array as array_module
import math
import operator
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from genesis_fn.core import device as devices, dtypes, errors
from genesis_fn.core.array import Array, ArrayImpl, from_numpy, offers_array
from genesis_fn.core.configuration.transfer_guard import asked_for
from genesis_fn.core.convert import as_array, narrowed
from genesis_fn.core.device import Device
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import SCALARS, Tracer, ctx, default_device_of, with_weak
from genesis_fn.core.types.annotations import ArrayLike, DTypeLike, Scalar, Shape, ShapeLike
from genesis_fn.core.types.scalar_types import install_scalar_cast
from genesis_fn.lax.promotion import broadcast, is_weak, promote_arrays, result_type, strong
from genesis_fn.primitives.elementwise import convert, neg
from genesis_fn.primitives.factories import full as full_of
from genesis_fn.primitives.indexing.constants import MOST_CONSTANTS, constant as constant_of
from genesis_fn.primitives.shape import concatenate, copy as copy_of, reshape
from genesis_fn.transforms.keys.key_reuse import on_purpose
from genesis_fn.transforms.staging.device_placement import move
from genesis_fn.transforms.staging.stage_trace import is_recorded


def shape_of(shape: ShapeLike) -> tuple[int, ...]:
    """A shape argument (an int or a sequence of ints) as a tuple of ints."""
    lengths: Any = shape  # an array or an ndarray of integers too
    many = type(lengths) in (tuple, list) or (
        hasattr(lengths, "__len__") and getattr(lengths, "ndim", 1)
    )
    result = tuple([operator.index(n) for n in lengths]) if many else (operator.index(lengths),)
    if any(n < 0 for n in result):
        raise errors.ShapeError(f"a shape cannot have negative lengths: {list(result)}")
    return result


def _dtype(spec: Any, otherwise: DType) -> DType:
    return otherwise if spec is None else dtypes.dtype(spec)


# ---- from values ----


def array(
    object: ArrayLike | Sequence[Any],
    dtype: DTypeLike | None = None,
    copy: bool = True,
    order: str | None = "K",
    ndmin: int = 0,
    *,
    device: Device | str | None = None,
) -> Array:
    """An array of `object`: a number, an array, an ndarray, or nested sequences of them.

    Python numbers become int32, float32, complex64 or bool; 64-bit ndarrays become 32-bit unless
    `dtype` is given or `enable_x64` set. Raises OverflowError for integers that do not fit,
    TypeError for what is no number, ValueError for ragged sequences.
    """
    d = None if dtype is None else dtypes.dtype(dtype)
    device = None if device is None else as_device(device)
    if isinstance(object, Array):
        x = object if d is None else strong(convert(object, d))
        if copy and x is object and dtypes.is_key(x.aval.dtype):
            x = on_purpose(copy_of(x))
        elif copy and x is object and type(x) is ArrayImpl and ctx.trace is None:
            x = copy_of(x)
    elif isinstance(object, (list, tuple)):
        x = _from_sequence(object, d, device)
    elif isinstance(object, (memoryview, bytearray, array_module.array)):
        x = as_array(np.asarray(object), d, device)
    elif type(object) in SCALARS and d is not None:
        x = full_like_scalar(object, d, device)
    else:
        x = as_array(object, d, device)
        if d is not None:
            x = convert(x, d)
    if device is not None:
        x = on_device(x, device)
    missing = ndmin - len(x.aval.shape)
    return reshape(x, (1,) * missing + x.aval.shape) if missing > 0 else x


def full_like_scalar(x: ArrayLike | Sequence[Any], d: DType, device: Device | None = None) -> Array:
    """A Python scalar as a 0-d array of dtype `d`, with NumPy's casts between kinds."""
    if dtypes.is_key(d) or (type(x) is int and dtypes.is_integer(d)):
        return as_array(x, d, device)
    return from_numpy(np.asarray(x).astype(d), device)


def _from_sequence(items: Any, d: DType | None, device: Device | None) -> Array:
    leaves: list[Any] = []
    shape = _measure(items, leaves)
    if not any(
        isinstance(x, (Array, Tracer)) or hasattr(x, "__genesis_array__") or offers_array(type(x))
        for x in leaves
    ):
        values = np.array(items)
        if values.dtype == object and all(type(x) is int for x in leaves):
            raise OverflowError(f"array: an integer of {items!r:.60} does not fit 64 bits")
        if values.dtype == object or values.dtype.kind in "USVmM":
            bad = next((x for x in leaves if not isinstance(x, (int, float, complex))), items)
            raise errors.ArgumentError(
                f"array: {bad!r} of type {type(bad).__name__} is not a number"
            )
        if d is None:
            types = {type(x) for x in leaves}
            if types <= {int, float, complex, bool}:
                d = dtypes.counted(values.dtype)
            else:
                d = result_type(*leaves)
        return from_numpy(narrowed(values, d), device)
    if d is None:
        parts = promote_arrays("array", leaves)
    else:
        parts = [strong(convert(asarray(x), d)) for x in leaves]
    inner = parts[0].aval.shape
    for x in parts:
        if x.aval.shape != inner:
            raise ValueError(
                f"array: elements {parts[0].aval} and {x.aval} of one sequence differ in shape"
            )
    rows = [strong(reshape(x, (1, *inner))) for x in parts]
    return reshape(concatenate(rows, 0), (*shape, *inner))


def _measure(items: Any, leaves: list[Any]) -> tuple[int, ...]:
    """The shape of nested sequences, whose leaves are appended to `leaves`."""
    if not isinstance(items, (list, tuple)):
        leaves.append(items)
        return ()
    start = len(leaves)
    shapes = {_measure(x, leaves) for x in items}
    if len(shapes) > 1 and any(getattr(x, "ndim", 0) for x in items):
        # Arrays beside lists of their shape: their elements are leaves, too.
        del leaves[start:]
        items = [list(x) if getattr(x, "ndim", 0) else x for x in items]
        shapes = {_measure(x, leaves) for x in items}
    if len(shapes) > 1:
        raise ValueError(
            "array: the nested sequences are ragged: " + ", ".join(str(list(s)) for s in shapes)
        )
    return (len(items), *(shapes.pop() if shapes else ()))


def asarray(
    a: ArrayLike | Sequence[Any],
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    device: Device | str | None = None,
) -> Array:
    """`a` as an array, without a copy where it is one already. See `array`."""
    if copy is False and not isinstance(a, (Array, Tracer)):
        raise ValueError("asarray: copy=False, but only arrays of this library need no copy")
    return array(a, dtype, bool(copy), order, device=device)


install_scalar_cast(asarray)


def index_array(a: ArrayLike | Sequence[Any]) -> Array:
    """`a` as an array of indices: values that are known, in a program that is being recorded, as
    part of the program, whose compiler then knows where they point."""
    if isinstance(a, (Array, Tracer)) or not is_recorded():
        return asarray(a)
    x = asarray(a)
    known = isinstance(a, (np.ndarray, list, tuple)) and type(x) is ArrayImpl and x.ndim
    if not known or not dtypes.is_integer(x.dtype) or not 0 < x.size <= MOST_CONSTANTS:
        return x
    return constant_of(np.asarray(a).astype(x.dtype))


def as_device(device: Device | str) -> Device:
    """`device`, or the Device that a string names: "cpu", "cuda", "cuda:1"."""
    if not isinstance(device, str):
        return device
    kind, _, index = device.partition(":")
    return devices.device({"gpu": "cuda"}.get(kind, kind), int(index or 0))


def on_device(x: Array, device: Device | str) -> Array:
    """`x` on `device` (a Device, or "cpu", "cuda", "cuda:1"); traced values are returned as is."""
    if not isinstance(x, ArrayImpl):
        return x
    target = as_device(device)
    if x.device is target:
        return x
    with asked_for():
        return move(x, target)


# ---- constants ----


def full(
    shape: ShapeLike,
    fill_value: ArrayLike | Sequence[Any],
    dtype: DTypeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """An array of `shape` filled with `fill_value`, a number or an array that broadcasts to it."""
    shape = shape_of(shape)
    if isinstance(fill_value, np.generic):
        dtype = result_type(fill_value) if dtype is None else dtype
        fill_value = fill_value.item()
    if type(fill_value) in SCALARS:
        d = _dtype(dtype, dtypes.scalar_dtype(type(fill_value)))
        filled = constant(shape, cast(Scalar, fill_value), d)
        weak = dtype is None and type(fill_value) is not bool
        return to_device(with_weak(filled, weak), device)
    x = asarray(fill_value, dtype)
    return to_device(broadcast(x, shape), device)


def constant(shape: Shape, x: Any, d: DType) -> Array:
    """An array of `shape` filled with a Python scalar, in dtype `d`.

    Raises OverflowError for an integer that `d` does not hold.
    """
    words = dtypes.is_key(d)  # a key is filled by its uint32 words
    rank = 1 if words else dtypes.kind_rank(d)
    if rank == 1:
        info = dtypes.iinfo(dtypes.U32 if words else d)
        x = int(x.real) if type(x) is complex else int(x)
        if not info.min <= x <= info.max:
            raise OverflowError(f"Python integer {x} is out of bounds for {d.name}")
    elif rank < 3 and type(x) is complex:
        x = x.real
    x = (bool, int, float, complex)[rank](x)
    if rank == 2 and x == 0 and math.copysign(1.0, x) < 0:
        # -0.0 == 0.0, and equal parameters of a primitive share a compiled program.
        return neg(full_of(shape, 0.0, d))
    return full_of(shape, x, d)


def to_device(x: Array, device: Device | str | None) -> Array:
    """`x` on `device`, if one is named."""
    return x if device is None else on_device(x, device)


def _like(a: Any, dtype: Any, shape: Any) -> tuple[tuple[int, ...], DType]:
    if not (hasattr(a, "shape") and hasattr(a, "dtype")):
        a = asarray(a)
    own = dtypes.dtype(a.dtype)
    if isinstance(a, (np.ndarray, np.generic)):
        own = dtypes.counted(own)
    return tuple(a.shape) if shape is None else shape_of(shape), _dtype(dtype, own)


def full_like(
    a: ArrayLike,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """An array with the shape, dtype and device of `a` filled with `fill_value`."""
    weak = dtype is None and is_weak(a) and not np.ndim(fill_value)
    shape, d = _like(a, dtype, shape)
    with default_device_of([a] if device is None else ()):
        return with_weak(full(shape, fill_value, d, device=device), weak)
