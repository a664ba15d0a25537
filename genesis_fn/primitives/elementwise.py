"""Elementwise primitives: arithmetic, comparison, logic, functions, rounding and casts.

Operands have one shape and dtype (broadcasting and promotion happen above); a Python scalar may
stand for an operand. Derivatives follow JAX's conventions at ties and kinks.
"""

from __future__ import annotations

import builtins
import cmath
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import IN_KERNELS, Elementwise, same
from genesis_fn.core.dtypes import BOOL, DType
from genesis_fn.core.primitive import SCALARS, Primitive, bind, ctx, is_linear, no_flops, typeof
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.primitives.factories import (
    NEG,
    ONE,
    PRIM,
    PrimitiveFunction,
    batch_elementwise,
    describe,
    elementwise,
    full_p,
    instantiate,
    move_batch,
    named,
    no_tangent,
    scale,
    zeros,
)

_bool = lambda d: BOOL

# ---- arithmetic ----


neg = elementwise(
    "neg",
    [NEG],
    transpose=lambda ct, x: [neg(ct)],
    torch=operator.neg,
    python=operator.neg,
    wraps=True,
    fold=np.negative,
    triton=lambda kind, x: f"negate({x})" if dtypes.is_float(kind) else f"(-{x})",
    bounded=True,
)
add = elementwise(
    "add",
    [ONE, ONE],
    accepts="any",
    transpose=lambda ct, x, y: [ct if is_linear(x) else None, ct if is_linear(y) else None],
    torch=operator.add,
    python=operator.add,
    wraps=True,
    fold=np.add,
    scalars=(0, 1),
    triton=lambda kind, x, y: f"({x} | {y})" if kind == BOOL else f"({x} + {y})",
    bounded=True,
)
sub = elementwise(
    "sub",
    [ONE, NEG],
    transpose=lambda ct, x, y: [ct if is_linear(x) else None, neg(ct) if is_linear(y) else None],
    torch=operator.sub,
    triton="{0} - {1}",
    python=operator.sub,
    wraps=True,
    fold=np.subtract,
    scalars=(0, 1),
    bounded=True,
)
mul = elementwise(
    "mul",
    [lambda o, x, y: y, lambda o, x, y: x],
    accepts="any",
    transpose=lambda ct, x, y: [mul(ct, y), None] if is_linear(x) else [None, mul(ct, x)],
    torch=operator.mul,
    python=operator.mul,
    wraps=True,
    fold=np.multiply,
    scalars=(0, 1),
    triton=lambda kind, x, y: f"({x} & {y})" if kind == BOOL else f"({x} * {y})",
)
# t * d with 0 * inf = 0: what derivatives use under `grad(..., safe_zero=True)`. Linear in t.
safe_mul = elementwise(
    "safe_mul",
    tangent=lambda ts, o, t, d: _safe_mul_tangent(ts, t, d),
    accepts="inexact",
    transpose=lambda ct, t, d: [safe_mul(ct, d), None],
    torch=lambda t, d: torch.where(t == 0, t, t * d),
    triton=lambda kind, t, d: f"safe_mul({t}, {d})",
)
PRIM.update(neg=neg.prim, add=add.prim, mul=mul.prim, safe_mul=safe_mul.prim, full=full_p)


def _safe_mul_tangent(ts: Sequence[Any], t: Any, d: Any) -> Any:
    first = None if ts[0] is None else safe_mul(ts[0], d)
    second = None if ts[1] is None else safe_mul(ts[1], t)
    return second if first is None else first if second is None else add(first, second)


def over(t: Array, d: ArrayLike) -> Array:
    """Divide a tangent: t / d; under `grad(..., safe_zero=True)` 0 where t is zero."""
    return scale(t, div(1, d)) if ctx.safe_zero else div(t, d)


def _div_tangent(ts: Sequence[Any], o: Any, x: Any, y: Any) -> Any:
    first = None if ts[0] is None else over(ts[0], y)
    second = None if ts[1] is None else neg(scale(ts[1], div(o, y)))
    return second if first is None else first if second is None else add(first, second)


div = elementwise(
    "div",
    tangent=_div_tangent,
    transpose=lambda ct, x, y: [div(ct, y), None],
    triton=lambda kind, x, y: f"div({x}, {y})",
    python=operator.truediv,
    cost=8,
    scalars=(0, 1),
)
rem = elementwise(
    "rem",
    # The whole quotient: that of x itself could round up to it, and on a GPU fall short of it.
    [ONE, lambda o, x, y: neg(round_even(div(sub(x, o), y)))],
    accepts="real",
    triton="rem({0}, {1})",
    cost=8,
)


