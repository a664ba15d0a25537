"""Special functions, with SciPy's names."""

from __future__ import annotations

import math
from typing import Any

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes
from genesis_fn.core.convert import as_array
from genesis_fn.nn import functions as rows
from genesis_fn.nn.functions import logsumexp


def _float(x: Any) -> Any:
    x = as_array(x)
    return x if dtypes.is_inexact(x.dtype) else x.astype("float32")


def softmax(x: Any, /, *, axis: int | tuple[int, ...] | None = None) -> Any:
    """exp(x) / sum(exp(x)) over `axis`, all axes by default."""
    return rows.softmax(x, axis)


def log_softmax(x: Any, /, *, axis: int | tuple[int, ...] | None = None) -> Any:
    """x - logsumexp(x) over `axis`, all axes by default."""
    return rows.log_softmax(x, axis)


def erf(x: Any) -> Any:
    """The error function."""
    return lax.erf(_float(x))


def erfc(x: Any) -> Any:
    """1 - erf(x), accurate for large x."""
    return lax.erfc(_float(x))


def erfinv(x: Any) -> Any:
    """The inverse of erf."""
    return lax.erf_inv(_float(x))


def gammaln(x: Any) -> Any:
    """log |gamma(x)|."""
    return lax.lgamma(_float(x))


def digamma(x: Any) -> Any:
    """The derivative of gammaln."""
    return lax.digamma(_float(x))


psi = digamma


def polygamma(n: int, x: Any) -> Any:
    """The n-th derivative of digamma, for a known integer n."""
    return lax.polygamma(n, _float(x))


def gamma(x: Any) -> Any:
    """The gamma function."""
    x = _float(x)
    odd = (x < 0) & (np.floor(x) % 2 != 0)
    return np.where(odd, -1.0, 1.0).astype(x.dtype) * np.exp(lax.lgamma(x))


def betaln(a: Any, b: Any) -> Any:
    """log |B(a, b)|."""
    a, b = _float(a), _float(b)
    return lax.lgamma(a) + lax.lgamma(b) - lax.lgamma(a + b)


def beta(a: Any, b: Any) -> Any:
    """B(a, b) = gamma(a) gamma(b) / gamma(a + b)."""
    return gamma(a) * gamma(b) / gamma(_float(a) + _float(b))


def factorial(n: Any, exact: bool = False) -> Any:
    """n! = gamma(n + 1); 0 for negative n."""
    n = _float(n)
    return np.where(n < 0, 0.0, np.exp(lax.lgamma(n + 1)))


def expit(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return lax.logistic(_float(x))


def logit(x: Any) -> Any:
    """log(x / (1 - x))."""
    x = _float(x)
    return np.log(x) - np.log1p(-x)


def xlogy(x: Any, y: Any) -> Any:
    """x log(y), and 0 where x is 0."""
    x, y = _float(x), _float(y)
    none = x == 0
    return np.where(none, 0.0, x * np.log(np.where(none, 1.0, y)))


def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), and 0 where x is 0."""
    x, y = _float(x), _float(y)
    none = x == 0
    return np.where(none, 0.0, x * np.log1p(np.where(none, 0.0, y)))


def entr(x: Any) -> Any:
    """-x log(x); 0 at 0, -inf below."""
    x = _float(x)
    safe = np.where(x > 0, x, 1.0)
    return np.where(x > 0, -safe * np.log(safe), np.where(x == 0, 0.0, -np.inf))


def rel_entr(p: Any, q: Any) -> Any:
    """p log(p / q); 0 where p is 0, inf where it is not defined."""
    p, q = _float(p), _float(q)
    both = (p > 0) & (q > 0)
    term = np.where(both, p, 1.0) * np.log(np.where(both, p, 1.0) / np.where(both, q, 1.0))
    return np.where(both, term, np.where((p == 0) & (q >= 0), 0.0, np.inf))


def kl_div(p: Any, q: Any) -> Any:
    """p log(p / q) - p + q."""
    return rel_entr(p, q) - _float(p) + _float(q)


def _together(*xs: Any) -> list[Any]:
    """Floats of one shape and dtype."""
    d = np.result_type(*[x if type(x) in (int, float) else _float(x) for x in xs])
    return np.broadcast_arrays(*[np.asarray(x, dtype=d) for x in xs])


def gammainc(a: Any, x: Any) -> Any:
    """The regularized lower incomplete gamma function P(a, x)."""
    return lax.igamma(*_together(a, x))


def gammaincc(a: Any, x: Any) -> Any:
    """The regularized upper incomplete gamma function Q(a, x)."""
    return lax.igammac(*_together(a, x))


def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularized incomplete beta function I_x(a, b)."""
    return lax.betainc(*_together(a, b, x))


def zeta(x: Any, q: Any = 1.0) -> Any:
    """The Hurwitz zeta function: the sum of (q + k)^-x over k >= 0."""
    return lax.zeta(*_together(x, q))


def i0e(x: Any) -> Any:
    """exp(-|x|) I_0(x)."""
    return lax.bessel_i0e(_float(x))


def i0(x: Any) -> Any:
    """The modified Bessel function I_0."""
    x = _float(x)
    return np.exp(np.abs(x)) * lax.bessel_i0e(x)


def i1e(x: Any) -> Any:
    """exp(-|x|) I_1(x)."""
    return lax.bessel_i1e(_float(x))


def i1(x: Any) -> Any:
    """The modified Bessel function I_1."""
    x = _float(x)
    return np.exp(np.abs(x)) * lax.bessel_i1e(x)


def ndtr(x: Any) -> Any:
    """The normal distribution function."""
    return 0.5 * lax.erfc(-_float(x) * math.sqrt(0.5))


def ndtri(p: Any) -> Any:
    """The inverse of the normal distribution function."""
    return math.sqrt(2.0) * lax.erf_inv(2.0 * _float(p) - 1.0)


def log_ndtr(x: Any) -> Any:
    """log ndtr(x); below -10 by the asymptotic series (Abramowitz and Stegun 26.2.12)."""
    x = _float(x)
    low = x < -10.0
    near, far = np.where(low, 0.0, x), np.where(low, x, -10.0)
    r = 1.0 / (far * far)
    series = np.log1p(-r * (1.0 - 3.0 * r * (1.0 - 5.0 * r * (1.0 - 7.0 * r))))
    tail = -0.5 * far * far - np.log(-far) - 0.5 * math.log(2 * math.pi) + series
    upper = np.log1p(-ndtr(-np.where(near > 0, near, 0.0)))
    lower = np.log(ndtr(np.where(near > 0, 0.0, near)))
    return np.where(low, tail, np.where(x > 0, upper, lower))


__all__ = [
    "beta", "betainc", "betaln", "digamma", "entr", "erf", "erfc", "erfinv", "expit", "factorial",
    "gamma", "gammainc", "gammaincc", "gammaln", "i0", "i0e", "i1", "i1e", "kl_div", "log_ndtr",
    "log_softmax", "logit", "logsumexp", "ndtr", "ndtri", "polygamma", "psi", "rel_entr", "softmax",
    "xlog1py", "xlogy", "zeta",
]  # fmt: skip
