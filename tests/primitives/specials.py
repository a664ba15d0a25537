"""Operands that arithmetic treats specially, and what every elementwise primitive makes of them.

References are NumPy's, or JAX's where NumPy has no such function, computed in float64 (complex128)
and rounded once, so that they flush nothing to zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import scipy.special
from jax import lax

from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import (
    BF16,
    BOOL,
    C64,
    C128,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
)
from tests.support.xla import as_shipped

KINDS = (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, BF16, F16, F32, F64, C64, C128)


def specials(kind: Any) -> np.ndarray:
    """One of each special value of a dtype, with some plain ones."""
    if kind == BOOL:
        return np.array([False, True])
    if dtypes.is_integer(kind):
        info = np.iinfo(kind)
        bits = 8 * kind.itemsize
        some = [
            0,
            1,
            2,
            3,
            7,
            bits - 1,
            bits,
            bits + 1,
            info.max,
            info.max - 1,
            info.min,
            info.min + 1,
            info.max // 2 + 1,
        ]
        some += [-1, -2, -3, -7] if kind.kind == "i" else []
        return np.unique(np.array([v for v in some if info.min <= v <= info.max], kind))
    if dtypes.is_complex(kind):
        part = np.array([0.0, -0.0, 1.0, -2.5, 1e-3, 40.0, np.inf, -np.inf, np.nan])
        return np.array([complex(a, b) for a in part for b in part], kind)
    info = ml_dtypes.finfo(kind)
    tiny, least, most = float(info.tiny), float(info.smallest_subnormal), float(info.max)
    some = [
        0.0,
        least,
        tiny / 2,
        tiny,
        0.25,
        0.5,
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        10.0,
        80.0,
        most / 2,
        most,
        np.inf,
    ]
    return np.array([*some, *[-v for v in some], np.nan, -np.nan], np.float64).astype(kind)


def pairs(kind: Any) -> tuple[np.ndarray, np.ndarray]:
    """Every special value with every other."""
    x = specials(kind)
    if dtypes.is_complex(kind):  # of the nine parts four, or there would be 6,561
        keep = [i for i, v in enumerate(x) if {abs(v.real), abs(v.imag)} <= {0.0, 1.0, 2.5, np.inf}]
        x = x[keep]
    left, right = np.meshgrid(x, x, indexing="ij")
    return left.ravel(), right.ravel()


def wide(x: np.ndarray) -> np.ndarray:
    """Floats as float64, complex numbers as complex128, others as they are."""
    if dtypes.is_float(x.dtype):
        return x.astype(np.float64)
    return x.astype(np.complex128) if dtypes.is_complex(x.dtype) else x


def _jax(f: Callable) -> Callable:
    def run(*xs: np.ndarray, **params: Any) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(as_shipped(lambda *xs: f(*xs, **params))(*xs))

    return run


def _integer_division(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(_jax(lax.div)(x, y))


def _sign(x: np.ndarray) -> np.ndarray:
    if dtypes.is_complex(x.dtype):
        return _jax(lax.sign)(x)
    return np.where((x == 0) | (x != x), x, np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


def _lgamma(x: np.ndarray) -> np.ndarray:
    # C's and JAX's is infinite at -inf, SciPy's is -inf there and infinite at subnormal numbers.
    y = np.where(np.isneginf(x), np.inf, scipy.special.gammaln(x))
    return np.where((x != 0) & (np.abs(x) < 1e-300), -np.log(np.abs(x)), y)


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x**y modulo the width; JAX's loses the bits of y beyond the sixth."""
    width = 8 * x.dtype.itemsize

    def one(a: int, b: int) -> int:
        if b < 0:
            return a ** -(b % 2) if abs(a) == 1 else 0
        return pow(a, b, 1 << width)

    exact = [int(one(int(a), int(b))) % (1 << width) for a, b in zip(x, y)]
    return np.array(exact, f"u{x.dtype.itemsize}").astype(x.dtype)


