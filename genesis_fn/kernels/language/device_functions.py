"""Device functions of one element, which the text of elementwise primitives calls.

The rules of `language` hold here, too. Operands have one type; booleans are int1, narrow floats
(float16, bfloat16, float8) are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.language.language import (
    INTERPRETED,
    cast,
    ceil,
    copysign,
    exp,
    floor,
    fmod,
    log,
    popcount,
    sqrt,
    tan,
    up,
)


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """`x` rounded to a narrow float type; beyond its range infinity, or the largest float8e4nv."""
    if dtype == tl.float8e5:
        # The hardware's conversion saturates this type too.
        near = cast(x, dtype).to(tl.uint8, bitcast=True)
        # 61440 lies halfway between the largest value, 57344, and 2**16: it rounds to infinity.
        beyond = tl.where(x < 0, 0xFC, 0x7C).to(tl.uint8)
        return tl.where(tl.abs(x) >= 61440.0, beyond, near).to(tl.float8e5, bitcast=True)
    else:
        return cast(x, dtype)


@triton.jit
def not_(x):
    """The complement of every bit."""
    if x.dtype == tl.int1:
        return x == 0
    else:
        return ~x


@triton.jit
def negate(x):
    """-x; zero changes its sign too, which it would not in 0 - x, as Triton negates."""
    if x.dtype.is_floating():
        return x * -1.0
    else:
        return -x


@triton.jit
def divide_exactly(x, y):
    """x / y, correctly rounded."""
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)
    else:
        return x / y


@triton.jit
def div(x, y):
    """x / y; integers are cut towards zero, and by zero the result has every bit set."""
    if x.dtype.is_floating():
        return divide_exactly(x, y)
    else:
        zero = y == 0
        one = (y == y).to(y.dtype)
        if x.dtype.is_int_signed():
            # The least integer by -1 overflows: its wrapped negative is the result.
            minus = y + one == 0
            safe = tl.where(zero | minus, one, y)
            return tl.where(zero, ~(x ^ x), tl.where(minus, -x, x // safe))
        else:
            return tl.where(zero, ~(x ^ x), x // tl.where(zero, one, y))


@triton.jit
def div_close(x, y):
    """x / y of float32 values, to two units in the last place.

    The steps of div.full.f32, written out so that quotients with one divisor share its scale, which
    keeps the reciprocal within range, and its reciprocal.
    """
    if INTERPRETED:
        return x / y
    else:
        size = tl.abs(y)
        scale = tl.where(size > 8.507059173023462e37, 0.25, 1.0)  # 2^126
        scale = tl.where(size < 1.1754943508222875e-38, 16777216.0, scale)  # 2^-126, by 2^24
        inverse = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [y * scale], tl.float32, True, 1
        )
        # Not contracted with a sum behind it, so that x / x is 1 wherever it is used.
        return tl.inline_asm_elementwise(
            "mul.rn.f32 $0, $1, $2;", "=f,f,f", [x * scale, inverse], tl.float32, True, 1
        )


@triton.jit
def opaque(x):
    """An integer of 32 or 64 bits, of which the compiler knows nothing.

    A counter that a loop carries is an induction variable. LLVM's strength reduction looked for 4 s
    of 5 at what depends on one where that were the words of eight keys.
    """
    if INTERPRETED:
        return x
    elif x.dtype.primitive_bitwidth == 64:
        return tl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l", [x], x.dtype, True, 1)
    else:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], x.dtype, True, 1)


@triton.jit
def _threefry_round(w0, w1, BITS: tl.constexpr):
    w0 = w0 + w1
    return w0, ((w1 << BITS) | (w1 >> (32 - BITS))) ^ w0


@triton.jit
def _threefry_rounds(w0, w1, k0, k1, N: tl.constexpr):
    """Four rounds, and the N-th words of the key behind them."""
    if N % 2 == 1:
        w0, w1 = _threefry_round(w0, w1, 13)
        w0, w1 = _threefry_round(w0, w1, 15)
        w0, w1 = _threefry_round(w0, w1, 26)
        w0, w1 = _threefry_round(w0, w1, 6)
    else:
        w0, w1 = _threefry_round(w0, w1, 17)
        w0, w1 = _threefry_round(w0, w1, 29)
        w0, w1 = _threefry_round(w0, w1, 16)
        w0, w1 = _threefry_round(w0, w1, 24)
    return w0 + k0, w1 + k1 + tl.full((), N, tl.uint32)


@triton.jit
def threefry(x0, x1, k0, k1):
    """The two words of Threefry-2x32-20 (Salmon et al. 2011, "Parallel random numbers") of the
    counter (x0, x1) under a key.

    A function, and no text of 60 lines where it is used: Triton reads it once for all the words of
    a kernel.
    """
    k2 = k0 ^ k1 ^ tl.full((), 0x1BD11BDA, tl.uint32)
    w0 = (x0).to(tl.uint32) + k0
    w1 = (x1).to(tl.uint32) + k1
    w0, w1 = _threefry_rounds(w0, w1, k1, k2, 1)
    w0, w1 = _threefry_rounds(w0, w1, k2, k0, 2)
    w0, w1 = _threefry_rounds(w0, w1, k0, k1, 3)
    w0, w1 = _threefry_rounds(w0, w1, k1, k2, 4)
    return _threefry_rounds(w0, w1, k2, k0, 5)


@triton.jit
def philox_word(k0, k1, x, LAST: tl.constexpr, WORD: tl.constexpr):
    """Word 0 or 1 of the block of Philox-4x32-10 at the counter (x, 0, 0, LAST) under a key."""
    zero = x * 0
    w0, w1, _, _ = tl.philox_impl(x, zero, zero, zero + LAST, k0, k1, 10)
    if WORD == 0:
        return w0
    else:
        return w1


@triton.jit
def philox_stream(k0, k1, x):
    """Word x of a key's stream: one of the four of block x // 4."""
    zero = x * 0
    w0, w1, w2, w3 = tl.philox_impl(x >> 2, zero, zero, zero, k0, k1, 10)
    even = tl.where((x & 2) == 0, w0, w2)
    odd = tl.where((x & 2) == 0, w1, w3)
    return tl.where((x & 1) == 0, even, odd)


