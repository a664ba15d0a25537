"""Densities of spectra, by Welch's method."""

from __future__ import annotations

from typing import Any

import numpy as onp

import genesis_fn.numpy as np
from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import inexact_value, promote_arrays
from genesis_fn.primitives.shape import canonical_axis
from genesis_fn.scipy.signal import windows
from genesis_fn.scipy.signal.segments import Detrend, frequencies_of, is_onesided, spectra
from genesis_fn.scipy.signal.windows import Window


def _median_bias(n: int) -> float:
    """By how much the median of n periodograms exceeds their mean.

    Source: Allen et al. (2012), "FINDCHIRP", appendix B.
    """
    evens = onp.arange(2, n, 2)
    return float(1 + onp.sum(1 / (evens + 1) - 1 / evens))


def _averaged(name: str, x: Array, average: str) -> Array:
    """The mean or the median over the last axis but one, the segments."""
    if average == "mean":
        return np.mean(x, -2)
    if average != "median":
        raise errors.ArgumentError(
            f"{name}: average {average!r} is none of 'mean', 'median'\n  at {where().describe()}"
        )
    median = lambda v: np.median(v, -2) / _median_bias(x.shape[-2])
    if dtypes.is_complex(x.dtype):
        return median(np.real(x)) + 1j * median(np.imag(x))
    return median(x)


def _filled(x: Array, n: int) -> Array:
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, n - x.shape[-1])])


def _density(
    name: str, x: ArrayLike, y: ArrayLike | None, fs: ArrayLike, window: Window, nperseg: Any,
    noverlap: Any, nfft: Any, detrend: Detrend, return_onesided: bool, scaling: str, axis: int,
    average: str,
) -> tuple[Array, Array]:  # fmt: skip
    if scaling not in ("density", "spectrum"):
        raise errors.ArgumentError(
            f"{name}: scaling {scaling!r} is none of 'density', 'spectrum'\n"
            f"  at {where().describe()}"
        )
    if y is None:
        signals = [inexact_value(x, name)]
    else:
        signals = promote_arrays(name, (x, y), inexact=True)
    x = signals[0]
    axis = canonical_axis(axis, x.ndim, name)
    if any(v.ndim != x.ndim for v in signals):
        raise errors.ShapeError(
            f"{name} takes signals of one rank, got {' and '.join(str(v.aval) for v in signals)}\n"
            f"  at {where().describe()}"
        )
    if any(v.size == 0 for v in signals):
        raise errors.ShapeError(f"{name}: a signal is empty\n  at {where().describe()}")
    signals = [np.moveaxis(v, axis, -1) for v in signals]
    win, n = windows.window_within(name, window, nperseg, signals[0].shape[-1], x.dtype)
    longest = max(v.shape[-1] for v in signals)
    signals = [_filled(v, longest) for v in signals]
    step = n - windows.overlap_of(name, noverlap, n)
    length = windows.fft_length_of(name, nfft, n)
    onesided = is_onesided(name, return_onesided, *signals, win)
    found = [spectra(name, v, win, step, length, detrend, onesided) for v in signals]
    power = np.conj(found[0]) * found[-1]
    real = dtypes.real_of(dtypes.complex_of(x.dtype))
    if scaling == "density":
        power = power / (np.asarray(fs, real) * np.sum(win * win))
    else:
        power = power / np.square(np.sum(win))
    if onesided:  # negative frequencies have as much, which neither 0 nor the highest has
        factors = onp.full(power.shape[-1], 2.0)
        factors[0] = 1.0
        factors[-1] = 1.0 if length % 2 == 0 else factors[-1]
        power = power * factors.astype(real)
    power = power.astype(dtypes.complex_of(x.dtype))
    result = _averaged(name, np.real(power) if y is None else power, average)
    return frequencies_of(length, fs, onesided, real), np.moveaxis(result, -1, axis)


def csd(
    x: ArrayLike,
    y: ArrayLike | None,
    fs: ArrayLike = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Array]:
    """The cross spectral density of two signals: the mean of products of segments' spectra.

        P = mean_s conj(X_s) Y_s / (fs sum w^2)

    Source: Welch (1967), "The use of fast Fourier transform for the estimation of power spectra".

    Args:
        x: a signal.
        y: another one, filled with zeros where it is shorter; None for `x` itself.
        fs: the number of samples in a unit of time.
        window: the name of a window of SciPy's, a name with parameters, or its values.
        nperseg: the length of a segment; that of `x` by default.
        noverlap: how many samples neighbouring segments share; nperseg // 2 by default.
        nfft: the length of the transforms, of segments filled with zeros; `nperseg` by default.
        detrend: "constant" or "linear" takes the mean or a line off each segment; False; or a
            function of segments along the last axis.
        return_onesided: whether real signals have the frequencies from 0 on alone, with the power
            of both.
        scaling: "density", or "spectrum" for power, divided by (sum w)^2.
        axis: the axis along which time goes.
        average: "mean" or "median" over segments; the median's bias is taken off.

    Returns:
        (frequencies [F], the density, with frequencies along `axis`): complex; real without `y`.

    Raises:
        ArgumentError: a length, an overlap or a name that is none.
        ShapeError: a signal is empty, or shapes do not fit.

    >>> from genesis_fn.scipy.signal import csd
    >>> f, p = csd(jnp.array([1.0, -1.0, 1.0, -1.0]), None, nperseg=4)
    >>> p.round(3)
    Array([0., 1.333, 2.667], dtype=float32)
    """
    return _density(
        "csd", x, y, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis,
        average,
    )  # fmt: skip


def welch(
    x: ArrayLike,
    fs: ArrayLike = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Array]:
    """The power spectral density of a signal: the mean of segments' squared spectra.

        P = mean_s |X_s|^2 / (fs sum w^2)

    Source: Welch (1967), "The use of fast Fourier transform for the estimation of power spectra".

    Args:
        x: a signal.
        fs: the number of samples in a unit of time.
        window: the name of a window of SciPy's, a name with parameters, or its values.
        nperseg: the length of a segment; that of `x` by default.
        noverlap: how many samples neighbouring segments share; nperseg // 2 by default.
        nfft: the length of the transforms, of segments filled with zeros; `nperseg` by default.
        detrend: "constant" or "linear" takes the mean or a line off each segment; False; or a
            function of segments along the last axis.
        return_onesided: whether a real signal has the frequencies from 0 on alone, with the power
            of both.
        scaling: "density", or "spectrum" for power, divided by (sum w)^2.
        axis: the axis along which time goes.
        average: "mean" or "median" over segments; the median's bias is taken off.

    Returns:
        (frequencies [F], the density, with frequencies along `axis`).

    Raises:
        ArgumentError: a length, an overlap or a name that is none.
        ShapeError: the signal is empty, or the window does not fit.

    >>> from genesis_fn.scipy.signal import welch
    >>> f, p = welch(jnp.array([1.0, -1.0, 1.0, -1.0]), fs=2.0, nperseg=4)
    >>> f, p.round(3)
    (Array([0., 0.5, 1.], dtype=float32), Array([0., 0.667, 1.333], dtype=float32))
    """
    return _density(
        "welch", x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling,
        axis, average,
    )  # fmt: skip
