"""Short-time Fourier transforms and their inverses."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as onp

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import inexact_value
from genesis_fn.primitives.shape import canonical_axis
from genesis_fn.scipy.signal import windows
from genesis_fn.scipy.signal.trends import detrend as without_trend
from genesis_fn.scipy.signal.windows import Window

Detrend = bool | str | Callable[[Array], ArrayLike]


def _odd(x: Array, n: int) -> Array:
    """Both ends turned by half a circle about the outer samples."""
    left, right = 2 * x[..., :1] - np.flip(x[..., 1 : n + 1], -1), x[..., -n - 1 : -1]
    return np.concatenate([left, x, 2 * x[..., -1:] - np.flip(right, -1)], -1)


_EXTENSIONS = {"even": "reflect", "constant": "edge", "zeros": "constant"}


def extended(name: str, x: Array, n: int, boundary: str | None) -> Array:
    """`x` with n samples more at both ends of its last axis."""
    if boundary not in (None, "odd", *_EXTENSIONS):
        raise errors.ArgumentError(
            f"{name}: boundary {boundary!r} is none of None, 'odd', 'even', 'constant', 'zeros'\n"
            f"  at {where().describe()}"
        )
    if boundary is None or n == 0:
        return x
    if boundary in ("odd", "even") and n > x.shape[-1] - 1:
        raise errors.ShapeError(
            f"{name}: boundary {boundary!r} takes {n} samples beside the outer one, of "
            f"{x.shape[-1]}\n  at {where().describe()}"
        )
    if boundary == "odd":
        return _odd(x, n)
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(n, n)], _EXTENSIONS[boundary])


def spectra(
    name: str, x: Array, window: Array, step: int, nfft: int, detrend: Detrend, onesided: bool
) -> Array:
    """Transforms of windowed segments of the last axis, [..., segments, frequencies]."""
    segments = windows.segments_of(x, window.shape[0], step)
    if isinstance(detrend, str):
        segments = without_trend(segments, type=detrend)
    elif callable(detrend):
        segments = np.asarray(detrend(segments))
    elif detrend:
        raise errors.ArgumentError(
            f"{name}: detrend is 'constant', 'linear', False or a function, got {detrend!r}\n"
            f"  at {where().describe()}"
        )
    segments = segments * window
    return np.fft.rfft(segments, nfft) if onesided else np.fft.fft(segments, nfft)


def frequencies_of(nfft: int, fs: ArrayLike, onesided: bool, dtype: object) -> Array:
    """The transforms' frequencies."""
    whole = onp.fft.rfftfreq(nfft) if onesided else onp.fft.fftfreq(nfft)
    return from_numpy(whole.astype(dtype)) * np.asarray(fs, dtype)  # pyright: ignore[reportCallIssue, reportArgumentType]


def is_onesided(name: str, wanted: bool, *signals: Array) -> bool:
    """Whether half of the spectrum tells all: not of complex signals."""
    if wanted and any(dtypes.is_complex(x.dtype) for x in signals):
        warnings.warn(f"{name}: the signal is complex: return_onesided=False", stacklevel=4)
        return False
    return wanted


def stft(
    x: ArrayLike,
    fs: ArrayLike = 1.0,
    window: Window = "hann",
    nperseg: int = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
) -> tuple[Array, Array, Array]:
    """The short-time Fourier transform: spectra of overlapping segments.

    Args:
        x: the signal, real or complex.
        fs: the number of samples in a unit of time.
        window: the name of a window of SciPy's, a name with parameters, or its values.
        nperseg: the length of a segment, at most the signal's.
        noverlap: how many samples neighbouring segments share; nperseg // 2 by default.
        nfft: the length of the transforms, of segments filled with zeros; `nperseg` by default.
        detrend: "constant" or "linear" takes the mean or a line off each segment; or a function of
            segments along the last axis.
        return_onesided: whether real signals have the frequencies from 0 on alone.
        boundary: how the signal goes on by nperseg // 2 at both ends: "zeros", "even", "odd",
            "constant", or None for not at all.
        padded: whether zeros fill the last segment, which is left out otherwise.
        axis: the axis along which time goes.

    Returns:
        (frequencies [F], times of the segments' middles [T], the transforms: frequencies along
        `axis`, times along the last one).

    Raises:
        ArgumentError: a length, overlap, boundary or `detrend` that is none.
        ShapeError: the window does not fit.

    >>> from genesis_fn.scipy.signal import stft
    >>> f, t, z = stft(jnp.array([1.0, 2.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0]), nperseg=4)
    >>> z.shape, f
    ((3, 5), Array([0., 0.25, 0.5], dtype=float32))
    """
    x = inexact_value(x, "stft")
    axis = canonical_axis(axis, x.ndim, "stft")
    x = np.moveaxis(x, axis, -1)
    win, n = windows.window_within("stft", window, nperseg, x.shape[-1], x.dtype)
    step = n - windows.overlap_of("stft", noverlap, n)
    length = windows.fft_length_of("stft", nfft, n)
    x = extended("stft", x, n // 2, boundary)
    if padded:
        rest = -(x.shape[-1] - n) % step
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, rest)])
    onesided = is_onesided("stft", return_onesided, x, win)
    found = spectra("stft", x, win, step, length, detrend, onesided) / np.sum(win)
    d = dtypes.complex_of(x.dtype)
    real = dtypes.real_of(d)
    centres = n / 2 + step * onp.arange(found.shape[-2]) - (n / 2 if boundary is not None else 0)
    times = from_numpy(centres.astype(real)) / np.asarray(fs, real)
    frequencies = frequencies_of(length, fs, onesided, real)
    # Frequencies lie where time did, and the segments behind all axes.
    found = np.moveaxis(np.swapaxes(found, -1, -2), -2, axis)
    return frequencies, times, found.astype(d)


