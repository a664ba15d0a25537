"""Data types: names, kinds and promotion."""

from __future__ import annotations

import numpy as np

from genesis_fn.core import dtypes as _dtypes
from genesis_fn.core.dtypes import (
    DType as DType,
    DTypeLike as DTypeLike,
    bfloat16 as bfloat16,
    bool_ as bool_,
    complex64 as complex64,
    complex128 as complex128,
    dtype as dtype,
    extended as extended,
    finfo as finfo,
    float8_e4m3fn as float8_e4m3fn,
    float8_e5m2 as float8_e5m2,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    iinfo as iinfo,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    is_complex as is_complex,
    is_float as is_float,
    is_inexact as is_inexact,
    is_integer as is_integer,
    issubdtype as issubdtype,
    prng_key as prng_key,
    promote_types as promote_types,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from genesis_fn.core.errors import DTypeError, TypePromotionError as TypePromotionError
from genesis_fn.core.types.annotations import ArrayLike

float0 = _dtypes.FLOAT0


def canonicalize_dtype(spec: DTypeLike, allow_extended_dtype: bool = False) -> DType:
    """The dtype that `spec` names; 64-bit types stay 64-bit."""
    return dtype(spec)


def itemsize_bits(dtype: DTypeLike) -> int:
    """The bits of one element in memory; 8 of a boolean. Raises DTypeError for random keys."""
    found = _dtypes.dtype(dtype)
    if _dtypes.is_key(found):
        raise DTypeError(f"itemsize_bits: {found} is no dtype of numbers; {_dtypes.KEY_REMEDY}")
    return 8 * found.itemsize


def result_type(*args: ArrayLike | DTypeLike) -> DType:
    """The dtype of an operation on these arrays, scalars and dtypes."""
    from genesis_fn.numpy import result_type as of_arrays

    return of_arrays(*args)


def scalar_type_of(x: ArrayLike) -> type[bool | int | float | complex]:
    """The Python scalar type of a value's kind: bool, int, float or complex."""
    return (bool, int, float, complex)[_dtypes.kind_rank(np.dtype(getattr(x, "dtype", type(x))))]