# At 0**0 both partials are 0, but the derivative of each by the other operand is infinite. There a
# partial is written as the square root of the other operand, which has that value and derivative.


def _pow_dx(o: Any, x: Any, y: Any) -> Any:
    if type(y) in SCALARS:
        return zeros(typeof(x)) if y == 0 else mul(pow(x, y - 1), y)
    corner = bitwise_and(eq(x, 0), eq(y, 0))
    inner = mul(y, pow(x, sub(select(corner, 2, y), 1)))
    return select(corner, sqrt(select(corner, y, 1)), inner)


def _pow_dy(o: Any, x: Any, y: Any) -> Any:
    # log(x) * x**y, and 0 at x == 0 with y > 0.
    if type(x) not in SCALARS:
        zero = eq(x, 0)
        inner = mul(log(select(zero, 1, x)), o)
        corner = bitwise_and(zero, eq(y, 0))
        return select(corner, sqrt(select(corner, x, 1)), inner)
    if x == 0:
        return mul(o, 0)
    if dtypes.is_complex(typeof(y).dtype):
        return mul(o, cmath.log(x))
    return mul(o, math.log(x) if x.real > 0 else math.nan)


pow = elementwise(
    "pow",
    [_pow_dx, _pow_dy],
    accepts="inexact",
    precision="high",
    torch=operator.pow,
    triton="pow({0}, {1})",
    python=operator.pow,
    cost=8,
    scalars=(0, 1),
    transcendental=True,
)


# x**y of integers, which wraps as products do. For y < 0 the reciprocal is truncated to an integer:
# 0 for all x but 1 and -1.
power_of_integers = elementwise(
    "power_of_integers", accepts="integer", numpy=np.power, triton="power_of_integers({0}, {1})"
)


def _same_if(o: Any, x: Any, y: Any) -> Any:
    """1 where x is the result, a half where x and y tie, 0 elsewhere."""
    aval = typeof(o)
    wins = eq(x, o) if hasattr(x, "aval") else eq(o, x)
    return select(eq(x, y), half(aval), convert(wins, aval.dtype))


def half(kind: Aval) -> Array:
    """Make an array of 0.5."""
    return bind(PRIM["full"], value=0.5, shape=kind.shape, dtype=kind.dtype)


max = elementwise(
    "max",
    [_same_if, lambda o, x, y: _same_if(o, y, x)],
    accepts="ordered",
    numpy=np.maximum,
    triton="maximum({0}, {1})",
    scalars=(0, 1),
    bounded=True,
)
min = elementwise(
    "min",
    [_same_if, lambda o, x, y: _same_if(o, y, x)],
    accepts="ordered",
    numpy=np.minimum,
    triton="minimum({0}, {1})",
    scalars=(0, 1),
    bounded=True,
)
atan2 = elementwise(
    "atan2",
    [
        lambda o, y, x: div(x, add(mul(x, x), mul(y, y))),
        lambda o, y, x: neg(div(y, add(mul(x, x), mul(y, y)))),
    ],
    accepts="float",
    precision="high",
    triton="atan2({0}, {1})",
    cost=8,
    transcendental=True,
)
nextafter = elementwise(
    "nextafter", tangent=lambda ts, o, x, y: ts[0], accepts="float", triton=IN_KERNELS
)
abs = elementwise(
    "abs",
    tangent=lambda ts, o, x: _abs_tangent(ts[0], o, x),
    result=dtypes.real_of,
    torch=torch.abs,
    numpy=np.abs,
    triton="tl.abs({0})",
    bounded=True,
)


sign = elementwise("sign", accepts="number", numpy=np.sign, triton="sign({0})")


def _abs_tangent(t: Any, o: Any, x: Any) -> Any:
    if dtypes.is_complex(typeof(x).dtype):
        # d|z| = Re(conj(z)/|z| dz), written so that it has derivatives itself; 0 at z = 0.
        length = select(eq(o, 0), 1.0, o)
        return real(mul(t, div(conj(x), convert(length, typeof(x).dtype))))
    return scale(t, sign(x))


def _integer_pow_shape(x: Aval, *, y: int) -> Aval:
    if x.dtype == BOOL or (y < 0 and dtypes.is_integer(x.dtype)):
        raise errors.DTypeError(f"integer_pow: cannot raise {x} to the power {y}")
    return x


