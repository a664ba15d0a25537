"""Elementwise functions: one primitive each, without NumPy's promotion and broadcasting."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import SCALARS
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike, PyTree, ShapeLike
from genesis_fn.lax import creation
from genesis_fn.lax.operands import BinaryOperation, array, arrays, on_operands
from genesis_fn.lax.promotion import broadcast, strong
from genesis_fn.lax.special import zeta
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.reductions import complex_order

neg = on_operands("neg", p.neg, "-x.")
add = on_operands("add", p.add, "x + y.", names="x y")
sub = on_operands("sub", p.sub, "x - y.", names="x y")
_product = on_operands("mul", p.mul, "x * y.", names="x y")


def mul(x: ArrayLike, y: ArrayLike, *, out_dtype: DTypeLike | None = None) -> Array:
    """x * y, with `out_dtype` computed in that dtype."""
    if out_dtype is None:
        return _product(x, y)
    x, y = [convert_element_type(v, out_dtype) for v in arrays("mul", (x, y), False)]
    return _product(x, y)


mul.prim = p.mul.prim  # pyright: ignore[reportFunctionMemberAccess]
div = on_operands("div", p.div, "x / y; integers are divided towards zero.", names="x y")
rem = on_operands("rem", p.rem, "The remainder of x / y with the sign of x.", names="x y")


def _extreme(name: str, f: Any, of_complex: Any, doc: str) -> BinaryOperation:
    """max or min: of complex numbers by real part, then by imaginary part."""

    def call(x: Any, y: Any) -> Array:
        whole = dtypes.is_complex((y if type(x) in SCALARS else x).aval.dtype)
        return of_complex(x, y) if whole else f(x, y)

    call.prim = f.prim  # pyright: ignore[reportFunctionMemberAccess]
    return on_operands(name, call, f"{doc} of x and y; NaN propagates.", names="x y")


max = _extreme("max", p.max, complex_order.maximum, "The larger")
min = _extreme("min", p.min, complex_order.minimum, "The smaller")
abs = on_operands("abs", p.abs, "|x|.")
sign = on_operands("sign", p.sign, "-1, 0 or 1 by the sign of x; x / |x| for complex x.")
atan2 = on_operands("atan2", p.atan2, "The angle of the point (y, x).", names="x y")
nextafter = on_operands(
    "nextafter", p.nextafter, "The next float after x towards y.", names="x1 x2"
)
square = on_operands("square", p.square, "x * x.")
reciprocal = on_operands("reciprocal", p.reciprocal, "1 / x.")
exp = on_operands("exp", p.exp, "e to the power x.", accuracy=True)
exp2 = on_operands("exp2", p.exp2, "2 to the power x.", accuracy=True)
expm1 = on_operands("expm1", p.expm1, "exp(x) - 1, accurate near 0.", accuracy=True)
log = on_operands("log", p.log, "The natural logarithm.", scalars=False, accuracy=True)
log1p = on_operands("log1p", p.log1p, "log(1 + x), accurate near 0.", accuracy=True)
sqrt = on_operands("sqrt", p.sqrt, "The square root.", accuracy=True)
rsqrt = on_operands("rsqrt", p.rsqrt, "1 / sqrt(x).", accuracy=True)
cbrt = on_operands("cbrt", p.cbrt, "The cube root.", accuracy=True)
logistic = on_operands("logistic", p.logistic, "1 / (1 + exp(-x)).", accuracy=True)
sin = on_operands("sin", p.sin, "The sine.", accuracy=True)
cos = on_operands("cos", p.cos, "The cosine.", accuracy=True)
tan = on_operands("tan", p.tan, "The tangent.", accuracy=True)
asin = on_operands("asin", p.asin, "The inverse sine.")
acos = on_operands("acos", p.acos, "The inverse cosine.")
atan = on_operands("atan", p.atan, "The inverse tangent.")
sinh = on_operands("sinh", p.sinh, "The hyperbolic sine.")
cosh = on_operands("cosh", p.cosh, "The hyperbolic cosine.")
tanh = on_operands("tanh", p.tanh, "The hyperbolic tangent.", accuracy=True)
asinh = on_operands("asinh", p.asinh, "The inverse hyperbolic sine.")
acosh = on_operands("acosh", p.acosh, "The inverse hyperbolic cosine.")
atanh = on_operands("atanh", p.atanh, "The inverse hyperbolic tangent.")
erf = on_operands("erf", p.erf, "The error function.")
erfc = on_operands("erfc", p.erfc, "1 - erf(x), accurate for large x.")
erf_inv = on_operands("erf_inv", p.erf_inv, "The inverse of erf.")
lgamma = on_operands("lgamma", p.lgamma, "The logarithm of |gamma(x)|.")
digamma = on_operands("digamma", p.digamma, "The derivative of lgamma.")
floor = on_operands("floor", p.floor, "The largest integer <= x.")
ceil = on_operands("ceil", p.ceil, "The smallest integer >= x.")
is_finite = on_operands("is_finite", p.is_finite, "Whether x is neither infinite nor NaN.")
eq = on_operands("eq", p.eq, "x == y.", names="x y")
ne = on_operands("ne", p.ne, "x != y.", names="x y")
lt = on_operands("lt", p.lt, "x < y.", names="x y")
le = on_operands("le", p.le, "x <= y.", names="x y")
gt = on_operands("gt", p.gt, "x > y.", names="x y")
ge = on_operands("ge", p.ge, "x >= y.", names="x y")
bitwise_and = on_operands("bitwise_and", p.bitwise_and, "x & y.", names="x y")
bitwise_or = on_operands("bitwise_or", p.bitwise_or, "x | y.", names="x y")
bitwise_xor = on_operands("bitwise_xor", p.bitwise_xor, "x ^ y.", names="x y")
bitwise_not = on_operands("bitwise_not", p.bitwise_not, "~x.")
shift_left = on_operands(
    "shift_left", p.shift_left, "x << y; 0 for shifts by the width or more.", names="x y"
)
shift_right_logical = on_operands(
    "shift_right_logical", p.shift_right_logical, "x >> y with zeros shifted in.", names="x y"
)
shift_right_arithmetic = on_operands(
    "shift_right_arithmetic",
    p.shift_right_arithmetic,
    "x >> y with copies of the sign shifted in.",
    names="x y",
)
population_count = on_operands("population_count", p.population_count, "The number of set bits.")
clz = on_operands("clz", p.clz, "The number of leading zero bits.")
real = on_operands("real", p.real, "The real part.")
imag = on_operands("imag", p.imag, "The imaginary part.")
complex = on_operands("complex", p.complex_, "x + i y.", names="x y", scalars=False)


def conj(x: ArrayLike, input_dtype: DTypeLike | None = None) -> Array:
    """The complex conjugate; complex for real x."""
    x = array(x)
    d = x.aval.dtype
    return p.conj(x) if dtypes.is_complex(d) else p.convert(x, dtypes.complex_of(d))


def pow(x: ArrayLike, y: ArrayLike) -> Array:
    """x to the power y, for floating x and floating or integer y."""
    if type(y) is int:
        return integer_pow(x, y)
    if type(y) not in SCALARS:
        y = array(y)
        if dtypes.is_integer(y.aval.dtype) and isinstance(x, Array):
            y = p.convert(y, x.aval.dtype)
    return p.pow(*arrays("pow", (x, y)))


def integer_pow(x: ArrayLike, y: int) -> Array:
    """x to the power of a Python integer."""
    x = array(x)
    return p.integer_pow(x, y) if y else full_like(x, 1)


def _polygamma_of_arrays(n: Any, x: Any) -> Array:
    """(-1)**(n + 1) n! zeta(n + 1, x), and digamma(x) where n is 0."""
    kind = x.aval.dtype
    if kind != dtypes.F64:  # a factorial may be infinite where its product with zeta is not
        return p.convert(
            _polygamma_of_arrays(p.convert(n, dtypes.F64), p.convert(x, dtypes.F64)), kind
        )
    first = p.eq(n, 0.0)
    order = p.add(p.select(first, 1.0, n), 1.0)
    odd = p.ne(p.rem(order, creation.full(order.aval.shape, 2.0, order.aval.dtype)), 0.0)
    size = p.mul(p.exp(p.lgamma(order)), zeta(order, x))
    return p.select(first, p.digamma(x), p.select(odd, p.neg(size), size))


def polygamma(m: ArrayLike, x: ArrayLike) -> Array:
    """The m-th derivative of digamma, for an integer m or an array of them as floats."""
    if not isinstance(m, (int, float)) or type(m) not in (int, float):
        n, x = arrays("polygamma", (m, x), scalars=False)
        return _polygamma_of_arrays(n, x)
    if int(m) != m:
        raise TypeError(f"polygamma: the order must be an integer, got {m!r}")
    x = array(x)
    return p.digamma(x) if m == 0 else p.polygamma(int(m), x)


def mulhi(x: ArrayLike, y: ArrayLike) -> Array:
    """The upper half of the product of integers at twice their width."""
    return _upper_half(*arrays("mulhi", (x, y), scalars=False))


def _upper_half(x: Array, y: Array) -> Array:
    d = x.aval.dtype
    bits = 8 * d.itemsize
    if bits < 64:
        wide = dtypes.dtype(f"{'u' if dtypes.is_unsigned(d) else ''}int{2 * bits}")
        product = p.mul(p.convert(x, wide), p.convert(y, wide))
        return p.convert(p.shift_right_arithmetic(product, bits), d)
    # Schoolbook multiplication of 32-bit halves; the signed result corrects the unsigned one.
    a, b = p.bitcast_convert_type(x, dtypes.U64), p.bitcast_convert_type(y, dtypes.U64)
    halves = [(p.bitwise_and(v, 0xFFFFFFFF), p.shift_right_logical(v, 32)) for v in (a, b)]
    (a0, a1), (b0, b1) = halves
    middle = p.add(p.mul(a1, b0), p.shift_right_logical(p.mul(a0, b0), 32))
    low = p.add(p.mul(a0, b1), p.bitwise_and(middle, 0xFFFFFFFF))
    high = p.add(
        p.add(p.mul(a1, b1), p.shift_right_logical(middle, 32)), p.shift_right_logical(low, 32)
    )
    if d == dtypes.U64:
        return high
    high = p.bitcast_convert_type(high, dtypes.I64)
    zero = full_like(x, 0)
    high = p.sub(high, p.select(p.lt(x, 0), y, zero))
    return p.sub(high, p.select(p.lt(y, 0), x, zero))


# ---- rounding ----


class RoundingMethod(enum.IntEnum):
    """Where halves are rounded: away from zero or to even numbers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: ArrayLike, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Array:
    """The nearest integer, halves by `rounding_method`."""
    x = array(x)
    even = p.round_even(x)
    if rounding_method == RoundingMethod.TO_NEAREST_EVEN:
        return even
    whole = p.trunc(x)
    half = p.eq(p.abs(p.sub(x, whole)), 0.5)
    return p.select(half, p.add(whole, p.sign(x)), even)


