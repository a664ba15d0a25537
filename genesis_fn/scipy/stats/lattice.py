"""What distributions on the integers share: the shift, and points that have no mass.

A formula is computed at the lowest point where the operand has no mass, so that the derivative
there is 0 and not NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.stats.operands import in_floats


class Lattice(NamedTuple):
    """A family: what it is called, its lowest point, and the highest by its parameters."""

    name: str
    lowest: float
    highest: Callable[..., Array | float] | None = None

    def logpmf(
        self, formula: Callable[..., Array], k: ArrayLike, loc: ArrayLike, *parameters: ArrayLike
    ) -> Array:
        """`formula` of k - loc and the parameters; -inf where k - loc is no integer, or lies
        outside of the support."""

        def at(k: Array, loc: Array, *parameters: Array) -> Array:
            y = k - loc
            massless = (y < self.lowest) | (y != np.floor(y)) & ~np.isnan(y) | np.isinf(y)
            if self.highest is not None:
                massless = massless | (y > self.highest(*parameters))
            value = formula(np.where(massless, self.lowest, y), *parameters)
            return np.where(massless & ~np.isnan(value), -math.inf, value)

        return in_floats(f"{self.name}.logpmf", at, k, loc, *parameters)

    def pmf(
        self, formula: Callable[..., Array], k: ArrayLike, loc: ArrayLike, *parameters: ArrayLike
    ) -> Array:
        """The exponential of `logpmf`, of which `formula` is."""

        def at(*operands: Array) -> Array:
            return np.exp(self.logpmf(formula, *operands))

        return in_floats(f"{self.name}.pmf", at, k, loc, *parameters)
