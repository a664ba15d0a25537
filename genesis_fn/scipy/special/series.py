"""Power series whose terms follow from one another, summed until no element changes."""

from __future__ import annotations

from collections.abc import Callable

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array
from genesis_fn.scipy.special.derivatives import with_slopes
from genesis_fn.transforms.autodiff.derivatives import jvp

_TERMS = 3000  # more than any of the functions here needs where they use a series

Ratio = Callable[..., Array]  # (k, *operands) -> what makes the next term of the k-th


def summed(ratio: Ratio, operands: tuple[Array, ...], first: Array) -> Array:
    """first (1 + r_0 + r_0 r_1 + ...) with r_k = ratio(k, *operands); NaN where it does not settle
    within some thousand terms."""
    eps = 0.05 * float(np.finfo(first.dtype).eps)

    def unfinished(term: Array, total: Array) -> Array:
        return np.abs(term) > eps * np.abs(total)

    def more(state: tuple[Array, ...]) -> Array:
        k, term, total = state
        return (k < _TERMS) & np.any(unfinished(term, total))

    def following(state: tuple[Array, ...]) -> tuple[Array, ...]:
        k, term, total = state
        term = term * ratio(k, *operands)
        return k + 1, term, total + term

    zero = np.asarray(0.0, first.dtype)
    _, term, total = lax.while_loop(more, following, (zero, first, first))
    return np.where(unfinished(term, total), np.nan, total)


def summed_slope(
    ratio: Ratio, operands: tuple[Array, ...], direction: tuple[Array, ...], first: Array
) -> Array:
    """The derivative of `summed` along `direction` of the operands. A series that ends, as those of
    integer parameters do, has a derivative that does not."""
    eps = 0.05 * float(np.finfo(first.dtype).eps)

    def unfinished(state: tuple[Array, ...]) -> Array:
        _, term, total, slope, slopes = state
        left = np.abs(term) > eps * np.abs(total)
        return left | (np.abs(slope) > eps * np.abs(slopes))

    def more(state: tuple[Array, ...]) -> Array:
        # The first terms may have no derivative by a parameter that moves later ones.
        k = state[0]
        return (k < _TERMS) & ((k < 2) | np.any(unfinished(state)))

    def following(state: tuple[Array, ...]) -> tuple[Array, ...]:
        k, term, total, slope, slopes = state
        r, dr = jvp(lambda *xs: ratio(k, *xs), operands, direction)
        term, slope = term * r, slope * r + term * dr
        return k + 1, term, total + term, slope, slopes + slope

    zero, none = np.asarray(0.0, first.dtype), np.zeros_like(first)
    end = lax.while_loop(more, following, (zero, first, first, none, none))
    return np.where(unfinished(end), np.nan, end[4])


def power_series(ratio: Ratio, count: int) -> Callable[..., Array]:
    """`summed` from 1 on as a function of its `count` operands, with its derivatives."""

    def slope(i: int) -> Callable[..., Array]:
        def by_one(y: Array, *xs: Array) -> Array:
            direction = tuple([np.full_like(x, float(k == i)) for k, x in enumerate(xs)])
            return summed_slope(ratio, xs, direction, np.ones_like(y))

        return by_one

    slopes = [slope(i) for i in range(count)]
    return with_slopes(lambda *xs: summed(ratio, xs, np.ones_like(xs[0])), *slopes)