# ---- selection ----


def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> Array:
    """on_true where pred, else on_false; a scalar `pred` chooses for all elements."""
    pred = array(pred)
    x, y = arrays("select", (on_true, on_false))
    shape = next(v.aval.shape for v in (x, y) if type(v) not in SCALARS)
    return p.select(pred if pred.aval.shape else broadcast(pred, shape), x, y)


def select_n(which: ArrayLike, *cases: ArrayLike) -> Array:
    """cases[which], elementwise; `which` is a boolean, or an int32 from 0 to the last case."""
    which = array(which)
    if not cases:
        raise ValueError("select_n needs at least one case")
    xs = arrays("select_n", cases, scalars=False)
    shape = xs[0].aval.shape
    which = which if which.aval.shape else broadcast(which, shape)
    if which.aval.dtype == dtypes.BOOL:
        if len(xs) > 2:
            raise errors.DTypeError(f"select_n: a boolean chooses between 2 cases, got {len(xs)}")
        return xs[0] if len(xs) == 1 else p.select(which, xs[1], xs[0])
    result = xs[-1]
    for i in range(len(xs) - 2, -1, -1):
        result = p.select(p.le(which, i), xs[i], result)
    return result


def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike) -> Array:
    """`x` limited to [min, max], to max where min > max; its derivative is zero where it is
    limited."""
    x = array(x)
    bounds: Any = (min, max)
    known = all(type(b) in SCALARS for b in bounds) and bounds[0] <= bounds[1]
    low, x, high = arrays("clamp", (min, x, max), scalars=False)
    if not known:
        low = p.select(p.lt(high, low), high, low)
    return p.select(p.le(x, low), low, p.select(p.ge(x, high), high, x))


