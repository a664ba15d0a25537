"""Convolutions and correlations of two arrays of any dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax import PrecisionLike
from genesis_fn.lax.promotion import promote_arrays
from genesis_fn.primitives.shape import canonical_axes

_MODES = ("full", "same", "valid")


def _operands(name: str, in1: ArrayLike, in2: ArrayLike, mode: str) -> tuple[Array, Array]:
    x, y = promote_arrays(name, (in1, in2), inexact=True)
    if mode not in _MODES:
        raise errors.ArgumentError(
            f"{name}: mode {mode!r} is none of {', '.join(_MODES)}\n  at {where().describe()}"
        )
    if x.ndim != y.ndim:
        raise errors.ShapeError(
            f"{name} takes arrays of one rank, got {x.aval} and {y.aval}\n  at {where().describe()}"
        )
    return x, y


def _part(name: str, a: Sequence[int], b: Sequence[int], mode: str) -> tuple[list[int], list[int]]:
    """(start, length) along each axis of what `mode` keeps of the full convolution."""
    full = [n + m - 1 for n, m in zip(a, b)]
    if mode == "valid":
        if not all(n >= m for n, m in zip(a, b)) and not all(n <= m for n, m in zip(a, b)):
            raise errors.ShapeError(
                f"{name}: mode 'valid' takes one array that is at least as long as the other along "
                f"every axis, got {list(a)} and {list(b)}\n  at {where().describe()}"
            )
        kept = [abs(n - m) + 1 for n, m in zip(a, b)]
    else:
        kept = full if mode == "full" else [*a]
    return [(n - k) // 2 for n, k in zip(full, kept)], kept


def _by_fft(name: str, x: Array, y: Array, mode: str, axes: Sequence[int]) -> Array:
    starts, lengths = _part(name, [x.shape[a] for a in axes], [y.shape[a] for a in axes], mode)
    moving = [a for a in axes if x.shape[a] != 1 and y.shape[a] != 1]
    sizes = [x.shape[a] + y.shape[a] - 1 for a in moving]
    if not moving:
        product = x * y
    elif dtypes.is_complex(x.dtype):
        spectrum = np.fft.fftn(x, sizes, moving) * np.fft.fftn(y, sizes, moving)
        product = np.fft.ifftn(spectrum, sizes, moving)
    else:
        spectrum = np.fft.rfftn(x, sizes, moving) * np.fft.rfftn(y, sizes, moving)
        product = np.fft.irfftn(spectrum, sizes, moving)
    for axis, start, length in zip(axes, starts, lengths):
        product = lax.slice_in_dim(product, start, start + length, axis=axis)
    return product


def _directly(name: str, x: Array, y: Array, mode: str, precision: PrecisionLike) -> Array:
    if 0 in (*x.shape, *y.shape):
        raise errors.ShapeError(
            f"{name}: convolutions of nothing, {x.aval} and {y.aval}\n  at {where().describe()}"
        )
    starts, lengths = _part(name, x.shape, y.shape, mode)
    if x.ndim == 0:
        return x * y
    if x.size < y.size:  # the smaller one is the kernel
        x, y = y, x
    padding = [
        (m - 1 - start, length + start - n)
        for n, m, start, length in zip(x.shape, y.shape, starts, lengths)
    ]
    strides = (1,) * x.ndim
    kernel = np.flip(y)
    return lax.conv_general_dilated(
        x[None, None], kernel[None, None], strides, padding, precision=precision
    )[0, 0]


def fftconvolve(
    in1: ArrayLike, in2: ArrayLike, mode: str = "full", axes: int | Sequence[int] | None = None
) -> Array:
    """The convolution of two arrays by the product of their Fourier transforms.

    Args:
        in1: an array.
        in2: an array of the same rank.
        mode: "full"; "same" for the middle of that, of the shape of `in1`; "valid" for what depends
            on no padding.
        axes: the axes to convolve along, all by default; the others have equal lengths, or 1.

    Returns:
        The convolution; float32 of narrower floats and of integers.

    Raises:
        ArgumentError: another mode.
        ShapeError: the shapes do not fit each other, or the mode.

    >>> from genesis_fn.scipy.signal import fftconvolve
    >>> fftconvolve(jnp.array([1, 2, 3, 2, 1]), jnp.array([1, 1, 1]), mode="valid").round(3)
    Array([6., 7., 6.], dtype=float32)
    """
    x, y = _operands("fftconvolve", in1, in2, mode)
    along = range(x.ndim) if axes is None else canonical_axes(axes, x.ndim, "fftconvolve")
    for a in {*range(x.ndim)} - {*along}:
        if x.shape[a] != y.shape[a] and 1 not in (x.shape[a], y.shape[a]):
            raise errors.ShapeError(
                f"fftconvolve: axis {a}, which is not convolved, differs in {x.aval} and {y.aval}\n"
                f"  at {where().describe()}"
            )
    if 0 in (*x.shape, *y.shape):
        raise errors.ShapeError(
            f"fftconvolve: convolutions of nothing, {x.aval} and {y.aval}\n"
            f"  at {where().describe()}"
        )
    return _by_fft("fftconvolve", x, y, mode, tuple(along))


def convolve(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    method: str = "auto",
    precision: PrecisionLike = None,
) -> Array:
    """The convolution of two arrays.

        y_k = sum_j in1_j in2_{k-j}

    Args:
        in1: an array of up to three dimensions; of any, by "fft".
        in2: an array of the same rank.
        mode: "full"; "same" for the middle of that, of the shape of `in1`; "valid" for what depends
            on no padding.
        method: "direct", "fft", or "auto", which is "direct" where there is a kernel for the rank.
        precision: of the products of "direct", as `lax.dot`'s.

    Returns:
        The convolution, in the operands' common dtype; float32 of integers.

    Raises:
        ArgumentError: another mode or method.
        ShapeError: the shapes do not fit each other, the mode, or the method.

    >>> from genesis_fn.scipy.signal import convolve
    >>> convolve(jnp.array([1, 2, 3, 2, 1]), jnp.array([1, 1, 1]), mode="same")
    Array([3., 6., 7., 6., 3.], dtype=float32)
    """
    return _convolve("convolve", in1, in2, mode, method, precision)


def _convolve(
    name: str, in1: ArrayLike, in2: ArrayLike, mode: str, method: str, precision: PrecisionLike
) -> Array:
    if method not in ("auto", "direct", "fft"):
        raise errors.ArgumentError(
            f"{name}: method {method!r} is none of 'auto', 'direct', 'fft'\n"
            f"  at {where().describe()}"
        )
    x, y = _operands(name, in1, in2, mode)
    if method == "fft":
        return fftconvolve(x, y, mode)
    if x.ndim <= 3:
        return _directly(name, x, y, mode, precision)
    if method == "direct":
        raise errors.ShapeError(
            f"{name}: direct convolutions have up to three dimensions, got {x.aval}\n"
            f"  at {where().describe()}\n  use method='fft'"
        )
    return fftconvolve(x, y, mode).astype(x.dtype)


def correlate(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    method: str = "auto",
    precision: PrecisionLike = None,
) -> Array:
    """The cross-correlation of two arrays.

        y_k = sum_j in1_j conj(in2_{j - k + n - 1}),   n: the length of in2

    Args:
        in1: an array of up to three dimensions; of any, by "fft".
        in2: an array of the same rank.
        mode: "full"; "same" for the middle of that, of the shape of `in1`; "valid" for what depends
            on no padding.
        method: as of `convolve`.
        precision: as of `convolve`.

    Returns:
        The correlation, in the operands' common dtype; float32 of integers.

    Raises:
        ArgumentError: another mode or method.
        ShapeError: the shapes do not fit each other, the mode, or the method.

    >>> from genesis_fn.scipy.signal import correlate
    >>> correlate(jnp.array([1, 2, 3, 2, 1]), jnp.array([1, 3, 2]), mode="valid")
    Array([13., 15., 11.], dtype=float32)
    """
    return _convolve("correlate", in1, _reversed(in2), mode, method, precision)


def _reversed(x: ArrayLike) -> Array:
    return np.flip(np.conj(x))


def _check_plane(
    name: str, in1: ArrayLike, in2: ArrayLike, boundary: str, fillvalue: float
) -> None:
    if boundary != "fill" or fillvalue != 0:
        raise errors.ArgumentError(
            f"{name}: boundary {boundary!r} with fillvalue {fillvalue!r}: what lies outside is 0\n"
            f"  at {where().describe()}\n  pad in1 by numpy.pad, and take mode='valid'"
        )
    if np.ndim(in1) != 2 or np.ndim(in2) != 2:
        raise errors.ShapeError(
            f"{name} takes two matrices, got shapes {np.shape(in1)} and {np.shape(in2)}\n"
            f"  at {where().describe()}"
        )


def convolve2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: PrecisionLike = None,
) -> Array:
    """The convolution of two matrices.

    Args:
        in1: a matrix.
        in2: a matrix.
        mode: "full"; "same" for the middle of that, of the shape of `in1`; "valid" for what depends
            on no padding.
        boundary: "fill" alone.
        fillvalue: 0 alone.
        precision: of the products, as `lax.dot`'s.

    Returns:
        The convolution, in the operands' common dtype; float32 of integers.

    Raises:
        ArgumentError: another mode, boundary or fill value.
        ShapeError: the operands are no matrices, or do not fit the mode.

    >>> from genesis_fn.scipy.signal import convolve2d
    >>> convolve2d(jnp.array([[1, 2], [3, 4]]), jnp.array([[1, 1], [1, 0]]), mode="same")
    Array([[1., 3.], [4., 9.]], dtype=float32)
    """
    _check_plane("convolve2d", in1, in2, boundary, fillvalue)
    return _convolve("convolve2d", in1, in2, mode, "direct", precision)


def correlate2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: PrecisionLike = None,
) -> Array:
    """The cross-correlation of two matrices.

    As SciPy and JAX have it here but not in `correlate`: with "same" and an even length of `in2`,
    the middle is the later of the two; with "valid" and a larger `in2`, the result is conjugate.

    Args:
        in1: a matrix.
        in2: a matrix.
        mode: "full"; "same" for the middle of that, of the shape of `in1`; "valid" for what depends
            on no padding.
        boundary: "fill" alone.
        fillvalue: 0 alone.
        precision: of the products, as `lax.dot`'s.

    Returns:
        The correlation, in the operands' common dtype; float32 of integers.

    Raises:
        ArgumentError: another mode, boundary or fill value.
        ShapeError: the operands are no matrices, or do not fit the mode.

    >>> from genesis_fn.scipy.signal import correlate2d
    >>> correlate2d(jnp.array([[1, 2], [3, 4]]), jnp.array([[1, 1], [1, 0]]), mode="same")
    Array([[6., 6.], [7., 4.]], dtype=float32)
    """
    _check_plane("correlate2d", in1, in2, boundary, fillvalue)
    if mode != "same":
        found = _convolve("correlate2d", in1, _reversed(in2), mode, "direct", precision)
        a, b = np.shape(in1), np.shape(in2)
        larger = a != b and all(n <= m for n, m in zip(a, b))
        return np.conj(found) if mode == "valid" and larger else found
    # From the other end, whose middle is the later one.
    return np.flip(_convolve("correlate2d", np.flip(in1), np.conj(in2), mode, "direct", precision))
