"""Data types: names, kinds and promotion."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis_fn.core import dtypes as _dtypes
from genesis_fn.core.dtypes import (
    DType,
    DTypeLike,
    bfloat16,
    bool_,
    complex64,
    complex128,
    dtype,
    extended,
    finfo,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    is_complex,
    is_float,
    is_inexact,
    is_integer,
    issubdtype,
    prng_key,
    promote_types,
    uint8,
    uint16,
    uint32,
    uint64,
)

float0 = _dtypes.FLOAT0


def canonicalize_dtype(spec: Any, allow_extended_dtype: bool = False) -> DType:
    """The dtype that `spec` names; 64-bit types stay 64-bit."""
    return dtype(spec)


def result_type(*args: Any) -> DType:
    """The dtype of an operation on these arrays, scalars and dtypes."""
    from genesis_fn.numpy import result_type as of_arrays

    return of_arrays(*args)


def scalar_type_of(x: Any) -> type:
    """The Python scalar type of a value's kind: bool, int, float or complex."""
    return (bool, int, float, complex)[_dtypes.kind_rank(np.dtype(getattr(x, "dtype", type(x))))]


__all__ = [
    "DType", "DTypeLike", "bfloat16", "bool_", "canonicalize_dtype", "complex128", "complex64",
    "dtype", "extended", "finfo", "float0", "float16", "float32", "float64", "float8_e4m3fn",
    "float8_e5m2", "iinfo", "int16", "int32", "int64", "int8", "is_complex", "is_float",
    "is_inexact", "is_integer", "issubdtype", "prng_key", "promote_types", "result_type",
    "scalar_type_of", "uint16", "uint32", "uint64", "uint8",
]  # fmt: skip
