"""Elementwise functions of one and two arrays that are one primitive each, after promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.diagnostics.source_info import where as user_line
from genesis_fn.core.primitive import SCALARS, Primitive, bind, with_weak
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import (
    inexact_value,
    is_operand,
    is_weak,
    operands,
    promote_arrays,
    promoted,
    scalar_as,
    strong,
    strong_array,
    value,
)
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.factories import full, zeros as zeros_of
from genesis_fn.primitives.reductions import complex_order
from genesis_fn.transforms.staging.one_call import as_one_call

_FLOAT_KINDS = frozenset(dtypes.FLOATS)
_REAL_KINDS = frozenset((dtypes.BOOL, *dtypes.INTEGERS, *dtypes.FLOATS))


class UnaryFunction(Protocol):
    """A NumPy-style function of one array, elementwise."""

    __name__: str

    def __call__(self, x: ArrayLike, /) -> Array:
        """The result for `x`, in its shape."""
        ...


class LogicalFunction(Protocol):
    """A NumPy-style function of two arrays, elementwise."""

    __name__: str

    def __call__(self, x: ArrayLike, y: ArrayLike, /) -> Array:
        """The result for `x` and `y`, in the shape that they broadcast to."""
        ...


class BinaryFunction(LogicalFunction, Protocol):
    """A function of two arrays with the two methods that make an operator of it."""

    method: Callable[[Any, Any], Any]
    reflected: Callable[[Any, Any], Any]


def _function(call: Callable[..., Any], name: str, doc: str) -> Any:
    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def located(error: errors.GenesisError) -> errors.GenesisError:
    """A shape or dtype error with the user's line."""
    if "\n  at " in str(error):
        return error
    return type(error)(f"{error}\n  at {user_line(depth=4).describe()}")


def _refused(name: str, other: Any) -> Any:
    """NotImplemented, but for Python's collections a TypeError: comparison would give False."""
    if type(other) in (list, tuple, set, dict):
        raise TypeError(
            f"{name}: unsupported operand types 'Array' and '{type(other).__name__}'\n"
            f"  at {user_line(depth=4).describe()}\n  make an array of it with asarray(...)"
        )
    return NotImplemented


def binary(
    name: str,
    call: Callable[..., Any],
    doc: str,
    inexact: bool = False,
    of_complex: Callable[..., Any] | None = None,
) -> BinaryFunction:
    """The NumPy-style function of a two-operand primitive; its `.method` and `.reflected` are the
    operators, which return NotImplemented for operands that are not arrays or numbers.

    `of_complex` serves complex operands that the primitive does not take.
    """
    prim: Primitive = call.prim  # pyright: ignore[reportFunctionMemberAccess]
    kinds = _FLOAT_KINDS if inexact else _REAL_KINDS
    guarded = inexact or of_complex is not None
    # For arrays of a dtype, the Python type whose scalars need neither conversion nor a check.
    direct: dict[Any, type] = dict.fromkeys(_FLOAT_KINDS, float)
    if not inexact:
        direct[dtypes.BOOL] = bool

    def slow(x: Any, y: Any) -> Array:
        try:
            x, y = operands(name, (x, y), inexact)
        except (errors.ShapeError, errors.DTypeError) as error:
            raise located(error) from None
        if of_complex is not None and _is_complex(x, y):
            return of_complex(x, y)
        return bind(prim, x, y)

    slow_arrays = as_one_call(slow)

    def function(x: Any, y: Any, /) -> Array:
        if type(x) is ArrayImpl and not (guarded and x.sig.aval.dtype not in kinds):
            if type(y) is ArrayImpl:
                if x.sig is y.sig:
                    return bind(prim, x, y)
            elif (kind := direct.get(x.sig.aval.dtype)) is not None:
                if type(y) is kind:
                    return bind(prim, x, y)
                if type(y) is int and kind is float:
                    return bind(prim, x, float(y))
        if type(x) is ArrayImpl and type(y) is ArrayImpl:
            return slow_arrays(x, y)
        return slow(x, y)

    def method(self: Any, other: Any) -> Any:
        if type(self) is ArrayImpl:
            d = self.sig.aval.dtype
            if type(other) is ArrayImpl:
                if self.sig is other.sig and not (guarded and d not in kinds):
                    return bind(prim, self, other)
                return function(self, other)
            if direct.get(d) is type(other):
                return bind(prim, self, other)
        if not is_operand(other):
            return _refused(name, other)
        return function(self, other)

    def reflected(self: Any, other: Any) -> Any:
        if type(self) is ArrayImpl and (kind := direct.get(self.sig.aval.dtype)) is not None:
            if type(other) is kind:
                return bind(prim, other, self)
            if type(other) is int and kind is float:
                return bind(prim, float(other), self)
        return slow(other, self) if is_operand(other) else NotImplemented

    result: BinaryFunction = _function(function, name, doc)
    result.method, result.reflected = method, reflected
    return result


