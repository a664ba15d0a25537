"""Incomplete gamma and beta functions, Bessel functions, the Hurwitz zeta function; elementwise.

On the CPU values come from torch.special where it has them; the references, series and continued
fractions over primitives, serve everywhere else and give the derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from genesis_fn.core import dtypes, errors
from genesis_fn.core.primitive import typeof
from genesis_fn.core.source import where
from genesis_fn.lax.operands import arrays, named
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.define import full
from genesis_fn.primitives.reduce import reduce_or
from genesis_fn.primitives.shape import broadcast_in_dim
from genesis_fn.transforms.custom import custom_jvp
from genesis_fn.transforms.fused import fused
from genesis_fn.transforms.grad import jvp
from genesis_fn.transforms.loops import while_loop

_STEPS = 20000  # where neither a series nor a fraction has converged it will not


def _special(name: str, f: Callable, doc: str, names: str) -> Callable:
    """`f` on floats of one shape and dtype, called by `names`; 16-bit floats are computed in
    float32."""

    @named(name, names, doc)
    def call(*operands: Any) -> Any:
        xs = arrays(name, operands, scalars=False)
        d = xs[0].aval.dtype
        if not dtypes.is_float(d):
            raise errors.DTypeError(
                f"{name} takes floats, got {xs[0].aval}\n  at {where().describe()}"
            )
        if d in (dtypes.F32, dtypes.F64):
            return f(*xs)
        return ops.convert(f(*[ops.convert(x, dtypes.F32) for x in xs]), d)

    return call


def _constant(x: Any, value: float) -> Any:
    return full(typeof(x).shape, value, typeof(x).dtype)


def _epsilon(x: Any) -> float:
    return float(dtypes.finfo(typeof(x).dtype).eps)


def _any(x: Any) -> Any:
    return reduce_or(x, tuple(range(typeof(x).ndim)))


def _apart(change: Any) -> Any:
    """Whether the last factor of a continued fraction still changed it by more than rounding. From
    then on it stays: factors that are rounded alike would move it, step by step, while other
    elements go on."""
    return ops.gt(ops.abs(ops.sub(change, 1.0)), 2 * _epsilon(change))


def _either(*conditions: Any) -> Any:
    found = conditions[0]
    for c in conditions[1:]:
        found = ops.bitwise_or(found, c)
    return found


# ---- incomplete gamma ----


def _lower_series(a: Any, x: Any) -> Any:
    """1 + x / (a+1) + x^2 / ((a+1)(a+2)) + ..., for x up to about a + 1."""
    eps = _epsilon(x) * 0.05

    def more(state: tuple) -> Any:
        n, _, term, total = state
        return ops.bitwise_and(ops.lt(n, _STEPS), _any(ops.gt(term, ops.mul(total, eps))))

    def step(state: tuple) -> tuple:
        n, below, term, total = state
        below = ops.add(below, 1.0)
        term = ops.mul(term, ops.div(x, below))
        return ops.add(n, 1), below, term, ops.add(total, term)

    one = _constant(x, 1.0)
    return while_loop(more, step, (full((), 0, dtypes.I32), a, one, one))[3]


def _upper_fraction(a: Any, x: Any) -> Any:
    """x^-a e^x Gamma(a, x) by Lentz's method, for x beyond a + 1 (Numerical Recipes 6.2)."""
    tiny = float(dtypes.finfo(typeof(x).dtype).tiny) / _epsilon(x)

    def away(v: Any) -> Any:
        return ops.select(ops.lt(ops.abs(v), tiny), tiny, v)

    def more(state: tuple) -> Any:
        return ops.bitwise_and(ops.lt(state[0], _STEPS), _any(_apart(state[5])))

    def step(state: tuple) -> tuple:
        n, b, c, d, h, before = state
        n = ops.add(n, 1)
        k = _spread(ops.convert(n, typeof(x).dtype), x)
        factor = ops.mul(k, ops.sub(a, k))
        b = ops.add(b, 2.0)
        d = ops.div(1.0, away(ops.add(ops.mul(factor, d), b)))
        c = away(ops.add(b, ops.div(factor, c)))
        change = ops.mul(c, d)
        return n, b, c, d, ops.select(_apart(before), ops.mul(h, change), h), change

    b = ops.sub(ops.add(x, 1.0), a)
    d = ops.div(1.0, b)
    start = (full((), 0, dtypes.I32), b, _constant(x, 1 / tiny), d, d, _constant(x, 0.0))
    return while_loop(more, step, start)[4]