def _nextafter(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # NumPy's of float16 does not change the sign of zero; JAX's of bfloat16 flushes.
    if x.dtype.itemsize > 2:
        return np.nextafter(x, y)
    bits = x.view(np.int16).astype(np.int32)
    away = (y > x) == (x > 0)
    step = np.where(x == 0, np.where(y > 0, 1, 0x8001), np.where(away, bits + 1, bits - 1))
    value = (step & 0xFFFF).astype(np.uint16).view(x.dtype)
    value = np.where(x == y, y, value)
    return np.where(np.isnan(x) | np.isnan(y), np.array(np.nan, x.dtype), value).astype(x.dtype)


def _any_of(by_float: Callable, by_integer: Callable) -> Callable:
    return lambda x, y: (by_float if x.dtype.kind in "fc" else by_integer)(x, y)


UNARY: dict[str, Callable] = {
    "neg": np.negative, "abs": np.abs, "sign": _sign, "not": np.invert,
    "population_count": _jax(lax.population_count), "clz": _jax(lax.clz),
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "log2": np.log2,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt,
    "logistic": _jax(lax.logistic),
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": scipy.special.erf,
    "erfc": scipy.special.erfc, "erf_inv": lambda x: np.copysign(scipy.special.erfinv(x), x),
    "lgamma": _lgamma, "digamma": scipy.special.digamma,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round_even": np.rint,
    "is_finite": np.isfinite, "real": np.real, "imag": np.imag, "conj": np.conj,
    "stop_gradient": np.array, "copy": np.array,
}  # fmt: skip
BINARY: dict[str, Callable] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "div": _any_of(np.divide, _integer_division), "rem": _any_of(np.fmod, _jax(lax.rem)),
    "pow": np.power, "power_of_integers": _power,
    "max": np.maximum, "min": np.minimum,
    "atan2": np.arctan2, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "shift_left": _jax(lax.shift_left),
    "shift_right_logical": _jax(lax.shift_right_logical),
    "shift_right_arithmetic": _jax(lax.shift_right_arithmetic),
    "complex": lambda x, y: np.vectorize(complex, otypes=[np.complex128])(x, y),
    "safe_mul": lambda x, y: np.where(x == 0, x, x * y), "add_n": np.add,
}  # fmt: skip
# Computed in the operands' own dtype: the result depends on its spacing or its width.
OWN_DTYPE: dict[str, Callable] = {"nextafter": _nextafter}
# Primitives of other operands or parameters, with cases of their own in `test_specials.py`.
OTHERS = {"select", "integer_pow", "convert_element_type", "polygamma"}

# Results that must agree to the last bit.
EXACT = {
    "neg", "abs", "sign", "not", "population_count", "clz", "floor", "ceil", "trunc", "round_even",
    "is_finite", "real", "imag", "conj", "stop_gradient", "copy", "add", "sub", "rem",
    "power_of_integers", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor",
    "shift_left", "shift_right_logical", "shift_right_arithmetic", "complex", "nextafter", "add_n",
}  # fmt: skip


def expected(name: str, xs: tuple[np.ndarray, ...], result: Any) -> np.ndarray:
    """The reference's result in dtype `result`."""
    with np.errstate(all="ignore"):
        if name in OWN_DTYPE:
            return np.asarray(OWN_DTYPE[name](*xs), result)
        f = UNARY.get(name) or BINARY[name]
        if xs[0].dtype == BOOL and name in ("add", "add_n", "mul", "max", "min"):
            f = np.logical_and if name in ("mul", "min") else np.logical_or
        y = np.asarray(f(*[wide(x) for x in xs]))
        return y.astype(result)


def cast(x: np.ndarray, target: Any) -> np.ndarray:
    """`x` in another dtype: integers wrap, floats saturate to integers and NaN becomes 0."""
    with np.errstate(all="ignore"):
        if dtypes.is_complex(x.dtype) and not dtypes.is_complex(target) and target != BOOL:
            x = x.real
        if dtypes.is_inexact(x.dtype) and dtypes.is_integer(target):
            whole = [int(v) if np.isfinite(v) else v for v in np.trunc(wide(x)).tolist()]
            info = np.iinfo(target)
            low, high = int(info.min), int(info.max)
            bounded = [0 if v != v else int(min(max(v, low), high)) for v in whole]
            return np.array(bounded, target)
        return x != 0 if target == BOOL else x.astype(target)


