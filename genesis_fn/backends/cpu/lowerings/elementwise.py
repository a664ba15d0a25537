"""CPU lowerings of elementwise primitives that need more than an expression."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from genesis_fn.backends.cpu.lower import OF_COMPLEX, elementwise, lowers
from genesis_fn.backends.cpu.storage import (
    NARROW_FLOATS,
    SIGNED_STORAGE,
    TORCH_DTYPE,
    host_tensor,
    host_view,
    same,
    scalar,
    through_numpy,
)
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import BOOL, DType
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ops

# ---- arithmetic ----


def _tensors(x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operands as tensors, for torch functions that take no Python scalar."""
    if type(x) is not torch.Tensor:
        x = torch.tensor(x, dtype=y.dtype)
    elif type(y) is not torch.Tensor:
        y = torch.tensor(y, dtype=x.dtype)
    return x, y


def _on_nonzero(f: Callable[..., Any], x: np.ndarray, y: np.ndarray, at_zero: Any) -> np.ndarray:
    return np.where(y == 0, at_zero, f(x, np.where(y == 0, 1, y))).astype(x.dtype)


@elementwise(
    ops.div.prim, numpy=lambda x, y: _on_nonzero(np.floor_divide, x, y, np.iinfo(x.dtype).max)
)
def _div(x: Any, y: Any) -> Any:
    kind = x.dtype if type(x) is torch.Tensor else y.dtype
    if kind.is_floating_point or kind.is_complex:
        return operator.truediv(x, y)
    x = x if type(x) is torch.Tensor else torch.tensor(x, dtype=kind)
    low = 255 if kind is torch.uint8 else -1  # all bits set: x / 0 as XLA defines it
    if type(y) is not torch.Tensor:
        if y in (0, -1):
            return torch.neg(x) if y else torch.full_like(x, low)
        return torch.div(x, y, rounding_mode="trunc")
    # The processor may trap on both: division by zero, and of the least integer by -1.
    zero = torch.eq(y, 0)
    if kind is torch.uint8:
        quotient = torch.div(x, torch.where(zero, 1, y), rounding_mode="trunc")
    else:
        minus = torch.eq(y, -1)
        divisor = torch.where(torch.logical_or(zero, minus), 1, y)
        quotient = torch.div(torch.where(minus, -x, x), divisor, rounding_mode="trunc")
    return torch.where(zero, low, quotient)


@elementwise(ops.rem.prim, numpy=lambda x, y: _on_nonzero(np.fmod, x, y, x))
def _rem(x: Any, y: Any) -> Any:
    if type(y) is not torch.Tensor and y != 0 and not x.is_floating_point():
        return torch.fmod(x, y)
    x, y = _tensors(x, y)
    if x.is_floating_point():
        r = torch.fmod(x, y)
        # Where x / y overflows torch gives NaN. A finite remainder of finite operands exists.
        lost = (r != r) & torch.isfinite(x) & (y == y) & (y != 0)
        if lost.any():
            wide = [v.broadcast_to(r.shape)[lost].double().numpy() for v in (x, y)]
            r[lost] = torch.from_numpy(np.asarray(np.fmod(*wide))).to(r.dtype)
        return r
    zero = torch.eq(y, 0)
    return torch.where(zero, x, torch.fmod(x, torch.where(zero, 1, y)))


def _of_tensors(prim: Primitive, f: Callable[..., Any]) -> None:
    """Register a torch function that takes no Python scalar."""

    @elementwise(prim)
    def run(x: Any, y: Any) -> torch.Tensor:
        if type(x) is torch.Tensor and type(y) is torch.Tensor:
            return f(x, y)
        return f(*_tensors(x, y))


_of_tensors(ops.max.prim, torch.maximum)
_of_tensors(ops.min.prim, torch.minimum)
_of_tensors(ops.atan2.prim, torch.atan2)
_of_tensors(ops.nextafter.prim, torch.nextafter)
_of_tensors(ops.power_of_integers.prim, torch.pow)  # which refuses numbers below 0 as exponents


