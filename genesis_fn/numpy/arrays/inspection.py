"""Queries of dtypes and arrays: kinds, casts, the array API's capabilities; text and .npy files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import IO, Any

import numpy as np

from genesis_fn.core import device as devices, dtypes, errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.primitive import SCALARS
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike
from genesis_fn.lax.creation import asarray
from genesis_fn.numpy.arrays.conversion import host, text

_KINDS = {
    "bool": lambda d: d == dtypes.BOOL,
    "signed integer": lambda d: d in dtypes.SIGNED,
    "unsigned integer": dtypes.is_unsigned,
    "integral": dtypes.is_integer,
    "real floating": dtypes.is_float,
    "complex floating": dtypes.is_complex,
    "numeric": lambda d: d != dtypes.BOOL,
}


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> bool:
    """Whether a dtype is of a kind: a dtype, "bool", "integral", "real floating", or a tuple."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    d = dtypes.dtype(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return bool(_KINDS[kind](d))
    if isinstance(kind, str):
        raise ValueError(f"isdtype: {kind!r} is none of {', '.join(map(repr, _KINDS))}")
    return d == dtypes.dtype(kind)


def can_cast(from_: DTypeLike, to: DTypeLike, casting: str = "safe") -> bool:
    """Whether values of one dtype can be cast to another under NumPy's casting rule."""
    source = dtypes.dtype(from_)
    target = dtypes.dtype(to)
    if casting == "safe" and (source.kind == "V" or target.kind == "V"):
        return dtypes.promote_types(source, target) == target
    return np.can_cast(source, target, casting=casting)  # type: ignore[arg-type]


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype of `x` is complex."""
    if type(x) in SCALARS:
        return type(x) is complex
    return dtypes.is_complex(dtypes.dtype(getattr(x, "dtype", None) or asarray(x).dtype))


def isrealobj(x: Any) -> bool:
    """Whether the dtype of `x` is not complex."""
    return not iscomplexobj(x)


def isscalar(element: Any) -> bool:
    """Whether `element` is a number or an array without dimensions."""
    if isinstance(element, np.ndarray):
        return not element.ndim
    return np.isscalar(element) or (hasattr(element, "aval") and not element.aval.shape)


def iterable(y: Any) -> bool:
    """Whether `y` can be iterated over."""
    return y.ndim > 0 if hasattr(y, "aval") else isinstance(y, Iterable)


def array_repr(arr: ArrayLike) -> str:
    """The text that `repr` gives."""
    return text(arr) if isinstance(arr, ArrayImpl) else repr(arr)


def array_str(a: ArrayLike | Sequence[Any]) -> str:
    """The text that `str` gives."""
    return str(asarray(a))


def save(file: str | os.PathLike[str] | IO[bytes], arr: ArrayLike | Sequence[Any]) -> None:
    """Write an array to a .npy file."""
    np.save(file, host(asarray(arr)), allow_pickle=False)


def savez(
    file: str | os.PathLike[str] | IO[bytes],
    *args: ArrayLike | Sequence[Any],
    **kwds: ArrayLike | Sequence[Any],
) -> None:
    """Write arrays to a .npz file."""
    arrays = {f"arr_{i}": a for i, a in enumerate(args)} | kwds
    np.savez(file, **{n: host(asarray(a)) for n, a in arrays.items()})  # pyright: ignore[reportArgumentType]


def load(
    file: str | os.PathLike[str] | IO[bytes],
    mmap_mode: str | None = None,
    allow_pickle: bool = False,
) -> Array | dict[str, Array]:
    """The array in a .npy file, or a dict of those in a .npz file; dtypes are kept.

    `mmap_mode` maps the file instead of reading it, until the array is made. Pickles run code of
    who wrote them: `allow_pickle` is refused.
    """
    if allow_pickle:
        raise errors.ArgumentError(
            "load reads no pickles, which run code of who wrote them\n"
            f"  at {user_line().describe()}\n  save arrays, without allow_pickle"
        )
    found = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)  # pyright: ignore[reportArgumentType]
    if isinstance(found, np.ndarray):
        return asarray(found, found.dtype)
    return {n: asarray(found[n], found[n].dtype) for n in found.files}


class __array_namespace_info__:
    """The array API's inspection of this library: devices, dtypes, capabilities."""

    def capabilities(self) -> dict[str, Any]:
        """What optional behaviour there is."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> devices.Device:
        """The device that new arrays are made on."""
        return devices.default_device()

    def devices(self) -> list[devices.Device]:
        """All devices that can be used."""
        found = devices.devices("cpu")
        return found + devices.devices("cuda") if devices.cuda_usable() else found

    def default_dtypes(self, *, device: Device | str | None = None) -> dict[str, np.dtype]:
        """The dtypes that numbers get."""
        return {
            "real floating": dtypes.default_float(),
            "complex floating": dtypes.default_complex(),
            "integral": dtypes.default_int(),
            "indexing": dtypes.default_int(),
        }

    def dtypes(
        self, *, device: Device | str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, Any]:
        """The array API's dtypes of a kind, by name."""
        names = [
            "bool",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "float32",
            "float64",
            "complex64",
            "complex128",
        ]
        found = {n: dtypes.dtype(n) for n in names}
        return found if kind is None else {n: d for n, d in found.items() if isdtype(d, kind)}