# Where torch's kernels flush subnormal operands or results to zero, as JAX does everywhere.
FLUSHED = {"log1p": (F32, F64), "erf": (BF16, F16)}


def subnormal(x: np.ndarray) -> np.ndarray:
    """Which floats are subnormal, or so near that a rounding makes them so."""
    if not dtypes.is_float(x.dtype):
        return np.zeros(x.shape, bool)
    with np.errstate(all="ignore"):
        size = np.abs(x.astype(np.float64))
        return (size > 0) & (size <= 2 * float(ml_dtypes.finfo(x.dtype).tiny))


def mismatch(
    name: str, got: np.ndarray, xs: tuple[np.ndarray, ...], bound: float, flushes: bool = False
) -> np.ndarray:
    """Which results of a primitive differ from the reference: in NaN, infinities, the sign of
    zeros, or beyond a relative bound, which is none for primitives that compute exactly.

    Complex functions are those of C's library, NumPy's and torch's apart at infinities and in the
    signs of zeros: there they are compared where operand and result are finite.
    """
    want = expected(name, xs, got.dtype)
    if not dtypes.is_inexact(got.dtype):
        return got != want
    exact = name in EXACT and not (dtypes.is_complex(xs[0].dtype) and name in ("abs", "sign"))
    bound = 0.0 if exact else bound
    if dtypes.is_complex(got.dtype):
        size = np.abs(want)
        signs = exact or name == "sign"
        parts = ((got.real, want.real), (got.imag, want.imag))
        bad = np.logical_or(*[_apart(g, w, bound, size, signs) for g, w in parts])
        if signs or name in ("abs", "safe_mul"):
            return bad
        finite = np.all([np.isfinite(v) for v in (*xs, want)], 0)
        return bad & finite
    # Near a zero of these functions the error is that of the terms that cancel.
    bad = _apart(wide(got), wide(want), bound, float(name in ("digamma", "lgamma")), True)
    if name in ("max", "min"):  # of 0.0 and -0.0 either: NumPy's own differ between processors
        bad &= ~((got == 0) & (want == 0))
    if flushes or xs[0].dtype in FLUSHED.get(name, ()):
        small = np.any([subnormal(v) for v in (*xs, want)], 0)
        bad &= ~small
    return bad


def _apart(g: np.ndarray, w: np.ndarray, bound: float, size: Any, signs: bool) -> np.ndarray:
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(w), np.where(np.isfinite(size), size, 0))
        near = np.isfinite(g) & np.isfinite(w) & (np.abs(g - w) <= bound * scale)
        same = (g == w) | (np.isnan(g) & np.isnan(w)) | near
        turned = signs & (g == 0) & (w == 0) & (np.signbit(g) != np.signbit(w))
    return ~same | turned


def operands(name: str, kind: Any) -> tuple[np.ndarray, ...]:
    """All special values of a dtype, or all pairs of them."""
    return (specials(kind),) if name in UNARY else pairs(kind)


def show(name: str, kind: Any, xs: tuple[np.ndarray, ...], got: np.ndarray, bad: np.ndarray) -> str:
    """The first results that differ, for a message."""
    want = expected(name, xs, got.dtype)
    first = [
        f"{name}({', '.join(str(x[i]) for x in xs)}) = {got[i]}, not {want[i]}"
        for i in np.flatnonzero(bad)[:5]
    ]
    return f"{bad.sum()} of {bad.size} for {kind}: " + "; ".join(first)


__all__ = [
    "BINARY", "KINDS", "OTHERS", "OWN_DTYPE", "UNARY", "cast", "expected", "mismatch", "operands",
    "pairs", "show", "specials", "subnormal",
]  # fmt: skip