def _spread(scalar: Any, like: Any) -> Any:
    return broadcast_in_dim(scalar, typeof(like).shape, ())


class _Regions:
    """Where each form of the incomplete gamma function is used, with operands safe for it."""

    def __init__(self, a: Any, x: Any) -> None:
        self.bad = _either(ops.lt(a, 0.0), ops.lt(x, 0.0), ops.ne(a, a), ops.ne(x, x))
        self.bad = _either(self.bad, ops.bitwise_and(ops.eq(a, 0.0), ops.eq(x, 0.0)))
        # All of gamma(0) is at 0.
        self.zero = ops.eq(x, 0.0)
        self.infinite = ops.bitwise_or(ops.eq(x, math.inf), ops.eq(a, 0.0))
        plain = _either(self.bad, self.zero, self.infinite)
        self.a = ops.select(plain, 1.0, a)
        self.x = ops.select(plain, 1.0, x)
        self.small = ops.le(self.x, ops.add(self.a, 1.0))
        self.below = ops.select(self.small, self.x, 0.0)
        self.above = ops.select(self.small, ops.add(self.a, 2.0), self.x)
        log = ops.sub(ops.mul(self.a, ops.log(self.x)), self.x)
        # x^a e^-x / Gamma(a)
        self.scale = ops.exp(ops.sub(log, ops.lgamma(self.a)))


def _igamma_both(a: Any, x: Any, upper: bool) -> Any:
    r = _Regions(a, x)
    low = ops.mul(ops.div(r.scale, r.a), _lower_series(r.a, r.below))
    high = ops.mul(r.scale, _upper_fraction(r.a, r.above))
    if upper:
        y = ops.select(r.small, ops.sub(1.0, low), high)
    else:
        y = ops.select(r.small, low, ops.sub(1.0, high))
    y = ops.select(r.zero, 1.0 if upper else 0.0, y)
    y = ops.select(r.infinite, 0.0 if upper else 1.0, y)
    return ops.select(r.bad, math.nan, y)