@elementwise(ops.sign.prim)
def _sign(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        # torch.sgn has one sign of infinities and -0.0 for neighbours, another for strided arrays.
        size = torch.abs(x)
        y = torch.complex(x.real / size, x.imag / size)
        return torch.where(x == 0, x, torch.where(x != x, complex(np.nan, np.nan), y))
    # NaN and -0.0 are their own signs; torch makes both of them 0.
    y = torch.sgn(x)
    return torch.where((x != x) | (x == 0), x, y) if x.is_floating_point() else y


@elementwise(ops.cbrt.prim)
def _cbrt(x: torch.Tensor) -> torch.Tensor:
    wide = x.float() if x.dtype.itemsize < 4 else x
    return torch.copysign(torch.pow(wide.abs(), 1 / 3), wide).to(x.dtype)


@lowers(ops.integer_pow_p, fresh=True)
def _integer_pow(avals: Sequence[Any], *, y: int) -> Callable[..., Any]:
    kind = avals[0].dtype
    if y == 2 and kind not in NARROW_FLOATS:
        return lambda x: x * x
    if y == -1 and dtypes.is_inexact(kind) and kind not in NARROW_FLOATS:
        return torch.reciprocal
    bits = 8 * kind.itemsize
    if dtypes.is_integer(kind) and y > bits:
        # Even powers beyond the width are 0, those of odd numbers repeat (Carmichael): a smaller
        # exponent, which the dtype holds, has the same power.
        y = bits + (y - bits) % 2 ** (bits - 2)
    if kind in SIGNED_STORAGE:
        return through_numpy(lambda x: np.power(x, kind.type(y)), kind)
    if kind in NARROW_FLOATS:
        return lambda x: torch.pow(x.float(), y).to(TORCH_DTYPE[kind])
    return lambda x: torch.pow(x, y)


@lowers(ops.polygamma_p)
def _polygamma(avals: Sequence[Any], *, n: int) -> Callable[..., Any]:
    if n == 1 and avals[0].dtype == dtypes.F64:  # torch's own is good to nine digits
        return lambda x: torch.where(x > 0, torch.special.zeta(2.0, x), torch.polygamma(1, x))
    return lambda x: torch.polygamma(n, x)


@elementwise(ops.add_n.prim)
def _add_n(*xs: torch.Tensor) -> torch.Tensor:
    kind = xs[0].dtype
    if kind.is_complex:
        return torch.view_as_complex(_add_n(*map(torch.view_as_real, xs)))
    if kind in (torch.bfloat16, torch.float16):
        total = xs[0].float()
        for x in xs[1:]:
            total += x
        return total.to(kind)
    total = xs[0] + xs[1]
    for x in xs[2:]:
        total += x
    return total


# ---- bits ----


def _unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _shift(
    prim: Primitive, op: Callable[..., Any], ufunc: Callable[..., Any], direct: Callable[..., Any]
) -> None:
    """Register `ufunc(x, n, beyond, bits)` of NumPy arrays, and torch's `op` for literal amounts
    inside the width, in dtypes for which it is right (`direct(dtype)`)."""

    @lowers(prim)
    def lower(avals: Sequence[Any]) -> Callable[..., Any]:
        kind = next(a.dtype for a in avals if type(a) is Aval)
        bits = 8 * kind.itemsize

        def run(x: Any, n: Any) -> torch.Tensor:
            x = host_view(x, kind) if type(x) is torch.Tensor else np.asarray(x, kind)
            n = host_view(n, kind) if type(n) is torch.Tensor else n
            n = np.asarray(n).astype(np.int64)
            # By the width or more gives 0 (or the sign), as JAX defines it; C leaves it undefined.
            beyond = (n < 0) | (n >= bits)
            shifted = ufunc(x, np.where(beyond, 0, n), beyond, bits)
            return host_tensor(np.asarray(shifted).astype(kind, copy=False), kind)

        if type(avals[1]) is int and direct(kind):
            # `n` is checked at each call: eager calls with other amounts share this function.
            return lambda x, n: op(x, n) if 0 <= n < bits else run(x, n)
        return run


_shift(
    ops.shift_left.prim,
    operator.lshift,
    lambda x, n, beyond, bits: np.where(beyond, 0, np.left_shift(x, n.astype(x.dtype))),
    lambda kind: True,
)
_shift(
    ops.shift_right_arithmetic.prim,
    operator.rshift,
    lambda x, n, beyond, bits: np.right_shift(
        x.view(np.dtype(f"i{x.dtype.itemsize}")),
        np.where(beyond, bits - 1, n).astype(np.dtype(f"i{x.dtype.itemsize}")),
    ).view(x.dtype),
    lambda kind: kind.kind == "i",
)


def _logical_shift(x: torch.Tensor, n: int) -> torch.Tensor:
    if x.dtype is torch.uint8 or n == 0:
        return x >> n
    return (x >> n) & ((1 << (8 * x.itemsize - n)) - 1)


_shift(
    ops.shift_right_logical.prim,
    _logical_shift,
    lambda x, n, beyond, bits: np.where(
        beyond, 0, np.right_shift(_unsigned(x), n.astype(_unsigned(x).dtype))
    ).astype(x.dtype),
    lambda kind: True,
)


def _count(prim: Primitive, ufunc: Callable[..., Any]) -> None:
    """Register a function of bits, which torch lacks for all integers."""

    lowers(prim)(lambda avals: through_numpy(ufunc, avals[0].dtype))


def _clz(x: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    u, count = _unsigned(x).astype(np.uint64), np.full(x.shape, bits, np.int64)
    for _ in range(bits):
        count -= u != 0
        u = u >> np.uint64(1)
    return count.astype(x.dtype)


_count(ops.population_count.prim, lambda x: np.bitwise_count(_unsigned(x)).astype(x.dtype))
_count(ops.clz.prim, _clz)

# ---- complex numbers ----


def _by_parts(op: Callable[..., Any]) -> Callable[..., Any]:
    """A function of complex tensors that treats real and imaginary parts alike. torch's own
    multiplies by 1 + 0j, which makes NaN of infinities, and loses the signs of zeros."""

    def run(*xs: Any, kind: torch.dtype) -> torch.Tensor:
        ts = [x if type(x) is torch.Tensor else torch.tensor(x, dtype=kind) for x in xs]
        return torch.view_as_complex(op(*map(torch.view_as_real, ts)))

    return run


def _pow_of_complex(x: Any, y: Any, *, kind: torch.dtype) -> torch.Tensor:
    x, y = [v if type(v) is torch.Tensor else torch.tensor(v, dtype=kind) for v in (x, y)]
    return torch.where(y == 0, torch.ones((), dtype=kind), torch.pow(x, y))


def _log1p_of_complex(z: torch.Tensor, *, kind: torch.dtype) -> torch.Tensor:
    # torch's cancels near 0 and is NaN for parts that are tiny.
    x, y = z.real, z.imag
    near = torch.log1p(x * (2 + x) + y * y) / 2
    length = torch.where(torch.maximum(x.abs(), y.abs()) < 0.5, near, torch.hypot(1 + x, y).log())
    return torch.complex(length, torch.atan2(y, 1 + x))


def _expm1_of_complex(z: torch.Tensor, *, kind: torch.dtype) -> torch.Tensor:
    # torch's is NaN at infinities.
    x, y, e = z.real, z.imag, torch.exp(z)
    near = torch.expm1(x) * torch.cos(y) - 2 * torch.sin(y / 2) ** 2
    return torch.complex(torch.where(x.abs() < 1, near, e.real - 1), e.imag)


def _acos_of_complex(z: torch.Tensor, *, kind: torch.dtype) -> torch.Tensor:
    # torch's loses the sign of an imaginary part that is zero.
    w = torch.acos(z)
    signed = torch.where(w.imag == 0, torch.copysign(w.imag, -z.imag), w.imag)
    return torch.complex(w.real, signed)


OF_COMPLEX.update(
    {
        ops.neg.prim: _by_parts(torch.neg),
        ops.add.prim: _by_parts(torch.add),
        ops.sub.prim: _by_parts(torch.sub),
        ops.pow.prim: _pow_of_complex,
        ops.log1p.prim: _log1p_of_complex,
        ops.expm1.prim: _expm1_of_complex,
        ops.acos.prim: _acos_of_complex,
    }
)

# ---- any dtype ----


@lowers(ops.convert_p)
def _convert(avals: Sequence[Any], *, dtype: DType) -> Callable[..., Any]:
    source, target = avals[0].dtype, TORCH_DTYPE[dtype]
    odd = source in SIGNED_STORAGE or dtype in SIGNED_STORAGE
    both = dtypes.is_integer(source) and dtypes.is_integer(dtype)
    if odd and not (both and source.itemsize == dtype.itemsize):
        return through_numpy(lambda x: _cast(x, dtype), source)
    if odd:
        return lambda x: x.view(target) if x.dtype is not target else x.clone()
    if dtypes.is_inexact(source) and dtypes.is_integer(dtype):
        # Out of range saturates and NaN is 0, as JAX defines it; C leaves it undefined.
        low, high = dtypes.iinfo(dtype).min, dtypes.iinfo(dtype).max

        def saturate(x: torch.Tensor) -> torch.Tensor:
            x = x.real if x.is_complex() else x
            wide = torch.nan_to_num(x.double(), 0.0, float("inf"), float("-inf"))
            y = wide.clamp(low, high).to(target)
            return torch.where(wide >= high, high, y) if dtype.itemsize == 8 else y

        return saturate
    if dtypes.is_complex(source) and not dtypes.is_complex(dtype):
        return lambda x: x.real.to(target) if dtype != BOOL else x != 0
    return lambda x: x.to(target)


def _cast(x: np.ndarray, dtype: DType) -> np.ndarray:
    if dtypes.is_inexact(x.dtype) and dtypes.is_integer(dtype):
        info = np.iinfo(dtype)
        wide = np.nan_to_num(np.real(x).astype(np.float64), nan=0.0)
        y = np.clip(wide, float(info.min), float(info.max)).astype(dtype)
        return np.where(wide >= float(info.max), info.max, y).astype(dtype)
    return x.astype(dtype)


@lowers(ops.bitcast_p)
def _bitcast(avals: Sequence[Any], *, dtype: DType) -> Callable[..., Any]:
    source = avals[0].dtype
    result = ops.bitcast_p.abstract(tuple(avals), {"dtype": dtype})
    if source.itemsize == dtype.itemsize and BOOL not in (source, dtype):
        return lambda x: x.view(TORCH_DTYPE[dtype])
    return through_numpy(
        lambda x: np.ascontiguousarray(x).reshape(-1).view(dtype).reshape(result.shape), source
    )


@lowers(ops.select_p, fresh=True)
def _select(avals: Sequence[Any]) -> Callable[..., Any]:
    kind = next(a.dtype for a in avals[1:] if type(a) is Aval)
    if all(type(a) is Aval for a in avals) and kind not in NARROW_FLOATS:
        return torch.where

    def run(c: Any, x: Any, y: Any) -> Any:
        x, y = [v if type(v) is torch.Tensor else scalar(v, kind) for v in (x, y)]
        if kind in NARROW_FLOATS:
            return torch.where(c, x.float(), y.float()).to(TORCH_DTYPE[kind])
        return torch.where(c, x, y)

    return run


@lowers(ops.stop_gradient_p)
def _stop_gradient(avals: Sequence[Any]) -> Callable[..., Any]:
    return same
