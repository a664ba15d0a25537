"""Resampling of images, as products with weight matrices along each axis."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as onp

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax import PrecisionLike
from genesis_fn.lax.creation import shape_of
from genesis_fn.primitives.shape import canonical_axis


class ResizeMethod(enum.Enum):
    """How values between pixels are interpolated."""

    NEAREST = "nearest"
    LINEAR = "linear"
    CUBIC = "cubic"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    CUBIC_PYTORCH = "cubic-pytorch"
    AREA = "area"

    @classmethod
    def from_string(cls, name: str) -> ResizeMethod:
        """The method of that name; bilinear, trilinear and triangle mean linear, bicubic cubic."""
        alias = {
            "bilinear": "linear",
            "trilinear": "linear",
            "triangle": "linear",
            "bicubic": "cubic",
            "tricubic": "cubic",
            "bicubic-pytorch": "cubic-pytorch",
        }
        try:
            return cls(alias.get(name, name))
        except ValueError:
            known = ", ".join(m.value for m in cls)
            raise ValueError(f"resize method {name!r} is not known; there are {known}") from None


# Kernels take the namespace to compute in: NumPy for known sizes, ours for traced scales.


def _triangle(xp: Any, x: Any) -> Any:
    return xp.maximum(0, 1 - x)


def _cubic(a: float) -> Callable[[Any, Any], Any]:
    """Keys (1981), "Cubic convolution interpolation"."""

    def kernel(xp: Any, x: Any) -> Any:
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return xp.where(x >= 2, 0.0, xp.where(x >= 1, far, near))

    return kernel


def _lanczos(radius: float) -> Callable[[Any, Any], Any]:
    def kernel(xp: Any, x: Any) -> Any:
        return xp.where(x > radius, 0.0, xp.sinc(x) * xp.sinc(x / radius))

    return kernel


_KERNELS = {
    ResizeMethod.LINEAR: _triangle, ResizeMethod.CUBIC: _cubic(-0.5),
    ResizeMethod.LANCZOS3: _lanczos(3.0), ResizeMethod.LANCZOS5: _lanczos(5.0),
    ResizeMethod.CUBIC_PYTORCH: _cubic(-0.75),
}  # fmt: skip


def _weights(
    xp: Any,
    n: int,
    m: int,
    scale: Any,
    translation: Any,
    method: ResizeMethod,
    antialias: bool,
    d: Any,
) -> Any:
    """[n, m]: what each of n inputs adds to each of m outputs; pixels are centred at i + 1/2."""
    if method is ResizeMethod.CUBIC_PYTORCH and antialias:
        method = ResizeMethod.CUBIC
    inverse = 1 / scale
    targets, sources = onp.arange(m).astype(d), onp.arange(n).astype(d)
    if xp is np:
        targets, sources = from_numpy(targets), from_numpy(sources)
    left = (targets - translation) * inverse
    centre = (targets + 0.5 - translation) * inverse - 0.5
    if method is ResizeMethod.AREA:  # the length that the two pixels share
        end = xp.minimum((left + inverse)[None, :], (sources + 1)[:, None])
        weights = xp.maximum(0.0, end - xp.maximum(left[None, :], sources[:, None]))
    else:
        width = xp.maximum(inverse, 1.0) if antialias else 1.0
        at = lambda s: _KERNELS[method](xp, xp.abs(centre[None, :] - s[:, None]) / width)
        weights = at(sources)
        if method is ResizeMethod.CUBIC_PYTORCH:  # pixels beyond the edges repeat those on them
            edge = (at(sources[:1] - k) for k in (1, 2)), (at(sources[-1:] + k) for k in (1, 2))
            low, high = sum(edge[0]), sum(edge[1])
            first, last = onp.eye(n, 1).astype(d), onp.eye(n, 1, 1 - n).astype(d)
            if xp is np:
                first, last = from_numpy(first), from_numpy(last)
            weights = weights + first * low + last * high
    total = weights.sum(0)[None]
    some = xp.abs(total) > 1000 * float(onp.finfo(onp.float32).eps)
    weights = xp.where(some, weights / xp.where(total != 0, total, 1), 0)
    if method is ResizeMethod.CUBIC_PYTORCH:
        return weights
    inside = (centre >= -0.5) & (centre <= n - 0.5)
    return xp.where(inside[None, :], weights, 0)


def _method(method: str | ResizeMethod) -> ResizeMethod:
    return ResizeMethod.from_string(method) if isinstance(method, str) else method


def _along(x: Array, axis: int, weights: Array, precision: PrecisionLike) -> Array:
    moved = np.tensordot(x, weights, axes=((axis,), (0,)), precision=precision)
    return np.moveaxis(moved, -1, axis)


def _checked(name: str, image: ArrayLike, shape: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    x, shape = as_array(image), shape_of(shape)
    if len(shape) != x.ndim:
        raise errors.ShapeError(
            f"{name}: the new shape {shape} must have the rank of {x.aval}\n"
            f"  at {where().describe()}"
        )
    return x, shape


def scale_and_translate(
    image: ArrayLike,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: ArrayLike,
    translation: ArrayLike,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: PrecisionLike = "highest",
) -> Array:
    """`image` resampled: position p along spatial_dims[i] goes to p * scale[i] + translation[i].

    Pixels outside the image count as zero. `scale` and `translation` may be traced and
    differentiated.
    """
    x, shape = _checked("scale_and_translate", image, shape)
    method = _method(method)
    if method is ResizeMethod.NEAREST:
        raise ValueError("scale_and_translate does not take the method 'nearest'; resize does")
    if not dtypes.is_inexact(x.dtype):
        x = x.astype("float32")
    scale, translation = as_array(scale), as_array(translation)
    d = np.result_type(scale, translation)
    d = d if dtypes.is_float(d) else dtypes.F32
    scale, translation = scale.astype(d), translation.astype(d)
    for i, axis in enumerate(spatial_dims):
        axis = canonical_axis(axis, x.ndim, "scale_and_translate")
        n, m = x.shape[axis], shape[axis]
        weights = _weights(np, n, m, scale[i], translation[i], method, antialias, d)
        x = _along(x, axis, weights.astype(x.dtype), precision)
    return x


def resize(
    image: ArrayLike,
    shape: Sequence[int],
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: PrecisionLike = "highest",
) -> Array:
    """`image` resampled to `shape` (of the same rank; equal axes are left alone).

    Methods: "nearest", "linear", "cubic", "lanczos3", "lanczos5", "area", "cubic-pytorch".
    `antialias` widens the kernel where an axis shrinks. Integer images give floats, except by
    "nearest".
    """
    x, shape = _checked("resize", image, shape)
    method = _method(method)
    if method is ResizeMethod.NEAREST:
        for axis, (n, m) in enumerate(zip(x.shape, shape)):
            if n != m:
                index = onp.floor((onp.arange(m) + 0.5) * n / m).astype(onp.int32)
                x = np.take(x, from_numpy(index), axis=axis)
        return x
    if not dtypes.is_inexact(x.dtype):
        x = x.astype("float32")
    if 0 in shape:
        return np.zeros(shape, x.dtype)
    if 0 in x.shape:
        raise ValueError(f"resize: {x.aval} has no pixels to make {list(shape)} of")
    for axis, (n, m) in enumerate(zip(x.shape, shape)):
        if n != m:
            weights = _weights(onp, n, m, m / n, 0.0, method, antialias, onp.float64)
            x = _along(x, axis, from_numpy(weights.astype(x.dtype)), precision)
    return x