def unary(
    name: str,
    call: Callable[..., Any],
    doc: str,
    inexact: bool = False,
    identity: Callable[[dtypes.DType], bool] | None = None,
) -> UnaryFunction:
    """The NumPy-style function of a one-operand primitive; dtypes of `identity` pass through."""

    def function(x: Any, /) -> Array:
        x = inexact_value(x, name) if inexact else value(x, name)
        d = x.aval.dtype
        if identity is not None and identity(d) and not dtypes.is_key(d):
            return x
        return call(x)

    return _function(function, name, doc)


def _is_complex(x: Any, y: Any) -> bool:
    return dtypes.is_complex((y if type(x) in SCALARS else x).aval.dtype)


def _exact(d: dtypes.DType) -> bool:
    return not dtypes.is_inexact(d)


def _real(d: dtypes.DType) -> bool:
    return not dtypes.is_complex(d)


# ---- arithmetic ----

add = binary("add", p.add, "x + y, elementwise.")
subtract = binary("subtract", p.sub, "x - y, elementwise.")
multiply = binary("multiply", p.mul, "x * y, elementwise.")
divide = binary("divide", p.div, "x / y, elementwise, in a floating dtype.", inexact=True)
true_divide = divide
maximum = binary(
    "maximum",
    p.max,
    "The larger of x and y, elementwise; NaN propagates.",
    of_complex=complex_order.maximum,
)
minimum = binary(
    "minimum",
    p.min,
    "The smaller of x and y, elementwise; NaN propagates.",
    of_complex=complex_order.minimum,
)
arctan2 = binary("arctan2", p.atan2, "The angle of the point (y, x), in radians.", inexact=True)
atan2 = arctan2
nextafter = binary("nextafter", p.nextafter, "The next float after x towards y.", inexact=True)

negative = unary("negative", p.neg, "-x, elementwise.")
absolute = unary(
    "absolute",
    p.abs,
    "|x|, elementwise; real for complex x.",
    identity=lambda d: d == dtypes.BOOL or dtypes.is_unsigned(d),
)
abs = absolute
fabs = unary("fabs", p.abs, "|x|, elementwise, in a floating dtype.", inexact=True)
sign = unary("sign", p.sign, "-1, 0 or 1 by the sign of x; x / |x| for complex x.")
reciprocal = unary("reciprocal", p.reciprocal, "1 / x, elementwise.", inexact=True)


def square(x: ArrayLike, /) -> Array:
    """x * x, elementwise; of booleans, as int32."""
    x = value(x, "square")
    return p.square(promoted(x, dtypes.I32) if x.aval.dtype == dtypes.BOOL else x)


def positive(x: ArrayLike, /) -> Array:
    """+x: `x` itself."""
    x = value(x, "positive")
    if x.aval.dtype == dtypes.BOOL:
        raise located(errors.DTypeError(f"positive takes numbers, got {x.aval}"))
    return x


# ---- exponentials, trigonometry ----

exp = unary("exp", p.exp, "e to the power x, elementwise.", inexact=True)
exp2 = unary("exp2", p.exp2, "2 to the power x, elementwise.", inexact=True)
expm1 = unary("expm1", p.expm1, "exp(x) - 1, accurate near 0.", inexact=True)
log = unary("log", p.log, "The natural logarithm, elementwise.", inexact=True)
log2 = unary("log2", p.log2, "The logarithm to base 2, elementwise.", inexact=True)
log1p = unary("log1p", p.log1p, "log(1 + x), accurate near 0.", inexact=True)
sqrt = unary("sqrt", p.sqrt, "The square root, elementwise.", inexact=True)
cbrt = unary("cbrt", p.cbrt, "The cube root, elementwise.", inexact=True)
sin = unary("sin", p.sin, "The sine, elementwise.", inexact=True)
cos = unary("cos", p.cos, "The cosine, elementwise.", inexact=True)
tan = unary("tan", p.tan, "The tangent, elementwise.", inexact=True)
arcsin = asin = unary("arcsin", p.asin, "The inverse sine, elementwise.", inexact=True)
arccos = acos = unary("arccos", p.acos, "The inverse cosine, elementwise.", inexact=True)
arctan = atan = unary("arctan", p.atan, "The inverse tangent, elementwise.", inexact=True)
sinh = unary("sinh", p.sinh, "The hyperbolic sine, elementwise.", inexact=True)
cosh = unary("cosh", p.cosh, "The hyperbolic cosine, elementwise.", inexact=True)
tanh = unary("tanh", p.tanh, "The hyperbolic tangent, elementwise.", inexact=True)
arcsinh = asinh = unary("arcsinh", p.asinh, "The inverse hyperbolic sine.", inexact=True)
arccosh = acosh = unary("arccosh", p.acosh, "The inverse hyperbolic cosine.", inexact=True)
arctanh = atanh = unary("arctanh", p.atanh, "The inverse hyperbolic tangent.", inexact=True)