@triton.jit
def threefry2x32_word(k0, k1, x, LAST: tl.constexpr, WORD: tl.constexpr):
    """Word 0 or 1 of `threefry` at the counter (0, x); LAST is philox's alone."""
    w0, w1 = threefry(x * 0, x, k0, k1)
    if WORD == 0:
        return w0
    else:
        return w1


@triton.jit
def threefry2x32_stream(k0, k1, x):
    """Element x of a key's stream: both words at that counter."""
    w0, w1 = threefry(x * 0, x, k0, k1)
    return w0 ^ w1


@triton.jit
def rem(x, y):
    """The remainder of x / y with the sign of x; x itself for integers by zero."""
    if x.dtype.is_floating():
        return fmod(x, y)
    else:
        zero = y == 0
        one = (y == y).to(y.dtype)
        if x.dtype.is_int_signed():
            minus = y + one == 0
            inside = x % tl.where(zero | minus, one, y)
            return tl.where(zero, x, tl.where(minus, x - x, inside))
        else:
            return tl.where(zero, x, x % tl.where(zero, one, y))


@triton.jit
def maximum(x, y):
    """The larger one; NaN if either is."""
    if x.dtype == tl.int1:
        return x | y
    elif x.dtype == tl.float64:
        # PTX has no maximum of float64 that gives NaN.
        return tl.where(x != x, x, tl.where(x >= y, x, y))
    elif x.dtype.is_floating():
        return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.where(x > y, x, y)


@triton.jit
def minimum(x, y):
    """The smaller one; NaN if either is."""
    if x.dtype == tl.int1:
        return x & y
    elif x.dtype == tl.float64:
        return tl.where(x != x, x, tl.where(x <= y, x, y))
    elif x.dtype.is_floating():
        return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.where(x < y, x, y)


@triton.jit
def safe_mul(x, y):
    """x * y, and 0 where x is 0 whatever y is."""
    return tl.where(x == 0, x, x * y)


@triton.jit
def multiply(x, y):
    """x * y, to reduce with."""
    return x * y


@triton.jit
def bit_and(x, y):
    """x & y, to reduce with."""
    return x & y


@triton.jit
def bit_or(x, y):
    """x | y, to reduce with."""
    return x | y


