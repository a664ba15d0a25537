"""Elementwise functions composed of several primitives: division with remainder, powers, rounding,
comparison with tolerance, selection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.configuration import config
from genesis_fn.core.dtypes import BOOL, DType
from genesis_fn.core.primitive import SCALARS, with_weak
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import (
    broadcast,
    broadcast_shapes,
    common_type,
    inexact_value,
    is_weak,
    operands,
    promote_arrays,
    promoted,
    result_type,
    scalar_as,
    strong,
    strong_array,
    value,
)
from genesis_fn.numpy.mathematics.ufuncs import (
    absolute,
    add,
    arctan2,
    equal,
    imag,
    isfinite,
    less_equal,
    log,
    logical_and,
    logical_or,
    maximum,
    minimum,
    multiply,
    not_equal,
    real,
    truth,
)
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.reductions import complex_order
from genesis_fn.primitives.reductions.reduce import reduce_and


def _dtype(x: Any) -> DType:
    return x.aval.dtype


def _like(x: Any, number: Any) -> Array:
    return with_weak(full(x.aval.shape, scalar_as(number, _dtype(x)), _dtype(x)), x.weak)


# ---- division with remainder ----


def floor_divide(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """The floor of x1 / x2, elementwise, in the operands' dtype."""
    if type(x2) is int and isinstance(x1, Array) and _by_positive(x1, x2):
        d = _dtype(x1)
        if x2 & (x2 - 1) == 0:
            shift = p.shift_right_logical if dtypes.is_unsigned(d) else p.shift_right_arithmetic
            return shift(x1, x2.bit_length() - 1)
        q = p.div(x1, scalar_as(x2, d))
        if dtypes.is_unsigned(d):
            return q
        return p.select(p.lt(p.rem(x1, x2), 0), p.sub(q, 1), q)
    return _divmod("floor_divide", x1, x2)[0]


