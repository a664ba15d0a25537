"""ShapeDtypeStruct: a shape and dtype that stand for an array, without its values."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Described, aval
from genesis_fn.core.convert import as_array
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import SCALARS, Tracer
from genesis_fn.core.sharding.layout import Sharding, SingleDeviceSharding, as_sharding


class ShapeDtypeStruct(Described):
    """A shape and dtype that stand for an array: what `eval_shape` returns and `jit(f).trace`
    accepts.

    Args:
        shape: the sizes of the dimensions.
        dtype: anything that names a dtype.
        sharding: how the array is laid out over a mesh, or the device that it is on: what
            `jit(f).lower` compiles for. None: the default device.
        weak_type: whether the dtype yields to that of arrays, as that of a Python number does.

    >>> gf.ShapeDtypeStruct((2, 3), "bfloat16")
    ShapeDtypeStruct(shape=(2, 3), dtype=bfloat16)
    """

    __slots__ = ("aval", "weak", "sharding")

    def __init__(
        self, shape: Any, dtype: Any, *, sharding: Any = None, weak_type: bool = False
    ) -> None:
        if dtype is None or any(n is None for n in shape):
            raise errors.ArgumentError(
                f"ShapeDtypeStruct: shape and dtype are known, got {tuple(shape)} and {dtype!r}\n"
                f"  at {where().describe()}"
            )
        self.aval, self.weak = aval(tuple(shape), dtypes.dtype(dtype)), bool(weak_type)
        self.sharding: Sharding | None = None
        if sharding is not None:
            given = as_sharding(sharding, "ShapeDtypeStruct")
            given = SingleDeviceSharding(given) if isinstance(given, Device) else given
            if not isinstance(given, Sharding):
                raise TypeError(
                    f"ShapeDtypeStruct: sharding is a sharding or a device, got {sharding!r}\n"
                    f"  at {where().describe()}"
                )
            given.shard_shape(self.aval.shape)  # raises where the mesh does not divide it
            self.sharding = given

    @classmethod
    def like(cls, x: Any) -> ShapeDtypeStruct:
        """The struct of an array or number, or of anything that has a shape and a dtype.

        >>> gf.ShapeDtypeStruct.like(jnp.ones((2, 3)))
        ShapeDtypeStruct(shape=(2, 3), dtype=float32)
        """
        x = x if hasattr(x, "shape") and hasattr(x, "dtype") else as_array(x)
        return cls(x.shape, x.dtype, weak_type=bool(getattr(x, "weak_type", False)))

    @property
    def weak_type(self) -> bool:
        """Whether the dtype yields to that of arrays, as that of a Python number does."""
        return self.weak

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a ShapeDtypeStruct without dimensions")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True  # whatever its length

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak else ""
        laid = f", sharding={self.sharding}" if self.sharding is not None else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{laid}{weak})"

    def __eq__(self, other: Any) -> bool:
        return (
            isinstance(other, ShapeDtypeStruct)
            and other.aval is self.aval
            and other.weak == self.weak
            and other.sharding == self.sharding
        )

    def __hash__(self) -> int:
        return hash((self.aval, self.weak, self.sharding))

    def __genesis_array__(self) -> Any:
        return self


def abstract_of(x: Any) -> Any:
    """A leaf as ahead-of-time tracing takes it: itself, or a ShapeDtypeStruct for anything else
    that has `shape` and `dtype`."""
    if type(x) is ArrayImpl or isinstance(x, (Tracer, ShapeDtypeStruct)) or type(x) in SCALARS:
        return x
    if isinstance(x, (np.ndarray, np.generic)):
        return as_array(x)
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
    return x
