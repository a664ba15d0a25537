"""What continuous distributions with a location and a scale share.

A module gives its formulas for location 0 and scale 1. Here stand the shift and the scaling, the
values outside of the support and at infinity, and NaN where the scale is not positive or a
formula's parameter has no meaning. A formula is computed at a point inside of the support where the
operand lies outside, so that the derivative there is 0 and not NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.scipy.stats.operands import in_floats, positive

# A formula takes standardized points, then the parameters of shape.
Formula = Callable[..., Array]


class LocationScale(NamedTuple):
    """A family: what it is called, the ends of its standard support, and a point between them.

    `flat` families have densities that may be infinite at finite ends: there their distribution
    functions are taken as the constants that they are outside, without a derivative.
    """

    name: str
    low: float = -math.inf
    inside: float = 0.0
    high: float = math.inf
    flat: bool = False

    def logpdf(
        self, formula: Formula, x: ArrayLike, loc: ArrayLike, scale: ArrayLike, *shapes: ArrayLike
    ) -> Array:
        """log p((x - loc) / scale) - log(scale), -inf outside of the support, whose finite ends
        belong to it; `formula` is the logarithm of the density."""

        def at(x: Array, loc: Array, scale: Array, *shapes: Array) -> Array:
            z, below, above, scale = self._standardized(x, loc, scale)
            value = formula(z, *shapes) - np.log(scale)
            return np.where((below | above) & ~np.isnan(value), -math.inf, value)

        return in_floats(f"{self.name}.logpdf", at, x, loc, scale, *shapes)

    def pdf(
        self, formula: Formula, x: ArrayLike, loc: ArrayLike, scale: ArrayLike, *shapes: ArrayLike
    ) -> Array:
        """The exponential of `logpdf`, of which `formula` is."""

        def at(*operands: Array) -> Array:
            return np.exp(self.logpdf(formula, *operands))

        return in_floats(f"{self.name}.pdf", at, x, loc, scale, *shapes)

    def cdf(
        self, formula: Formula, x: ArrayLike, loc: ArrayLike, scale: ArrayLike, *shapes: ArrayLike
    ) -> Array:
        """`formula`, 0 below the support and 1 above."""
        return self._limited("cdf", formula, 0.0, 1.0, x, loc, scale, *shapes)

    def logcdf(
        self, formula: Formula, x: ArrayLike, loc: ArrayLike, scale: ArrayLike, *shapes: ArrayLike
    ) -> Array:
        """`formula`, -inf below the support and 0 above."""
        return self._limited("logcdf", formula, -math.inf, 0.0, x, loc, scale, *shapes)

    def sf(
        self, formula: Formula, x: ArrayLike, loc: ArrayLike, scale: ArrayLike, *shapes: ArrayLike
    ) -> Array:
        """`formula`, 1 below the support and 0 above."""
        return self._limited("sf", formula, 1.0, 0.0, x, loc, scale, *shapes)

    def logsf(
        self, formula: Formula, x: ArrayLike, loc: ArrayLike, scale: ArrayLike, *shapes: ArrayLike
    ) -> Array:
        """`formula`, 0 below the support and -inf above."""
        return self._limited("logsf", formula, 0.0, -math.inf, x, loc, scale, *shapes)

    def ppf(
        self, formula: Formula, q: ArrayLike, loc: ArrayLike, scale: ArrayLike, *shapes: ArrayLike
    ) -> Array:
        """loc + scale * formula(q), NaN where q lies outside of [0, 1]."""
        return self._quantile("ppf", formula, q, loc, scale, *shapes)

    def isf(
        self, formula: Formula, q: ArrayLike, loc: ArrayLike, scale: ArrayLike, *shapes: ArrayLike
    ) -> Array:
        """As `ppf`, of the probability above."""
        return self._quantile("isf", formula, q, loc, scale, *shapes)

    def _standardized(
        self, x: Array, loc: Array, scale: Array
    ) -> tuple[Array, Array, Array, Array]:
        """(points within the support, where x lies below it, where above, the scale or NaN)."""
        scale = positive(scale)
        # Infinite points have no derivative: that of the quotient would be inf * 0.
        z = (np.where(np.isinf(x), loc, x) - loc) / scale
        # x itself is compared with a finite end, since z rounds.
        if math.isfinite(self.low):
            below = x < loc + self.low * scale
        else:
            below = np.isneginf(x) & (scale > 0) | np.isneginf(z)
        if math.isfinite(self.high):
            above = x > loc + self.high * scale
        else:
            above = np.isposinf(x) & (scale > 0) | np.isposinf(z)
        z = np.where(below | above, self.inside, z)
        if math.isfinite(self.low):
            z = np.where(z < self.low, self.low, z)
        if math.isfinite(self.high):
            z = np.where(z > self.high, self.high, z)
        return z, below, above, scale

    def _limited(
        self, name: str, formula: Formula, under: float, over: float, *operands: ArrayLike
    ) -> Array:
        def at(x: Array, loc: Array, scale: Array, *shapes: Array) -> Array:
            z, below, above, _ = self._standardized(x, loc, scale)
            # The end at which a logarithm is -inf has no derivative either.
            if (self.flat or math.isinf(under)) and math.isfinite(self.low):
                below = below | (z == self.low)
            if (self.flat or math.isinf(over)) and math.isfinite(self.high):
                above = above | (z == self.high)
            value = formula(np.where(below | above, self.inside, z), *shapes)
            valid = ~np.isnan(value)
            return np.where(below & valid, under, np.where(above & valid, over, value))

        return in_floats(f"{self.name}.{name}", at, *operands)

    def _quantile(self, name: str, formula: Formula, *operands: ArrayLike) -> Array:
        def at(q: Array, loc: Array, scale: Array, *shapes: Array) -> Array:
            valid = (q >= 0) & (q <= 1) & (scale > 0)
            value = formula(np.where(valid, q, 0.5), *shapes) * scale + loc
            return np.where(valid, value, np.nan)

        return in_floats(f"{self.name}.{name}", at, *operands)
