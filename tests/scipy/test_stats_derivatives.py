"""Derivatives of distributions: JAX's where JAX's are finite, and 0 outside of the support."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats

import genesis_fn as gf
import genesis_fn.numpy as jnp
from tests.scipy.distributions import (
    ANGULAR,
    CONTINUOUS,
    DISCRETE,
    QUANTILES,
    cases,
    module,
    parameters,
    points,
)

SMOOTH = cases([*CONTINUOUS, *ANGULAR, *DISCRETE])


def valid(name: str, function: str) -> list[tuple[float, ...]]:
    """Parameters of which there is a distribution inside of their range, whose ends are edges."""
    at_ends = {
        "bernoulli": {0.0, 1.0}, "binom": {0.0, 1.0}, "t": {1e5, np.inf}, "geom": {1.0},
        "vonmises": {0.0}, "poisson": {0.0}, "nbinom": {1.0}, "betabinom": {0.0},
    }  # fmt: skip
    found = []
    for given in parameters(name, function):
        shapes = (CONTINUOUS | ANGULAR | DISCRETE)[name]
        own = given[: len(shapes[0])]
        with np.errstate(all="ignore"):
            inside = getattr(module(name), function)(0.5 if function in QUANTILES else 2.0, *given)
        if not np.isnan(inside) and not at_ends.get(name, set()) & {*own}:
            found.append(given)
    return found


def differences(theirs: Callable[..., Any], operands: list[np.ndarray], i: int) -> np.ndarray:
    """Central differences by operand `i`."""
    step = 1e-6 * np.maximum(1.0, np.abs(operands[i]))
    ends = [
        np.asarray(theirs(*[v + sign * step if j == i else v for j, v in enumerate(operands)]))
        for sign in (1, -1)
    ]
    return (ends[0] - ends[1]) / (2 * step)


# JAX has no derivative of these: of I_z(a, b) by the shapes; its xlogy(-1, scale) fails.
WITHOUT = [
    *[("beta", f) for f in ("cdf", "logcdf", "sf", "logsf")],
    *[(n, f) for n in ("gumbel_l", "gumbel_r") for f in ("logpdf", "pdf", "ppf")],
]
# Points at which both sides of a kink, or a clamp's tie, may be taken.
KINKS = {"laplace": [0.0, 0.5, -1.0], "gennorm": [0.0]}


def smooth_points(name: str, function: str) -> np.ndarray:
    """Points in and out of the support without those at which quantiles are infinite."""
    x = points(name, function)
    if function in QUANTILES:
        return np.array([0.01, 0.3, 0.5, 0.8, 0.999])
    x = x[np.isfinite(x) & (np.abs(x) < 100)]
    if name in DISCRETE:  # between the integers JAX's densities are those of no distribution
        return x[x == np.floor(x)]
    return x[~np.isin(x, KINKS.get(name, []))]


@pytest.mark.parametrize("name, function", [c for c in SMOOTH if c not in WITHOUT])
def test_as_in_jax(name: str, function: str) -> None:
    f = getattr(module(name), function)
    theirs = getattr(importlib.import_module(f"jax.scipy.stats.{name}"), function)
    x = smooth_points(name, function)
    for given in valid(name, function)[:4]:
        if name == "betabinom" and len(given) == 4:
            continue  # below loc JAX has values of its own
        operands = [x, *[np.full_like(x, p) for p in given]]
        # JAX has no derivative by points that it rounds down.
        which = tuple(range(name == "betabinom", len(operands)))
        mine = gf.grad(lambda *v: jnp.sum(f(*v)), which)(*[jnp.float64(v) for v in operands])
        with jax.enable_x64(True):
            want = jax.grad(lambda *v: theirs(*v).sum(), which)(*map(jax.numpy.asarray, operands))
        for i, there, here in zip(which, map(np.asarray, want), map(np.asarray, mine)):
            finite = np.isfinite(there)
            assert finite.sum() > 2
            np.testing.assert_allclose(
                here[finite],
                there[finite],
                rtol=1e-5 if name == "betabinom" else 1e-7,  # JAX's betaln has fewer digits
                atol=1e-9,
                err_msg=f"{given}, operand {i}, at {operands[0][finite]}",
            )


@pytest.mark.parametrize("name, function", WITHOUT)
def test_as_by_differences(name: str, function: str) -> None:
    f = getattr(module(name), function)
    theirs = getattr(getattr(scipy.stats, name), function)
    x = np.array([0.1, 0.3, 0.6, 0.9])
    for given in valid(name, function)[:4]:
        place = (0.05, 1.1) if name == "beta" else given[-2:]
        operands = [x, *[np.full_like(x, p) for p in (*given[:-2], *place)]]
        which = tuple(range(len(operands)))
        mine = gf.grad(lambda *v: jnp.sum(f(*v)), which)(*[jnp.float64(v) for v in operands])
        for i in which:
            want = differences(theirs, operands, i)
            np.testing.assert_allclose(mine[i], want, rtol=1e-5, atol=1e-6, err_msg=f"{given} {i}")


@pytest.mark.parametrize("name, function", [c for c in SMOOTH if c[1] not in QUANTILES])
def test_outside_of_the_support_nothing_changes(name: str, function: str) -> None:
    """Where the value is that of no mass or of all, and not NaN, its derivatives are 0."""
    ends = {"logpdf": [-np.inf], "pdf": [0.0], "logpmf": [-np.inf], "pmf": [0.0],
            "cdf": [0.0, 1.0], "sf": [0.0, 1.0], "logcdf": [-np.inf, 0.0],
            "logsf": [-np.inf, 0.0]}.get(function, [])  # fmt: skip
    far = np.array([-np.inf, -70.0, -50.0, 0.25, np.inf])
    for given in valid(name, function)[:4] if ends else []:
        operands = [jnp.float64(v) for v in (far, *[np.full_like(far, p) for p in given])]
        which = tuple(range(len(operands)))
        f = getattr(module(name), function)
        at_end = np.isin(np.asarray(f(*operands)), ends)
        slopes = gf.grad(lambda *v: jnp.sum(f(*v)), which)(*operands)
        for i in which:
            assert np.all(np.abs(np.asarray(slopes[i])[at_end]) < 1e-12), (given, i, slopes[i])


@pytest.mark.parametrize("beta", [0.6, 1.0, 2.0, 5.0])
def test_the_slope_of_a_distribution_function_is_the_density_also_at_a_kink(beta: float) -> None:
    x, shape = np.array([-0.5, 0.0, 0.5]), np.full(3, beta)
    stats = gf.scipy.stats
    slopes = gf.grad(lambda x: jnp.sum(stats.gennorm.cdf(x, shape)))(jnp.float64(x))
    np.testing.assert_allclose(slopes, scipy.stats.gennorm.pdf(x, beta), rtol=1e-6)
    by_shape = gf.grad(lambda b: stats.gennorm.cdf(0.0, b))(beta)
    assert float(by_shape) == 0.0
