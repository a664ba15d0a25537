"""Dtypes of `jax.numpy` that only stand there, and zeros of float0, which no array here has."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from genesis_fn import numpy as _numpy
from genesis_fn.as_jax.integer_tangents import float0_zeros as _float0_zeros
from genesis_fn.as_jax.stubs import stub
from genesis_fn.core.dtypes import FLOAT0 as _FLOAT0

_BYTES = ("int1", "int2", "int4", "uint1", "uint2", "uint4")
_FLOATS = (
    "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3",
    "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip


@functools.wraps(_numpy.zeros)
def zeros(shape: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """`genesis_fn.numpy.zeros`; a NumPy array of dtype float0 where that is asked for."""
    if isinstance(dtype, np.dtype) and dtype == _FLOAT0:
        return _float0_zeros(shape)
    return _numpy.zeros(shape, dtype, **kwargs)


globals().update({n: stub(f"jax.numpy.{n}", "jax.numpy.int8") for n in _BYTES})
globals().update({n: stub(f"jax.numpy.{n}", "jax.numpy.float8_e4m3fn") for n in _FLOATS})