# ---- rounding and parts ----

floor = unary(
    "floor", p.floor, "The largest integer <= x; integers are unchanged.", identity=_exact
)
ceil = unary("ceil", p.ceil, "The smallest integer >= x; integers are unchanged.", identity=_exact)
trunc = unary("trunc", p.trunc, "x without its fraction; integers are unchanged.", identity=_exact)
real = unary("real", p.real, "The real part.", identity=_real)
conj = unary("conj", p.conj, "The complex conjugate.", identity=_real)
conjugate = conj


def rint(x: ArrayLike, /) -> Array:
    """The nearest integer, ties to even; of integers and booleans, as the default float."""
    x = value(x, "rint")
    if dtypes.is_complex(x.aval.dtype):
        return p.complex_(p.round_even(p.real(x)), p.round_even(p.imag(x)))
    if dtypes.is_inexact(x.aval.dtype):
        return p.round_even(x)
    return strong(p.convert(x, dtypes.default_float()))


def imag(x: ArrayLike, /) -> Array:
    """The imaginary part: zeros for real x."""
    x = value(x, "imag")
    real = not dtypes.is_complex(x.aval.dtype) and not dtypes.is_key(x.aval.dtype)
    return with_weak(zeros_of(x.aval), x.weak) if real else p.imag(x)


# ---- comparison ----

equal = binary("equal", p.eq, "x == y, elementwise.")
not_equal = binary("not_equal", p.ne, "x != y, elementwise.")
less = binary("less", p.lt, "x < y, elementwise.", of_complex=complex_order.less)
less_equal = binary("less_equal", p.le, "x <= y, elementwise.", of_complex=complex_order.less_equal)
greater = binary("greater", p.gt, "x > y, elementwise.", of_complex=complex_order.greater)
greater_equal = binary(
    "greater_equal", p.ge, "x >= y, elementwise.", of_complex=complex_order.greater_equal
)


def isfinite(x: ArrayLike, /) -> Array:
    """Whether x is neither infinite nor NaN, elementwise."""
    x = value(x, "isfinite")
    if dtypes.is_inexact(x.aval.dtype):
        return p.is_finite(x)
    return truth(full(x.aval.shape, True, dtypes.BOOL))


# ---- logic and bits ----


def truth(x: ArrayLike) -> Array:
    """x != 0 as booleans; booleans pass through."""
    x = value(x)
    return x if x.aval.dtype == dtypes.BOOL else strong_array(p.ne(x, scalar_as(0, x.aval.dtype)))


def _logical(name: str, function: Callable[..., Any], doc: str) -> LogicalFunction:
    def call(x: Any, y: Any, /) -> Any:
        numbers = [type(v) in SCALARS for v in (x, y)]
        # A number beside an array is known, and no array.
        known = [bool(v) if n and not all(numbers) else truth(v) for v, n in zip((x, y), numbers)]
        result = function(*known)
        if not result.aval.shape and (is_weak(x) or is_weak(y)):
            result = with_weak(result, promote_arrays(name, (x, y))[0].weak)
        return result

    return _function(call, name, doc)


bitwise_and = binary("bitwise_and", p.bitwise_and, "x & y, bit by bit.")
bitwise_or = binary("bitwise_or", p.bitwise_or, "x | y, bit by bit.")
bitwise_xor = binary("bitwise_xor", p.bitwise_xor, "x ^ y, bit by bit.")
bitwise_not = unary("bitwise_not", p.bitwise_not, "~x, bit by bit.")
invert = bitwise_invert = bitwise_not
bitwise_count = unary(
    "bitwise_count",
    lambda x: p.convert(p.population_count(p.abs(x)), dtypes.U8),
    "The number of set bits of |x|, as uint8.",
)
left_shift = binary("left_shift", p.shift_left, "x << y, elementwise.")
bitwise_left_shift = left_shift
logical_and = _logical("logical_and", bitwise_and, "Whether x and y are both nonzero.")
logical_or = _logical("logical_or", bitwise_or, "Whether x or y is nonzero.")
logical_xor = _logical("logical_xor", bitwise_xor, "Whether exactly one of x and y is nonzero.")


def logical_not(x: ArrayLike, /) -> Array:
    """Whether x is zero, elementwise."""
    return p.bitwise_not(truth(x))


def right_shift(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x >> y, elementwise: the sign is kept for signed integers."""
    try:
        a, b = operands("right_shift", (x, y))
    except (errors.ShapeError, errors.DTypeError) as error:
        raise located(error) from None
    d = (a if type(a) not in SCALARS else b).aval.dtype
    return (p.shift_right_logical if dtypes.is_unsigned(d) else p.shift_right_arithmetic)(a, b)


bitwise_right_shift = right_shift
