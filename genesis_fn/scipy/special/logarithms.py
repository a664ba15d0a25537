"""Logarithms and exponentials: entropies, logits, Box and Cox's transformation, softmax."""

from __future__ import annotations

from typing import Any

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.nn import functions as rows
from genesis_fn.scipy.special.derivatives import with_slopes
from genesis_fn.scipy.special.operands import (
    inexact,
    real_operand,
    reals_together,
    rounded_once,
    together,
)
from genesis_fn.transforms.custom.derivative_rules import custom_jvp


def expit(x: ArrayLike) -> Array:
    """1 / (1 + exp(-x))."""
    return lax.logistic(inexact(x))


def logit(x: ArrayLike) -> Array:
    """log(x / (1 - x))."""
    x = inexact(x)
    return np.log(x) - np.log1p(-x)


def xlogy(x: ArrayLike, y: ArrayLike) -> Array:
    """x log(y), and 0 where x is 0 and y is not NaN."""
    return _xlogy(*together(x, y))


def xlog1py(x: ArrayLike, y: ArrayLike) -> Array:
    """x log(1 + y), and 0 where x is 0 and y is not NaN."""
    return _xlog1py(*together(x, y))


def _times_logarithm(log: Any, slope: Any) -> Any:
    """x log(y) with `slope` the derivative of `log`; at x = 0 it has the derivatives of a product,
    which are infinite or NaN where the logarithm is."""

    @custom_jvp
    def product(x: Any, y: Any) -> Any:
        none = (x == 0) & ~np.isnan(y)
        return np.where(none, 0.0, np.where(none, 1.0, x) * log(np.where(none, 1.0, y)))

    @product.defjvp
    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
        (x, y), (dx, dy) = primals, tangents
        return product(x, y), dx * log(y) + dy * x * slope(y)

    return product


_xlogy = _times_logarithm(np.log, np.reciprocal)


_xlog1py = _times_logarithm(np.log1p, lambda y: 1.0 / (1.0 + y))


@custom_jvp
def _xlogx(x: Array) -> Array:
    return _xlogy(x, x)


@_xlogx.defjvp
def _xlogx_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    return _xlogx(*primals), tangents[0] * (np.log(primals[0]) + 1.0)


def entr(x: ArrayLike) -> Array:
    """-x log(x); 0 at 0, -inf below."""
    x = real_operand(x, "entr")
    return np.where(x < 0, -np.inf, -_xlogx(x))


def rel_entr(p: ArrayLike, q: ArrayLike) -> Array:
    """p log(p / q); 0 where p is 0, inf where it is not defined."""
    p, q = together(real_operand(p, "rel_entr"), real_operand(q, "rel_entr"))
    both, none = (p > 0) & (q > 0), (p == 0) & (q >= 0)
    safe_p, safe_q = np.where(both, p, 1.0), np.where(both, q, 1.0)
    term = _xlogx(safe_p) - _xlogy(safe_p, safe_q)
    result = np.where(both, term, np.where(none, 0.0, np.inf))
    return np.where(np.isnan(p) | np.isnan(q), np.nan, result)


def kl_div(p: ArrayLike, q: ArrayLike) -> Array:
    """p log(p / q) - p + q."""
    p, q = together(real_operand(p, "kl_div"), real_operand(q, "kl_div"))
    return rel_entr(p, q) - p + q


# ---- Box and Cox's transformation ----


def _power_of_logarithm(log: Array, lmbda: Array) -> Array:
    """(exp(lmbda log) - 1) / lmbda, and `log` where lmbda is 0."""
    none = lmbda == 0
    safe = np.where(none, 1.0, lmbda)
    # Next to 0 the quotient is `log` to all digits, also where a power would be subnormal.
    tiny = np.abs(lmbda * log) < 0.25 * float(np.finfo(log.dtype).eps)
    return np.where(none | tiny, log, np.expm1(safe * log) / safe)


def _by_lmbda(y: Array, log: Array, lmbda: Array) -> Array:
    """log^2 (exp(t) (t - 1) + 1) / t^2 with t = lmbda log; by its series near 0."""
    t = lmbda * log
    near = np.abs(t) < 0.5
    s = np.where(near, t, 0.0)
    series = np.zeros_like(t)
    factorial = 1.0
    terms = []
    for k in range(2, 18):  # (k - 1) t^(k - 2) / k!
        factorial *= k
        terms.append((k - 1) / factorial)
    for c in terms[::-1]:
        series = series * s + c
    away = np.where(near, 1.0, lmbda)
    plain = (np.exp(t) * log - y) / away
    return np.where(near, np.where(near, log, 0.0) ** 2 * series, plain)


_box_cox = with_slopes(_power_of_logarithm, lambda y, log, lmbda: np.exp(lmbda * log), _by_lmbda)


def boxcox(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """Box and Cox's transformation: (x^lmbda - 1) / lmbda, and log(x) where `lmbda` is 0.

    Source: Box and Cox, "An analysis of transformations" (1964).

    Args:
        x: real numbers >= 0.
        lmbda: real exponents.

    Returns:
        The transformed numbers; NaN for negative `x`.

    >>> round(float(boxcox(4.0, 0.5)), 4)
    2.0
    """
    x, lmbda = reals_together("boxcox", x, lmbda)
    return rounded_once(lambda x, lmbda: _box_cox(np.log(x), lmbda), x, lmbda)


def boxcox1p(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """Box and Cox's transformation of 1 + x, accurate for small `x`.

    Args:
        x: real numbers >= -1.
        lmbda: real exponents.

    Returns:
        ((1 + x)^lmbda - 1) / lmbda, and log(1 + x) where `lmbda` is 0.

    >>> round(float(boxcox1p(3.0, 0.5)), 4)
    2.0
    """
    x, lmbda = reals_together("boxcox1p", x, lmbda)
    return rounded_once(lambda x, lmbda: _box_cox(np.log1p(x), lmbda), x, lmbda)


# ---- softmax ----


def softmax(x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """exp(x) / sum(exp(x)) over `axis`, all axes by default."""
    return rows.softmax(x, axis)


def log_softmax(x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """x - logsumexp(x) over `axis`, all axes by default."""
    return rows.log_softmax(x, axis)