def _integer_pow_triton(kind: DType, x: str, *, y: int) -> str:
    n = builtins.abs(y)
    return f"({x} * {x})" if y == 2 else f"integer_pow({x}, {n}, {n.bit_length()}, {y < 0})"


integer_pow_p = Primitive(
    "integer_pow", _integer_pow_shape, lowering=Elementwise(_integer_pow_triton), precision="high"
)
integer_pow_p.batch = functools.partial(batch_elementwise, integer_pow_p)


def _integer_pow_linearize(nonzero: Any, x: Any, *, y: int) -> Any:
    def tangent(t: Any) -> Any:
        return None if y == 0 else t if y == 1 else scale(t, mul(integer_pow(x, y - 1), y))

    return integer_pow(x, y), tangent


integer_pow_p.linearize = _integer_pow_linearize


def integer_pow(x: Array, y: int) -> Array:
    """Raise x to a Python integer y."""
    return x if y == 1 else bind(integer_pow_p, x, y=y)


def square(x: Array) -> Array:
    """Square x."""
    return integer_pow(x, 2)


def reciprocal(x: Array) -> Array:
    """Return 1 / x."""
    return integer_pow(x, -1)


# ---- comparison, logic, bits ----


def _compare(
    name: str,
    sign: str,
    op: Callable[..., Any],
    ufunc: Callable[..., Any],
    accepts: str,
    wraps: bool,
) -> PrimitiveFunction:
    def triton(kind: DType, x: str, y: str) -> str:
        if kind == BOOL and accepts == "ordered":
            # int1 compares as a signed number, whose one is negative.
            return f"({x}.to(tl.int32) {sign} {y}.to(tl.int32))"
        return f"({x} {sign} {y})"

    return elementwise(
        name,
        accepts=accepts,
        result=_bool,
        torch=op,
        wraps=wraps,
        python=op,
        triton=triton,
        fold=ufunc,
        scalars=(0, 1),
    )


eq = _compare("eq", "==", operator.eq, np.equal, "any", True)
ne = _compare("ne", "!=", operator.ne, np.not_equal, "any", True)
lt = _compare("lt", "<", operator.lt, np.less, "ordered", False)
le = _compare("le", "<=", operator.le, np.less_equal, "ordered", False)
gt = _compare("gt", ">", operator.gt, np.greater, "ordered", False)
ge = _compare("ge", ">=", operator.ge, np.greater_equal, "ordered", False)

bitwise_and = elementwise(
    "and",
    accepts="bits",
    torch=operator.and_,
    triton="{0} & {1}",
    python=operator.and_,
    wraps=True,
    fold=np.bitwise_and,
    scalars=(0, 1),
)
bitwise_or = elementwise(
    "or",
    accepts="bits",
    torch=operator.or_,
    triton="{0} | {1}",
    python=operator.or_,
    wraps=True,
    fold=np.bitwise_or,
    scalars=(0, 1),
)
bitwise_xor = elementwise(
    "xor",
    accepts="bits",
    torch=operator.xor,
    triton="{0} ^ {1}",
    python=operator.xor,
    wraps=True,
    fold=np.bitwise_xor,
    scalars=(0, 1),
)
bitwise_not = elementwise(
    "not", accepts="bits", torch=torch.bitwise_not, triton="not_({0})", wraps=True, fold=np.invert
)


# Shifting by the width or more gives 0 (or the sign), as JAX defines it.
shift_left = elementwise("shift_left", accepts="integer", triton="shift_left({0}, {1})")
shift_right_logical = elementwise(
    "shift_right_logical", accepts="integer", triton="shift_right_logical({0}, {1})"
)
shift_right_arithmetic = elementwise(
    "shift_right_arithmetic", accepts="integer", triton="shift_right_arithmetic({0}, {1})"
)
# The number of one bits, and of leading zero bits.
population_count = elementwise("population_count", accepts="integer", triton="count_bits({0})")
clz = elementwise("clz", accepts="integer", triton="clz({0})")

# ---- exponentials, roots, logistic ----