@triton.jit
def sign(x):
    """-1, 0 or 1; zeros and NaN of floats are themselves."""
    if x.dtype.is_floating():
        one = (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
        return tl.where((x == 0) | (x != x), x, one)
    elif x.dtype.is_int_signed():
        return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
    else:
        return (x != 0).to(x.dtype)


@triton.jit
def square_root(x):
    """sqrt(x), correctly rounded."""
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return sqrt(x)


@triton.jit
def logistic(x):
    """1 / (1 + exp(-x))."""
    return divide_exactly(tl.full((), 1.0, x.dtype), 1.0 + exp(-x))


@triton.jit
def logistic_close(x):
    """1 / (1 + exp(-x)), divided to two units in the last place."""
    return 1.0 / (1.0 + exp(-x))


@triton.jit
def logistic_fast(x):
    """1 / (1 + exp(-x)) by the hardware's exponential."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def is_finite(x):
    """Whether x is neither infinite nor NaN."""
    return tl.abs(x) < float("inf")


@triton.jit
def bits_of(x):
    """An integer's bits as an unsigned integer of its width."""
    if x.dtype.primitive_bitwidth == 8:
        return x.to(tl.uint8, bitcast=True)
    elif x.dtype.primitive_bitwidth == 16:
        return x.to(tl.uint16, bitcast=True)
    elif x.dtype.primitive_bitwidth == 32:
        return x.to(tl.uint32, bitcast=True)
    else:
        return x.to(tl.uint64, bitcast=True)


@triton.jit
def signed_bits_of(x):
    """An integer's bits as a signed integer of its width."""
    if x.dtype.primitive_bitwidth == 8:
        return x.to(tl.int8, bitcast=True)
    elif x.dtype.primitive_bitwidth == 16:
        return x.to(tl.int16, bitcast=True)
    elif x.dtype.primitive_bitwidth == 32:
        return x.to(tl.int32, bitcast=True)
    else:
        return x.to(tl.int64, bitcast=True)


@triton.jit
def shift_left(x, n):
    """x << n; 0 if n is negative or not below the width."""
    n = bits_of(n)
    beyond = n >= x.dtype.primitive_bitwidth
    moved = bits_of(x) << tl.where(beyond, n - n, n)
    return tl.where(beyond, moved - moved, moved).to(x.dtype, bitcast=True)


@triton.jit
def shift_right_logical(x, n):
    """x >> n with zeros shifted in; 0 if n is negative or not below the width."""
    n = bits_of(n)
    beyond = n >= x.dtype.primitive_bitwidth
    moved = bits_of(x) >> tl.where(beyond, n - n, n)
    return tl.where(beyond, moved - moved, moved).to(x.dtype, bitcast=True)


@triton.jit
def shift_right_arithmetic(x, n):
    """x >> n with copies of the sign bit shifted in, at most the width less one times."""
    n = bits_of(n)
    last: tl.constexpr = x.dtype.primitive_bitwidth - 1
    n = tl.where(n > last, (n - n) + last, n).to(n.dtype)
    return (signed_bits_of(x) >> n.to(signed_bits_of(x).dtype)).to(x.dtype, bitcast=True)


@triton.jit
def count_bits(x):
    """The number of one bits, in the type of x."""
    u = bits_of(x)
    if x.dtype.primitive_bitwidth == 64:
        low = popcount((u & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True))
        high = popcount((u >> 32).to(tl.uint32).to(tl.int32, bitcast=True))
        return (low + high).to(x.dtype)
    else:
        return popcount(u.to(tl.uint32).to(tl.int32, bitcast=True)).to(x.dtype)


@triton.jit
def clz(x):
    """The number of zero bits above the highest one bit, in the type of x."""
    width: tl.constexpr = x.dtype.primitive_bitwidth
    # Every bit below the highest one is set, then the ones are counted.
    u = bits_of(x)
    u = u | (u >> 1)
    u = u | (u >> 2)
    u = u | (u >> 4)
    if width > 8:
        u = u | (u >> 8)
    if width > 16:
        u = u | (u >> 16)
    if width > 32:
        u = u | (u >> 32)
    return (width - count_bits(u).to(tl.int32)).to(x.dtype)


@triton.jit
def by_squaring(x, N: tl.constexpr, BITS: tl.constexpr):
    """x**N of N >= 0 with BITS binary digits."""
    result = tl.zeros_like(x) + 1
    base = x
    for i in tl.static_range(BITS):
        if (N >> i) & 1:
            result = result * base
        if i + 1 < BITS:
            base = base * base
    return result


@triton.jit
def integer_pow(x, N: tl.constexpr, BITS: tl.constexpr, INVERT: tl.constexpr):
    """x**N of N >= 0 with BITS binary digits; one divided by it, correctly rounded, if INVERT."""
    result = by_squaring(x, N, BITS)
    if INVERT:
        return divide_exactly(tl.full((), 1.0, x.dtype), result)
    else:
        return result


@triton.jit
def integer_pow_close(x, N: tl.constexpr, BITS: tl.constexpr, INVERT: tl.constexpr):
    """x**N of float32 values; one divided by it, to two units in the last place, if INVERT."""
    result = by_squaring(x, N, BITS)
    if INVERT:
        return 1.0 / result
    else:
        return result


@triton.jit
def power_of_integers(x, y):
    """x**y of integers, by squaring; for y < 0 the reciprocal cut to an integer, 0 if x is 0."""
    # Every bit of the exponent is looked at, since lanes differ in theirs.
    one = (x == x).to(x.dtype)
    result, base = one, x
    BITS: tl.constexpr = x.dtype.primitive_bitwidth
    for i in tl.static_range(BITS):
        result = tl.where(((y >> i) & one) == one, result * base, result)
        base = base * base
    if x.dtype.is_int_signed():
        unit = (x == one) | (x + one == 0)
        result = tl.where((y < 0) & ~unit, x - x, result)
    return result.to(x.dtype)


@triton.jit
def digamma(x):
    """The derivative of log(gamma(x)): reflection, recurrence up to 10, asymptotic series."""
    pi: tl.constexpr = 3.141592653589793
    below = x < 0
    fraction = x - x.to(tl.int64).to(x.dtype)
    reflected = tl.where(below & (fraction != 0), pi / tan(pi * fraction), x - x)
    y = tl.where(below, 1.0 - x, x)
    total = y - y
    # digamma(y) = digamma(y + 1) - 1 / y: up to 10 the asymptotic series is not accurate.
    for _ in tl.static_range(10):
        small = y < 10.0
        safe = tl.where(y == 0, (y == y).to(y.dtype), y)
        total = tl.where(small, total - 1.0 / safe, total)
        y = tl.where(small, y + 1.0, y)
    s = 1.0 / (y * y)
    series = 8.333333333333333e-2 - s * (
        8.333333333333333e-3
        - s * (3.968253968253968e-3 - s * (4.166666666666667e-3 - s * 7.575757575757576e-3))
    )
    value = total + log(y) - 0.5 / y - s * series - reflected
    value = tl.where(below & (fraction == 0), float("nan"), value)
    value = tl.where(x == float("inf"), x, value)
    value = tl.where(x == float("-inf"), float("nan"), value)
    pole = copysign((x != x).to(x.dtype) + float("inf"), negate(x))
    return tl.where(x == 0, pole, value).to(x.dtype)


@triton.jit
def scaled_zeta(q, N: tl.constexpr, BITS: tl.constexpr, SCALE: tl.constexpr, TERMS: tl.constexpr):
    """N SCALE^N zeta(N + 1, q) of q >= 0, the Hurwitz zeta function, for N of BITS binary digits.

    Eight terms, then the formula of Euler and Maclaurin, as in S. L. Moshier, Cephes, zeta.c, 1984.

    With w = q + 8 it is (SCALE / w)^N (1 + N / 2w + TERMS[0] / w^2 + TERMS[1] / w^4 + ...).
    """
    total = tl.zeros_like(q)
    v = q
    # Not unrolled: the terms of all elements at once would spill.
    for _ in range(8):
        if SCALE == 1.0:
            # float32 divides to two units in the last place: one division, not two.
            total += N / (by_squaring(v, N, BITS) * v)
        else:
            total += by_squaring(SCALE / v, N, BITS) * (N / v)
        v += 1.0
    w = q + 8.0
    inverse = 1.0 / w
    square = inverse * inverse
    rest = TERMS[len(TERMS) - 1] * square
    for j in tl.static_range(len(TERMS) - 1):
        rest = (rest + TERMS[len(TERMS) - 2 - j]) * square
    rest = 1.0 + (0.5 * N) * inverse + rest
    if SCALE == 1.0:
        return total + rest / by_squaring(w, N, BITS)
    else:
        return total + by_squaring(SCALE / w, N, BITS) * rest


@triton.jit
def polygamma(
    x,
    N: tl.constexpr,
    BITS: tl.constexpr,
    SCALE: tl.constexpr,
    FACTOR: tl.constexpr,
    TERMS: tl.constexpr,
):
    """The derivative of order N >= 1 of digamma: (-1)^(N + 1) N! zeta(N + 1, x), where N! is
    N SCALE^N FACTOR.

    Left of 0 it is the sum of 1 / (x + k)^(N + 1) over all k, in two halves: the terms before the
    first positive x + k are those of |x|, |x| - 1, ...
    """
    SIGN: tl.constexpr = 1.0 if N % 2 else -1.0
    below = x < 0
    fraction = x - floor(x)
    # Close to a pole on its left this is exact, and one less than it is not.
    distance = tl.where(fraction == 0, 1.0, ceil(x) - x)
    # Of zeros of both signs, the one on the right.
    value = scaled_zeta(tl.abs(tl.where(below, fraction, x)), N, BITS, SCALE, TERMS)
    nearest = scaled_zeta(tl.where(below, distance, 1.0), N, BITS, SCALE, TERMS)
    beyond = scaled_zeta(tl.where(below, 1.0 - x, 1.0), N, BITS, SCALE, TERMS)
    before = tl.where(nearest == float("inf"), nearest, nearest - beyond)
    value = tl.where(below, value + SIGN * before, value)
    return (SIGN * FACTOR) * tl.where(x == float("-inf"), float("nan"), value)


@triton.jit
def to_integer(x, dtype: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr):
    """A float cut to an integer, saturated at LOW and HIGH; NaN is 0."""
    # In float64, which holds every bound of 32 bits; HIGH + 1 is a power of two in any type.
    x = tl.where(x != x, 0.0, x.to(tl.float64))
    bound: tl.constexpr = HIGH + 1.0
    above = x >= bound
    inside = cast(tl.where(above, 0.0, tl.maximum(x, LOW * 1.0)), dtype)
    return tl.where(above, tl.full((), HIGH, dtype), inside)


@triton.jit
def reduce_precision(
    x,
    narrow_type: tl.constexpr,
    EXPONENT: tl.constexpr,
    MANTISSA: tl.constexpr,
    KEPT_EXPONENT: tl.constexpr,
    KEPT_MANTISSA: tl.constexpr,
):
    """`x`, whose memory format has EXPONENT and MANTISSA bits, rounded to the kept numbers."""
    if EXPONENT == 11:
        bits = x.to(tl.int64, bitcast=True)
        one = tl.full((), 1, tl.int64)
    elif EXPONENT == 8 and MANTISSA == 23:
        bits = x.to(tl.int32, bitcast=True)
        one = tl.full((), 1, tl.int32)
    else:
        bits = cast(x, narrow_type).to(tl.int16, bitcast=True).to(tl.int32)
        one = tl.full((), 1, tl.int32)
    # Round to nearest even by integer addition: a carry out of the mantissa increments the
    # exponent, as it should. Then values beyond the kept exponents become infinity, or zero.
    every = ((one << EXPONENT) - 1) << MANTISSA
    negative = (bits >> (EXPONENT + MANTISSA)) & 1
    bits = bits & (every | ((one << MANTISSA) - 1))
    dropped: tl.constexpr = MANTISSA - KEPT_MANTISSA
    if dropped > 0:
        odd = (bits >> dropped) & 1
        bits = (bits + odd + ((one << (dropped - 1)) - 1)) & ~((one << dropped) - 1)
    if KEPT_EXPONENT < EXPONENT:
        bias = (one << (EXPONENT - 1)) - 1
        small = (one << (KEPT_EXPONENT - 1)) - 1
        scale = bits & every
        over = scale > ((bias + small) << MANTISSA)
        under = scale <= ((bias - small) << MANTISSA)
        bits = tl.where(over, every, tl.where(under, bits - bits, bits))
    bits = bits | (negative << (EXPONENT + MANTISSA))
    if EXPONENT == 11 or MANTISSA == 23:
        value = bits.to(x.dtype, bitcast=True)
    else:
        value = up(bits.to(tl.int16).to(narrow_type, bitcast=True))
    return tl.where(x != x, x, value)


@triton.jit
def nextafter_narrow(x, y, narrow_type: tl.constexpr):
    """The neighbour of x towards y among the values of a 16-bit float type."""
    # Neighbours of a float are neighbours of its bits, away from zero upwards.
    bits = cast(x, narrow_type).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    away = (y > x) == (x > 0)
    stepped = tl.where(away, bits + 1, bits - 1)
    smallest = tl.where(y > 0, 1, 0x8001)
    stepped = tl.where(x == 0, smallest, stepped)
    value = up(stepped.to(tl.int16).to(narrow_type, bitcast=True))
    value = tl.where(x == y, y, value)
    return tl.where(x != x, x, tl.where(y != y, y, value))


__all__ = [
    "bit_and", "bit_or", "multiply",
    "bits_of", "by_squaring", "clz", "count_bits", "digamma", "div", "div_close",
    "divide_exactly", "integer_pow", "integer_pow_close", "is_finite", "logistic",
    "logistic_close", "logistic_fast", "maximum", "minimum",
    "narrow", "negate", "nextafter_narrow", "not_", "opaque", "philox_stream", "philox_word",
    "polygamma",
    "power_of_integers",
    "reduce_precision", "rem", "safe_mul", "scaled_zeta",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "signed_bits_of",
    "square_root", "threefry", "threefry2x32_stream", "threefry2x32_word", "to_integer",
]  # fmt: skip