def remainder(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """x1 - x2 * floor(x1 / x2): the remainder with the sign of x2, elementwise; of an integer by
    zero, 0."""
    if type(x2) is int and isinstance(x1, Array) and _by_positive(x1, x2):
        d = _dtype(x1)
        if x2 & (x2 - 1) == 0:
            return p.bitwise_and(x1, scalar_as(x2 - 1, d))
        r = p.rem(x1, scalar_as(x2, d))
        return r if dtypes.is_unsigned(d) else p.select(p.lt(r, 0), p.add(r, x2), r)
    x, y = operands("remainder", (x1, x2), scalars=False)
    if _dtype(x) == BOOL:
        x, y = promoted(x, dtypes.I32), promoted(y, dtypes.I32)
    return _remainder(x, y)


mod = remainder


def _by_positive(x: Array, n: int) -> bool:
    """Whether the dtype of `x` is an integer one that holds the positive divisor `n` twice."""
    if n <= 0:
        return False
    d = x.aval.dtype
    return dtypes.is_integer(d) and n <= int(dtypes.iinfo(d).max) // 2


def _rem(x: Any, y: Any) -> Array:
    """`rem`, but 0 for an integer by zero."""
    if dtypes.is_integer(_dtype(x)):
        y = p.select(p.eq(y, _zero(y)), _like(y, 1), y)
    return p.rem(x, y)


def _remainder(x: Any, y: Any) -> Array:
    r = _rem(x, y)
    if dtypes.is_unsigned(_dtype(x)):
        return r
    fix = p.bitwise_and(p.ne(r, _zero(r)), p.ne(p.lt(r, _zero(r)), p.lt(y, _zero(y))))
    return p.select(fix, p.add(r, y), r)


def _zero(x: Any) -> Any:
    return scalar_as(0, _dtype(x))


def divmod(x1: ArrayLike, x2: ArrayLike, /) -> tuple[Array, Array]:
    """(floor_divide(x1, x2), remainder(x1, x2))."""
    return _divmod("divmod", x1, x2)


def _divmod(name: str, x1: Any, x2: Any) -> tuple[Array, Array]:
    x, y = operands(name, (x1, x2), scalars=False)
    d = _dtype(x)
    if d == BOOL:
        x, y, d = promoted(x, dtypes.I32), promoted(y, dtypes.I32), dtypes.I32
    if dtypes.is_complex(d):
        raise errors.DTypeError(f"{name} takes real numbers, got {x.aval}")
    if dtypes.is_unsigned(d):
        return p.div(x, y), _rem(x, y)
    r = _rem(x, y)
    fix = p.bitwise_and(p.ne(r, _zero(r)), p.ne(p.lt(r, _zero(r)), p.lt(y, _zero(y))))
    if dtypes.is_integer(d):
        q = p.div(x, y)
        return p.select(fix, p.sub(q, 1), q), p.select(fix, p.add(r, y), r)
    with config.precisely():  # the quotient is a whole number, of up to 24 bits
        q = p.div(p.sub(x, r), y)
    q = p.round_even(p.select(fix, p.sub(q, 1.0), q))
    # Division by zero: infinity or NaN, as x / y gives.
    q = p.select(p.eq(y, 0.0), p.div(x, y), q)
    return q, p.select(fix, p.add(r, y), r)


def fmod(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """The remainder of x1 / x2 with the sign of x1, elementwise; of an integer by zero, 0."""
    return _rem(*operands("fmod", (x1, x2), scalars=False))


def modf(x: ArrayLike, /) -> tuple[Array, Array]:
    """(fraction, integer part) of x, both with its sign."""
    x = inexact_value(x, "modf")
    none = copysign(_like(x, 0), x)
    return p.select(isinf(x), none, p.rem(x, 1.0)), p.trunc(x)


# ---- powers ----


def power(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """x1 to the power x2, elementwise. A Python integer exponent is repeated multiplication.

    Raises ValueError for an integer array to a negative Python integer.
    """
    if isinstance(x2, (np.integer, bool)):
        x2 = int(x2)
    if type(x2) is int and type(x1) not in SCALARS:
        x = value(x1, "power")
        if _dtype(x) == BOOL:
            x = p.convert(x, dtypes.I32)
        if dtypes.is_integer(_dtype(x)) and x2 < 0:
            raise ValueError("power: integers cannot be raised to negative integers; use floats")
        return p.integer_pow(x, x2) if x2 else _like(x, 1)
    x, y = operands("power", (x1, x2))
    d = _dtype(y if type(x) in SCALARS else x)
    if dtypes.is_inexact(d):
        result = p.pow(x, y)
        if dtypes.is_inexact(result_type(x2)):
            return result
    else:
        x, y = operands("power", (x1, x2), scalars=False)
        if d == BOOL:
            x, y = p.convert(x, dtypes.I32), p.convert(y, dtypes.I32)
        result = p.power_of_integers(x, y)
    # As in JAX an integer exponent is a strong operand unless it is weak itself.
    return with_weak(result, is_weak(x1) and is_weak(x2))


pow = power


def float_power(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """x1 to the power x2, elementwise, in a floating dtype."""
    return p.pow(*operands("float_power", (x1, x2), inexact=True))


# ---- logarithms ----


def log10(x: ArrayLike, /) -> Array:
    """The logarithm to base 10, elementwise."""
    x = log(x)
    d = _dtype(x)
    if not dtypes.is_complex(d):
        return strong(p.div(x, scalar_as(math.log(10), d)))
    # Part by part: a product with a complex number is NaN where a part is infinite.
    scale = scalar_as(math.log(10), dtypes.real_of(d))
    return strong(p.complex_(p.div(p.real(x), scale), p.div(p.imag(x), scale)))


def logaddexp(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """log(exp(x1) + exp(x2)), elementwise, without overflow."""
    x, y = operands("logaddexp", (x1, x2), inexact=True, scalars=False)
    if dtypes.is_complex(_dtype(x)):
        return _complex_log_of_sum(x, y)
    return _log_of_sum(x, y, lambda d: p.log1p(p.exp(d)))


def _complex_log_of_sum(x: Any, y: Any) -> Array:
    first = p.gt(p.real(x), p.real(y))
    # inf - inf is NaN, but of equal infinite real parts only the imaginary parts differ.
    alike = p.bitwise_and(p.eq(p.real(x), p.real(y)), isinf(p.real(x)))
    larger, smaller = p.select(first, x, y), p.select(first, y, x)
    off = p.select(
        alike,
        p.complex_(_like(p.real(x), 0), p.sub(p.imag(smaller), p.imag(larger))),
        p.sub(smaller, larger),
    )
    total = p.add(larger, p.log1p(p.exp(off)))
    return p.complex_(p.real(total), principal(p.imag(total)))


def principal(angle: Array) -> Array:
    """`angle` brought into (-pi, pi] by whole turns, as an argument of complex numbers."""
    turns = p.ceil(p.div(p.sub(angle, math.pi), 2 * math.pi))
    return p.sub(angle, p.mul(p.stop_gradient(turns), 2 * math.pi))


def logaddexp2(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """log2(2**x1 + 2**x2), elementwise, without overflow."""
    x, y = operands("logaddexp2", (x1, x2), inexact=True, scalars=False)
    if dtypes.is_complex(_dtype(x)):
        two = complex(math.log(2))
        return strong_array(p.div(_complex_log_of_sum(p.mul(x, two), p.mul(y, two)), two))
    result = _log_of_sum(x, y, lambda d: p.div(p.log1p(p.exp2(d)), math.log(2)))
    return strong_array(result)


def _log_of_sum(x: Any, y: Any, beyond: Callable[[Any], Any]) -> Array:
    """The larger operand and `beyond(smaller - larger)`.

    Chosen by comparison, not by max and abs: at equal operands either choice has every derivative
    of the whole. Equal infinities have no difference.
    """
    alike = p.bitwise_and(p.eq(x, y), isinf(x))
    a, b = p.select(alike, 0.0, x), p.select(alike, 0.0, y)
    first = p.gt(a, b)
    larger, smaller = p.select(first, a, b), p.select(first, b, a)
    return p.select(alike, p.max(x, y), p.add(larger, beyond(p.sub(smaller, larger))))


# ---- rounding, signs, parts of floats ----


def round(a: ArrayLike, decimals: int = 0) -> Array:
    """`a` rounded to `decimals` places, ties to even; negative numbers round to tens, ..."""
    x = value(a, "round")
    d = _dtype(x)
    if d == BOOL or (dtypes.is_integer(d) and decimals >= 0):
        return x
    if dtypes.is_integer(d):
        scale = 10**-decimals
        wide = p.convert(x, dtypes.F64)
        return p.convert(p.mul(p.round_even(p.div(wide, float(scale))), float(scale)), d)
    if dtypes.is_complex(d):
        return p.complex_(round(p.real(x), decimals), round(p.imag(x), decimals))
    if decimals == 0:
        return p.round_even(x)
    # float16 ends at 65504, so the scaled values of 16-bit floats are float32.
    wide = p.convert(x, dtypes.F32) if d.itemsize < 4 else x
    with config.precisely():  # the number nearest to the decimal one
        if decimals > 0:
            rounded = p.div(p.round_even(p.mul(wide, 10.0**decimals)), 10.0**decimals)
        else:
            rounded = p.mul(p.round_even(p.div(wide, 10.0**-decimals)), 10.0**-decimals)
    return p.convert(rounded, d)


around = round


def clip(arr: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
    """`arr` limited to the interval [min, max]; None leaves a side open."""
    x = value(arr, "clip")
    if dtypes.is_complex(_dtype(x)) or any(
        dtypes.is_complex(common_type("clip", promote_arrays("clip", (b,)))[0])
        for b in (min, max)
        if b is not None
    ):
        raise ValueError("clip takes real numbers: complex numbers have no order")
    if min is not None:
        x = maximum(min, x)
    return x if max is None else minimum(max, x)


def copysign(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """|x1| with the sign of x2, elementwise."""
    x, y = operands("copysign", (x1, x2), inexact=True, scalars=False)
    return p.select(p.eq(signbit(x), signbit(y)), x, p.neg(x))


def signbit(x: ArrayLike, /) -> Array:
    """Whether the sign bit of x is set (-0.0 included), elementwise."""
    x = value(x, "signbit")
    d = _dtype(x)
    if d == BOOL or dtypes.is_unsigned(d):
        return full(x.aval.shape, False, BOOL)
    if dtypes.is_float(d):
        bits = {1: dtypes.I8, 2: dtypes.I16, 4: dtypes.I32, 8: dtypes.I64}[d.itemsize]
        x = p.bitcast_convert_type(x, bits)
    return strong(p.lt(x, 0))


def heaviside(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """0 where x1 < 0, x2 where x1 == 0, 1 where x1 > 0."""
    x, y = operands("heaviside", (x1, x2), inexact=True, scalars=False)
    step = p.select(p.lt(x, 0.0), _like(x, 0), p.select(p.gt(x, 0.0), _like(x, 1), y))
    return strong_array(p.select(p.ne(x, x), x, step))


def hypot(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """sqrt(x1**2 + x2**2), elementwise, without overflow."""
    x, y = operands("hypot", (x1, x2), inexact=True, scalars=False)
    if dtypes.is_complex(_dtype(x)):
        raise errors.DTypeError(f"hypot takes real numbers, got {x.aval} and {y.aval}")
    x, y = p.abs(x), p.abs(y)
    big, small = p.max(x, y), p.min(x, y)
    at_zero = p.eq(big, 0.0)
    ratio = p.div(small, p.select(at_zero, 1.0, big))
    length = p.mul(big, p.sqrt(p.add(p.mul(ratio, ratio), 1.0)))
    infinite = p.bitwise_or(isposinf(x), isposinf(y))
    return strong_array(p.select(infinite, math.inf, p.select(at_zero, big, length)))


def ldexp(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """x1 * 2**x2, elementwise, for integer x2."""
    x, n = value(x1, "ldexp"), value(x2, "ldexp")
    if not (dtypes.is_integer(_dtype(n)) or _dtype(n) == BOOL):
        raise ValueError(f"ldexp: the exponent must be an integer, got {n.aval}")
    x = inexact_value(x)
    d = _dtype(x)
    # A shift by all binades takes any float to 0 or to infinity. It is taken in four parts: 2**n
    # overflows from maxexp on, where x * 2**n may still be finite.
    most = 4 * (_binades(dtypes.finfo(d)) // 4 + 1)
    n = clip(p.convert(n, dtypes.I32), -most, most)
    scaled = x
    for part in range(4):
        piece = p.shift_right_arithmetic(p.add(n, part), 2)
        scaled = multiply(scaled, p.exp2(p.convert(piece, d)))
    x = broadcast(x, scaled.aval.shape)
    kept = p.bitwise_or(p.eq(x, _zero(x)), p.bitwise_not(p.is_finite(x)))
    return p.select(kept, x, scaled)


def _binades(info: Any) -> int:
    """How many powers of two a float type spans, subnormal ones included."""
    return int(info.maxexp) - int(info.minexp) + int(info.nmant) + 1


def frexp(x: ArrayLike, /) -> tuple[Array, Array]:
    """(mantissa, exponent) with x = mantissa * 2**exponent and |mantissa| in [0.5, 1).

    Zeros, infinities and NaN are their own mantissa, with exponent 0.
    """
    x = inexact_value(x, "frexp")
    d = _dtype(x)
    if d.itemsize < 4:
        mantissa, exponent = frexp(p.convert(x, dtypes.F32))
        return p.convert(mantissa, d), exponent
    info = dtypes.finfo(d)
    bits, width = (dtypes.I32, 8) if d == dtypes.F32 else (dtypes.I64, 11)
    bias, fraction = (1 << (width - 1)) - 1, info.nmant
    tiny = p.lt(p.abs(x), float(info.tiny))
    scaled = p.select(tiny, p.mul(x, 2.0**fraction), x)
    raw = p.bitcast_convert_type(scaled, bits)
    field = p.bitwise_and(p.shift_right_arithmetic(raw, fraction), (1 << width) - 1)
    exponent = p.sub(field, bias - 1)
    # In two factors: 2**-exponent may be subnormal, and the bits below make normal floats only.
    half = p.shift_right_arithmetic(exponent, 1)
    mantissa = scaled
    for part in (half, p.sub(exponent, half)):
        power_of_two = p.shift_left(p.sub(bias, part), fraction)
        mantissa = p.mul(mantissa, p.bitcast_convert_type(power_of_two, d))
    exponent = p.select(tiny, p.sub(exponent, fraction), exponent)
    special = p.bitwise_or(p.eq(x, 0.0), p.bitwise_not(p.is_finite(x)))
    return (p.select(special, x, mantissa), p.convert(p.select(special, 0, exponent), dtypes.I32))


def spacing(x: ArrayLike, /) -> Array:
    """The difference to x of the next float away from zero, negative for negative x."""
    x = inexact_value(x, "spacing")
    info = dtypes.finfo(_dtype(x))
    outward = p.select(signbit(x), _like(x, -math.inf), _like(x, math.inf))
    step = p.sub(p.nextafter(x, outward), x)
    inward = p.sub(x, p.nextafter(x, _like(x, 0)))
    return strong(p.select(p.eq(p.abs(x), float(info.max)), inward, step))


def gcd(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The greatest common divisor of integers, elementwise."""
    x, y = _integers("gcd", x1, x2)
    x, y = absolute(x), absolute(y)
    # Euclid's algorithm takes at most 1.44 log2(n) steps (Lame).
    for _ in range(math.ceil(1.45 * 8 * _dtype(x).itemsize)):
        done = p.eq(y, 0)
        x, y = p.select(done, x, y), p.select(done, y, p.rem(x, p.select(done, _like(y, 1), y)))
    return strong_array(x)


def lcm(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The least common multiple of integers, elementwise."""
    x, y = _integers("lcm", x1, x2)
    x, y = absolute(x), absolute(y)
    divisor = gcd(x, y)
    none = p.eq(divisor, 0)
    multiple = p.mul(x, p.div(y, p.select(none, _like(x, 1), divisor)))
    return strong_array(p.select(none, _like(x, 0), multiple))


def _integers(name: str, x1: Any, x2: Any) -> list[Array]:
    xs = operands(name, (x1, x2), scalars=False)
    if not dtypes.is_integer(_dtype(xs[0])):
        raise ValueError(f"{name} takes integers, got {xs[0].aval}")
    return xs


# ---- angles ----


def deg2rad(x: ArrayLike, /) -> Array:
    """Degrees as radians."""
    x = inexact_value(x, "deg2rad")
    return strong_array(p.mul(x, math.pi / 180))


def rad2deg(x: ArrayLike, /) -> Array:
    """Radians as degrees."""
    x = inexact_value(x, "rad2deg")
    return strong_array(p.mul(x, 180 / math.pi))


radians, degrees = deg2rad, rad2deg


def angle(z: ArrayLike, deg: bool = False) -> Array:
    """The argument of complex numbers; 0 or pi for real ones."""
    z = value(z, "angle")
    if not dtypes.is_inexact(z.aval.dtype):
        z = promoted(z, dtypes.default_float())
    result = arctan2(imag(z), real(z))
    return rad2deg(result) if deg else result


def sinc(x: ArrayLike, /) -> Array:
    """sin(pi x) / (pi x), and 1 at 0."""
    x = inexact_value(x, "sinc")
    d = _dtype(x)
    # Near 0 the Taylor series: sin(x) / x has no derivative at 0, the series has all of them.
    near = p.lt(p.abs(x), 0.25)
    scaled = p.mul(p.select(near, scalar_as(1, d), x), scalar_as(math.pi, d))
    square = p.square(p.mul(p.select(near, x, scalar_as(0, d)), scalar_as(math.pi, d)))
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(12, -1, -1)]
    far = p.div(p.sin(scaled), scaled)
    if dtypes.is_float(d):
        far = p.select(p.eq(p.abs(x), math.inf), 0.0, far)
    return strong_array(p.select(near, _polynomial(square, terms), far))


def i0(x: ArrayLike) -> Array:
    """The modified Bessel function of the first kind, order 0: up to 50 by the trapezoidal rule on
    its integral over a period, which converges geometrically, and beyond by the asymptotic series
    (Abramowitz and Stegun 9.6.16, 9.7.1)."""
    x = inexact_value(x, "i0")
    size, count = p.abs(x), 40
    far = p.gt(size, 50.0)
    near = p.select(far, 1.0, x)
    total = p.mul(p.add(p.cosh(near), 1.0), 0.5)
    for k in range(1, count // 2):  # each angle and its mirror image together
        total = p.add(total, p.cosh(p.mul(near, math.cos(math.pi * k / count))))
    series = p.mul(total, 2 / count)
    away = p.select(far, size, 50.0)
    tail = _like(x, 1.0)
    for k in range(16, 0, -1):
        tail = p.add(p.mul(p.div(tail, away), (2 * k - 1) ** 2 / (8.0 * k)), 1.0)
    # In two factors: the exponential overflows before the quotient.
    half = p.exp(p.mul(away, 0.5))
    tail = p.mul(half, p.mul(half, p.div(tail, p.sqrt(p.mul(away, 2 * math.pi)))))
    tail = p.select(p.eq(size, math.inf), math.inf, tail)
    return p.select(far, tail, series)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Array:
    """The polynomial with these coefficients, highest power first."""
    total = _like(x, coefficients[0])
    for c in coefficients[1:]:
        total = p.add(p.mul(total, x), scalar_as(c, _dtype(x)))
    return total


# ---- NaN and infinity ----


def isnan(x: ArrayLike, /) -> Array:
    """Whether x is NaN, elementwise."""
    x = value(x, "isnan")
    if dtypes.is_inexact(_dtype(x)):
        return p.ne(x, x)
    return with_weak(full(x.aval.shape, False, BOOL), x.weak)


def isinf(x: ArrayLike, /) -> Array:
    """Whether x is infinite, elementwise."""
    x = value(x, "isinf")
    d = _dtype(x)
    if dtypes.is_complex(d):
        return p.bitwise_or(isinf(p.real(x)), isinf(p.imag(x)))
    if not dtypes.is_inexact(d):
        return full(x.aval.shape, False, BOOL)
    return p.eq(p.abs(x), math.inf)


def isposinf(x: ArrayLike, /) -> Array:
    """Whether x is +inf, elementwise."""
    x = value(x, "isposinf")
    found = p.eq(x, math.inf) if dtypes.is_float(_dtype(x)) else full(x.aval.shape, False, BOOL)
    return strong(found)


def isneginf(x: ArrayLike, /) -> Array:
    """Whether x is -inf, elementwise."""
    x = value(x, "isneginf")
    found = p.eq(x, -math.inf) if dtypes.is_float(_dtype(x)) else full(x.aval.shape, False, BOOL)
    return strong(found)


def isreal(x: ArrayLike) -> Array:
    """Whether the imaginary part is 0, elementwise."""
    return equal(imag(x), 0)


def iscomplex(x: ArrayLike) -> Array:
    """Whether the imaginary part is not 0, elementwise."""
    return not_equal(imag(x), 0)


def nan_to_num(
    x: ArrayLike,
    copy: bool = True,
    nan: ArrayLike = 0.0,
    posinf: ArrayLike | None = None,
    neginf: ArrayLike | None = None,
) -> Array:
    """`x` with NaN and infinities replaced: by default 0 and the largest finite numbers."""
    x = value(x, "nan_to_num")
    d = _dtype(x)
    if not dtypes.is_inexact(d):
        return x
    if dtypes.is_complex(d):
        parts = [nan_to_num(part, copy, nan, posinf, neginf) for part in (p.real(x), p.imag(x))]
        return p.complex_(*parts)
    limit = float(dtypes.finfo(d).max)
    x = where(isnan(x), asarray(nan, d), x)
    x = where(isposinf(x), asarray(limit if posinf is None else posinf, d), x)
    return strong(where(isneginf(x), asarray(-limit if neginf is None else neginf, d), x))


def fmax(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The larger of x1 and x2, elementwise, ignoring NaN."""
    x, y = operands("fmax", (x1, x2), scalars=False)
    if dtypes.is_complex(_dtype(x)):
        return p.select(isnan(y), x, p.select(isnan(x), y, complex_order.maximum(x, y)))
    return p.select(p.bitwise_or(p.gt(x, y), isnan(y)), x, y)


def fmin(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The smaller of x1 and x2, elementwise, ignoring NaN."""
    x, y = operands("fmin", (x1, x2), scalars=False)
    if dtypes.is_complex(_dtype(x)):
        return p.select(isnan(y), x, p.select(isnan(x), y, complex_order.minimum(x, y)))
    return p.select(p.bitwise_or(p.lt(x, y), isnan(y)), x, y)


# ---- comparison with tolerance ----


def isclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = 1e-05,
    atol: ArrayLike = 1e-08,
    equal_nan: bool = False,
) -> Array:
    """|a - b| <= atol + rtol * |b|, elementwise; equal infinities are close."""
    x, y = operands("isclose", (a, b), scalars=False)
    d = _dtype(x)
    if not dtypes.is_inexact(d):
        if d == BOOL:
            return strong(p.eq(x, y))
        x, y = p.convert(x, dtypes.F64), p.convert(y, dtypes.F64)
    near = less_equal(absolute(p.sub(x, y)), add(multiply(absolute(y), rtol), atol))
    both = p.bitwise_and(isfinite(x), isfinite(y))
    result = p.bitwise_or(p.bitwise_and(near, both), p.eq(x, y))
    result = p.bitwise_or(result, p.bitwise_and(isnan(x), isnan(y))) if equal_nan else result
    return strong(result)


def allclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = 1e-05,
    atol: ArrayLike = 1e-08,
    equal_nan: bool = False,
) -> Array:
    """Whether `a` and `b` are close everywhere: a boolean scalar."""
    close = isclose(a, b, rtol, atol, equal_nan)
    return reduce_and(close, tuple(range(len(close.aval.shape))))


def array_equal(
    a1: ArrayLike | Sequence[Any], a2: ArrayLike | Sequence[Any], equal_nan: bool = False
) -> Array:
    """Whether shapes and all elements are equal: a boolean scalar."""
    x, y = asarray(a1), asarray(a2)
    if x.aval.shape != y.aval.shape:
        return full((), False, BOOL)
    same = strong(equal(x, y))
    if equal_nan:
        same = logical_or(same, logical_and(isnan(x), isnan(y)))
    return reduce_and(same, tuple(range(len(same.aval.shape))))


def array_equiv(a1: ArrayLike | Sequence[Any], a2: ArrayLike | Sequence[Any]) -> Array:
    """Whether the arrays broadcast to one shape and are equal there: a boolean scalar."""
    try:
        same = strong(equal(asarray(a1), asarray(a2)))
    except errors.ShapeError:
        return full((), False, BOOL)
    return reduce_and(same, tuple(range(len(same.aval.shape))))


# ---- selection ----


def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Array:
    """x where condition, else y, elementwise."""
    c = truth(condition)
    if (
        type(x) is ArrayImpl
        and type(y) is ArrayImpl
        and x.sig is y.sig
        and c.aval.shape == x.aval.shape
    ):
        return p.select(c, x, y)
    a, b = operands("where", (x, y), ranks=False)
    whole = [v for v in (a, b) if type(v) not in SCALARS]
    shape = _shape_of(c, whole)
    d = _dtype(whole[0])
    c = broadcast(c, shape)
    cases: list[Any] = [v if type(v) in SCALARS else broadcast(v, shape) for v in (a, b)]
    if type(x) in SCALARS and type(y) in SCALARS:
        # A number of the program, which compilers see, and no array that it captures.
        given: Any = x
        number: Any = (bool, int, float, complex)[dtypes.kind_rank(d)](given)
        cases[0] = with_weak(full(shape, number, d), d != BOOL)
    return p.select(c, *cases)


def _shape_of(c: Any, whole: Sequence[Any]) -> tuple[int, ...]:
    try:
        return broadcast_shapes(c.aval.shape, *[v.aval.shape for v in whole])
    except errors.ShapeError:
        raise errors.ShapeError(
            f"where: the condition {c.aval} and the cases {', '.join(str(v.aval) for v in whole)} "
            "do not broadcast to one shape"
        ) from None


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: ArrayLike = 0) -> Array:
    """The choice of the first true condition, elementwise, and `default` where none is."""
    if len(condlist) != len(choicelist):
        raise ValueError(
            f"select: {len(condlist)} conditions for {len(choicelist)} choices; give as many"
        )
    if not condlist:
        raise ValueError("select: condlist must be non-empty")
    *choices, result = operands("select", (*choicelist, default), scalars=False)
    for c, choice in zip(reversed(condlist), reversed(choices)):
        result = where(c, choice, result)
    return result


def piecewise(
    x: ArrayLike,
    condlist: Sequence[Any] | ArrayLike,
    funclist: Sequence[Any],
    *args: ArrayLike,
    **kw: Any,
) -> Array:
    """The function of the last true condition applied to `x`, elementwise.

    `funclist` may have one entry more than `condlist`, the default (else 0); entries are functions
    of x or constants. Every function is evaluated everywhere.
    """
    x = value(x, "piecewise")
    conditions: list[Any] = list(condlist) if isinstance(condlist, (list, tuple)) else [condlist]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ValueError(
            f"piecewise: {len(conditions)} conditions take {len(conditions)} functions and perhaps "
            f"a default, got {len(funclist)}"
        )

    def evaluate(f: Any) -> Array:
        y: Any = f(x, *args, **kw) if callable(f) else f
        return p.convert(value(y), _dtype(x))

    functions = list(funclist)
    default = functions.pop() if len(functions) > len(conditions) else 0
    result = broadcast(evaluate(default), x.aval.shape)
    for c, f in zip(conditions, functions):
        result = where(c, evaluate(f), result)
    return strong(result)
