"""Entries of `scipy.stats` and its distributions."""

from __future__ import annotations

import numpy as np

from tests.public.agree import E, Entry, Operand
from tests.public.entries_numpy import DEFINITE, each
from tests.public.names import DISTRIBUTIONS, exported

# JAX computes in 16 bits what is computed in 32 here: `tests/scipy` has those.
X, P, UNIT = [Operand(kinds="s", low=a, high=b) for a, b in ((-2, 2), (0.2, 2), (0.1, 0.9))]
LOW, HIGH = Operand(kinds="s", low=-3.0, high=-1.0), Operand(kinds="s", low=1.0, high=3.0)
COUNT = Operand(values=lambda rng: rng.integers(0, 4, (3, 4)), kinds="s")
TRIALS = Operand(values=lambda rng: rng.integers(4, 9, (3, 4)), kinds="s")
PLACE = (Operand(kinds="s", low=-0.5, high=0.1), P)
# {distribution: (points, parameters of shape, whether it has a location and a scale)}.
FAMILIES: dict[str, tuple[Operand, tuple[Operand, ...], tuple[Operand, ...]]] = {
    **dict.fromkeys("cauchy gumbel_l gumbel_r laplace logistic norm".split(), (X, (), PLACE)),
    **dict.fromkeys("expon uniform".split(), (P, (), PLACE)),
    **dict.fromkeys("chi2 gamma".split(), (P, (P,), PLACE)),
    "beta": (UNIT, (P, P), ()), "pareto": (HIGH, (P,), ()), "t": (X, (P,), PLACE),
    "truncnorm": (UNIT, (LOW, HIGH), PLACE),
    "gennorm": (X, (HIGH,), ()), "vonmises": (X, (P,), ()), "wrapcauchy": (P, (UNIT,), ()),
    "bernoulli": (COUNT, (UNIT,), ()), "binom": (COUNT, (TRIALS, UNIT), ()),
    "betabinom": (COUNT, (TRIALS, P, P), ()), "geom": (COUNT, (UNIT,), ()),
    "nbinom": (COUNT, (TRIALS, UNIT), ()), "poisson": (COUNT, (P,), ()),
}  # fmt: skip
SHARES = Operand(values=lambda rng: rng.dirichlet(np.ones(3)), kinds="s")
VECTORS: dict[str, Entry] = {
    "dirichlet": E(SHARES, Operand((3,), "s", 0.5, 2.0)),
    # JAX compares all counts with n together, of several rows.
    "multinomial": E(Operand((), values=lambda rng: np.array([1, 2, 0]), kinds="i"), SHARES,
                     call=lambda f, x, p: f(x, 3, p), same=False),
    "multivariate_normal": E(Operand((4, 3), "s"), Operand((3,), "s"), DEFINITE),
}  # fmt: skip


def entry(name: str, function: str) -> Entry:
    """How a function of a distribution is called."""
    if name in VECTORS:
        return VECTORS[name]
    points, shapes, place = FAMILIES[name]
    if function == "entropy":
        return E(*shapes)
    # The derivatives by the shapes of beta are those of a loop: `tests/scipy` has them.
    smooth = not (name == "beta" and "df" not in function)
    return E(UNIT if function in ("ppf", "isf") else points, *shapes, *place, grad=smooth)


def table(name: str) -> dict[str, list[Entry]]:
    """The entries of a distribution."""
    return {f: [entry(name, f)] for f in sorted(exported(f"scipy.stats.{name}"))}


TABLES: list[tuple[str, str | None, dict[str, list[Entry]]]] = [
    (f"scipy.stats.{n}", f"jax.scipy.stats.{n}", table(n)) for n in DISTRIBUTIONS
]
TIED = Operand(values=lambda rng: rng.integers(0, 4, (5, 3)), kinds="si")
STATS: dict[str, list[Entry]] = {
    **each("mode", E(TIED, grad=False)), **each("rankdata", E(TIED, grad=False)),
    **each("sem", E(Operand((5, 3), "s"))),
}  # fmt: skip
