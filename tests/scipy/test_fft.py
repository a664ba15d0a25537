"""Cosine transforms against SciPy's, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.scipy import fft


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_as_in_scipy(n: int, kind: int, norm: str | None) -> None:
    x = np.random.default_rng(n).normal(size=(3, n))
    given = jnp.asarray(x, "float64")
    if kind == 1 and n == 1:
        with pytest.raises(gf.errors.ShapeError, match="two entries"):
            fft.dct(given, 1)
        return
    for name in ("dct", "idct"):
        want = getattr(scipy.fft, name)(x, kind, norm=norm)
        np.testing.assert_allclose(getattr(fft, name)(given, kind, norm=norm), want, atol=1e-11)
    for name in ("dctn", "idctn"):
        want = getattr(scipy.fft, name)(x, kind, s=(2, 6), axes=(1, 0), norm=norm)
        found = getattr(fft, name)(given, kind, s=(2, 6), axes=(1, 0), norm=norm)
        np.testing.assert_allclose(found, want, atol=1e-11)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: fft.dct(x, 5), "type 5"),
        (lambda x: fft.dct(x, norm="unit"), "norm 'unit'"),
        (lambda x: fft.dct(x, n=0), "positive, got 0"),
        (lambda x: fft.idct(x, axis=2), "axis 2"),
        (lambda x: fft.dctn(x, s=(2, 2, 2)), "3 lengths"),
        (lambda x: fft.dctn(x, s=(2, 2), axes=0), "2 lengths for 1 axes"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(jnp.ones((3, 4)))
