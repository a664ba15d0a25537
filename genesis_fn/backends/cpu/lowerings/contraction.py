"""The CPU lowering of contractions: one matrix product of reshaped operands, mostly views."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.storage import (
    SIGNED_STORAGE,
    TORCH_DTYPE,
    host_tensor,
    host_view,
    same,
)
from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import BOOL, DType
from genesis_fn.primitives.dot_general import breaks, dot_general_p, free_dims


def matrix_plan(
    shape: tuple[Any, ...], batch: Sequence[int], contract: Sequence[int], contract_last: bool
) -> tuple[tuple[int, ...] | None, tuple[int, ...], bool]:
    """(permutation or None, 3-d shape, whether rows and columns are swapped) of one operand.

    Free and contracting dimensions are laid out in whichever order the operand has them already, so
    that most operands become matrices without a copy.
    """
    free = free_dims(len(shape), (*batch, *contract))
    straight = (*batch, *free, *contract) if contract_last else (*batch, *contract, *free)
    swapped = (*batch, *contract, *free) if contract_last else (*batch, *free, *contract)
    identity = tuple(range(len(shape)))
    swap = straight != identity and (swapped == identity or breaks(swapped) < breaks(straight))
    order = swapped if swap else straight
    b = math.prod([shape[i] for i in batch])
    f = math.prod([shape[i] for i in free])
    c = math.prod([shape[i] for i in contract])
    rows, cols = (c, f) if swap == contract_last else (f, c)
    matrix = (rows, cols) if not batch else (b, rows, cols)
    return None if order == identity else order, matrix, swap


def _as_matrix(
    plan: tuple[Any, ...], shape: tuple[Any, ...]
) -> Callable[[torch.Tensor], torch.Tensor]:
    order, matrix, swap = plan
    needs_reshape = (shape if order is None else tuple([shape[i] for i in order])) != matrix
    if order is None and not needs_reshape:
        return (lambda x: x.mT) if swap else (lambda x: x)

    def run(x: torch.Tensor) -> torch.Tensor:
        if order is not None:
            x = x.permute(order)
        if needs_reshape:
            x = x.reshape(matrix)
        return x.mT if swap else x

    return run


def native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices faster than float32 ones."""
    # torch offers no public form of the two.
    avx512 = torch.cpu._is_avx512_bf16_supported()  # pyright: ignore[reportPrivateUsage]
    return avx512 or torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]


def compute_dtype(kinds: Sequence[DType], out: DType, terms: int) -> torch.dtype | None:
    """The torch dtype in which a sum of `terms` products of `kinds` is right; None: as stored.

    16- and 8-bit floats multiply in float32 (torch's float16 kernels on the CPU are slow ones).
    Integers multiply in float64 where every partial sum is exact there, else in their own width.
    """
    if all(k == dtypes.BF16 for k in (*kinds, out)) and native_bfloat16():
        return None
    if dtypes.is_inexact(out):
        wide = functools.reduce(dtypes.promote_types, [_at_least_f32(k) for k in (*kinds, out)])
        return TORCH_DTYPE[wide]
    if BOOL in (*kinds, out):
        return torch.float32 if terms < 2**24 else torch.float64
    largest = [max(-int(dtypes.iinfo(k).min), int(dtypes.iinfo(k).max)) for k in kinds]
    if terms * math.prod(largest) < 2**24:
        return torch.float32
    return torch.float64 if terms * math.prod(largest) < 2**53 else None


def _at_least_f32(d: DType) -> DType:
    return dtypes.F32 if d.itemsize < 4 or not dtypes.is_inexact(d) else d


def to_compute(kind: DType, target: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that converts storage of dtype `kind` to torch dtype `target`, by value."""
    if kind in SIGNED_STORAGE:
        bits = 8 * kind.itemsize
        if bits == 64:
            return lambda x: host_tensor(host_view(x, kind).astype("float64"), dtypes.F64).to(
                target
            )
        return lambda x: (x.to(torch.int64) & ((1 << bits) - 1)).to(target)
    if TORCH_DTYPE[kind] is target:
        return same
    return lambda x: x.to(target)


def from_compute(source: torch.dtype, kind: DType) -> Callable[[torch.Tensor], torch.Tensor]:
    """The inverse of `to_compute`: exact integers in a float dtype wrap into `kind`."""
    stored = TORCH_DTYPE[kind]
    if source is stored:
        return same
    if kind == BOOL:
        return lambda x: x != 0
    if dtypes.is_integer(kind) and source.is_floating_point:
        return lambda x: x.to(torch.int64).to(stored)
    return lambda x: x.to(stored)


@lowers(dot_general_p, fresh=True)
def _dot(avals: Sequence[Any], **params: Any) -> Callable[..., Any]:
    x, y = avals
    (xc, yc), (xb, yb) = params["dimension_numbers"]
    out = dot_general_p.abstract((x, y), params)
    # The two contraction orders must agree; follow the left operand's own order of dimensions.
    pairs = sorted(zip(xc, yc))
    xc, yc = [i for i, _ in pairs], [j for _, j in pairs]
    terms = math.prod([x.shape[i] for i in xc])
    left_plan = matrix_plan(x.shape, xb, xc, contract_last=True)
    right_plan = matrix_plan(y.shape, yb, yc, contract_last=False)
    left, right = _as_matrix(left_plan, x.shape), _as_matrix(right_plan, y.shape)
    target = compute_dtype((x.dtype, y.dtype), out.dtype, terms)
    if target is None:  # integers wrap: the width of the result decides
        target = TORCH_DTYPE[out.dtype]
    # Products of one stored dtype need no conversion: integers wrap alike, signed or not.
    convert = None
    if not (x.dtype == y.dtype == out.dtype and target is TORCH_DTYPE[x.dtype]):
        load_x, load_y = to_compute(x.dtype, target), to_compute(y.dtype, target)
        convert = load_x, load_y, from_compute(target, out.dtype)
    multiply = torch.bmm if xb else torch.mm
    if terms == 1:
        multiply = torch.mul  # an outer product: [m, 1] * [1, n]
    shape = out.shape
    flat = (*left_plan[1][:1],) if xb else ()
    rows = product_shape(left_plan, right_plan)
    needs_reshape = (*flat, *rows) != shape

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if convert is not None:
            load_x, load_y, _ = convert
            a, b = load_x(a), load_y(b)
        z = multiply(left(a), right(b))
        if needs_reshape:
            z = z.reshape(shape)
        return z if convert is None else convert[2](z)

    return run


def product_shape(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[int, int]:
    """(rows of the left matrix, columns of the right one), after their swaps."""
    (_, a, swap_a), (_, b, swap_b) = left, right
    return (a[-1] if swap_a else a[-2], b[-2] if swap_b else b[-1])
