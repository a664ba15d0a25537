"""numpy.fft: discrete Fourier transforms over any axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, Axis, DTypeLike
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import inexact_value, strong
from genesis_fn.numpy.manipulation.rearrange import roll
from genesis_fn.numpy.manipulation.shapes import moveaxis
from genesis_fn.numpy.mathematics.ufuncs import conj, multiply
from genesis_fn.primitives import elementwise as p, fft as transforms
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.shape import canonical_axes, pad, slice_in_dim


def _sized(x: Any, lengths: Sequence[int | None], axes: Sequence[int]) -> Array:
    """`x` cut or filled with zeros to `lengths` along `axes`."""
    for n, axis in zip(lengths, axes):
        own = x.aval.shape[axis]
        if n is None or n == own:
            continue
        if n < 1:
            raise ValueError(f"fft: the length of a transform must be positive, got {n}")
        if n < own:
            x = slice_in_dim(x, 0, n, axis=axis)
        else:
            config = [(0, 0, 0)] * x.ndim
            config[axis] = (0, n - own, 0)
            x = pad(x, 0j if dtypes.is_complex(x.dtype) else 0.0, config)
    return x


def _transform(kind: str, a: Any, s: Any, axes: Any, norm: str | None) -> Array:
    """One transform over several axes, the last of which is the real one of rfft and irfft."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"fft: norm {norm!r} is none of 'backward', 'ortho', 'forward'")
    a = inexact_value(asarray(a), kind)
    if kind == "rfft" and dtypes.is_complex(a.dtype):
        raise TypeError(f"{kind} takes real numbers, got {a.aval}")
    if axes is None:
        axes = range(a.ndim) if s is None else range(a.ndim - len(s), a.ndim)
    axes = canonical_axes(tuple(axes), a.ndim, kind)
    if not axes:
        return a
    d = a.dtype
    if dtypes.is_float(d) and d.itemsize < 4:
        a = p.convert(a, dtypes.F32)
    if kind != "rfft":
        a = p.convert(a, dtypes.complex_of(a.dtype))
    lengths = [None] * len(axes) if s is None else list(s)
    if len(lengths) != len(axes):
        raise ValueError(f"{kind}: {len(lengths)} lengths for {len(axes)} axes")
    sizes = [a.aval.shape[ax] if n is None else n for n, ax in zip(lengths, axes)]
    if kind == "irfft":
        default = max(2 * (a.aval.shape[axes[-1]] - 1), 0)
        sizes[-1] = default if lengths[-1] is None else lengths[-1]
    if 0 in sizes and kind != "rfft" and 0 not in lengths:
        # Transforms of nothing are nothing.
        shape = list(a.aval.shape)
        for n, axis in zip(sizes, axes):
            shape[axis] = n
        d = dtypes.real_of(a.dtype) if kind == "irfft" else a.dtype
        return full(shape, 0.0 if kind == "irfft" else 0j, d)
    if kind == "irfft":
        a = _sized(a, [*sizes[:-1], sizes[-1] // 2 + 1], axes)
    else:
        a = _sized(a, sizes, axes)
    if any(n < 1 for n in sizes):
        raise ValueError(f"{kind}: transforms of length {sizes} of {a.aval}")
    last = list(range(a.ndim - len(axes), a.ndim))
    x = moveaxis(transforms.fft(moveaxis(a, axes, last), kind, sizes), last, axes)
    scale = _scale(kind in ("ifft", "irfft"), norm, math.prod(sizes))
    return strong(x if scale == 1 else multiply(x, scale))


def _scale(inverse: bool, norm: str | None, n: int) -> float:
    """What the primitive's result is multiplied by: its inverses divide by n."""
    if norm == "ortho":
        return math.sqrt(n) if inverse else 1 / math.sqrt(n)
    if norm == "forward":
        return float(n) if inverse else 1 / n
    return 1


class Transform(Protocol):
    """A transform over one axis."""

    __name__: str

    def __call__(
        self,
        a: ArrayLike | Sequence[Any],
        n: int | None = None,
        axis: int = -1,
        norm: str | None = None,
    ) -> Array:
        """The transform of `a` along `axis`."""
        ...


class MultiTransform(Protocol):
    """A transform over several axes."""

    __name__: str

    def __call__(
        self,
        a: ArrayLike | Sequence[Any],
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = ...,
        norm: str | None = None,
    ) -> Array:
        """The transform of `a` over `axes`."""
        ...


def _one(kind: str, doc: str) -> Transform:
    def call(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
        return _transform(kind, a, None if n is None else (n,), (axis,), norm)

    call.__name__ = call.__qualname__ = kind
    call.__doc__ = doc
    return call


def _many(kind: str, name: str, doc: str, default: Sequence[int] | None) -> MultiTransform:
    def call(a: Any, s: Any = None, axes: Any = default, norm: str | None = None) -> Array:
        if default is not None and axes is not None and len(axes) != len(default):
            raise errors.ArgumentError(
                f"{name} is over {len(default)} axes, got {list(axes)}\n  at {where().describe()}\n"
                f"  {kind}n takes any number of them"
            )
        return _transform(kind, a, s, axes, norm)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


fft = _one("fft", "The transform along one axis, cut or filled with zeros to length `n`.")
ifft = _one("ifft", "The inverse of `fft`.")
rfft = _one("rfft", "The first n // 2 + 1 coefficients of the transform of real numbers.")
irfft = _one("irfft", "The inverse of `rfft`: n real numbers (default 2 * (length - 1)).")
fftn = _many("fft", "fftn", "The transform over several axes.", None)
ifftn = _many("ifft", "ifftn", "The inverse of `fftn`.", None)
rfftn = _many("rfft", "rfftn", "The transform of real numbers over several axes.", None)
irfftn = _many("irfft", "irfftn", "The inverse of `rfftn`.", None)
fft2 = _many("fft", "fft2", "The transform over two axes.", (-2, -1))
ifft2 = _many("ifft", "ifft2", "The inverse of `fft2`.", (-2, -1))
rfft2 = _many("rfft", "rfft2", "The transform of real numbers over two axes.", (-2, -1))
irfft2 = _many("irfft", "irfft2", "The inverse of `rfft2`.", (-2, -1))

_OPPOSITE = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def hfft(
    a: ArrayLike | Sequence[Any], n: int | None = None, axis: int = -1, norm: str | None = None
) -> Array:
    """The transform of a signal with Hermitian symmetry, which is real."""
    return irfft(conj(inexact_value(asarray(a))), n, axis, _OPPOSITE[norm])


def ihfft(
    a: ArrayLike | Sequence[Any], n: int | None = None, axis: int = -1, norm: str | None = None
) -> Array:
    """The inverse of `hfft`."""
    return conj(rfft(a, n, axis, _OPPOSITE[norm]))


def fftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> Array:
    """The frequencies of `fft`'s coefficients for sample spacing `d`."""
    return _numbers(np.fft.fftfreq(n, d), dtype, device)


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> Array:
    """The frequencies of `rfft`'s coefficients for sample spacing `d`."""
    return _numbers(np.fft.rfftfreq(n, d), dtype, device)


def _numbers(values: np.ndarray, dtype: Any, device: Any) -> Array:
    d = dtypes.or_default_float(dtype)
    x = from_numpy(values.astype(d))
    return x if device is None else x.to_device(device)


def fftshift(x: ArrayLike, axes: Axis = None) -> Array:
    """`x` with the zero frequency in the middle of `axes`."""
    return _shifted(x, axes, 1)


def ifftshift(x: ArrayLike, axes: Axis = None) -> Array:
    """The inverse of `fftshift`."""
    return _shifted(x, axes, -1)


def _shifted(x: Any, axes: Any, sign: int) -> Array:
    x = asarray(x)
    axes = range(x.ndim) if axes is None else canonical_axes(axes, x.ndim, "fftshift")
    halves = [sign * (x.aval.shape[a] // 2) for a in axes]
    return roll(x, halves, tuple(axes)) if halves else x
