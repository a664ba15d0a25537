"""Incomplete gamma and beta functions, Bessel functions, the Hurwitz zeta function; elementwise.

On the CPU values come from torch.special where it has them; the references, series and continued
fractions over primitives, serve everywhere else and give the derivatives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.operands import arrays, named
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.reductions.reduce import reduce_or
from genesis_fn.primitives.shape import broadcast_in_dim
from genesis_fn.transforms.autodiff.derivatives import jvp
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.custom.derivative_rules import custom_jvp
from genesis_fn.transforms.custom.fused_functions import fused

_STEPS = 20000  # a series or fraction that has not converged by then will not


class UnarySpecial(Protocol):
    """A special function of one operand."""

    def __call__(self, x: ArrayLike) -> Array:
        """The result for `x`, in its shape and dtype."""
        ...


class GammaFunction(Protocol):
    """A special function of a gamma distribution's shape `a` and of a value `x`."""

    def __call__(self, a: ArrayLike, x: ArrayLike) -> Array:
        """The result for `a` and `x`, in their shape and dtype."""
        ...


class BetaFunction(Protocol):
    """A special function of a beta distribution's `a` and `b` and of a value `x`."""

    def __call__(self, a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
        """The result for the operands, in their shape and dtype."""
        ...


class ZetaFunction(Protocol):
    """The Hurwitz zeta function of an exponent `x` and a first base `q`."""

    def __call__(self, x: ArrayLike, q: ArrayLike) -> Array:
        """The result for `x` and `q`, in their shape and dtype."""
        ...


def _special(name: str, f: Callable[..., Any], doc: str, names: str) -> Any:
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


def _constant(x: Any, value: float) -> Array:
    return full(typeof(x).shape, value, typeof(x).dtype)


def _epsilon(x: Any) -> float:
    return float(dtypes.finfo(typeof(x).dtype).eps)


def _any(x: Any) -> Array:
    return reduce_or(x, tuple(range(typeof(x).ndim)))


def _still_changing(change: Any) -> Array:
    """Whether the last factor of a continued fraction still changed it by more than rounding. From
    then on it stays: factors that are rounded alike would move it, step by step, while other
    elements go on."""
    return ops.gt(ops.abs(ops.sub(change, 1.0)), 2 * _epsilon(change))


def _either(*conditions: Any) -> Array:
    found = conditions[0]
    for c in conditions[1:]:
        found = ops.bitwise_or(found, c)
    return found


# ---- incomplete gamma ----


@custom_jvp
def _lower_series(a: Any, x: Any) -> Array:
    """1 + x / (a+1) + x^2 / ((a+1)(a+2)) + ..., for x up to about a + 1."""
    return _summed(a, x, None)[0]


@_lower_series.defjvp
def _lower_series_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    # Each term's derivative by x is one of the terms before it, so only that by `a` needs a loop.
    (a, x), (da, dx) = primals, tangents
    total, by_a = _summed(a, x, _constant(a, 1.0))
    zero = ops.eq(x, 0.0)
    shift = ops.sub(total, ops.div(ops.mul(ops.sub(total, 1.0), a), ops.select(zero, 1.0, x)))
    by_x = ops.select(zero, ops.div(1.0, ops.add(a, 1.0)), shift)
    return total, ops.add(ops.mul(da, by_a), ops.mul(dx, by_x))


def _summed(a: Any, x: Any, one: Any) -> tuple[Any, Any]:
    """(the series, with `one` its derivative by `a`), until both have converged."""
    eps = _epsilon(x) * 0.05

    def left(term: Any, total: Any) -> Array:
        return ops.gt(ops.abs(term), ops.mul(ops.abs(total), eps))

    def more(state: tuple[Any, ...]) -> Array:
        n, _, *sums = state
        unfinished = _either(*[left(*pair) for pair in sums])
        return ops.bitwise_and(ops.lt(n, _STEPS), _any(unfinished))

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        n, below, (term, total), *slope = state
        below = ops.add(below, 1.0)
        ratio = ops.div(x, below)
        following = ops.mul(term, ratio)
        sums = [(following, ops.add(total, following))]
        if slope:
            ((rate, rates),) = slope
            rate = ops.sub(ops.mul(rate, ratio), ops.div(following, below))
            sums.append((rate, ops.add(rates, rate)))
        return ops.add(n, 1), below, *sums

    first, none = _constant(x, 1.0), _constant(x, 0.0)
    sums = [(first, first)] if one is None else [(first, first), (none, none)]
    end = while_loop(more, step, (full((), 0, dtypes.I32), a, *sums))
    return end[2][1], None if one is None else end[3][1]


def _bounded_away(v: Any) -> Array:
    """`v`, with a tiny number instead of those that are smaller."""
    tiny = float(dtypes.finfo(typeof(v).dtype).tiny) / _epsilon(v)
    return ops.select(ops.lt(ops.abs(v), tiny), tiny, v)


def _lentz(begin: Callable[..., Any], step: Callable[..., Any], operands: tuple[Any, ...]) -> Array:
    """A continued fraction by Lentz's method: `begin(*operands)` is (state, value), and
    `step(k, state, *operands)` (state, factor), until no factor changes the value."""

    def more(state: tuple[Any, ...]) -> Array:
        return ops.bitwise_and(ops.lt(state[0], _STEPS), _any(_still_changing(state[3])))

    def following(state: tuple[Any, ...]) -> tuple[Any, ...]:
        n, inner, h, before = state
        n = ops.add(n, 1)
        inner, change = step(_broadcast(ops.convert(n, typeof(h).dtype), h), inner, *operands)
        return n, inner, ops.select(_still_changing(before), ops.mul(h, change), h), change

    inner, h = begin(*operands)
    start = (full((), 0, dtypes.I32), inner, h, _constant(h, 0.0))
    _, _, h, last = while_loop(more, following, start)
    return ops.select(_still_changing(last), math.nan, h)  # what has not converged is not a value


def _lentz_slope(
    begin: Callable[..., Any],
    step: Callable[..., Any],
    operands: tuple[Any, ...],
    direction: tuple[Any, ...],
) -> tuple[Any, ...]:
    """(the fraction, its derivative), until both have converged: a fraction that ends, as those of
    integer parameters do, has a derivative that does not."""

    def apart(factor: Any, slope: Any) -> Array:
        return ops.bitwise_or(_still_changing(factor), ops.gt(ops.abs(slope), 2 * _epsilon(slope)))

    def more(state: tuple[Any, ...]) -> Array:
        return ops.bitwise_and(ops.lt(state[0], _STEPS), _any(apart(*state[5:])))

    def following(state: tuple[Any, ...]) -> tuple[Any, ...]:
        n, inner, t_inner, h, dh, *before = state
        n = ops.add(n, 1)
        k = _broadcast(ops.convert(n, typeof(h).dtype), h)
        (inner, change), (t_inner, slope) = jvp(
            lambda inner, *xs: step(k, inner, *xs), (inner, *operands), (t_inner, *direction)
        )
        go_on = apart(*before)
        dh = ops.select(go_on, ops.add(ops.mul(dh, change), ops.mul(h, slope)), dh)
        h = ops.select(go_on, ops.mul(h, change), h)
        return n, inner, t_inner, h, dh, change, slope

    (inner, h), (t_inner, dh) = jvp(begin, operands, direction)
    zero = _constant(h, 0.0)
    start = (full((), 0, dtypes.I32), inner, t_inner, h, dh, zero, zero)
    _, _, _, h, dh, *last = while_loop(more, following, start)
    open_ = apart(*last)
    return ops.select(open_, math.nan, h), ops.select(open_, math.nan, dh)


def _upper_begin(a: Any, x: Any) -> tuple[Any, ...]:
    b = ops.sub(ops.add(x, 1.0), a)
    d = ops.div(1.0, b)
    tiny = float(dtypes.finfo(typeof(x).dtype).tiny) / _epsilon(x)
    return (b, _constant(x, 1 / tiny), d), d


def _upper_step(k: Any, state: tuple[Any, ...], a: Any, x: Any) -> tuple[Any, ...]:
    b, c, d = state
    factor = ops.mul(k, ops.sub(a, k))
    b = ops.add(b, 2.0)
    d = ops.div(1.0, _bounded_away(ops.add(ops.mul(factor, d), b)))
    c = _bounded_away(ops.add(b, ops.div(factor, c)))
    return (b, c, d), ops.mul(c, d)


@custom_jvp
def upper_fraction(a: Any, x: Any) -> Array:
    """x^-a e^x Gamma(a, x), for x beyond a + 1 (Numerical Recipes 6.2)."""
    return _lentz(_upper_begin, _upper_step, (a, x))


@upper_fraction.defjvp
def _upper_fraction_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    return _lentz_slope(_upper_begin, _upper_step, primals, tangents)


def _broadcast(scalar: Any, like: Any) -> Array:
    return broadcast_in_dim(scalar, typeof(like).shape, ())


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


def _stirling(x: Any) -> Array:
    """log(gamma(x)) - ((x - 1/2) log(x) - x + log(2 pi) / 2), for x of 10 and more."""
    r = ops.div(1.0, x)
    square = ops.mul(r, r)
    total = _constant(x, _STIRLING[-1])
    for c in _STIRLING[-2::-1]:
        total = ops.add(ops.mul(total, square), c)
    return ops.mul(total, r)


# Where the incomplete gamma functions are those of a normal distribution, nearly.
_LARGE, _NEAR = 200.0, 0.1


@functools.cache
def _temme() -> list[list[float]]:
    """Coefficients by eta of the functions c_k of Temme's expansion, from their recurrence (DLMF
    8.12.11): c_k = c_(k-1)' / eta + (-1)^k g_k / mu, where mu - log(1 + mu) = eta^2 / 2."""
    orders, terms = 5, 12
    count = terms + 2 * orders + 3
    mu = [0.0, 1.0]  # by powers of eta: mu mu' = eta (1 + mu)
    for n in range(2, count + 1):
        products = math.fsum([mu[i] * (n + 1 - i) * mu[n + 1 - i] for i in range(2, n)])
        mu.append((mu[n - 1] - products) / (n + 1))
    inverse = [1.0]  # of eta / mu
    for n in range(1, count):
        inverse.append(-math.fsum([mu[i + 1] * inverse[n - i] for i in range(1, n + 1)]))
    g = (1.0, 1 / 12, 1 / 288, -139 / 51840, -571 / 2488320)  # of Stirling's series for gamma
    c = inverse[1:]
    rows = [c[:terms]]
    for k in range(1, orders):
        sign = (-1) ** k * g[k]
        c = [(n + 2) * c[n + 2] + sign * inverse[n + 1] for n in range(len(c) - 2)]
        rows.append(c[:terms])
    return rows


def _polynomial(x: Any, coefficients: Sequence[float]) -> Array:
    total = _constant(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = ops.add(ops.mul(total, x), c)
    return total


def _transition(a: Any, x: Any) -> tuple[Any, Any]:
    """(s, t) with P(a, x) = erfc(-s) / 2 - exp(-s^2) t and Q(a, x) = erfc(s) / 2 + exp(-s^2) t, for
    large `a` and `x` near it: Temme, "The asymptotic expansion of the incomplete gamma functions"
    (1979)."""
    mu = ops.div(ops.sub(x, a), a)
    # (mu - log(1 + mu)) / mu^2, which has a root without cancellation
    series = _polynomial(ops.neg(mu), [1 / (k + 2) for k in range(18)])
    eta = ops.mul(mu, ops.sqrt(ops.mul(series, 2.0)))
    s = ops.mul(eta, ops.sqrt(ops.mul(a, 0.5)))
    parts = [_polynomial(eta, row) for row in _temme()]
    total = parts[-1]
    for part in parts[-2::-1]:
        total = ops.add(ops.div(total, a), part)
    return s, ops.div(total, ops.sqrt(ops.mul(a, 2 * math.pi)))


def _log_density(a: Any, x: Any, power: Any) -> Array:
    """log(x^power a^(a - power) ... ): log of x^a e^-x / Gamma(a), with `power` in the place of the
    exponent `a` of x / a, by Stirling's series where `a` is large: there the terms cancel."""
    # 0^0 is 1.
    base = ops.select(_both_zero(power, x), 1.0, x)
    plain = ops.sub(ops.sub(ops.mul(power, ops.log(base)), x), ops.lgamma(a))
    large = ops.ge(a, 10.0)
    b = ops.select(large, a, 10.0)
    mu = ops.div(ops.sub(x, b), b)
    near = ops.lt(ops.abs(mu), 0.5)
    ratio = ops.log1p(ops.select(near, mu, 0.0))
    ratio = ops.select(near, ratio, ops.log(ops.div(x, b)))
    log = ops.sub(ops.mul(ops.add(power, ops.sub(b, a)), ratio), ops.mul(b, mu))
    log = ops.add(log, ops.mul(ops.log(ops.mul(b, 1 / (2 * math.pi))), 0.5))
    log = ops.add(log, ops.mul(ops.sub(power, a), ops.log(b)))
    return ops.select(large, ops.sub(log, _stirling(b)), plain)


def _both_zero(x: Any, y: Any) -> Array:
    return ops.bitwise_and(ops.eq(x, 0.0), ops.eq(y, 0.0))


class _Regions:
    """Where each form of the incomplete gamma function is used, with operands safe for it."""

    def __init__(self, a: Any, x: Any) -> None:
        self.bad = _either(ops.lt(a, 0.0), ops.lt(x, 0.0), ops.ne(a, a), ops.ne(x, x))
        self.bad = _either(self.bad, ops.bitwise_and(ops.eq(a, 0.0), ops.eq(x, 0.0)))
        both = ops.bitwise_and(ops.eq(a, math.inf), ops.eq(x, math.inf))
        self.bad = ops.bitwise_or(self.bad, both)
        # The distribution of shape 0 is concentrated at 0, that of infinite shape at infinity.
        self.zero = ops.bitwise_or(ops.eq(x, 0.0), ops.eq(a, math.inf))
        self.infinite = ops.bitwise_or(ops.eq(x, math.inf), ops.eq(a, 0.0))
        plain = _either(self.bad, self.zero, self.infinite)
        self.a = ops.select(plain, 1.0, a)
        self.x = ops.select(plain, 1.0, x)
        apart = ops.abs(ops.sub(self.x, self.a))
        self.near = ops.bitwise_and(ops.ge(self.a, _LARGE), ops.lt(apart, ops.mul(self.a, _NEAR)))
        self.small = ops.le(self.x, ops.add(self.a, 1.0))
        self.below = ops.select(ops.bitwise_or(self.near, ops.bitwise_not(self.small)), 0.0, self.x)
        other = ops.bitwise_or(self.near, self.small)
        self.above = ops.select(other, 3.0, self.x), ops.select(other, 1.0, self.a)
        self.middle = ops.select(self.near, self.a, 1e3), ops.select(self.near, self.x, 1e3)
        # x^a e^-x / Gamma(a)
        self.scale = ops.exp(_log_density(self.a, self.x, self.a))


def _igamma_both(a: Any, x: Any, upper: bool) -> Array:
    r = _Regions(a, x)
    low = ops.mul(ops.div(r.scale, r.a), _lower_series(r.a, r.below))
    beyond, above = r.above
    high = ops.mul(r.scale, upper_fraction(above, beyond))
    s, t = _transition(*r.middle)
    tail = ops.mul(ops.exp(ops.neg(ops.mul(s, s))), t)
    half = ops.mul(ops.erfc(s if upper else ops.neg(s)), 0.5)
    if upper:
        y = ops.select(r.small, ops.sub(1.0, low), high)
        y = ops.select(r.near, ops.add(half, tail), y)
    else:
        y = ops.select(r.small, low, ops.sub(1.0, high))
        y = ops.select(r.near, ops.sub(half, tail), y)
    y = ops.select(r.zero, 1.0 if upper else 0.0, y)
    y = ops.select(r.infinite, 0.0 if upper else 1.0, y)
    return ops.select(r.bad, math.nan, y)


@fused("igamma", rows=(True, True), precision="high")
def _igamma(a: Any, x: Any) -> Array:
    return _igamma_both(a, x, False)


@fused("igammac", rows=(True, True), precision="high")
def _igammac(a: Any, x: Any) -> Array:
    return _igamma_both(a, x, True)


@fused("random_gamma_grad", rows=(True, True), precision="high")
def _gamma_grad(a: Any, x: Any) -> Array:
    """-(dP/da) / (dP/dx), with the factor x^a e^-x / Gamma(a) of both divided out."""
    r = _Regions(a, x)
    one = _constant(x, 1.0)
    low, dlow = jvp(lambda v: _lower_series(v, r.below), (r.a,), (one,))
    beyond, above = r.above
    high, dhigh = jvp(lambda v: upper_fraction(v, beyond), (above,), (one,))
    slope = ops.sub(ops.log(r.x), ops.digamma(r.a))
    lower = ops.div(ops.add(dlow, ops.mul(low, ops.sub(slope, ops.div(1.0, r.a)))), r.a)
    upper = ops.add(dhigh, ops.mul(high, slope))
    y = ops.mul(r.x, ops.select(r.small, ops.neg(lower), upper))
    y = ops.select(r.near, _transition_grad(*r.middle), y)
    return ops.select(r.bad, math.nan, ops.select(r.zero, 0.0, y))


def _transition_grad(a: Any, x: Any) -> Array:
    """-(dP/da) / (dP/dx) of `_transition`, with the factor exp(-s^2) of both divided out."""

    def change(da: float, dx: float) -> Array:
        (s, t), (ds, dt) = jvp(_transition, (a, x), (_constant(a, da), _constant(x, dx)))
        rate = ops.add(ops.mul(ops.mul(s, t), 2.0), 1 / math.sqrt(math.pi))
        return ops.sub(ops.mul(rate, ds), dt)

    return ops.neg(ops.div(change(1.0, 0.0), change(0.0, 1.0)))


def _density(a: Any, x: Any) -> Array:
    return ops.exp(_log_density(a, x, ops.sub(a, 1.0)))


def _differentiable(f: Callable[..., Any], sign: Callable[..., Any]) -> Callable[..., Any]:
    call = custom_jvp(f)

    @call.defjvp
    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
        (a, x), (da, dx) = primals, tangents
        density = _density(a, x)
        # At x = 0, where the density may be infinite, nothing depends on a.
        slope = ops.select(ops.eq(x, 0.0), 0.0, ops.mul(_gamma_grad(a, x), density))
        return call(a, x), sign(ops.sub(ops.mul(dx, density), ops.mul(da, slope)))

    return call


igamma: GammaFunction = _special(
    "igamma",
    _differentiable(lambda a, x: _igamma(a, x), lambda t: t),
    "The regularized lower incomplete gamma function P(a, x).",
    "a x",
)
igammac: GammaFunction = _special(
    "igammac",
    _differentiable(lambda a, x: _igammac(a, x), ops.neg),
    "The regularized upper incomplete gamma function Q(a, x) = 1 - P(a, x).",
    "a x",
)
igamma_grad_a: GammaFunction = _special(
    "igamma_grad_a",
    lambda a, x: ops.neg(ops.mul(_gamma_grad(a, x), _density(a, x))),
    "The derivative by `a` of igamma(a, x).",
    "a x",
)
random_gamma_grad: GammaFunction = _special(
    "random_gamma_grad",
    lambda a, x: _gamma_grad(a, x),
    "The derivative by `a` of a gamma(a) variate of value x.",
    "a x",
)


# ---- incomplete beta ----


def _beta_begin(a: Any, b: Any, x: Any) -> tuple[Any, ...]:
    ab, above = ops.add(a, b), ops.add(a, 1.0)
    d = ops.div(1.0, _bounded_away(ops.sub(1.0, ops.div(ops.mul(ab, x), above))))
    return (_constant(x, 1.0), d), d


def _beta_step(m: Any, state: tuple[Any, ...], a: Any, b: Any, x: Any) -> tuple[Any, ...]:
    def once(factor: Any, c: Any, d: Any) -> tuple[Any, Any]:
        d = ops.div(1.0, _bounded_away(ops.add(ops.mul(factor, d), 1.0)))
        return _bounded_away(ops.add(ops.div(factor, c), 1.0)), d

    c, d = state
    ab, am = ops.add(a, b), ops.add(a, ops.mul(m, 2.0))
    even = ops.mul(ops.mul(m, ops.sub(b, m)), x)
    even = ops.div(even, ops.mul(ops.sub(am, 1.0), am))
    c, d = once(even, c, d)
    first = ops.mul(c, d)
    odd = ops.mul(ops.mul(ops.add(a, m), ops.add(ab, m)), x)
    odd = ops.neg(ops.div(odd, ops.mul(am, ops.add(am, 1.0))))
    c, d = once(odd, c, d)
    return (c, d), ops.mul(first, ops.mul(c, d))


@custom_jvp
def _fraction_of_beta(a: Any, b: Any, x: Any) -> Array:
    """The continued fraction of I_x(a, b) (Numerical Recipes 6.4)."""
    return _lentz(_beta_begin, _beta_step, (a, b, x))


@_fraction_of_beta.defjvp
def _fraction_of_beta_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    return _lentz_slope(_beta_begin, _beta_step, primals, tangents)


def log_beta(a: Array, b: Array) -> Array:
    """log |B(a, b)|, also where a + b, or the logarithms of their gamma functions, round off.

    For large operands log(gamma(b)) - log(gamma(a + b)) is rearranged, with Stirling's series for
    the remainder, as in Didonato and Morris, "Algorithm 708" (1992).
    """
    first = ops.le(a, b)
    low, high = ops.select(first, a, b), ops.select(first, b, a)
    # Also where the smaller is negative but the sum stays large.
    large = ops.bitwise_and(ops.ge(high, 10.0), ops.gt(low, ops.mul(high, -0.5)))
    large = ops.bitwise_and(large, ops.ge(ops.add(low, high), 10.0))
    large = ops.bitwise_and(large, ops.lt(high, math.inf))
    both = ops.bitwise_and(large, ops.ge(low, 10.0))
    one = ops.bitwise_and(large, ops.lt(low, 10.0))

    plain = [ops.select(large, 1.0, v) for v in (low, high)]
    y = ops.sub(ops.add(*map(ops.lgamma, plain)), ops.lgamma(ops.add(*plain)))
    # gamma(0) is infinite, and so is gamma(0) gamma(0) / gamma(0).
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
def _betainc(a: Any, b: Any, x: Any) -> Array:
    inside = ops.bitwise_and(ops.gt(x, 0.0), ops.lt(x, 1.0))
    bad = _either(ops.lt(a, 0.0), ops.lt(b, 0.0), ops.lt(x, 0.0), ops.gt(x, 1.0))
    bad = _either(bad, ops.ne(a, a), ops.ne(b, b), ops.ne(x, x))
    # `low`, `high`: the distribution is concentrated at 0, at 1. Where both hold there is none.
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
def _betainc_smooth(a: Any, b: Any, x: Any) -> Array:
    return _betainc(a, b, x)


@_betainc_smooth.defjvp
def _betainc_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    a, b, x = primals
    above, below = ops.sub(b, 1.0), ops.sub(a, 1.0)
    log = ops.mul(above, ops.log1p(ops.select(_both_zero(above, ops.sub(1.0, x)), 0.0, ops.neg(x))))
    log = ops.add(log, ops.mul(below, ops.log(ops.select(_both_zero(below, x), 1.0, x))))
    change = ops.mul(tangents[2], ops.exp(ops.sub(log, log_beta(a, b))))
    one, none = _constant(x, 1.0), _constant(x, 0.0)
    for t, direction in zip(tangents, ((one, none), (none, one))):
        _, slope = jvp(lambda p, q: _betainc.reference(p, q, x), (a, b), direction)
        change = ops.add(change, ops.mul(t, slope))
    return _betainc_smooth(a, b, x), change


betainc: BetaFunction = _special(
    "betainc",
    lambda a, b, x: _betainc_smooth(a, b, x),
    "The regularized incomplete beta function I_x(a, b).",
    "a b x",
)


# ---- Bessel ----


def _scaled_bessel(x: Any, order: int) -> Array:
    """exp(-|x|) I_order(|x|): the trapezoidal rule on the integral over a period, which converges
    geometrically up to 50, and beyond it the asymptotic series (Abramowitz and Stegun 9.7.1)."""
    z = ops.abs(x)
    far = ops.gt(z, 50.0)
    near = ops.select(far, 50.0, z)
    count = 40
    total: Any = None
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


@fused("bessel_i0e", rows=(True,), precision="high")
def _i0e(x: Any) -> Array:
    return _scaled_bessel(x, 0)


@fused("bessel_i1e", rows=(True,), precision="high")
def _i1e(x: Any) -> Array:
    return _scaled_bessel(x, 1)


@custom_jvp
def _bessel_i0e(x: Any) -> Array:
    return _i0e(x)


@custom_jvp
def _bessel_i1e(x: Any) -> Array:
    return _i1e(x)


@_bessel_i0e.defjvp
def _bessel_i0e_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    (x,) = primals
    y = _bessel_i0e(x)
    slope = ops.sub(_bessel_i1e(x), ops.mul(ops.sign(x), y))
    return y, ops.mul(tangents[0], slope)


@_bessel_i1e.defjvp
def _bessel_i1e_rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    (x,) = primals
    y = _bessel_i1e(x)
    zero = ops.eq(x, 0.0)
    safe = ops.select(zero, 1.0, x)
    slope = ops.sub(_bessel_i0e(x), ops.mul(y, ops.add(ops.sign(x), ops.div(1.0, safe))))
    return y, ops.mul(tangents[0], ops.select(zero, 0.5, slope))


bessel_i0e: UnarySpecial = _special("bessel_i0e", _bessel_i0e, "exp(-|x|) I_0(x).", "x")
bessel_i1e: UnarySpecial = _special("bessel_i1e", _bessel_i1e, "exp(-|x|) I_1(x).", "x")


# ---- zeta ----

# B_2j / (2j)! for j = 1, 2, ...
_BERNOULLI = [
    b / math.factorial(2 * j)
    for j, b in enumerate(
        (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798), 1
    )
]


_FAR = 1e8  # from here on two terms of the expansion in 1 / q are enough


@fused("zeta", rows=(True, True), precision="high")
def _zeta(x: Any, q: Any) -> Array:
    """The sum of (q + k)^-x over k >= 0, by Euler and Maclaurin from the ninth term on."""
    bad = _either(ops.lt(x, 1.0), ops.le(q, 0.0), ops.ne(x, x), ops.ne(q, q))
    pole = ops.bitwise_or(ops.eq(x, 1.0), ops.bitwise_and(ops.eq(q, ops.floor(q)), ops.le(q, 0.0)))
    plain = ops.bitwise_or(bad, pole)
    s, q0 = ops.select(plain, 2.0, x), ops.select(plain, 1.0, q)
    far = ops.gt(q0, _FAR)
    start = ops.select(far, 1.0, q0)
    count = 9
    end = ops.add(start, float(count))
    power = lambda v, s: ops.pow(v, ops.neg(s))
    total = power(start, s)
    # There the remainder is negligible against the first terms, and computing it overflows.
    steep = ops.bitwise_or(ops.gt(s, ops.mul(end, 6.0)), ops.eq(total, 0.0))
    for k in range(1, count):
        total = ops.add(total, power(ops.add(start, float(k)), s))
    flat = ops.select(steep, 2.0, s)
    # In units of end^(1 - s), which may be far larger than end^-s.
    inverse = ops.div(1.0, end)
    rest = ops.add(ops.div(1.0, ops.sub(flat, 1.0)), ops.mul(inverse, 0.5))
    rising, term = flat, ops.mul(inverse, inverse)
    for j, b in enumerate(_BERNOULLI):
        rest = ops.add(rest, ops.mul(ops.mul(rising, term), b))
        rising = ops.mul(rising, ops.mul(ops.add(flat, 2.0 * j + 1), ops.add(flat, 2.0 * j + 2)))
        term = ops.mul(term, ops.mul(inverse, inverse))
    rest = ops.mul(rest, power(end, ops.sub(flat, 1.0)))
    total = ops.select(steep, total, ops.add(total, rest))
    beyond = ops.select(far, q0, 1.0)
    two = ops.add(ops.div(1.0, ops.sub(s, 1.0)), ops.div(0.5, beyond))
    total = ops.select(far, ops.mul(two, power(beyond, ops.sub(s, 1.0))), total)
    y = ops.select(bad, math.nan, total)
    return ops.select(ops.bitwise_and(pole, ops.ge(x, 1.0)), math.inf, y)


zeta: ZetaFunction = _special(
    "zeta",
    lambda x, q: _zeta(x, q),
    "The Hurwitz zeta function: the sum of (q + k)^-x over k >= 0.",
    "x q",
)
