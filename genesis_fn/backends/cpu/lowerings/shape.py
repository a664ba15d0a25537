"""CPU lowerings of shape primitives: most are views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.backends.cpu.lower import computes, lowers
from genesis_fn.backends.cpu.storage import (
    NARROW_FLOATS,
    SIGNED_STORAGE,
    TORCH_DTYPE,
    full,
    host_tensor,
    moved,
    scalar,
    through_float32,
)
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import DType
from genesis_fn.primitives import shape as shapes
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.indexing.constants import ConstantNumbers, constant_p


@lowers(full_p)
def _full(avals: Any, *, value: Any, shape: tuple[int, ...], dtype: DType) -> Callable[..., Any]:
    stored = TORCH_DTYPE[dtype]
    if dtype in SIGNED_STORAGE:
        filled = full((), value, dtype)
        return lambda: filled.expand(shape).clone()
    if dtype in NARROW_FLOATS:
        return lambda: torch.full(shape, value, dtype=torch.float32).to(stored)
    return lambda: torch.full(shape, value, dtype=stored)


@lowers(constant_p)
def _constant(avals: Any, *, numbers: ConstantNumbers) -> Callable[..., Any]:
    values = host_tensor(numbers.array, numbers.dtype)
    return values.clone  # what reads it may overwrite it


@lowers(shapes.iota_p)
def _iota(
    avals: Any, *, dtype: DType, shape: tuple[int, ...], dimension: int
) -> Callable[..., Any]:
    n = shape[dimension]
    lengths = [n if i == dimension else 1 for i in range(len(shape))]
    stored = TORCH_DTYPE[dtype]  # of unsigned dtypes too: the bits of what wraps are alike

    def run() -> torch.Tensor:
        count = torch.arange(n).to(stored)
        return count.view(lengths).expand(shape) if len(shape) > 1 else count

    return run


@computes(shapes.broadcast_in_dim_p)
def _broadcast(x: torch.Tensor, *, shape: tuple[int, ...], dims: tuple[int, ...]) -> torch.Tensor:
    if len(dims) != len(shape):
        ones = [1] * len(shape)
        for n, d in zip(x.shape, dims):
            ones[d] = n
        x = x.reshape(ones)
    return x.expand(shape)


@computes(shapes.reshape_p)
def _reshape(x: torch.Tensor, *, shape: tuple[int, ...]) -> torch.Tensor:
    return x.reshape(shape)


@computes(shapes.transpose_p)
def _transpose(x: torch.Tensor, *, permutation: tuple[int, ...]) -> torch.Tensor:
    return x.permute(permutation)


@lowers(shapes.slice_p)
def _slice(
    avals: Sequence[Aval],
    *,
    start: tuple[Any, ...],
    limit: tuple[Any, ...],
    strides: tuple[Any, ...],
) -> Callable[..., Any]:
    taken = tuple([slice(*each) for each in zip(start, limit, strides)])
    return lambda x: x[taken]


@lowers(shapes.pad_p)
def _pad(avals: Sequence[Any], *, config: tuple[Any, ...]) -> Callable[..., Any]:
    x, value = avals
    shape = shapes.pad_p.abstract(tuple(avals), {"config": config}).shape
    source, target = [], []
    for n, m, (low, _, interior) in zip(x.shape, shape, config):
        step = interior + 1
        first = max(0, -(low // step)) if low < 0 else 0
        end = max(first, min(n, (m - 1 - low) // step + 1))
        source.append(slice(first, end))
        first_at = low + first * step
        target.append(slice(first_at, max(first_at, low + (end - 1) * step + 1), step))
    source, target = tuple(source), tuple(target)
    if all(low <= 0 and high <= 0 and not interior for low, high, interior in config):
        return lambda x, value: x[source]
    empty = any(s.stop <= s.start for s in source)

    def pad(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty(shape, dtype=a.dtype).fill_(v)
        if not empty:
            out[target] = a[source]
        return out

    write = moved(x.dtype, pad)
    # A number is an operand too: another call of the same function may have another one.
    return write if type(value) is Aval else lambda a, v: write(a, scalar(v, x.dtype))


@lowers(shapes.concatenate_p, fresh=True)
def _concatenate(avals: Sequence[Aval], *, dimension: int) -> Callable[..., Any]:
    return moved(avals[0].dtype, lambda *xs: torch.cat(xs, dimension))


@computes(shapes.split_p)
def _split(x: torch.Tensor, *, sizes: tuple[int, ...], axis: int) -> Sequence[torch.Tensor]:
    return torch.split(x, list(sizes), axis)


@lowers(shapes.rev_p)
def _rev(avals: Sequence[Aval], *, dimensions: tuple[Any, ...]) -> Callable[..., Any]:
    return moved(avals[0].dtype, lambda x: torch.flip(x, dimensions))


@computes(shapes.copy_p)
def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@computes(shapes.barrier_p)
def _barrier(*xs: torch.Tensor) -> Sequence[torch.Tensor]:
    return xs


_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by width


@lowers(shapes.reduce_precision_p)
def _precision(
    avals: Sequence[Aval], *, exponent_bits: int, mantissa_bits: int
) -> Callable[..., Any]:
    kind = avals[0].dtype
    if kind in NARROW_FLOATS:
        return through_float32(_rounded(dtypes.F32, exponent_bits, mantissa_bits), kind)
    return _rounded(kind, exponent_bits, mantissa_bits)


def _rounded(kind: DType, exponent_bits: int, mantissa_bits: int) -> Callable[..., Any]:
    """Rounding of floats in dtype `kind` to a format with fewer bits."""
    info = dtypes.finfo(kind)
    exponent, mantissa = info.nexp, info.nmant
    width, bias = 1 + exponent + mantissa, (1 << (exponent - 1)) - 1
    sign, every = -(1 << (width - 1)), ((1 << exponent) - 1) << mantissa
    dropped = mantissa - mantissa_bits
    small = (1 << (exponent_bits - 1)) - 1  # the exponent bias of the reduced format
    integer = _INTEGER[kind.itemsize]

    def run(x: torch.Tensor) -> torch.Tensor:
        bits = x.view(integer)
        if dropped > 0:
            # Round half to even: add just under half a unit, and the unit's own last bit.
            odd = (bits >> dropped) & 1
            bits = (bits + odd + ((1 << (dropped - 1)) - 1)) & -(1 << dropped)
        if exponent_bits < exponent:
            scale = bits & every
            bits = torch.where(scale > (bias + small) << mantissa, (bits & sign) | every, bits)
            bits = torch.where(scale <= (bias - small) << mantissa, bits & sign, bits)
        return torch.where(torch.isnan(x), x, bits.view(x.dtype))

    return run