exp = elementwise(
    "exp",
    [lambda y, x: y],
    accepts="inexact",
    precision="high",
    torch=torch.exp,
    triton="exp({0})",
    cost=8,
    transcendental=True,
)
exp2 = elementwise(
    "exp2",
    [lambda y, x: mul(y, math.log(2))],
    accepts="inexact",
    precision="high",
    torch=torch.exp2,
    triton="exp2({0})",
    cost=8,
    transcendental=True,
)
expm1 = elementwise(
    "expm1",
    [lambda y, x: add(y, 1)],
    accepts="inexact",
    precision="high",
    torch=torch.expm1,
    triton="expm1({0})",
    cost=8,
    transcendental=True,
)
log = elementwise(
    "log",
    tangent=lambda ts, y, x: over(ts[0], x),
    accepts="inexact",
    precision="high",
    torch=torch.log,
    triton="log({0})",
    python=math.log,
    cost=8,
    transcendental=True,
)
log2 = elementwise(
    "log2",
    tangent=lambda ts, y, x: over(ts[0], mul(x, math.log(2))),
    accepts="inexact",
    precision="high",
    torch=torch.log2,
    triton="log2({0})",
    cost=8,
    transcendental=True,
)
log1p = elementwise(
    "log1p",
    tangent=lambda ts, y, x: over(ts[0], add(x, 1)),
    accepts="inexact",
    precision="high",
    torch=torch.log1p,
    triton="log1p({0})",
    cost=8,
    transcendental=True,
)
sqrt = elementwise(
    "sqrt",
    tangent=lambda ts, y, x: over(ts[0], mul(y, 2)),
    accepts="inexact",
    precision="high",
    torch=torch.sqrt,
    triton="square_root({0})",
    transcendental=True,
)
rsqrt = elementwise(
    "rsqrt",
    [lambda y, x: mul(div(y, x), -0.5)],
    accepts="inexact",
    precision="high",
    torch=torch.rsqrt,
    triton="rsqrt({0})",
    transcendental=True,
)
cbrt = elementwise(
    "cbrt",
    [lambda y, x: div(1, mul(mul(y, y), 3))],
    accepts="float",
    precision="high",
    triton="cbrt({0})",
    cost=8,
    transcendental=True,
)
logistic = elementwise(
    "logistic",
    [lambda y, x: mul(y, sub(1, y))],
    accepts="inexact",
    precision="high",
    torch=torch.sigmoid,
    triton="logistic({0})",
    cost=8,
    bounded=True,
    transcendental=True,
)

# ---- trigonometry ----


def _transcendental(
    name: str, partial: Callable[..., Any], triton: str, accepts: str = "inexact", **options: Any
) -> PrimitiveFunction:
    torch_function = options.pop("torch", None) or getattr(torch, name)
    options.setdefault("cost", 8)
    return elementwise(
        name,
        [partial],
        accepts=accepts,
        precision="high",
        torch=torch_function,
        triton=triton,
        transcendental=True,
        **options,
    )


sin = _transcendental("sin", lambda y, x: cos(x), "sin({0})", bounded=True)
cos = _transcendental("cos", lambda y, x: neg(sin(x)), "cos({0})", bounded=True)
tan = _transcendental("tan", lambda y, x: add(mul(y, y), 1), "tan({0})")
asin = _transcendental("asin", lambda y, x: rsqrt(sub(1, mul(x, x))), "asin({0})")
acos = _transcendental("acos", lambda y, x: neg(rsqrt(sub(1, mul(x, x)))), "acos({0})")
atan = _transcendental("atan", lambda y, x: reciprocal(add(mul(x, x), 1)), "atan({0})")
sinh = _transcendental("sinh", lambda y, x: cosh(x), "sinh({0})")
cosh = _transcendental("cosh", lambda y, x: sinh(x), "cosh({0})")
tanh = _transcendental("tanh", lambda y, x: sub(1, mul(y, y)), "tanh({0})", bounded=True)
asinh = _transcendental("asinh", lambda y, x: rsqrt(add(mul(x, x), 1)), "asinh({0})")
acosh = _transcendental("acosh", lambda y, x: mul(rsqrt(sub(x, 1)), rsqrt(add(x, 1))), "acosh({0})")
atanh = _transcendental("atanh", lambda y, x: reciprocal(sub(1, mul(x, x))), "atanh({0})")

# ---- error functions, gamma family ----

_TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)

erf = _transcendental(
    "erf",
    lambda y, x: mul(exp(neg(mul(x, x))), _TWO_OVER_SQRT_PI),
    "erf({0})",
    accepts="float",
    save=True,
    bounded=True,
)
erfc = _transcendental(
    "erfc",
    lambda y, x: mul(exp(neg(mul(x, x))), -_TWO_OVER_SQRT_PI),
    "erfc({0})",
    accepts="float",
    save=True,
)
erf_inv = _transcendental(
    "erf_inv",
    lambda y, x: mul(exp(mul(y, y)), 1 / _TWO_OVER_SQRT_PI),
    "erf_inv({0})",
    accepts="float",
    torch=torch.erfinv,
    cost=20,
)
lgamma = _transcendental("lgamma", lambda y, x: digamma(x), "lgamma({0})", accepts="float", cost=30)

