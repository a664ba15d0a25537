"""n-dimensional convolution as an implicit matrix product (implicit GEMM), one to three spatial
axes.

Rows of the product are output positions, columns are output channels, and the inner axis runs over
window taps and input channels; operand tiles are gathered through strides, so every layout is read
in place. Both gradients are convolutions of the same form: the input's dilates the cotangent, the
kernel's contracts over the batch. Integers wrap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import FLOATING, ITEMSIZE
from genesis_fn.kernels.language.language import add_products, cast, dot, zeros_of
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import (
    INT32_MAX,
    PlanBuilder,
    accumulator,
    cdiv,
    next_power_of_two,
)
from genesis_fn.kernels.rows.split_reduce import add_sum_of_partials

Triple = tuple[int, int, int]
LARGE = 1e8
"""Operations of a convolution from which on its operands are worth a copy, or a library's call: a
smaller one takes a few microseconds."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """out[n, g, o, p] = sum over c, k of lhs[n, g, c, q / lhs_dilation] * rhs[g, o, c, k].

    Here q = p * strides + k * rhs_dilation - padding along each of three spatial axes (unused ones
    have size 1), and terms where lhs_dilation does not divide q or that fall outside are zero.
    Element strides are (batch, group, channel, spatial...) for
    lhs and out, and (group, out channel, in channel, spatial...) for rhs.
    """

    batch: int
    groups: int
    in_channels: int  # of one group, as out_channels
    out_channels: int
    lhs_spatial: Triple
    rhs_spatial: Triple
    out_spatial: Triple
    lhs_strides: tuple[int, ...]
    rhs_strides: tuple[int, ...]
    out_strides: tuple[int, ...]
    strides: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)  # before the first element
    lhs_dilation: Triple = (1, 1, 1)
    rhs_dilation: Triple = (1, 1, 1)
    dtype: str = "bf16"
    out_dtype: str | None = None
    precision: str = "default"

    @property
    def acc_dtype(self) -> str:
        """The type of sums: fp64 for fp64, fp32 for other floats, i32 or i64 for integers, as wide
        as the result."""
        if self.dtype in FLOATING:
            return accumulator(self.dtype)
        return "i64" if ITEMSIZE[self.out_dtype or self.dtype] == 8 else "i32"

    @property
    def tensor_cores(self) -> bool:
        """Whether tensor cores multiply; other products are written out."""
        # Of float64 Triton has none on every GPU.
        return self.dtype != "fp64" and (
            self.dtype in FLOATING or (self.dtype, self.acc_dtype) == ("i8", "i32")
        )

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.depth * self.groups * self.out_channels

    @property
    def lays_filter(self) -> bool:
        """Whether the kernel is faster with a right operand whose channels are contiguous, [out
        channels, taps, in channels], of a left one with channels last. Hopper's tensor cores read
        TF32 so only (46 us for 116, and 29 for 94 of the gradient of an image); few channels follow
        each other with the taps then (125 us for 354, 3 channels in 16 bits)."""
        if self.operations < LARGE or self.lhs_strides[2] != 1:
            return False
        if self.dtype == "fp32":
            return self.precision in ("default", "tf32")
        few = self.in_channels * ITEMSIZE[self.dtype] % 16 != 0
        return few and self.dtype in ("bf16", "fp16") and max(self.lhs_dilation) == 1

    @property
    def rows(self) -> int:
        """Output positions of one group."""
        return self.batch * math.prod(self.out_spatial)

    @property
    def depth(self) -> int:
        """Products that each output element sums."""
        return self.in_channels * math.prod(self.rhs_spatial)


@triton.jit
def output_places(row, OUT: tl.constexpr, BATCH: tl.constexpr, BATCH_FIRST: tl.constexpr):
    """(batch, position along each of three axes) of rows of the product."""
    # The axis with stride one varies fastest, so that loads are contiguous.
    n = row % BATCH
    position = row // BATCH if BATCH_FIRST else row
    p2 = position % OUT[2]
    p1 = (position // OUT[2]) % OUT[1]
    p0 = (position // (OUT[2] * OUT[1])) % OUT[0]
    if not BATCH_FIRST:
        n = position // (OUT[2] * OUT[1] * OUT[0])
    return n, p0, p1, p2


@triton.jit
def source_index(
    position,
    tap,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    DILATION: tl.constexpr,
    PADDING: tl.constexpr,
    LHS_DILATION: tl.constexpr,
):
    """(index into the lhs along one axis, whether there is such an element)."""
    q = position * STRIDE + tap * DILATION - PADDING
    if LHS_DILATION == 1:
        return q, (q >= 0) & (q < SIZE)
    else:
        index = q // LHS_DILATION
        return index, (q >= 0) & (index < SIZE) & (index * LHS_DILATION == q)


@triton.jit
def folded(column, CHANNELS: tl.constexpr):
    """(number among neighbouring positions, channel) of columns of the product."""
    neighbour = column // CHANNELS
    return neighbour, column - neighbour * CHANNELS


@triton.jit
def convolution_kernel(
    lhs,
    rhs,
    out,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    LHS: tl.constexpr,
    RHS: tl.constexpr,
    OUT: tl.constexpr,
    LHS_STRIDES: tl.constexpr,
    RHS_STRIDES: tl.constexpr,
    OUT_STRIDES: tl.constexpr,
    STRIDES: tl.constexpr,
    PADDING: tl.constexpr,
    LHS_DILATION: tl.constexpr,
    RHS_DILATION: tl.constexpr,
    BATCH: tl.constexpr,
    BATCH_FIRST: tl.constexpr,
    CHANNELS_FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_DEPTH: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    ACC: tl.constexpr,
    TENSOR_CORES: tl.constexpr,
    WIDE: tl.constexpr,
    FOLD: tl.constexpr,
    TAPS: tl.constexpr,
    LENGTH: tl.constexpr,
):
    """A tile of output positions by channels, as a product over taps and input channels.

    With FOLD > 1 a row of the product is so many neighbouring positions of the last axis, of which
    LENGTH exist: its columns are theirs and the channels', and column i of them reads the TAPS taps
    of the kernel from the i-th of its window on.
    """
    group = tl.program_id(1)
    split = tl.program_id(2)
    across: tl.constexpr = (COLUMNS + BN - 1) // BN
    row = (tl.program_id(0) // across) * BM + tl.arange(0, BM)
    column = (tl.program_id(0) % across) * BN + tl.arange(0, BN)
    n, p0, p1, p2 = output_places(row, OUT, BATCH, BATCH_FIRST)
    if WIDE:
        n = n.to(tl.int64)
        group = group.to(tl.int64)
        column = column.to(tl.int64)
    lhs += group * LHS_STRIDES[1]
    rhs += group * RHS_STRIDES[0]
    acc = zeros_of(ACC, BM, BN)
    first = split * SPLIT_DEPTH
    for start in range(first, tl.minimum(first + SPLIT_DEPTH, DEPTH), BK):
        k = start + tl.arange(0, BK)
        # Along k the contiguous axis of the operands, channels or taps, varies fastest.
        if CHANNELS_FIRST:
            channel = k % CHANNELS
            tap = k // CHANNELS
        else:
            channel = k // (RHS[0] * RHS[1] * RHS[2])
            tap = k
        if WIDE:
            channel = channel.to(tl.int64)
        # No remainder of a remainder: Triton 3.6 takes all of `k % 6 % 2` for even numbers.
        t2 = tap % RHS[2]
        t1 = (tap // RHS[2]) % RHS[1]
        t0 = (tap // (RHS[2] * RHS[1])) % RHS[0]
        at_lhs = (n * LHS_STRIDES[0])[:, None] + (channel * LHS_STRIDES[2])[None, :]
        inside = (row < ROWS)[:, None] & (k < DEPTH)[None, :]
        i0, ok0 = source_index(
            p0[:, None],
            t0[None, :],
            LHS[0],
            STRIDES[0],
            RHS_DILATION[0],
            PADDING[0],
            LHS_DILATION[0],
        )
        i1, ok1 = source_index(
            p1[:, None],
            t1[None, :],
            LHS[1],
            STRIDES[1],
            RHS_DILATION[1],
            PADDING[1],
            LHS_DILATION[1],
        )
        i2, ok2 = source_index(
            p2[:, None],
            t2[None, :],
            LHS[2],
            STRIDES[2],
            RHS_DILATION[2],
            PADDING[2],
            LHS_DILATION[2],
        )
        at_lhs += i0 * LHS_STRIDES[3] + i1 * LHS_STRIDES[4] + i2 * LHS_STRIDES[5]
        a = tl.load(lhs + at_lhs, inside & ok0 & ok1 & ok2, other=0)
        at_k = (
            channel * RHS_STRIDES[2]
            + t0 * RHS_STRIDES[3]
            + t1 * RHS_STRIDES[4]
            + t2 * RHS_STRIDES[5]
        )
        read = (k < DEPTH)[:, None] & (column < COLUMNS)[None, :]
        if FOLD == 1:
            at_rhs = at_k[:, None] + (column * RHS_STRIDES[1])[None, :]
        else:
            neighbour, of = folded(column[None, :], COLUMNS // FOLD)
            tap2 = t2[:, None] - neighbour
            read &= (tap2 >= 0) & (tap2 < TAPS)
            at_rhs = at_k[:, None] - neighbour * RHS_STRIDES[5] + of * RHS_STRIDES[1]
        b = tl.load(rhs + at_rhs, read, other=0)
        if TENSOR_CORES:
            acc = dot(a, b, acc, PRECISION)
        else:
            acc = add_products(a, b, acc)
    mask = (row < ROWS)[:, None] & (column < COLUMNS)[None, :]
    if SPLITS > 1:
        # Dense partials [split, group, row, column].
        offset = (split * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * (ROWS * COLUMNS)
        at_out = offset + row[:, None] * COLUMNS + column[None, :]
    else:
        at_row = n * OUT_STRIDES[0] + p0 * OUT_STRIDES[3] + p1 * OUT_STRIDES[4]
        at_row += p2 * OUT_STRIDES[5] + group * OUT_STRIDES[1]
        if FOLD == 1:
            at_out = at_row[:, None] + (column * OUT_STRIDES[2])[None, :]
        else:
            neighbour, of = folded(column[None, :], COLUMNS // FOLD)
            at_out = at_row[:, None] + neighbour * OUT_STRIDES[5] + of * OUT_STRIDES[2]
            at_out += p2[:, None] * ((FOLD - 1) * OUT_STRIDES[5])
            mask &= p2[:, None] * FOLD + neighbour < LENGTH
    tl.store(out + at_out, cast(acc, out.dtype.element_ty), mask)


@triton.jit
def place_kernel(
    x,
    out,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUT: tl.constexpr,
    BATCH: tl.constexpr,
    BATCH_FIRST: tl.constexpr,
    OUT_STRIDES: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out at its strides = x, dense [group, row, column]."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = at % COLUMNS
    row = (at // COLUMNS) % ROWS
    group = at // (COLUMNS * ROWS)
    n, p0, p1, p2 = output_places(row, OUT, BATCH, BATCH_FIRST)
    target = n * OUT_STRIDES[0] + group * OUT_STRIDES[1] + column * OUT_STRIDES[2]
    target += p0 * OUT_STRIDES[3] + p1 * OUT_STRIDES[4] + p2 * OUT_STRIDES[5]
    v = tl.load(x + at, at < SIZE, other=0)
    tl.store(out + target, cast(v, out.dtype.element_ty), at < SIZE)


def plan_convolution(spec: Convolution, target: Target) -> Plan:
    """lhs, rhs -> out. Long sums over few outputs are split and added in a fixed order."""
    builder = PlanBuilder(2, 1)
    out = BufferArg(2, spec.out_dtype or spec.dtype)
    size = spec.rows * spec.groups * spec.out_channels
    if size == 0:
        return builder.build()
    if spec.depth == 0:
        builder.clear(out)
        return builder.build()
    neighbours = _neighbours(spec, target)
    whole, spec = spec, _folded(spec, neighbours)
    bm, bn, bk, warps = _tile(spec)
    tiles = cdiv(spec.rows, bm) * cdiv(spec.out_channels, bn)
    # A kernel's gradient sums over the whole batch for few outputs: its depth is split among
    # programs where there are fewer tiles than multiprocessors, into parts of at least eight steps.
    splits = 1
    if neighbours == 1 and tiles * spec.groups < target.processors and spec.depth >= 16 * bk:
        splits = min(64, 2 * target.processors // (tiles * spec.groups), spec.depth // (8 * bk))
    split_depth = cdiv(cdiv(spec.depth, max(1, splits)), bk) * bk
    splits = cdiv(spec.depth, split_depth)
    partials = out if splits == 1 else builder.workspace(splits * size, spec.acc_dtype)
    batch_first = spec.lhs_strides[0] == 1
    extent = max(_extent(whole, name) for name in ("lhs", "rhs", "out"))
    builder.launch(
        convolution_kernel,
        (tiles, spec.groups, splits),
        {"lhs": BufferArg(0, spec.dtype), "rhs": BufferArg(1, spec.dtype), "out": partials},
        {
            "ROWS": spec.rows,
            "COLUMNS": spec.out_channels,
            "DEPTH": spec.depth,
            "CHANNELS": spec.in_channels,
            "BATCH": spec.batch,
            "BATCH_FIRST": batch_first,
            "CHANNELS_FIRST": 1 in (spec.lhs_strides[2], spec.rhs_strides[2]),
            "LHS": spec.lhs_spatial,
            "RHS": spec.rhs_spatial,
            "OUT": spec.out_spatial,
            "LHS_STRIDES": spec.lhs_strides,
            "RHS_STRIDES": spec.rhs_strides,
            "OUT_STRIDES": spec.out_strides,
            "STRIDES": spec.strides,
            "PADDING": spec.padding,
            "LHS_DILATION": spec.lhs_dilation,
            "RHS_DILATION": spec.rhs_dilation,
            "PRECISION": spec.precision,
            "SPLITS": splits,
            "SPLIT_DEPTH": split_depth,
            "BM": bm,
            "BN": bn,
            "BK": bk,
            "ACC": spec.acc_dtype,
            "TENSOR_CORES": spec.tensor_cores,
            "WIDE": extent > INT32_MAX,
            "FOLD": neighbours,
            "TAPS": whole.rhs_spatial[2],
            "LENGTH": whole.out_spatial[2],
        },
        num_warps=warps,
        num_stages=3,
    )
    # Added in a fixed order, then written at the output's strides.
    if splits > 1:
        total = builder.workspace(size, partials.dtype)
        add_sum_of_partials(builder, partials, total, splits, size)
        builder.launch(
            place_kernel,
            (cdiv(size, 1024),),
            {"x": total, "out": out},
            {
                "ROWS": spec.rows,
                "COLUMNS": spec.out_channels,
                "OUT": spec.out_spatial,
                "BATCH": spec.batch,
                "BATCH_FIRST": batch_first,
                "OUT_STRIDES": spec.out_strides,
                "SIZE": size,
                "BLOCK": 1024,
            },
        )
    return builder.build()


def _neighbours(spec: Convolution, target: Target) -> int:
    """How many neighbouring positions share a row of the product: a power of two, 1 for none.

    Tensor cores have 16 columns and more. Of few channels most would be empty, and the window of
    each position would be gathered anew: neighbours read theirs together, which takes as many taps
    more as there are neighbours. So columns are filled, and there are no more of them than taps.
    """
    channels, taps = next_power_of_two(spec.out_channels), spec.rhs_spatial[2]
    last = (spec.strides[2], spec.lhs_dilation[2], spec.rhs_dilation[2])
    if not spec.tensor_cores or channels >= 16 or taps < 2 or last != (1, 1, 1):
        return 1
    neighbours = min(max(next_power_of_two(taps) // 2, 16 // channels), 128 // channels)
    folded = _folded(spec, neighbours)
    bm, bn, _, _ = _tile(folded)
    tiles = cdiv(folded.rows, bm) * cdiv(folded.out_channels, bn) * spec.groups
    return neighbours if neighbours <= spec.out_spatial[2] and tiles >= target.processors else 1


def _folded(spec: Convolution, neighbours: int) -> Convolution:
    """The convolution whose channels are those of neighbouring positions, and its windows theirs
    together."""
    last = lambda x, n: (*x[:2], n)
    return replace(
        spec,
        out_channels=spec.out_channels * neighbours,
        out_spatial=last(spec.out_spatial, cdiv(spec.out_spatial[2], neighbours)),
        rhs_spatial=last(spec.rhs_spatial, spec.rhs_spatial[2] + neighbours - 1),
        strides=last(spec.strides, spec.strides[2] * neighbours),
    )


def _tile(spec: Convolution) -> tuple[int, int, int, int]:
    if not spec.tensor_cores:
        return 16, 16, 8, 4
    # Tiles no larger than the problem, and no smaller than tensor cores take.
    bn = min(128, max(16, next_power_of_two(spec.out_channels)))
    bm = min(128, max(16, next_power_of_two(spec.rows)))
    bk = 32 if spec.dtype == "i8" else min(32, max(16, next_power_of_two(spec.depth)))
    return bm, bn, bk, 8 if bm * bn >= 128 * 128 else 4


def _extent(spec: Convolution, name: str) -> int:
    sizes = {
        "lhs": (spec.batch, spec.groups, spec.in_channels, *spec.lhs_spatial),
        "rhs": (spec.groups, spec.out_channels, spec.in_channels, *spec.rhs_spatial),
        "out": (spec.batch, spec.groups, spec.out_channels, *spec.out_spatial),
    }[name]
    return sum(n * s for n, s in zip(sizes, getattr(spec, f"{name}_strides"), strict=True))
