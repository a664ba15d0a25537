"""Distributions against SciPy in float64: ranges, tails, edges, parameters out of their range."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.stats

import genesis_fn.numpy as jnp
from tests.scipy.distributions import (
    ANGULAR,
    CONTINUOUS,
    DISCRETE,
    LIMITS,
    cases,
    module,
    parameters,
    points,
)

# Where JAX's conventions are not SciPy's: quantiles at 0 and of an event of probability 0.
EDGES = {"bernoulli": [0.0, 1.0]}


@pytest.mark.parametrize("name, function", cases([*CONTINUOUS, *ANGULAR, *DISCRETE]))
def test_as_in_scipy(name: str, function: str) -> None:
    x = points(name, function)
    if function == "ppf":
        x = x[~np.isin(x, EDGES.get(name, []))]
    f = getattr(module(name), function)
    theirs = getattr(getattr(scipy.stats, name), function)
    for given in parameters(name, function):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            want = np.array(theirs(x, *given))
        if function in LIMITS and not np.isnan(want).all():
            # SciPy has inf - inf there.
            want[np.isinf(x)] = LIMITS[function]
        got = np.asarray(f(jnp.float64(x), *[jnp.float64(p) for p in given]))
        assert got.dtype == np.float64
        scale = 1e-14 if name in DISCRETE else 1e-300
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=scale, err_msg=f"{given} at {x}")