# ---- rounding and classification ----

floor = elementwise("floor", accepts="float", torch=torch.floor, triton="floor({0})")
ceil = elementwise("ceil", accepts="float", torch=torch.ceil, triton="ceil({0})")
trunc = elementwise("trunc", accepts="float", torch=torch.trunc, triton="trunc({0})")
round_even = elementwise("round_even", accepts="float", torch=torch.round, triton="round_even({0})")
is_finite = elementwise(
    "is_finite", accepts="inexact", result=_bool, torch=torch.isfinite, triton=IN_KERNELS
)


# ---- casts ----


convert_p = Primitive(
    "convert_element_type",
    lambda x, *, dtype: x.update(dtype=dtype),
    lowering=Elementwise(IN_KERNELS),
    weak=None,
    bounded=True,
    flops=no_flops,
)
convert_p.batch = functools.partial(batch_elementwise, convert_p)
convert_p.transpose = lambda ct, x, *, dtype: [convert(ct, x.aval.dtype)]


def _convert_linearize(nonzero: Any, x: Any, *, dtype: DType) -> Any:
    source = typeof(x).dtype
    carries = dtypes.is_inexact(dtype) and dtypes.is_inexact(source)
    return convert(x, dtype), lambda t: convert(t, dtype) if carries else None


convert_p.linearize = _convert_linearize


def convert(x: Any, dtype: DType) -> Array:
    """Convert `x` to another dtype, if it has another. Floats to integers saturate; NaN
    becomes 0."""
    return x if typeof(x).dtype == dtype else bind(convert_p, x, dtype=dtype)