# ---- casts and constants ----


_WIDEST = (dtypes.BOOL, dtypes.I64, dtypes.F64, dtypes.C128)  # by dtypes.kind_rank


def convert_element_type(operand: ArrayLike, new_dtype: DTypeLike) -> Array:
    """`operand` in another dtype; floats to integers saturate and NaN becomes 0."""
    if type(operand) in SCALARS:
        operand = as_array(operand, _WIDEST[dtypes.kind_rank(np.dtype(type(operand)))])
    return strong(p.convert(array(operand), dtypes.dtype(new_dtype)))


def bitcast_convert_type(operand: ArrayLike, new_dtype: DTypeLike) -> Array:
    """The bits of `operand` read as another dtype; a width change adds or removes a last axis."""
    return p.bitcast_convert_type(array(operand), dtypes.dtype(new_dtype))


def full(shape: Sequence[int], fill_value: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """An array of one value, a number or a scalar array."""
    return creation.full(shape, fill_value, dtype)


def full_like(
    x: ArrayLike,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
) -> Array:
    """An array like `x` of one value."""
    return creation.full_like(x, fill_value, dtype, shape)


def empty(shape: Sequence[int], dtype: DTypeLike) -> Array:
    """An array of zeros."""
    return creation.full(shape, 0, dtype)


def stop_gradient(x: PyTree) -> PyTree:
    """A pytree of arrays with zero derivative; what is no float passes through.

    In a derivative that is taken eagerly Python may read the result, where reading `x` raises:

        grad(lambda x: x * float(stop_gradient(x)))(3.0)  # 3.0
    """
    from genesis_fn.core import tree

    def leaf(v: Any) -> Any:
        if not is_value(v):
            raise TypeError(f"stop_gradient takes arrays and numbers, got {v!r:.60}")
        if type(v) in SCALARS or not hasattr(v, "aval"):
            return v
        return p.stop_gradient(v) if dtypes.is_inexact(v.aval.dtype) else v

    return tree.map(leaf, x)


def dtype(x: ArrayLike | DTypeLike) -> DType:
    """The dtype of an array or number, or the one that is named."""
    if isinstance(x, np.dtype | type | str):
        return dtypes.dtype(x)
    d: DType | None = getattr(x, "dtype", None)
    return dtypes.scalar_dtype(type(x)) if d is None else d