def _torch_gamma(f: Callable) -> Callable:
    def run(a: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        y = f(a, x)
        bad = (a < 0) | (x < 0) | ((a == 0) & (x == 0)) | (a != a) | (x != x)
        return [torch.where(bad, torch.nan, y)]

    # torch's float64 form is good to nine digits only; the reference to eleven.
    return lambda avals: run if avals[0].dtype == dtypes.F32 else None


@fused("igamma", rows=(True, True), precision="high", torch=_torch_gamma(torch.special.gammainc))
def _igamma(a: Any, x: Any) -> Any:
    return _igamma_both(a, x, False)


@fused("igammac", rows=(True, True), precision="high", torch=_torch_gamma(torch.special.gammaincc))
def _igammac(a: Any, x: Any) -> Any:
    return _igamma_both(a, x, True)


@fused("random_gamma_grad", rows=(True, True), precision="high")
def _gamma_grad(a: Any, x: Any) -> Any:
    """-(dP/da) / (dP/dx), with the factor x^a e^-x / Gamma(a) of both divided out."""
    r = _Regions(a, x)
    one = _constant(x, 1.0)
    low, dlow = jvp(lambda v: _lower_series(v, r.below), (r.a,), (one,))
    high, dhigh = jvp(lambda v: _upper_fraction(v, r.above), (r.a,), (one,))
    slope = ops.sub(ops.log(r.x), ops.digamma(r.a))
    lower = ops.div(ops.add(dlow, ops.mul(low, ops.sub(slope, ops.div(1.0, r.a)))), r.a)
    upper = ops.add(dhigh, ops.mul(high, slope))
    y = ops.mul(r.x, ops.select(r.small, ops.neg(lower), upper))
    return ops.select(r.bad, math.nan, ops.select(r.zero, 0.0, y))


def _density(a: Any, x: Any) -> Any:
    log = ops.sub(ops.mul(ops.sub(a, 1.0), ops.log(x)), x)
    return ops.exp(ops.sub(log, ops.lgamma(a)))


def _differentiable(f: Callable, sign: Callable) -> Callable:
    call = custom_jvp(f)

    @call.defjvp
    def rule(primals: tuple, tangents: tuple) -> tuple:
        (a, x), (da, dx) = primals, tangents
        change = ops.sub(dx, ops.mul(da, _gamma_grad(a, x)))
        return call(a, x), sign(ops.mul(change, _density(a, x)))

    return call


igamma = _special(
    "igamma", _differentiable(lambda a, x: _igamma(a, x), lambda t: t),
    "The regularized lower incomplete gamma function P(a, x).", "a x")  # fmt: skip
igammac = _special(
    "igammac", _differentiable(lambda a, x: _igammac(a, x), ops.neg),
    "The regularized upper incomplete gamma function Q(a, x) = 1 - P(a, x).", "a x")  # fmt: skip
random_gamma_grad = _special(
    "random_gamma_grad", lambda a, x: _gamma_grad(a, x),
    "The derivative by `a` of a gamma(a) variate of value x.", "a x")  # fmt: skip


# ---- incomplete beta ----


def _fraction_of_beta(a: Any, b: Any, x: Any) -> Any:
    """The continued fraction of I_x(a, b), by Lentz's method (Numerical Recipes 6.4)."""
    tiny = float(dtypes.finfo(typeof(x).dtype).tiny) / _epsilon(x)
    ab, above = ops.add(a, b), ops.add(a, 1.0)

    def away(v: Any) -> Any:
        return ops.select(ops.lt(ops.abs(v), tiny), tiny, v)

    def once(factor: Any, c: Any, d: Any) -> tuple[Any, Any]:
        d = ops.div(1.0, away(ops.add(ops.mul(factor, d), 1.0)))
        return away(ops.add(ops.div(factor, c), 1.0)), d

    def more(state: tuple) -> Any:
        return ops.bitwise_and(ops.lt(state[0], _STEPS), _any(_apart(state[4])))

    def step(state: tuple) -> tuple:
        n, c, d, h, before = state
        n = ops.add(n, 1)
        m = _spread(ops.convert(n, typeof(x).dtype), x)
        am = ops.add(a, ops.mul(m, 2.0))
        even = ops.mul(ops.mul(m, ops.sub(b, m)), x)
        even = ops.div(even, ops.mul(ops.sub(am, 1.0), am))
        c, d = once(even, c, d)
        h = ops.mul(h, ops.mul(c, d))
        odd = ops.mul(ops.mul(ops.add(a, m), ops.add(ab, m)), x)
        odd = ops.neg(ops.div(odd, ops.mul(am, ops.add(am, 1.0))))
        c, d = once(odd, c, d)
        change = ops.mul(c, d)
        return n, c, d, ops.select(_apart(before), ops.mul(h, change), h), change

    d = ops.div(1.0, away(ops.sub(1.0, ops.div(ops.mul(ab, x), above))))
    start = (full((), 0, dtypes.I32), _constant(x, 1.0), d, d, _constant(x, 0.0))
    return while_loop(more, step, start)[3]


# B_2k / (2k (2k - 1)), the coefficients of Stirling's series.
_STIRLING = (
    1 / 12,
    -1 / 360,
    1 / 1260,
    -1 / 1680,
    1 / 1188,
    -691 / 360360,
    1 / 156,
    -3617 / 122400,
)


def _stirling(x: Any) -> Any:
    """log(gamma(x)) - ((x - 1/2) log(x) - x + log(2 pi) / 2), for x of 10 and more."""
    r = ops.div(1.0, x)
    square = ops.mul(r, r)
    total = _constant(x, _STIRLING[-1])
    for c in _STIRLING[-2::-1]:
        total = ops.add(ops.mul(total, square), c)
    return ops.mul(total, r)


def log_beta(a: Any, b: Any) -> Any:
    """log |B(a, b)|, also where a + b, or the logarithms of their gamma functions, round off.

    For large operands log(gamma(b)) - log(gamma(a + b)) is rearranged, with Stirling's series for
    what is left, as in Didonato and Morris, "Algorithm 708" (1992).
    """
    first = ops.le(a, b)
    low, high = ops.select(first, a, b), ops.select(first, b, a)
    # The sum of the two stays large beside a negative one.
    large = ops.bitwise_and(ops.ge(high, 10.0), ops.gt(low, ops.mul(high, -0.5)))
    large = ops.bitwise_and(large, ops.ge(ops.add(low, high), 10.0))
    large = ops.bitwise_and(large, ops.lt(high, math.inf))
    both = ops.bitwise_and(large, ops.ge(low, 10.0))
    one = ops.bitwise_and(large, ops.lt(low, 10.0))

    plain = [ops.select(large, 1.0, v) for v in (low, high)]
    y = ops.sub(ops.add(*map(ops.lgamma, plain)), ops.lgamma(ops.add(*plain)))
    # gamma(0) is infinite, and so is the quotient of two.
    y = ops.select(ops.bitwise_and(ops.eq(plain[0], 0.0), ops.eq(plain[1], 0.0)), math.inf, y)

    p, q = ops.select(one, low, 1.0), ops.select(large, high, 10.0)
    less = ops.sub(_stirling(q), _stirling(ops.add(p, q)))
    gap = ops.mul(ops.add(q, ops.sub(p, 0.5)), ops.log1p(ops.div(p, q)))
    rest = ops.add(gap, ops.mul(p, ops.sub(ops.log(q), 1.0)))
    y = ops.select(one, ops.sub(ops.add(ops.lgamma(p), less), rest), y)

    p = ops.select(both, low, 10.0)
    ratio = ops.div(p, q)
    correction = ops.add(_stirling(p), ops.sub(_stirling(q), _stirling(ops.add(p, q))))
    share = ops.log(ops.div(ratio, ops.add(ratio, 1.0)))
    total = ops.sub(ops.mul(ops.sub(p, 0.5), share), ops.mul(q, ops.log1p(ratio)))
    total = ops.add(total, ops.mul(ops.sub(math.log(2 * math.pi), ops.log(q)), 0.5))
    y = ops.select(both, ops.add(total, correction), y)
    endless = ops.bitwise_and(ops.eq(high, math.inf), ops.gt(low, 0.0))
    endless = ops.bitwise_and(endless, ops.lt(low, math.inf))
    return ops.select(endless, -math.inf, y)


@fused("betainc", rows=(True, True, True), precision="high")
def _betainc(a: Any, b: Any, x: Any) -> Any:
    inside = ops.bitwise_and(ops.gt(x, 0.0), ops.lt(x, 1.0))
    bad = _either(ops.lt(a, 0.0), ops.lt(b, 0.0), ops.lt(x, 0.0), ops.gt(x, 1.0))
    bad = _either(bad, ops.ne(a, a), ops.ne(b, b), ops.ne(x, x))
    # All of the distribution is at 0, or at 1; of both at once there is no distribution.
    low = ops.bitwise_or(ops.eq(a, 0.0), ops.eq(b, math.inf))
    high = ops.bitwise_or(ops.eq(b, 0.0), ops.eq(a, math.inf))
    bad = _either(bad, ops.bitwise_and(ops.eq(a, b), ops.bitwise_or(low, high)))
    plain = _either(bad, ops.bitwise_not(inside), low, high)
    p, q, z = [ops.select(plain, v, u) for u, v in ((a, 1.0), (b, 1.0), (x, 0.5))]
    # The fraction converges fast up to about the mean; beyond it I_x(a, b) = 1 - I_(1-x)(b, a).
    other = ops.gt(z, ops.div(ops.add(p, 1.0), ops.add(ops.add(p, q), 2.0)))
    scale = ops.add(ops.mul(p, ops.log(z)), ops.mul(q, ops.log1p(ops.neg(z))))
    scale = ops.exp(ops.sub(scale, log_beta(p, q)))
    first, second = ops.select(other, q, p), ops.select(other, p, q)
    z = ops.select(other, ops.sub(1.0, z), z)
    y = ops.div(ops.mul(scale, _fraction_of_beta(first, second, z)), first)
    y = ops.select(other, ops.sub(1.0, y), y)
    y = ops.select(low, 1.0, ops.select(high, 0.0, y))
    y = ops.select(inside, y, ops.convert(ops.ge(x, 1.0), typeof(x).dtype))
    return ops.select(bad, math.nan, y)


@custom_jvp
def _betainc_smooth(a: Any, b: Any, x: Any) -> Any:
    return _betainc(a, b, x)


@_betainc_smooth.defjvp
def _betainc_rule(primals: tuple, tangents: tuple) -> tuple:
    a, b, x = primals
    log = ops.mul(ops.sub(b, 1.0), ops.log1p(ops.neg(x)))
    log = ops.add(log, ops.mul(ops.sub(a, 1.0), ops.log(x)))
    change = ops.mul(tangents[2], ops.exp(ops.sub(log, log_beta(a, b))))
    one, none = _constant(x, 1.0), _constant(x, 0.0)
    for t, direction in zip(tangents, ((one, none), (none, one))):
        _, slope = jvp(lambda p, q: _betainc.reference(p, q, x), (a, b), direction)
        change = ops.add(change, ops.mul(t, slope))
    return _betainc_smooth(a, b, x), change


betainc = _special(
    "betainc", lambda a, b, x: _betainc_smooth(a, b, x),
    "The regularized incomplete beta function I_x(a, b).", "a b x")  # fmt: skip


# ---- Bessel ----


def _scaled_bessel(x: Any, order: int) -> Any:
    """exp(-|x|) I_order(|x|): the trapezoidal rule on the integral over a period, which converges
    geometrically up to 50, and beyond it the asymptotic series (Abramowitz and Stegun 9.7.1)."""
    z = ops.abs(x)
    far = ops.gt(z, 50.0)
    near = ops.select(far, 50.0, z)
    count = 40
    total = None
    for k in range(count + 1):
        cosine = math.cos(math.pi * k / count)
        weight = (0.5 if k in (0, count) else 1.0) / count * (cosine if order else 1.0)
        term = ops.mul(ops.exp(ops.mul(near, cosine - 1.0)), weight)
        total = term if total is None else ops.add(total, term)
    if order:  # the sum cancels near 0: there by the power series
        quarter = ops.mul(ops.mul(near, near), 0.25)
        small = ops.lt(near, 1.0)
        quarter = ops.select(small, quarter, 0.0)
        series = _constant(x, 1.0)
        for k in range(12, 0, -1):
            series = ops.add(ops.mul(ops.mul(series, quarter), 1.0 / (k * (k + 1))), 1.0)
        series = ops.mul(ops.mul(series, ops.mul(near, 0.5)), ops.exp(ops.neg(near)))
        total = ops.select(small, series, total)
    away = ops.select(far, z, 50.0)
    tail = _constant(x, 1.0)
    for k in range(16, 0, -1):
        factor = ((2 * k - 1) ** 2 - 4 * order * order) / (8.0 * k)
        tail = ops.add(ops.mul(ops.div(tail, away), factor), 1.0)
    tail = ops.mul(tail, ops.rsqrt(ops.mul(away, 2 * math.pi)))
    y = ops.select(far, tail, total)
    return ops.mul(y, ops.sign(x)) if order else y


@fused("bessel_i0e", rows=(True,), precision="high",
       torch=lambda avals: lambda x: [torch.special.i0e(x)])  # fmt: skip
def _i0e(x: Any) -> Any:
    return _scaled_bessel(x, 0)


@fused("bessel_i1e", rows=(True,), precision="high",
       torch=lambda avals: lambda x: [torch.special.i1e(x)])  # fmt: skip
def _i1e(x: Any) -> Any:
    return _scaled_bessel(x, 1)


@custom_jvp
def _bessel_i0e(x: Any) -> Any:
    return _i0e(x)


@custom_jvp
def _bessel_i1e(x: Any) -> Any:
    return _i1e(x)


@_bessel_i0e.defjvp
def _bessel_i0e_rule(primals: tuple, tangents: tuple) -> tuple:
    (x,) = primals
    y = _bessel_i0e(x)
    slope = ops.sub(_bessel_i1e(x), ops.mul(ops.sign(x), y))
    return y, ops.mul(tangents[0], slope)


@_bessel_i1e.defjvp
def _bessel_i1e_rule(primals: tuple, tangents: tuple) -> tuple:
    (x,) = primals
    y = _bessel_i1e(x)
    zero = ops.eq(x, 0.0)
    safe = ops.select(zero, 1.0, x)
    slope = ops.sub(_bessel_i0e(x), ops.mul(y, ops.add(ops.sign(x), ops.div(1.0, safe))))
    return y, ops.mul(tangents[0], ops.select(zero, 0.5, slope))


bessel_i0e = _special("bessel_i0e", _bessel_i0e, "exp(-|x|) I_0(x).", "x")
bessel_i1e = _special("bessel_i1e", _bessel_i1e, "exp(-|x|) I_1(x).", "x")


# ---- zeta ----

# B_2j / (2j)! for j = 1, 2, ...
_BERNOULLI = [
    b / math.factorial(2 * j)
    for j, b in enumerate(
        (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798), 1
    )
]


@fused("zeta", rows=(True, True), precision="high",
       torch=lambda avals: lambda x, q: [torch.special.zeta(x, q)])  # fmt: skip
def _zeta(x: Any, q: Any) -> Any:
    """The sum of (q + k)^-x over k >= 0, by Euler and Maclaurin from the ninth term on."""
    bad = _either(ops.lt(x, 1.0), ops.le(q, 0.0), ops.ne(x, x), ops.ne(q, q))
    pole = ops.bitwise_or(ops.eq(x, 1.0), ops.bitwise_and(ops.eq(q, ops.floor(q)), ops.le(q, 0.0)))
    plain = ops.bitwise_or(bad, pole)
    s, q0 = ops.select(plain, 2.0, x), ops.select(plain, 1.0, q)
    count = 9
    power = lambda v: ops.exp(ops.neg(ops.mul(s, ops.log(v))))  # noqa: E731
    total = power(q0)
    for k in range(1, count):
        total = ops.add(total, power(ops.add(q0, float(k))))
    end = ops.add(q0, float(count))
    last = power(end)
    total = ops.add(total, ops.div(ops.mul(last, end), ops.sub(s, 1.0)))
    total = ops.add(total, ops.mul(last, 0.5))
    rising, term = s, ops.div(last, end)
    for j, b in enumerate(_BERNOULLI):
        total = ops.add(total, ops.mul(ops.mul(rising, term), b))
        rising = ops.mul(rising, ops.mul(ops.add(s, 2.0 * j + 1), ops.add(s, 2.0 * j + 2)))
        term = ops.div(term, ops.mul(end, end))
    y = ops.select(bad, math.nan, total)
    return ops.select(ops.bitwise_and(pole, ops.ge(x, 1.0)), math.inf, y)


zeta = _special(
    "zeta", lambda x, q: _zeta(x, q),
    "The Hurwitz zeta function: the sum of (q + k)^-x over k >= 0.", "x q")  # fmt: skip

__all__ = [
    "bessel_i0e", "bessel_i1e", "betainc", "igamma", "igammac", "random_gamma_grad", "zeta",
]  # fmt: skip