def _bitcast_shape(x: Aval, *, dtype: DType) -> Aval:
    a, b = x.dtype.itemsize, dtype.itemsize
    if a == b:
        return x.update(dtype=dtype)
    if a > b:
        return x.update((*x.shape, a // b), dtype)
    if not x.shape or x.shape[-1] != b // a:
        raise errors.ShapeError(
            f"bitcast_convert_type: {x} to {dtype.name} needs a last dimension of {b // a}"
        )
    return x.update(x.shape[:-1], dtype)


bitcast_p = Primitive(
    "bitcast_convert_type",
    _bitcast_shape,
    lowering=Elementwise(IN_KERNELS),
    weak=None,
    flops=no_flops,
)
bitcast_p.linearize = no_tangent(bitcast_p)


def _bitcast_batch(size: int, xs: Sequence[Any], dims: Sequence[Any], *, dtype: DType) -> Any:
    return bitcast_convert_type(move_batch(xs[0], dims[0], 0, size), dtype), 0


bitcast_p.batch = _bitcast_batch


def bitcast_convert_type(x: Array, dtype: DType) -> Array:
    """Read the bits of `x` as another dtype; a change of width adds or removes a last dimension."""
    return x if typeof(x).dtype == dtype else bind(bitcast_p, x, dtype=dtype)


# ---- select ----


def _select_shape(c: Aval, x: Any, y: Any) -> Aval:
    arrays = [a for a in (x, y) if type(a) is Aval]
    if not arrays:
        raise errors.DTypeError("select: at least one of the two cases must be an array")
    if any(a != arrays[0] for a in arrays):
        raise errors.ShapeError(f"select: the two cases differ: {describe((x, y))}")
    if c.dtype != BOOL or c.shape != arrays[0].shape:
        raise errors.ShapeError(f"select: the condition {c} must be bool{list(arrays[0].shape)}")
    return arrays[0]


def _select_linearize(nonzero: Any, c: Any, x: Any, y: Any) -> Any:
    out = select(c, x, y)

    def tangent(_: Any, tx: Any, ty: Any) -> Any:
        if tx is None and ty is None:
            return None
        return select(c, 0.0 if tx is None else tx, 0.0 if ty is None else ty)

    return out, tangent


def _select_transpose(ct: Any, c: Any, x: Any, y: Any) -> list[Any]:
    return [
        None,
        select(c, ct, 0.0) if is_linear(x) else None,
        select(c, 0.0, ct) if is_linear(y) else None,
    ]


select_p = Primitive(
    "select",
    _select_shape,
    linearize=_select_linearize,
    transpose=_select_transpose,
    lowering=Elementwise(lambda kind, c, x, y: f"tl.where({c}, {x}, {y})", scalars=(1, 2)),
    weak=slice(1, None),
    bounded=True,
    flops=no_flops,
)
select_p.batch = functools.partial(batch_elementwise, select_p)


def select(c: Array, x: ArrayLike, y: ArrayLike) -> Array:
    """Return x where c is true, else y; one of x and y may be a Python scalar."""
    return bind(select_p, c, x, y)


# ---- complex numbers ----


real = elementwise(
    "real",
    tangent=lambda ts, y, x: real(ts[0]),
    accepts="complex",
    result=dtypes.real_of,
    transpose=lambda ct, x: [complex_(ct, zeros(typeof(ct)))],
    torch=torch.real,
    bounded=True,
    flops=no_flops,
)
imag = elementwise(
    "imag",
    tangent=lambda ts, y, x: imag(ts[0]),
    accepts="complex",
    result=dtypes.real_of,
    transpose=lambda ct, x: [complex_(zeros(typeof(ct)), neg(ct))],
    torch=torch.imag,
    bounded=True,
    flops=no_flops,
)
complex_ = elementwise(
    "complex",
    tangent=lambda ts, o, x, y: complex_(
        instantiate(ts[0], typeof(x)), instantiate(ts[1], typeof(y))
    ),
    accepts="float",
    result=dtypes.complex_of,
    torch=lambda x, y: torch.complex(*[v.float() if v.itemsize < 4 else v for v in (x, y)]),
    transpose=lambda ct, x, y: [
        real(ct) if is_linear(x) else None,
        neg(imag(ct)) if is_linear(y) else None,
    ],
    flops=no_flops,
)
conj = elementwise(
    "conj",
    tangent=lambda ts, y, x: conj(ts[0]),
    accepts="complex",
    transpose=lambda ct, x: [conj(ct)],
    torch=torch.conj_physical,
    bounded=True,
)


# ---- derivatives of digamma ----


def _polygamma_shape(x: Aval, *, n: int) -> Aval:
    if not dtypes.is_float(x.dtype):
        raise errors.DTypeError(f"polygamma takes floats, got {x}")
    if n < 0:
        raise ValueError(f"polygamma: the order must not be negative, got {n}")
    return x


polygamma_p = Primitive(
    "polygamma",
    _polygamma_shape,
    lowering=Elementwise(IN_KERNELS, cost=30),
    precision="high",
    transcendental=True,
)
polygamma_p.batch = functools.partial(batch_elementwise, polygamma_p)
polygamma_p.linearize = lambda nonzero, x, *, n: (
    polygamma(n, x),
    lambda t: scale(t, polygamma(n + 1, x)),
)


def polygamma(n: int, x: Array) -> Array:
    """The n-th derivative of digamma."""
    return bind(polygamma_p, x, n=n)


digamma = elementwise(
    "digamma",
    [lambda y, x: polygamma(1, x)],
    accepts="float",
    precision="high",
    torch=torch.digamma,
    triton="digamma({0})",
    cost=30,
    transcendental=True,
)


# ---- sums of cotangents ----


# One rounding for any number of terms: 16-bit floats are added in float32.
add_n = elementwise(
    "add_n",
    tangent=lambda ts, o, *xs: total([t for t in ts if t is not None]),
    transpose=lambda ct, *xs: [ct if is_linear(x) else None for x in xs],
    accepts="any",
    wraps=True,
    triton=lambda kind, *xs: "(" + (" | " if kind == BOOL else " + ").join(xs) + ")",
    bounded=True,
    flops=lambda ins, outs: outs[0].size * (len(ins) - 1),
)


def total(xs: Sequence[Array]) -> Array:
    """Sum a non-empty list of arrays, rounded once."""
    return xs[0] if len(xs) == 1 else add_n(*xs)


# ---- identity with a meaning ----

stop_gradient_p = Primitive("stop_gradient", lambda x: x, lowering=same())
stop_gradient_p.linearize = no_tangent(stop_gradient_p)
stop_gradient_p.batch = functools.partial(batch_elementwise, stop_gradient_p)


def _stop_gradient(x: Any) -> Any:
    """`x`, with zero derivative."""
    return bind(stop_gradient_p, x)


stop_gradient = named(_stop_gradient, stop_gradient_p)
