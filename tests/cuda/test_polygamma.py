"""polygamma and the Hurwitz zeta function on CUDA against SciPy's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import scipy.special
from test_every_primitive import run

import genesis_fn as gf
import genesis_fn.scipy.special as special
from genesis_fn.core.array import from_numpy
from genesis_fn.core.device import cuda
from genesis_fn.core.dtypes import BF16, F32, F64
from genesis_fn.core.primitive import PRIMITIVES

# Relative: a few units in the last place.
BOUND = {F32: 8 * 2.0**-23, F64: 1e-13, BF16: 2.0**-8}


@pytest.mark.parametrize("n", [1, 2, 3, 8, 40])
def test_polygamma_is_scipys(n):
    """Left of 0, too, away from the zeros that those of even order have between poles."""
    rng = np.random.default_rng(n)
    x = np.concatenate([rng.uniform(0.05, 20, 60), 10 ** rng.uniform(-3, 5, 30)])
    left = -rng.integers(0, 6, 40) - rng.uniform(0.02, 0.3, 40)
    for kind, bound in BOUND.items():
        given = np.concatenate([x, left]).astype(kind)
        (out,) = run(PRIMITIVES["polygamma"], [given], {"n": n}, cuda())
        with np.errstate(all="ignore"):
            want = scipy.special.polygamma(n, given.astype(np.float64))
            limits = ml_dtypes.finfo(kind)
            fits = (np.abs(want) < float(limits.max)) & (np.abs(want) > float(limits.tiny))
        got = np.asarray(out).astype(np.float64)
        np.testing.assert_allclose(got[fits], want[fits], rtol=bound)
        assert not np.isfinite(got[np.abs(want) > 1.01 * float(limits.max)]).any()
    edges = np.array([0.0, -0.0, -1.0, -7.0, np.inf, np.nan], F32)
    (out,) = run(PRIMITIVES["polygamma"], [edges], {"n": n}, cuda())
    np.testing.assert_array_equal(np.asarray(out), scipy.special.polygamma(n, edges))


@pytest.mark.parametrize("kind", [F32, F64], ids=str)
def test_orders_of_an_array(kind):
    """Where neither zeta nor a factorial is in the range of float32, too."""
    rng = np.random.default_rng(3)
    n = rng.integers(1, 50, 200).astype(np.int32)
    x = np.concatenate([rng.uniform(0.05, 30, 120), 10 ** rng.uniform(-2, 4, 80)]).astype(kind)
    limits = np.finfo(kind)
    arrays = [from_numpy(v, cuda()) for v in (n, x, (n + 1).astype(kind))]
    made = gf.jit(lambda n, x, s: (special.polygamma(n, x), special.zeta(s, x)))(*arrays)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        wanted = scipy.special.polygamma(n, wide), scipy.special.zeta(n + 1.0, wide)
    for got, want in zip(map(np.asarray, made), wanted, strict=True):
        fits = (np.abs(want) < limits.max) & (np.abs(want) > limits.tiny)
        assert got.dtype == kind and fits.sum() > 100
        np.testing.assert_allclose(got[fits], want[fits], rtol=BOUND[kind])
