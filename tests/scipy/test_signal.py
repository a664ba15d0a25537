"""Convolutions, spectra and trends against SciPy's, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.signal

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.scipy import signal


def draw(shape: tuple[int, ...], is_complex: bool, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return x + 1j * rng.normal(size=shape) if is_complex else x


def wide(x: np.ndarray) -> gf.Array:
    return jnp.asarray(x, x.dtype)


def same(found, want) -> None:
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, atol=1e-10)


SHAPES = [((5,), (3,)), ((3,), (5,)), ((5, 4), (2, 3)), ((2, 3), (5, 4)), ((4, 4), (2, 2)),
          ((4, 4), (4, 4)), ((3, 4, 5), (2, 2, 2))]  # fmt: skip


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("a, b", SHAPES, ids=str)
def test_convolutions(a, b, mode: str, is_complex: bool) -> None:
    x, y = draw(a, is_complex), draw(b, is_complex, 1)
    names = ["convolve", "correlate", "fftconvolve"]
    for name in names + ["convolve2d", "correlate2d"] * (len(a) == 2):
        want = getattr(scipy.signal, name)(x, y, mode)
        same([getattr(signal, name)(wide(x), wide(y), mode)], [want])


def test_four_dimensions_are_by_fft() -> None:
    x, y = draw((3, 2, 4, 3), False), draw((2, 2, 2, 2), False)
    same([signal.convolve(wide(x), wide(y))], [scipy.signal.convolve(x, y)])
    with pytest.raises(gf.errors.ShapeError, match="use method='fft'"):
        signal.convolve(wide(x), wide(y), method="direct")


def test_axes_of_fftconvolve() -> None:
    x = draw((3, 12), False)
    for y in (x[:, :4], x[:1, :4]):
        want = scipy.signal.fftconvolve(x, y, axes=1)
        same([signal.fftconvolve(wide(x), wide(y), axes=1)], [want])


@pytest.mark.parametrize("bp", [0, [1], [3, 7]], ids=str)
def test_detrend(bp) -> None:
    x = draw((12, 3), False)
    want = scipy.signal.detrend(x, 0, bp=bp)
    same([signal.detrend(wide(x), 0, bp=bp)], [want])


OPTIONS = [
    dict(nperseg=16), dict(nperseg=16, noverlap=3, nfft=20, fs=4.0),
    dict(nperseg=15, noverlap=5, detrend="linear"),
    dict(nperseg=8, window=("kaiser", 3.0), noverlap=0, detrend=False),
    dict(window=np.hanning(9), nperseg=9),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*complex.*")
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("shape, axis", [((50,), -1), ((2, 50, 3), 1)], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_spectra(options: dict, shape, axis: int, is_complex: bool) -> None:
    x, y = draw(shape, is_complex), draw(shape, is_complex, 1)
    for onesided in (True, False):
        given = {**options, "return_onesided": onesided, "axis": axis}
        for more in ({}, {"scaling": "spectrum"}, {"average": "median"}):
            same(signal.welch(wide(x), **given, **more), scipy.signal.welch(x, **given, **more))
            want = scipy.signal.csd(x, y, **given, **more)
            same(signal.csd(wide(x), wide(y), **given, **more), want)
        for boundary in ("zeros", "even", "odd", "constant", None):
            more = {"boundary": boundary, "padded": boundary != "odd"}
            same(signal.stft(wide(x), **given, **more), scipy.signal.stft(x, **given, **more))


@pytest.mark.filterwarnings("ignore:.*complex.*")
@pytest.mark.parametrize("axis, shape", [(-2, (50,)), (1, (2, 50, 3))], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_istft(options: dict, axis: int, shape) -> None:
    options = {n: v for n, v in options.items() if n != "detrend"}
    time = -1 if len(shape) == 1 else axis
    z = scipy.signal.stft(draw(shape, False), axis=time, **options)[2]
    times, x = signal.istft(wide(z), freq_axis=axis, **options)
    same([x], [scipy.signal.istft(z, freq_axis=axis, **options)[1]])
    # SciPy and JAX count the first axis.
    assert times.shape == (x.shape[-1],)


def test_of_an_odd_length_and_without_overlap() -> None:
    """Where JAX takes a shorter transform, and half of the segment for an overlap of 0."""
    x = draw((45,), False)
    for options in ({"nperseg": 9}, {"nperseg": 9, "noverlap": 0, "window": "boxcar"}):
        z = signal.stft(wide(x), **options)[2]
        same([signal.istft(z, **options)[1][:45]], [x])


def test_a_traced_sampling_frequency() -> None:
    x = draw((40,), False).astype("float32")
    found = gf.jit(lambda x, fs: signal.welch(x, fs, nperseg=8))(x, 2.0)
    for a, b in zip(found, scipy.signal.welch(x, 2.0, nperseg=8)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_warnings() -> None:
    with pytest.warns(UserWarning, match="nperseg 256 is greater"):
        signal.stft(jnp.ones(8))
    with pytest.warns(UserWarning, match="return_onesided=False"):
        signal.welch(jnp.ones(8) * 1j)


X = jnp.ones(8)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: signal.convolve(X, X, "half"), "mode 'half'"),
        (lambda: signal.convolve(X, X, method="slow"), "method 'slow'"),
        (lambda: signal.convolve(X, X[None]), "one rank"),
        (lambda: signal.convolve(X, X[:0]), "of nothing"),
        (lambda: signal.convolve(jnp.ones((2, 5)), jnp.ones((3, 3)), "valid"), "mode 'valid'"),
        (lambda: signal.convolve2d(X, X), "two matrices"),
        (lambda: signal.convolve2d(X[None], X[None], boundary="wrap"), "boundary 'wrap'"),
        (lambda: signal.fftconvolve(jnp.ones((2, 5)), jnp.ones((3, 3)), axes=1), "axis 0"),
        (lambda: signal.detrend(X, type="cubic"), "type 'cubic'"),
        (lambda: signal.detrend(X, bp=9), "outside of a signal of length 8"),
        (lambda: signal.detrend(X, overwrite_data=True), "immutable"),
        (lambda: signal.stft(X, nperseg=0), "nperseg is positive"),
        (lambda: signal.stft(X, nperseg=4, noverlap=4), "noverlap is from 0 to"),
        (lambda: signal.stft(X, nperseg=4, nfft=2), "nfft 2 is less than"),
        (lambda: signal.stft(X, nperseg=4, boundary="wrap"), "boundary 'wrap'"),
        (lambda: signal.stft(X, nperseg=4, detrend=True), "detrend is"),
        (lambda: signal.welch(X, nperseg=4, scaling="power"), "scaling 'power'"),
        (lambda: signal.welch(X, nperseg=4, average="mode"), "average 'mode'"),
        (lambda: signal.welch(X, window=jnp.ones(9)), "longer than the signal"),
        (lambda: signal.welch(X, window=jnp.ones(4), nperseg=5), "nperseg is 5"),
        (lambda: signal.csd(X, X[None]), "one rank"),
        (lambda: signal.istft(X), "frequencies and times"),
        (lambda: signal.istft(jnp.ones((5, 3)), time_axis=0, freq_axis=0), "axis 0 cannot"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
