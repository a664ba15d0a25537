"""Functions of complex numbers on their parts, with the limits of Annex G of the C standard, which
the array API standard follows.

Branch cuts are those of C: signed zeros say on which side of a cut an operand lies. Inverse
functions follow Hull, Fairgrieve and Tang, "Implementing the complex arcsine and arccosine
functions using exception handling" (ACM TOMS 23, 1997), the square root and the tangent Kahan,
"Branch cuts for complex elementary functions" (1987).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.arithmetic import (
    copysign,
    divided,
    is_infinite,
    is_nan,
    modulus,
    multiplied,
    negative,
    not_finite,
)
from genesis_fn.compiler.complex_parts.values import Complex, constant, of_parts, on_parts, pair
from genesis_fn.core import dtypes
from genesis_fn.core.primitive import Primitive, typeof
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.elementwise import (
    add,
    atan2,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    cos,
    cosh,
    div,
    eq,
    exp,
    gt,
    is_finite,
    le,
    log,
    log1p,
    lt,
    mul,
    ne,
    neg,
    select,
    sin,
    sinh,
    sqrt,
    sub,
)

Pair = tuple[Any, Any]
_LOG2 = math.log(2)


def _function(of: Any) -> Callable[[Callable[..., Pair]], Callable[..., Pair]]:
    """Decorator: `f(x, y)` gives the parts of the function `of` at x + iy."""

    def register(f: Callable[..., Pair]) -> Callable[..., Pair]:
        @on_parts(of.prim)
        def rule(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
            return of_parts(*f(*pair(xs[0])))

        return f

    return register


def _double(x: Any) -> bool:
    return typeof(x).dtype == dtypes.F64


def _product(a: Any, b: Any) -> Any:
    """a * b, where zero times infinity or NaN is a zero."""
    p = mul(a, b)
    zero_a, zero_b = eq(a, 0.0), eq(b, 0.0)
    zero, other = select(zero_a, a, b), select(zero_a, b, a)
    signed = select(lt(other, 0.0), neg(zero), zero)
    return select(bitwise_and(bitwise_or(zero_a, zero_b), is_nan(p)), signed, p)


# ---- exponentials ----


def _scaled_exp(x: Any) -> Pair:
    """(e, f) with exp(x) = e * f: the product with a cosine may be finite where exp(x) is not."""
    big = gt(x, 700.0 if _double(x) else 85.0)
    e = exp(select(big, mul(x, 0.5), x))
    return e, select(big, e, 1.0)


def _turned(x: Any, y: Any, e: Any, f: Any) -> Pair:
    """The parts of e * f * (cos y + i sin y), where e * f is a power with exponent x."""
    re, im = mul(mul(e, cos(y)), f), mul(mul(e, sin(y)), f)
    lost = not_finite(y)
    endless = bitwise_and(eq(x, math.inf), lost)
    nothing = bitwise_and(eq(x, -math.inf), lost)
    re = select(endless, math.inf, select(nothing, 0.0, re))
    # A real operand has a real result, whatever its size.
    zero = constant(typeof(x), 0.0)
    return re, select(eq(y, 0.0), y, select(nothing, copysign(zero, y), im))


@_function(ops.exp)
def exponential(x: Any, y: Any) -> Pair:
    """exp(x + iy)"""
    return _turned(x, y, *_scaled_exp(x))


@_function(ops.exp2)
def _exp2(x: Any, y: Any) -> Pair:
    e = ops.exp2(x)
    return _turned(x, mul(y, _LOG2), e, 1.0)


@_function(ops.expm1)
def _expm1(x: Any, y: Any) -> Pair:
    re, im = exponential(x, y)
    half = sin(mul(y, 0.5))
    # exp(x) cos y - 1 without the cancellation near 0.
    near = sub(mul(ops.expm1(x), cos(y)), mul(mul(half, half), 2.0))
    return select(lt(ops.abs(x), 1.0), near, sub(re, 1.0)), im


@_function(ops.logistic)
def _logistic(x: Any, y: Any) -> Pair:
    re, im = exponential(neg(x), neg(y))
    return divided((1.0, 0.0), (add(re, 1.0), im))


# ---- logarithms ----


def log_modulus(x: Any, y: Any) -> Any:
    """log|x + iy|"""
    x, y = ops.abs(x), ops.abs(y)
    large, small = ops.max(x, y), ops.min(x, y)
    ratio = select(bitwise_or(eq(large, 0.0), eq(large, math.inf)), 0.0, div(small, large))
    # Near 1 the logarithm of the larger part and the rest would cancel.
    near = bitwise_and(gt(large, 0.5), lt(large, 2.0))
    beyond = add(mul(sub(large, 1.0), add(large, 1.0)), mul(small, small))
    rest = mul(log1p(select(near, beyond, mul(ratio, ratio))), 0.5)
    value = add(select(near, 0.0, log(large)), rest)
    return select(bitwise_or(eq(x, math.inf), eq(y, math.inf)), math.inf, value)


@_function(ops.log)
def logarithm(x: Any, y: Any) -> Pair:
    """log(x + iy)"""
    return log_modulus(x, y), atan2(y, x)


@_function(ops.log2)
def _log2(x: Any, y: Any) -> Pair:
    return div(log_modulus(x, y), _LOG2), div(atan2(y, x), _LOG2)


@_function(ops.log1p)
def _log1p(x: Any, y: Any) -> Pair:
    near = mul(log1p(add(mul(x, add(x, 2.0)), mul(y, y))), 0.5)
    small = lt(ops.max(ops.abs(x), ops.abs(y)), 0.5)
    whole = add(x, 1.0)
    return select(small, near, log_modulus(whole, y)), atan2(y, whole)


@on_parts(ops.pow.prim)
def _pow(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    """exp(y log x), of size |x|**c exp(-d arg x) for y = c + id; 1 for y = 0. For x = 0 it is 0
    where c > 0, else NaN."""
    (a, b), (c, d) = map(pair, xs)
    like = typeof(next(v for v in (a, b, c, d) if hasattr(v, "aval")))
    a, b, c, d = [v if hasattr(v, "aval") else constant(like, v) for v in (a, b, c, d)]
    grown, turn = multiplied((c, d), logarithm(a, b))
    # A logarithm's rounding would count as often as the exponent says; a real power's does not.
    length = mul(ops.pow(modulus(a, b), c), exp(neg(mul(d, atan2(b, a)))))
    known = bitwise_and(is_finite(length), is_finite(grown))
    re, im = _turned(grown, turn, select(known, length, exp(grown)), 1.0)
    one = bitwise_and(eq(c, 0.0), eq(d, 0.0))
    none = bitwise_and(eq(a, 0.0), eq(b, 0.0))
    of_zero = select(gt(c, 0.0), 0.0, constant(like, math.nan))
    return of_parts(
        select(one, 1.0, select(none, of_zero, re)), select(one, 0.0, select(none, of_zero, im))
    )


# ---- roots ----


@_function(ops.sqrt)
def square_root(x: Any, y: Any) -> Pair:
    """sqrt(x + iy), its real part at least 0."""
    a, b = ops.abs(x), ops.abs(y)
    # sqrt((|x| + |z|) / 2), scaled by the larger part: nothing overflows.
    steep = gt(b, a)
    large, small = select(steep, b, a), select(steep, a, b)
    nothing = bitwise_and(eq(a, 0.0), eq(b, 0.0))
    ratio = select(nothing, 0.0, div(small, large))
    length = sqrt(add(mul(ratio, ratio), 1.0))
    half = mul(add(select(steep, ratio, 1.0), length), 0.5)
    t = mul(sqrt(large), sqrt(half))
    other = select(eq(t, 0.0), b, div(b, mul(t, 2.0)))
    left = negative(x)
    re, im = select(left, other, t), copysign(select(left, t, other), y)
    endless = eq(b, math.inf)
    right = bitwise_and(eq(a, math.inf), bitwise_not(endless))
    # Along the real axis: inf + i0, or 0 + i inf; NaN in the imaginary part stays in the small one.
    small_part = select(is_nan(y), math.nan, constant(typeof(x), 0.0))
    re = select(right, select(left, small_part, math.inf), re)
    nan = select(is_nan(y), y, copysign(small_part, y))
    im = select(right, select(left, copysign(constant(typeof(x), math.inf), y), nan), im)
    return select(endless, math.inf, re), select(endless, y, im)


@_function(ops.rsqrt)
def _rsqrt(x: Any, y: Any) -> Pair:
    return divided((1.0, 0.0), square_root(x, y))


# ---- hyperbolic and trigonometric functions ----


def _halves(x: Any) -> tuple[Any, Any, Any]:
    """(sinh, cosh, f) of x: products with f are the functions; f is not 1 where they overflow."""
    size = ops.abs(x)
    big = gt(size, 700.0 if _double(x) else 85.0)
    e = exp(mul(size, 0.5))
    half = mul(e, 0.5)
    bounded = select(big, 0.0, x)
    return (
        select(big, copysign(half, x), sinh(bounded)),
        select(big, half, cosh(bounded)),
        select(big, e, 1.0),
    )


def sine_h(x: Any, y: Any, endless: float = math.inf) -> Pair:
    """sinh(x + iy) = sinh x cos y + i cosh x sin y. `endless`: the real part, of unknown sign,
    where x is infinite and y is not finite."""
    s, c, f = _halves(x)
    re, im = mul(_product(s, cos(y)), f), _product(mul(c, f), sin(y))
    im = select(eq(f, 1.0), im, mul(_product(c, sin(y)), f))
    lost = not_finite(y)
    unknown = bitwise_and(is_infinite(x), lost)
    re, im = select(unknown, endless, re), select(unknown, math.nan, im)
    return select(eq(x, 0.0), _product(s, cos(y)), re), select(eq(y, 0.0), y, im)


def cosine_h(x: Any, y: Any) -> Pair:
    """cosh(x + iy) = cosh x cos y + i sinh x sin y"""
    s, c, f = _halves(x)
    re, im = mul(mul(c, cos(y)), f), mul(_product(s, sin(y)), f)
    lost = not_finite(y)
    unknown = bitwise_and(is_infinite(x), lost)
    re, im = select(unknown, math.inf, re), select(unknown, math.nan, im)
    flat = bitwise_or(eq(x, 0.0), eq(y, 0.0))
    level = select(lost, 0.0, _product(s, sin(y)))
    return re, select(flat, level, im)


def tangent_h(x: Any, y: Any) -> Pair:
    """tanh(x + iy)"""
    size = ops.abs(x)
    far = gt(size, 20.0 if _double(x) else 10.0)
    s = sinh(select(far, 0.0, x))
    t = ops.tan(y)
    beta = add(mul(t, t), 1.0)
    rho = sqrt(add(mul(s, s), 1.0))
    below = add(mul(beta, mul(s, s)), 1.0)
    re, im = div(mul(mul(beta, rho), s), below), div(t, below)
    # Beyond, the real part is 1, and the imaginary part vanishes as sin(2y) does times 4 exp(-2x).
    e = exp(neg(size))
    lost = not_finite(y)
    turn = select(lost, 0.0, mul(sin(y), cos(y)))
    turn = select(lost, copysign(constant(typeof(y), 0.0), y), turn)
    distant = mul(mul(mul(turn, 4.0), e), e)
    one = copysign(constant(typeof(x), 1.0), x)
    finite_lost = bitwise_and(lost, ne(size, math.inf))
    re = select(far, select(finite_lost, math.nan, one), re)
    im = select(far, select(finite_lost, math.nan, distant), im)
    return select(eq(x, 0.0), x, re), select(eq(y, 0.0), y, im)


_function(ops.sinh)(sine_h)
_function(ops.cosh)(cosine_h)
_function(ops.tanh)(tangent_h)


def _of_turned(f: Callable[[Any, Any], Pair]) -> Callable[[Any, Any], Pair]:
    """-i f(iz): the trigonometric function of a hyperbolic one, or its inverse."""

    def turned(x: Any, y: Any) -> Pair:
        re, im = f(neg(y), x)
        return im, neg(re)

    return turned


_function(ops.sin)(_of_turned(lambda x, y: sine_h(x, y, -math.inf)))
_function(ops.cos)(lambda x, y: cosine_h(neg(y), x))
_function(ops.tan)(_of_turned(tangent_h))


# ---- inverse functions ----


def _hull(x: Any, y: Any) -> tuple[Any, Any]:
    """(u, v) for x, y >= 0: asin z = atan2(x, u) + iv, and acos z = atan2(u, x) - iv."""
    far = gt(ops.max(x, y), 1e9 if _double(x) else 1e5)
    far = bitwise_or(far, bitwise_or(eq(x, math.inf), eq(y, math.inf)))
    wide = log_modulus(x, y)
    p, q = select(far, 0.0, x), select(far, 0.0, y)
    above, below = add(p, 1.0), sub(p, 1.0)
    r, s = modulus(above, q), modulus(below, q)
    a = mul(add(r, s), 0.5)
    inside = lt(p, 1.0)
    one = add(r, above)  # y**2 / one is r - (x + 1), and y**2 / other is s - |x - 1|
    other = add(s, ops.abs(below))
    safe = select(eq(other, 0.0), 1.0, other)
    # u**2 = a**2 - x**2
    outer = mul(q, sqrt(mul(mul(add(a, p), 0.5), add(div(1.0, one), div(1.0, safe)))))
    inner = sqrt(mul(mul(add(a, p), 0.5), add(mul(q, div(q, one)), sub(s, below))))
    u = select(le(p, 1.0), inner, outer)
    # a - 1, and sqrt(a**2 - 1), as products with y where y**2 might underflow
    twice = mul(add(div(1.0, one), div(1.0, safe)), 0.5)
    near_in = mul(q, mul(q, twice))
    root_in = mul(q, sqrt(mul(twice, add(a, 1.0))))
    near_out = mul(add(mul(q, div(q, one)), add(s, below)), 0.5)
    root_out = sqrt(mul(near_out, add(a, 1.0)))
    v = log1p(add(select(inside, near_in, near_out), select(inside, root_in, root_out)))
    return select(far, y, u), select(far, add(wide, _LOG2), v)


def arc_sine(x: Any, y: Any) -> Pair:
    """asin(x + iy)"""
    a = ops.abs(x)
    u, v = _hull(a, ops.abs(y))
    return select(eq(x, 0.0), x, copysign(atan2(a, u), x)), copysign(v, y)


def arc_cosine(x: Any, y: Any) -> Pair:
    """acos(x + iy)"""
    u, v = _hull(ops.abs(x), ops.abs(y))
    re = select(eq(x, 0.0), math.pi / 2, atan2(u, x))
    return re, neg(copysign(v, y))


def arc_tangent_h(x: Any, y: Any) -> Pair:
    """atanh(x + iy)"""
    a, b = ops.abs(x), ops.abs(y)
    large, small = ops.max(a, b), ops.min(a, b)
    endless = bitwise_or(eq(a, math.inf), eq(b, math.inf))
    far = bitwise_or(gt(large, 1e9 if _double(x) else 1e5), endless)
    p, q = select(far, 0.0, a), select(far, 0.0, b)
    rest = sub(1.0, p)
    distance = add(mul(rest, rest), mul(q, q))
    # At 1 the distance is y**2, which may underflow.
    tiny = 1e-150 if _double(x) else 1e-17
    pole = bitwise_and(eq(rest, 0.0), lt(q, tiny))
    near = mul(log1p(div(mul(p, 4.0), select(pole, 1.0, distance))), 0.25)
    near = select(pole, mul(sub(_LOG2, log(q)), 0.5), near)
    turn = mul(atan2(mul(q, 2.0), sub(mul(rest, add(p, 1.0)), mul(q, q))), 0.5)
    # Far from 0 it is 1 / z, turned: x / |z|**2.
    ratio = div(small, large)
    wide = div(div(a, large), mul(large, add(mul(ratio, ratio), 1.0)))
    wide = select(endless, 0.0, wide)
    re = select(far, wide, near)
    im = select(far, math.pi / 2, turn)
    nan = is_nan(y)
    re = select(eq(x, 0.0), x, copysign(re, x))
    # NaN beside an infinity: only what does not depend on it is known.
    im = select(bitwise_and(nan, far), math.nan, copysign(im, y))
    return re, im


@_function(ops.atan)
def _arc_tangent(x: Any, y: Any) -> Pair:
    re, im = arc_tangent_h(neg(y), x)
    return im, copysign(ops.abs(re), y)


def _arc_cosine_h(x: Any, y: Any) -> Pair:
    re, im = arc_cosine(x, y)
    return ops.abs(im), copysign(re, y)


_function(ops.asin)(arc_sine)
_function(ops.acos)(arc_cosine)
_function(ops.atanh)(arc_tangent_h)
_function(ops.asinh)(_of_turned(arc_sine))
_function(ops.acosh)(_arc_cosine_h)