def istft(
    Zxx: ArrayLike,
    fs: ArrayLike = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Array, Array]:
    """The signal of a short-time Fourier transform, the inverse of `stft` of the same arguments.

        x_t = sum_s w_{t - s} y_{s, t - s} / sum_s w_{t - s}^2,   y_s: the segment of spectrum s

    Source: Griffin and Lim (1984), "Signal estimation from modified short-time Fourier transform".

    Args:
        Zxx: the transform.
        fs: the number of samples in a unit of time.
        window: as of `stft`.
        nperseg: the length of a segment; by default what `Zxx` tells, an even one.
        noverlap: how many samples neighbouring segments share; nperseg // 2 by default.
        nfft: the length of the transforms, to which frequencies are cut off or filled with zeros;
            by default what `Zxx` tells.
        input_onesided: whether it has the frequencies from 0 on alone, of a real signal.
        boundary: whether `stft` extended the signal, so that its ends are cut off.
        time_axis: the axis of the segments.
        freq_axis: the axis of the frequencies.

    Returns:
        (times [n], the signal, with time where `time_axis` was among the other axes). There are as
        many times as samples, of signals of several axes as well, where JAX and SciPy return as
        many as the first axis is long.

    Raises:
        ArgumentError: a length or an overlap that is none, or two equal axes.
        ShapeError: `Zxx` has one dimension, or the window does not fit.

    >>> from genesis_fn.scipy.signal import istft, stft
    >>> _, _, z = stft(jnp.array([1.0, 2.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0]), nperseg=4)
    >>> istft(z)[1].round(3)
    Array([1., 2., 3., 2., 1., 0., 1., 2.], dtype=float32)
    """
    z = inexact_value(Zxx, "istft")
    if z.ndim < 2:
        raise errors.ShapeError(
            f"istft takes frequencies and times, got {z.aval}\n  at {where().describe()}"
        )
    time_axis = canonical_axis(time_axis, z.ndim, "istft")
    freq_axis = canonical_axis(freq_axis, z.ndim, "istft")
    if time_axis == freq_axis:
        raise errors.ArgumentError(
            f"istft: axis {time_axis} cannot be that of times and of frequencies\n"
            f"  at {where().describe()}"
        )
    z = z.astype(dtypes.complex_of(z.dtype))
    z = np.moveaxis(z, (time_axis, freq_axis), (-2, -1))
    told = 2 * (z.shape[-1] - 1) if input_onesided else z.shape[-1]
    n = windows.length_of("istft", "nperseg", told if nperseg is None else nperseg)
    if nfft is None:  # an odd length has as many frequencies as the even one below
        length = n if input_onesided and n == told + 1 else told
    else:
        length = windows.length_of("istft", "nfft", nfft)
    length = windows.fft_length_of("istft", length, n)
    step = n - windows.overlap_of("istft", noverlap, n)
    win = windows.window_of("istft", window, n, z.dtype)
    inverse = np.fft.irfft if input_onesided else np.fft.ifft
    segments = inverse(z, length)[..., :n] * np.sum(win)
    x = windows.overlapped_sum(segments * win, step)
    squares = windows.overlapped_sum(np.broadcast_to(win * win, (z.shape[-2], n)), step)
    if boundary:
        stop = x.shape[-1] - n // 2
        x, squares = x[..., n // 2 : stop], squares[n // 2 : stop]
    x = x / np.where(np.abs(squares) > 1e-10, squares, 1.0)
    x = np.moveaxis(x, -1, time_axis - (freq_axis < time_axis))
    real = dtypes.real_of(z.dtype)
    ticks = from_numpy(onp.arange(x.shape[time_axis - (freq_axis < time_axis)]).astype(real))
    return ticks / np.asarray(fs, real), x
