"""Arithmetic, comparison and casts of complex numbers, on their parts.

A product is the plain formula, as in XLA and torch: it has no special case for infinities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.values import (
    Complex,
    by_part,
    constant,
    of_packed,
    of_parts,
    of_real,
    on_parts,
    packed_aval,
    pair,
)
from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import Primitive, bind, typeof
from genesis_fn.primitives import elementwise as ops, shape
from genesis_fn.primitives.elementwise import (
    add,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    convert,
    div,
    eq,
    ge,
    is_finite,
    lt,
    mul,
    ne,
    neg,
    select,
    sqrt,
    sub,
)
from genesis_fn.primitives.factories import full_p
from genesis_fn.transforms.autodiff.checkpointing import name_p

on_parts(
    ops.neg.prim, ops.add.prim, ops.sub.prim, ops.add_n.prim, ops.select_p, ops.stop_gradient_p,
    name_p, shape.copy_p,
)(by_part)  # fmt: skip

# ---- properties of real numbers ----


def is_nan(x: Any) -> Any:
    """Where a real value is NaN."""
    return ne(x, x)


def is_infinite(x: Any) -> Any:
    """Where a real value is infinite."""
    return eq(ops.abs(x), math.inf)


def not_finite(x: Any) -> Any:
    """Where a real value is infinite or NaN."""
    return bitwise_not(is_finite(x))


def negative(x: Any) -> Any:
    """Where the sign bit of a real value is set, that of -0.0 and of NaN too."""
    bits = dtypes.I64 if typeof(x).dtype == dtypes.F64 else dtypes.I32
    return lt(bind(ops.bitcast_p, x, dtype=bits), 0)


def copysign(size: Any, sign: Any) -> Any:
    """A real value of at least 0 with the sign of another one."""
    return select(negative(sign), neg(size), size)


# ---- products ----


def multiplied(x: tuple[Any, Any], y: tuple[Any, Any]) -> tuple[Any, Any]:
    """The product of two pairs."""
    (a, b), (c, d) = x, y
    return sub(mul(a, c), mul(b, d)), add(mul(a, d), mul(b, c))


@on_parts(ops.mul.prim)
def _mul(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    return of_parts(*multiplied(*map(pair, xs)))


@on_parts(ops.safe_mul.prim)
def _safe_mul(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    (a, b), y = map(pair, xs)
    nothing = bitwise_and(eq(a, 0.0), eq(b, 0.0))
    re, im = multiplied((a, b), y)
    return of_parts(select(nothing, a, re), select(nothing, b, im))


@on_parts(ops.integer_pow_p)
def _integer_pow(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    """Products of repeated squares; for a negative exponent the reciprocal of the power."""
    x, n = pair(xs[0]), abs(params["y"])
    power: tuple[Any, Any] | None = None
    while n:
        if n % 2:
            power = x if power is None else multiplied(power, x)
        n //= 2
        x = multiplied(x, x) if n else x
    if power is None:
        kind = typeof(x[0])
        return of_parts(constant(kind, 1.0), constant(kind, 0.0))
    return of_parts(*(divided((1.0, 0.0), power) if params["y"] < 0 else power))


# ---- quotients ----


@on_parts(ops.div.prim)
def _div(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    return of_parts(*divided(*map(pair, xs)))


def divided(x: tuple[Any, Any], y: tuple[Any, Any]) -> tuple[Any, Any]:
    """The quotient of two pairs by Smith's formula, which neither overflows nor underflows where
    the quotient does not. By zero each part is divided, and infinities are those of the formula, as
    in NumPy and torch."""
    like = typeof(next(v for v in (*y, *x) if hasattr(v, "aval")))
    a, b, c, d = [v if hasattr(v, "aval") else constant(like, v) for v in (*x, *y)]
    by_real = ge(ops.abs(c), ops.abs(d))
    large, small = select(by_real, c, d), select(by_real, d, c)
    ratio = div(small, large)
    scale = add(large, mul(small, ratio))
    # By the larger part: (a + b r) / s and (b - a r) / s, or (a r + b) / s and (b r - a) / s.
    first, second = select(by_real, a, b), select(by_real, b, a)
    turned = mul(first, ratio)
    cross = select(by_real, sub(second, turned), sub(turned, second))
    re, im = div(add(first, mul(second, ratio)), scale), div(cross, scale)
    zero = bitwise_and(eq(c, 0.0), eq(d, 0.0))
    nothing = constant(like, 0.0)
    return select(zero, div(a, nothing), re), select(zero, div(b, nothing), im)


# ---- size and sign ----


def modulus(x: Any, y: Any) -> Any:
    """sqrt(x**2 + y**2) without overflow; infinite where a part is, whatever the other is."""
    x, y = ops.abs(x), ops.abs(y)
    large, small = ops.max(x, y), ops.min(x, y)
    ratio = select(eq(large, 0.0), 0.0, div(small, large))
    length = mul(large, sqrt(add(mul(ratio, ratio), 1.0)))
    return select(bitwise_or(eq(x, math.inf), eq(y, math.inf)), math.inf, length)


@on_parts(ops.abs.prim)
def _abs(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    return modulus(*pair(xs[0]))


@on_parts(ops.sign.prim)
def _sign(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    re, im = pair(xs[0])
    size, none = modulus(re, im), bitwise_and(eq(re, 0.0), eq(im, 0.0))
    nan = bitwise_or(is_nan(re), is_nan(im))
    parts = [select(none, v, select(nan, math.nan, div(v, size))) for v in (re, im)]
    return of_parts(*parts)


# ---- comparison ----


@on_parts(ops.eq.prim)
def _eq(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    (a, b), (c, d) = map(pair, xs)
    return bitwise_and(eq(a, c), eq(b, d))


@on_parts(ops.ne.prim)
def _ne(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    (a, b), (c, d) = map(pair, xs)
    return bitwise_or(ne(a, c), ne(b, d))


@on_parts(ops.is_finite.prim)
def _is_finite(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    re, im = pair(xs[0])
    return bitwise_and(is_finite(re), is_finite(im))


# ---- parts ----


@on_parts(ops.real.prim)
def _real(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    return pair(xs[0])[0]


@on_parts(ops.imag.prim)
def _imag(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    return pair(xs[0])[1]


@on_parts(ops.conj.prim)
def _conj(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    re, im = pair(xs[0])
    return of_parts(re, neg(im))


@on_parts(ops.complex_.prim)
def _complex(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    kind = next(typeof(x) for x in xs if hasattr(x, "aval"))
    dtype = dtypes.real_of(dtypes.complex_of(kind.dtype))
    arrays = [x if hasattr(x, "aval") else constant(kind, float(x)) for x in xs]
    re, im = [convert(x, dtype) for x in arrays]
    return of_parts(re, im)


# ---- casts ----


@on_parts(ops.convert_p)
def _convert(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    (x,), dtype = xs, params["dtype"]
    if type(x) is not Complex:
        return of_real(convert(x, dtypes.real_of(dtype)))
    re, im = x.parts
    if dtypes.is_complex(dtype):
        part = dtypes.real_of(dtype)
        made = of_parts(convert(re, part), convert(im, part))
        made.real = x.real
        return made
    if dtype == dtypes.BOOL:
        return bitwise_or(ne(re, 0.0), ne(im, 0.0))
    return convert(re, dtype)


@on_parts(ops.bitcast_p)
def _bitcast(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    (x,), dtype = xs, params["dtype"]
    kind = typeof(x) if type(x) is not Complex else x.aval
    result = prim.abstract((kind,), params)
    if type(x) is Complex:
        x = x.packed
    if dtypes.is_complex(dtype):
        return of_packed(_reinterpreted(x, dtypes.real_of(dtype), packed_aval(result).shape))
    return _reinterpreted(x, dtype, result.shape)


def _reinterpreted(x: Any, dtype: DType, new: tuple[int, ...]) -> Any:
    """The bytes of a real array as one of another dtype and shape."""
    old, source, target = typeof(x).shape, typeof(x).dtype.itemsize, dtype.itemsize
    if source < target:
        each = target // source
        x = shape.reshape(x, (math.prod(old) // each, each))
    return shape.reshape(ops.bitcast_convert_type(x, dtype), new)


# ---- values without operands ----


@on_parts(full_p)
def _full(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    value = complex(params["value"])
    options = {"shape": params["shape"], "dtype": dtypes.real_of(params["dtype"])}
    re, im = [bind(full_p, value=v, **options) for v in (value.real, value.imag)]
    return of_parts(re, im)


@on_parts(shape.iota_p)
def _iota(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    return of_real(bind(prim, **params | {"dtype": dtypes.real_of(params["dtype"])}))
