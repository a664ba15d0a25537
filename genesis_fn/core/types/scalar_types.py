"""The scalar types: `float32(x)` makes an array, or casts a traced value; `float32` is a dtype
wherever one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from genesis_fn.core.array import Array


class ScalarType(type):
    """The type of the scalar types. Each equals NumPy's type of its dtype, and hashes like it; its
    instances are NumPy's scalars (what a call makes is an array)."""

    dtype: np.dtype
    make: Callable[[Any, np.dtype], Any]  # `asarray`, which its floor installs

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> ScalarType:
        return super().__new__(cls, name, bases, {**namespace, "__module__": "genesis_fn.numpy"})

    def __call__(cls, x: Any) -> Array:
        return ScalarType.make(x, cls.dtype)

    def __eq__(cls, other: object) -> bool:
        return cls is other or bool(cls.dtype.type == other)  # pyright: ignore[reportUnnecessaryComparison]

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.dtype.type)


def install_scalar_cast(make: Callable[[Any, np.dtype], Any]) -> None:
    """Tell the scalar types how a value becomes an array of a dtype."""
    ScalarType.make = staticmethod(make)


class bool_(metaclass=ScalarType):
    """Booleans, one byte each."""

    dtype = np.dtype(np.bool_)


class int8(metaclass=ScalarType):
    """Signed integers of 8 bits."""

    dtype = np.dtype(np.int8)


class int16(metaclass=ScalarType):
    """Signed integers of 16 bits."""

    dtype = np.dtype(np.int16)


class int32(metaclass=ScalarType):
    """Signed integers of 32 bits."""

    dtype = np.dtype(np.int32)


class int64(metaclass=ScalarType):
    """Signed integers of 64 bits."""

    dtype = np.dtype(np.int64)


class uint8(metaclass=ScalarType):
    """Unsigned integers of 8 bits."""

    dtype = np.dtype(np.uint8)


class uint16(metaclass=ScalarType):
    """Unsigned integers of 16 bits."""

    dtype = np.dtype(np.uint16)


class uint32(metaclass=ScalarType):
    """Unsigned integers of 32 bits."""

    dtype = np.dtype(np.uint32)


class uint64(metaclass=ScalarType):
    """Unsigned integers of 64 bits."""

    dtype = np.dtype(np.uint64)


class float8_e4m3fn(metaclass=ScalarType):
    """Floats of 8 bits, 4 of them exponent; without infinities."""

    dtype = np.dtype(ml_dtypes.float8_e4m3fn)


class float8_e5m2(metaclass=ScalarType):
    """Floats of 8 bits, 5 of them exponent."""

    dtype = np.dtype(ml_dtypes.float8_e5m2)


class bfloat16(metaclass=ScalarType):
    """Floats of 16 bits with the exponent of float32."""

    dtype = np.dtype(ml_dtypes.bfloat16)


class float16(metaclass=ScalarType):
    """IEEE half precision."""

    dtype = np.dtype(np.float16)


class float32(metaclass=ScalarType):
    """IEEE single precision, the default of floats."""

    dtype = np.dtype(np.float32)


class float64(metaclass=ScalarType):
    """IEEE double precision."""

    dtype = np.dtype(np.float64)


class complex64(metaclass=ScalarType):
    """Complex numbers of two float32."""

    dtype = np.dtype(np.complex64)


class complex128(metaclass=ScalarType):
    """Complex numbers of two float64."""

    dtype = np.dtype(np.complex128)
