"""Special functions, with SciPy's names."""

from __future__ import annotations

import math
from typing import Any

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.special import log_beta
from genesis_fn.nn import functions as rows
from genesis_fn.nn.functions import logsumexp as logsumexp
from genesis_fn.transforms.custom.derivative_rules import custom_jvp


def _float(x: ArrayLike) -> Array:
    x = as_array(x)
    return x if dtypes.is_inexact(x.dtype) else x.astype("float32")


def _real(x: ArrayLike, name: str) -> Array:
    x = _float(x)
    if dtypes.is_complex(x.dtype):
        raise errors.DTypeError(
            f"{name} takes real numbers, got {x.aval}\n  at {where().describe()}"
        )
    return x


def softmax(x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """exp(x) / sum(exp(x)) over `axis`, all axes by default."""
    return rows.softmax(x, axis)


def log_softmax(x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """x - logsumexp(x) over `axis`, all axes by default."""
    return rows.log_softmax(x, axis)


def erf(x: ArrayLike) -> Array:
    """The error function."""
    return lax.erf(_float(x))


def erfc(x: ArrayLike) -> Array:
    """1 - erf(x), accurate for large x."""
    return lax.erfc(_float(x))


def erfinv(x: ArrayLike) -> Array:
    """The inverse of erf."""
    return lax.erf_inv(_float(x))


def gammaln(x: ArrayLike) -> Array:
    """log |gamma(x)|."""
    return lax.lgamma(_float(x))


def digamma(x: ArrayLike) -> Array:
    """The derivative of gammaln."""
    return lax.digamma(_float(x))


psi = digamma


def polygamma(n: ArrayLike, x: ArrayLike) -> Array:
    """The n-th derivative of digamma, for an integer n or an array of integers."""
    x = _float(x)
    if type(n) is int:
        return lax.polygamma(n, x)
    n = as_array(n)
    if not dtypes.is_integer(n.dtype):
        raise errors.DTypeError(
            f"polygamma takes integers for n, got {n.aval}\n  at {where().describe()}"
        )
    n, x = np.broadcast_arrays(n.astype(x.dtype), x)
    return lax.polygamma(n, x)


def gamma(x: ArrayLike) -> Array:
    """The gamma function."""
    x = _float(x)
    if dtypes.is_complex(x.dtype):
        return _complex_gamma(x)
    return _gamma_sign(x) * np.exp(lax.lgamma(x))


def _gamma_sign(x: Array) -> Array:
    """The sign of gamma(x): that of x at the poles 0 and -0.0, NaN at the others."""
    odd = np.where(x < 0, np.floor(x) % 2 != 0, np.signbit(x))
    sign = np.where(odd, -1.0, 1.0).astype(x.dtype)
    return np.where((x < 0) & (np.floor(x) == x), np.nan, sign)


# Lanczos' approximation with g = 7 and 9 terms (Godfrey's coefficients), good to 15 digits.
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
    1.5056327351493116e-7,
)  # fmt: skip


def _complex_gamma(z: Array) -> Array:
    left = np.real(z) < 0.5
    w = np.where(left, 1.0 - z, z) - 1.0
    total = _LANCZOS[0]
    for k, c in enumerate(_LANCZOS[1:], 1):
        total = total + c / (w + k)
    t = w + 7.5
    y = math.sqrt(2 * math.pi) * np.exp((w + 0.5) * np.log(t) - t) * total
    # gamma(z) gamma(1 - z) = pi / sin(pi z)
    sine = np.sin(math.pi * np.where(left, z, 0.5))
    return np.where(left, math.pi / (sine * y), y)


def betaln(a: ArrayLike, b: ArrayLike) -> Array:
    """log |B(a, b)|."""
    a, b = _together(_real(a, "betaln"), _real(b, "betaln"))
    return log_beta(_wide(a), _wide(b)).astype(a.dtype)


def beta(a: ArrayLike, b: ArrayLike) -> Array:
    """B(a, b) = gamma(a) gamma(b) / gamma(a + b)."""
    a, b = _together(_real(a, "beta"), _real(b, "beta"))
    d = a.dtype
    a, b = _wide(a), _wide(b)
    sign = _gamma_sign(a) * _gamma_sign(b) * _gamma_sign(a + b)
    sign = np.where((a == 0) & (b == 0), 1.0, sign)
    return (sign * np.exp(log_beta(a, b))).astype(d)


def factorial(n: ArrayLike, exact: bool = False) -> Array:
    """n! = gamma(n + 1); 0 for negative n."""
    n = _float(n)
    return np.where(n < 0, 0.0, np.exp(lax.lgamma(n + 1)))


def expit(x: ArrayLike) -> Array:
    """1 / (1 + exp(-x))."""
    return lax.logistic(_float(x))


def logit(x: ArrayLike) -> Array:
    """log(x / (1 - x))."""
    x = _float(x)
    return np.log(x) - np.log1p(-x)


def xlogy(x: ArrayLike, y: ArrayLike) -> Array:
    """x log(y), and 0 where x is 0 and y is not NaN."""
    return _xlogy(*_together(x, y))


def xlog1py(x: ArrayLike, y: ArrayLike) -> Array:
    """x log(1 + y), and 0 where x is 0 and y is not NaN."""
    return _xlog1py(*_together(x, y))


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
    x = _real(x, "entr")
    return np.where(x < 0, -np.inf, -_xlogx(x))


def rel_entr(p: ArrayLike, q: ArrayLike) -> Array:
    """p log(p / q); 0 where p is 0, inf where it is not defined."""
    p, q = _together(_real(p, "rel_entr"), _real(q, "rel_entr"))
    both, none = (p > 0) & (q > 0), (p == 0) & (q >= 0)
    safe_p, safe_q = np.where(both, p, 1.0), np.where(both, q, 1.0)
    term = _xlogx(safe_p) - _xlogy(safe_p, safe_q)
    result = np.where(both, term, np.where(none, 0.0, np.inf))
    return np.where(np.isnan(p) | np.isnan(q), np.nan, result)


def kl_div(p: ArrayLike, q: ArrayLike) -> Array:
    """p log(p / q) - p + q."""
    p, q = _together(_real(p, "kl_div"), _real(q, "kl_div"))
    return rel_entr(p, q) - p + q


def _together(*xs: ArrayLike) -> list[Array]:
    """Floats of one shape and dtype."""
    d = np.result_type(*[x if type(x) in (int, float) else _float(x) for x in xs])
    return np.broadcast_arrays(*[np.asarray(x, dtype=d) for x in xs])


def gammainc(a: ArrayLike, x: ArrayLike) -> Array:
    """The regularized lower incomplete gamma function P(a, x)."""
    return lax.igamma(*_together(a, x))


def gammaincc(a: ArrayLike, x: ArrayLike) -> Array:
    """The regularized upper incomplete gamma function Q(a, x)."""
    return lax.igammac(*_together(a, x))


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """The regularized incomplete beta function I_x(a, b)."""
    return lax.betainc(*_together(a, b, x))


def zeta(x: ArrayLike, q: ArrayLike = 1.0) -> Array:
    """The Hurwitz zeta function: the sum of (q + k)^-x over k >= 0."""
    return lax.zeta(*_together(x, q))


def i0e(x: ArrayLike) -> Array:
    """exp(-|x|) I_0(x)."""
    return lax.bessel_i0e(_float(x))


def i0(x: ArrayLike) -> Array:
    """The modified Bessel function I_0."""
    x = _float(x)
    return np.exp(np.abs(x)) * lax.bessel_i0e(x)


def i1e(x: ArrayLike) -> Array:
    """exp(-|x|) I_1(x)."""
    return lax.bessel_i1e(_float(x))


def i1(x: ArrayLike) -> Array:
    """The modified Bessel function I_1."""
    x = _float(x)
    return np.exp(np.abs(x)) * lax.bessel_i1e(x)


def ndtr(x: ArrayLike) -> Array:
    """The normal distribution function."""
    return 0.5 * lax.erfc(-_float(x) * math.sqrt(0.5))


# Acklam's rational approximation of the lower tail in q = sqrt(-2 log(p)), relative error 1e-9.
_TAIL_ABOVE = (
    -7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838, -2.549732539343734,
    4.374664141464968, 2.938163982698783,
)  # fmt: skip
_TAIL_BELOW = (
    7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996, 3.754408661907416, 1.0,
)  # fmt: skip


@custom_jvp
def _ndtri(p: Array) -> Array:
    upper = p > 0.5
    small = np.where(upper, 1.0 - p, p)
    tail = (small > 0) & (small < 0.02)
    logarithm = np.log(np.where(tail, small, 0.02))
    x = _tail(logarithm)
    # Newton's steps on log(ndtr(x)) = log(p).
    for _ in range(2 if p.dtype == dtypes.F64 else 1):
        value = log_ndtr(x)
        x = x - (value - logarithm) * np.exp(value + 0.5 * x * x + 0.5 * math.log(2 * math.pi))
    x = np.where(upper, -x, x)
    inside = (p >= 0) & (p <= 1)
    middle = math.sqrt(2.0) * lax.erf_inv(2.0 * np.where(inside & ~tail, p, 0.5) - 1.0)
    return np.where(inside, np.where(tail, x, middle), np.nan)


def _tail(logarithm: Array) -> Array:
    q = np.sqrt(-2.0 * logarithm)
    above, below = [np.polyval(np.asarray(c, q.dtype), q) for c in (_TAIL_ABOVE, _TAIL_BELOW)]
    return above / below


@_ndtri.defjvp
def _ndtri_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    x = _ndtri(*primals)
    return x, tangents[0] * math.sqrt(2 * math.pi) * np.exp(0.5 * x * x)


def ndtri(p: ArrayLike) -> Array:
    """The inverse of the normal distribution function; NaN outside of [0, 1]."""
    p = _real(p, "ndtri")
    return _ndtri(_wide(p)).astype(p.dtype)


def _wide(x: Array) -> Array:
    """Narrow floats as float32, to be rounded once."""
    return x if x.dtype.itemsize >= 4 else x.astype("float32")


def log_ndtr(x: ArrayLike) -> Array:
    """log ndtr(x); below -10 by the asymptotic series (Abramowitz and Stegun 26.2.12)."""
    d = _float(x).dtype
    x = _wide(_real(x, "log_ndtr"))
    low = x < -10.0
    near, far = np.where(low, 0.0, x), np.where(low, x, -10.0)
    r = 1.0 / (far * far)
    series = np.log1p(-r * (1.0 - 3.0 * r * (1.0 - 5.0 * r * (1.0 - 7.0 * r * (1.0 - 9.0 * r)))))
    tail = -0.5 * far * far - np.log(-far) - 0.5 * math.log(2 * math.pi) + series
    upper = np.log1p(-ndtr(-np.where(near > 0, near, 0.0)))
    lower = np.log(ndtr(np.where(near > 0, 0.0, near)))
    return np.where(low, tail, np.where(x > 0, upper, lower)).astype(d)
