"""The distributions of `scipy.stats` with parameters, points and edges to compare at."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

import numpy as np

INF, NAN = np.inf, np.nan
FAR = [-INF, -1e30, 1e30, INF, NAN]
LINE = [-40.0, -9.0, -2.5, -1.0, -0.3, 0.0, 0.2, 0.7, 1.0, 2.0, 6.0, 30.0]
COUNTS = [-3.0, -1.0, 0.0, 1.0, 2.0, 2.5, 3.0, 5.0, 6.0, 40.0]
PROBABILITIES = [-0.1, 0.0, 1e-12, 0.01, 0.3, 0.5, 0.8, 0.999, 1.0, 1.2, NAN]
# {distribution: parameters of shape, those out of their range among them}.
CONTINUOUS: dict[str, list[tuple[float, ...]]] = {
    "norm": [()], "uniform": [()], "expon": [()], "laplace": [()], "logistic": [()],
    "cauchy": [()], "gumbel_l": [()], "gumbel_r": [()],
    "gamma": [(0.4,), (1.0,), (3.5,), (60.0,), (0.0,), (-1.0,)],
    "chi2": [(0.7,), (2.0,), (9.0,), (0.0,), (-1.0,)],
    "beta": [(0.5, 0.7), (1.0, 1.0), (2.0, 5.5), (40.0, 30.0), (0.0, 1.0), (1.0, -1.0)],
    "pareto": [(0.5,), (3.0,), (0.0,), (-2.0,)],
    "t": [(0.5,), (1.0,), (7.5,), (1e5,), (INF,), (0.0,), (-1.0,)],
    "truncnorm": [(-1.0, 2.0), (0.5, 3.0), (-6.0, -4.0), (8.0, 9.5), (-INF, 1.0), (1.0, INF),
                  (-0.01, 0.02), (2.0, 1.0), (1.0, 1.0)],
}  # fmt: skip
ANGULAR: dict[str, list[tuple[float, ...]]] = {
    "gennorm": [(0.6,), (1.0,), (2.0,), (5.0,), (0.0,), (-1.0,)],
    "vonmises": [(0.0,), (0.3,), (4.0,), (300.0,), (-1.0,)],
    "wrapcauchy": [(0.1,), (0.6,), (0.99,), (0.0,), (1.0,), (-0.5,)],
}  # fmt: skip
DISCRETE: dict[str, list[tuple[float, ...]]] = {
    "bernoulli": [(0.3,), (0.0,), (1.0,), (1.5,), (-0.1,)],
    "binom": [(5.0, 0.3), (5.0, 0.0), (5.0, 1.0), (0.0, 0.4), (40.0, 0.7), (-1.0, 0.3),
              (2.5, 0.3), (5.0, 1.2)],
    "betabinom": [(5.0, 2.0, 3.5), (0.0, 1.0, 1.0), (40.0, 0.3, 0.8), (5.0, 0.0, 1.0),
                  (-1.0, 1.0, 1.0), (5.0, 1.0, -1.0)],
    "geom": [(0.3,), (1.0,), (0.0,), (1.5,)],
    "nbinom": [(5.0, 0.3), (2.5, 0.9), (1.0, 1.0), (0.0, 0.5), (3.0, 0.0), (3.0, 1.5)],
    "poisson": [(0.0,), (0.4,), (7.0,), (90.0,), (-1.0,)],
}  # fmt: skip
# Location and scale, scales out of their range among them.
PLACES = [(0.0, 1.0), (0.5, 2.0), (-1.0, 0.3), (0.0, 0.0), (0.0, -1.0)]
VECTORS = ("dirichlet", "multinomial", "multivariate_normal")
ALL = [*CONTINUOUS, *ANGULAR, *DISCRETE, *VECTORS]
QUANTILES = ("ppf", "isf")
LIMITS = {"pdf": 0.0, "pmf": 0.0, "logpdf": -INF, "logpmf": -INF}  # at infinity


def module(name: str) -> ModuleType:
    """The module of a distribution."""
    return importlib.import_module(f"genesis_fn.scipy.stats.{name}")


def functions(name: str) -> list[str]:
    """The functions that a distribution has."""
    own = module(name)
    return [n for n, f in vars(own).items() if n[0] != "_" and inspect.getmodule(f) is own
            and inspect.isfunction(f)]  # fmt: skip


def points(name: str, function: str) -> np.ndarray:
    """Points in and out of the support, or probabilities."""
    if function in QUANTILES:
        return np.array(PROBABILITIES)
    if name in DISCRETE:
        return np.array([*COUNTS, *FAR[:1], *FAR[-2:]])
    if name == "wrapcauchy":
        return np.array([*LINE, np.pi, 2 * np.pi, 6.2, *FAR[:1], *FAR[-2:]])
    if name == "vonmises":
        return np.array([*LINE, NAN])
    if name in ("laplace", "gumbel_l", "gumbel_r"):  # where SciPy's logarithms are of underflows
        return np.array([*LINE, *FAR[:1], *FAR[-2:]])
    return np.array([*LINE, *FAR])


def parameters(name: str, function: str) -> list[tuple[float, ...]]:
    """What follows the points, in order."""
    given = (CONTINUOUS | ANGULAR | DISCRETE)[name]
    if name in ANGULAR or name == "bernoulli" and function in ("cdf", "ppf"):
        return given
    if name in DISCRETE:
        return [(*g, *loc) for g in given for loc in ((), (2.0,))]
    places = PLACES if name != "truncnorm" else PLACES[:3]
    return [(*g, *place) for g in given for place in (places if g == given[0] else places[:2])]


def cases(names: Any) -> list[tuple[str, str]]:
    """(distribution, function)."""
    return [(n, f) for n in names for f in functions(n) if f != "entropy"]
