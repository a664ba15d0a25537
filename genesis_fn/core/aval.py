"""What is known of an array without its values: shape and dtype, and where it lives.

Within `shard_map` it is also known along which axes of the mesh a value differs between devices:
`varying`, which is empty everywhere else.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Sequence
from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.device import Device
from genesis_fn.core.dtypes import DType, DTypeLike
from genesis_fn.core.errors import ShapeError
from genesis_fn.core.types.extended import WORDS, is_key


class Aval:
    """An abstract value: shape and dtype. Interned, so equality is identity; the library makes one
    by `aval()`, which takes a dtype alone."""

    __slots__ = ("shape", "dtype", "varying", "__weakref__")

    shape: tuple[int, ...]
    dtype: DType
    varying: frozenset[Hashable]

    def __new__(
        cls,
        shape: Sequence[int],
        dtype: DTypeLike,
        weak_type: bool = False,
        *,
        varying: frozenset[Hashable] = frozenset(),
        sharding: object = None,
    ) -> Aval:
        """`weak_type` and `sharding` are arguments of JAX's: neither is part of a type here."""
        return aval(tuple(shape), dtypes.dtype(dtype), varying)

    def __repr__(self) -> str:
        kind = dtypes.SHORT.get(self.dtype) or self.dtype.name
        varying = f"{{V:{','.join(sorted(map(str, self.varying)))}}}" if self.varying else ""
        return f"{kind}[{','.join(map(str, self.shape))}]{varying}"

    def __reduce__(self):
        return aval, (self.shape, self.dtype, self.varying)

    @property
    def vma(self) -> frozenset[Hashable]:
        """`varying`, by JAX's name."""
        return self.varying

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that a dense array of this aval holds."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def physical(self) -> Aval:
        """The aval of what is in memory: itself, or the words of keys."""
        if not is_key(self.dtype):
            return self
        return aval((*self.shape, WORDS), dtypes.U32, self.varying)

    def update(
        self,
        shape: tuple[int, ...] | None = None,
        dtype: DType | None = None,
        varying: frozenset[Hashable] | None = None,
    ) -> Aval:
        """The aval with another shape or dtype, or that varies over other axes."""
        return aval(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.varying if varying is None else varying,
        )


AbstractValue = ShapedArray = Aval  # JAX's names


class Described:
    """What has the metadata of an array, by an `aval`: arrays, tracers, and what stands for one."""

    __slots__ = ()

    aval: Aval

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions."""
        return self.aval.shape

    @property
    def dtype(self) -> DType:
        """The NumPy dtype; that of random keys is an extended one, `key<philox>`."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.aval.nbytes


# Never emptied: an aval that was dropped and made anew would equal none of the old programs'.
_avals: dict[Any, Aval] = {}


def aval(shape: tuple[int, ...], dtype: DType, varying: frozenset[Hashable] = frozenset()) -> Aval:
    """The one Aval of this shape (a tuple of ints) and dtype. Raises ShapeError if a length
    is negative, TypeError if it is no integer."""
    key = (shape, dtype, varying) if varying else (shape, dtype)
    found = _avals.get(key)
    if found is None:
        # A plain tuple of plain ints: torch.Size and NumPy integers must not leak into programs.
        shape = tuple([operator.index(n) for n in shape])
        if any(n < 0 for n in shape):
            raise ShapeError(f"a shape cannot have negative lengths: {list(shape)}")
        key = (shape, dtype, varying) if varying else (shape, dtype)
        made = object.__new__(Aval)
        made.shape, made.dtype, made.varying = shape, dtype, varying
        found = _avals.setdefault(key, made)
    return found


class Signature:
    """What a compiled call depends on in an argument: its aval, device, whether it is dense, and
    whether it is weak: a result of Python scalars only, whose dtype yields to that of arrays."""

    __slots__ = ("aval", "device", "dense", "weak")

    def __init__(self, aval: Aval, device: Device, dense: bool, weak: bool) -> None:
        self.aval, self.device, self.dense, self.weak = aval, device, dense, weak

    def __repr__(self) -> str:
        strided, weak = "" if self.dense else " strided", " weak" if self.weak else ""
        return f"{self.aval}@{self.device}{strided}{weak}"


def sig(aval: Aval, device: Device, dense: bool = True, weak: bool = False) -> Signature:
    """The one Signature of these."""
    # Most arrays are dense and strong: their key hashes by identity, without a tuple.
    key = aval if dense and not weak else (aval, dense, weak)
    found = device.sigs.get(key)
    if found is None:
        found = device.sigs.setdefault(key, Signature(aval, device, dense, weak))
    return found
