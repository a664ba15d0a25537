"""Arguments that NumPy and SciPy take or refuse, by the type of the error that both raise."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.signal

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors
from genesis_fn.scipy import linalg, ndimage, signal


def test_axes_of_transforms() -> None:
    x = jnp.ones((2, 3, 4))
    for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
        for axis in ([1, 1], (0,), 1.5):
            with pytest.raises(ValueError, match="axis"):
                getattr(jnp.fft, name)(x, axis=axis)
    for name in ("fft2", "ifft2", "rfft2", "irfft2"):
        for axes in ([0], (0, 1, 2)):
            with pytest.raises(ValueError, match="2 axes"):
                getattr(jnp.fft, name)(x, axes=axes)


def test_one_of_two_names() -> None:
    x = jnp.ones((3, 3))
    with pytest.raises(ValueError, match="not both"):
        jnp.linalg.pinv(x, rcond=1e-2, rtol=1e-2)
    np.testing.assert_array_equal(jnp.linalg.pinv(x, rcond=1e-2), jnp.linalg.pinv(x, rtol=1e-2))


def test_blocks_of_lists() -> None:
    blocks = [[1, 2], [[3], [4]], 5, np.ones((2, 2), int)]
    np.testing.assert_array_equal(linalg.block_diag(*blocks), scipy.linalg.block_diag(*blocks))


def test_shapes_of_images() -> None:
    with pytest.raises(TypeError):
        gf.image.resize(jnp.ones((3, 4)), [10.5, 17], "bicubic")
    assert gf.image.resize(jnp.ones((3, 4)), jnp.array([10, 17]), "nearest").shape == (10, 17)


def test_what_map_coordinates_lacks() -> None:
    x, at = jnp.arange(5.0), [jnp.linspace(0, 5, 3)]
    for wrong in ({"order": 2}, {"order": 1, "mode": "grid-wrap"}):
        with pytest.raises(NotImplementedError) as caught:
            ndimage.map_coordinates(x, at, **wrong)
        assert isinstance(caught.value, errors.ArgumentError)


@pytest.mark.parametrize(("nfft", "onesided"), [(16, True), (13, True), (16, False), (12, False)])
def test_istft_cuts_and_fills_frequencies(nfft: int, onesided: bool) -> None:
    z = np.random.default_rng(0).normal(size=(8, 6)) + 0j
    arguments = {"nperseg": 12, "noverlap": 9, "nfft": nfft, "input_onesided": onesided}
    got = signal.istft(jnp.asarray(z, "complex128"), **arguments)[1]
    np.testing.assert_allclose(got, scipy.signal.istft(z, **arguments)[1], atol=1e-9)
