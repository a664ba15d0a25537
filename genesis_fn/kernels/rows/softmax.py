"""Softmax, log-softmax and log-sum-exp of the rows of a matrix, forward and backward.

Rows of up to 16384 columns stay in registers. Longer rows are read once for a running maximum and
sum (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax") and once more for the
result.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.language.language import cast, up
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import (
    PlanBuilder,
    Tile,
    add_row_kernel,
    fits_registers,
    row_tile,
)

KINDS = ("softmax", "log_softmax", "logsumexp")


@dataclass(frozen=True, slots=True)
class Softmax:
    """`kind` ("softmax", "log_softmax" or "logsumexp") of each row of a [rows, columns] matrix."""

    rows: int
    columns: int
    dtype: str
    kind: str = "softmax"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is one of {KINDS}, not {self.kind!r}")
        if self.columns < 1:
            raise ValueError("softmax needs at least one column")

    @property
    def tile(self) -> Tile | None:
        """The tile of rows that fit in the registers of one program."""
        fits = fits_registers(self.columns, self.dtype)
        return row_tile(self.columns, self.dtype) if fits else None


@triton.jit
def exponential(x):
    """exp(x), through the hardware's base-2 exponential where x is float32."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        return tl.exp2(x * 1.4426950408889634)


@triton.jit
def soft_cap(x, CAP: tl.constexpr):
    """CAP * tanh(x / CAP), or x if CAP is 0."""
    if CAP == 0.0:
        return x
    else:
        return CAP - 2.0 * CAP / (exponential(x * (2.0 / CAP)) + 1.0)


@triton.jit
def online_logsumexp(
    x,
    COLUMNS: tl.constexpr,
    CAP: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    DOUBLE: tl.constexpr,
    SUM: tl.constexpr,
    weights,
    WEIGHTED: tl.constexpr,
):
    """(maximum, sum of exp(x - maximum), sum of x if SUM, sum of the weights) of one row in one
    read. If WEIGHTED, x is multiplied by weights in its sum, where they are not 0.

    Each lane keeps its own pair and rescales its sum once per vector of VECTOR elements.
    """
    ACC: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    # Finite, so that a lane that has seen only -inf does not subtract inf from inf.
    top = tl.full((LANES,), -3.0e38, ACC)
    total = tl.zeros((LANES,), ACC)
    plain = tl.zeros((LANES,), ACC)
    mass = tl.zeros((LANES,), ACC)
    position = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    for start in range(0, COLUMNS, LANES * VECTOR):
        inside = start + position < COLUMNS
        v = up(tl.load(x + start + position, inside, other=float("-inf")))
        v = tl.where(inside, soft_cap(v, CAP), float("-inf"))
        if WEIGHTED:
            w = tl.load(weights + start + position, inside, other=0.0)
            mass += tl.sum(w, 1)
            plain += tl.sum(tl.where(w != 0.0, w * v, 0.0), 1)
        elif SUM:
            plain += tl.sum(tl.where(inside, v, 0.0), 1)
        # Capped below inf, so that a +inf element makes the sum inf and not NaN.
        higher = tl.minimum(tl.maximum(top, tl.max(v, 1)), 3.0e38)
        total = total * exponential(top - higher) + tl.sum(exponential(v - higher[:, None]), 1)
        top = higher
    # The lanes' pairs (maximum, sum) combine like those of blocks: rescale, then add.
    highest = tl.max(top, 0)
    sum_exp = tl.sum(total * exponential(top - highest), 0)
    return highest, sum_exp, tl.sum(plain, 0), tl.sum(mass, 0)


@triton.jit
def softmax_forward_kernel(
    x,
    y,
    rows,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The KIND of softmax of rows that fit in registers."""
    row = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    column = tl.arange(0, COLUMN_BLOCK)[None, :]
    mask = (row < rows)[:, None] & (column < COLUMNS)
    at = (row.to(tl.int64) * COLUMNS if WIDE else row * COLUMNS)[:, None] + column
    # Shifted by the maximum, so that no exponential overflows; padding is -inf and adds 0.
    v = up(tl.load(x + at, mask, other=float("-inf")))
    top = tl.max(v, 1)
    # A row of -inf alone has log-sum-exp -inf and one with +inf has +inf: neither must be NaN.
    if KIND == "logsumexp":
        top = tl.where(tl.abs(top) == float("inf"), 0.0, top)
    shifted = v - top[:, None]
    e = exponential(shifted)
    total = tl.sum(e, 1)
    if KIND == "logsumexp":
        tl.store(y + row, cast(top + tl.log(total), y.dtype.element_ty), row < rows)
    elif KIND == "softmax":
        tl.store(y + at, cast(e / total[:, None], y.dtype.element_ty), mask)
    else:
        tl.store(y + at, cast(shifted - tl.log(total)[:, None], y.dtype.element_ty), mask)


@triton.jit
def softmax_forward_looped_kernel(
    x,
    y,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """`softmax_forward_kernel` for rows too long for registers: a row a program, read in blocks."""
    row = tl.program_id(0).to(tl.int64)
    x += row * COLUMNS
    top, total, _, _ = online_logsumexp(x, COLUMNS, 0.0, LANES, VECTOR, DOUBLE, False, x, False)
    if KIND == "logsumexp":
        tl.store(y + row, cast(top + tl.log(total), y.dtype.element_ty))
    else:
        total += total - total  # NaN where an element is inf, and so in the whole row
        y += row * COLUMNS
        lane = tl.arange(0, LANES * VECTOR)
        for start in range(0, COLUMNS, LANES * VECTOR):
            inside = start + lane < COLUMNS
            v = up(tl.load(x + start + lane, inside, other=0.0)) - top
            if KIND == "softmax":
                v = exponential(v) / total
            else:
                v = v - tl.log(total)
            tl.store(y + start + lane, cast(v, y.dtype.element_ty), inside)


@triton.jit
def softmax_gradient(g, saved, total, KIND: tl.constexpr):
    """The gradient of one element; `total` is its row's sum, or log-sum-exp, as KIND needs."""
    # softmax: y * (g - sum(g * y)). log_softmax: g - exp(y) * sum(g). logsumexp: g * exp(x - lse).
    if KIND == "softmax":
        return saved * (g - total)
    elif KIND == "log_softmax":
        return g - exponential(saved) * total
    else:  # of a row of -inf zeros, not NaN
        return g * exponential(saved - tl.where(tl.abs(total) == float("inf"), 0.0, total))


@triton.jit
def softmax_backward_kernel(
    dy,
    saved,
    lse,
    dx,
    rows,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """dx of rows that fit in registers, from dy and the result (logsumexp: the operand)."""
    row = tl.program_id(0) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    column = tl.arange(0, COLUMN_BLOCK)[None, :]
    valid = row < rows
    mask = valid[:, None] & (column < COLUMNS)
    at = (row.to(tl.int64) * COLUMNS if WIDE else row * COLUMNS)[:, None] + column
    s = up(tl.load(saved + at, mask, other=0.0))
    if KIND == "logsumexp":
        g = up(tl.load(dy + row, valid, other=0.0))[:, None]
        total = up(tl.load(lse + row, valid, other=0.0))
    else:
        g = up(tl.load(dy + at, mask, other=0.0))
        total = tl.sum(g * s if KIND == "softmax" else g, 1)
    d = softmax_gradient(g, s, total[:, None], KIND)
    tl.store(dx + at, cast(d, dx.dtype.element_ty), mask)


@triton.jit
def softmax_backward_looped_kernel(
    dy,
    saved,
    lse,
    dx,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """`softmax_backward_kernel` for rows too long for registers: a row a program, read in
    blocks."""
    ACC: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    row = tl.program_id(0).to(tl.int64)
    base = row * COLUMNS
    lane = tl.arange(0, BLOCK)
    if KIND == "logsumexp":
        total = up(tl.load(lse + row))
    else:
        lanes = tl.zeros((BLOCK,), ACC)
        for start in range(0, COLUMNS, BLOCK):
            inside = start + lane < COLUMNS
            g = up(tl.load(dy + base + start + lane, inside, other=0.0))
            if KIND == "softmax":
                g = g * up(tl.load(saved + base + start + lane, inside, other=0.0))
            lanes += g
        total = tl.sum(lanes, 0)
    for start in range(0, COLUMNS, BLOCK):
        inside = start + lane < COLUMNS
        s = up(tl.load(saved + base + start + lane, inside, other=0.0))
        if KIND == "logsumexp":
            g = up(tl.load(dy + row))
        else:
            g = up(tl.load(dy + base + start + lane, inside, other=0.0))
        d = softmax_gradient(g, s, total, KIND)
        tl.store(dx + base + start + lane, cast(d, dx.dtype.element_ty), inside)


def online_tile(dtype: str, warps: int = 8) -> dict[str, int]:
    """LANES and VECTOR of a looped read: 16-byte vectors, two for each thread at a time."""
    # 32 threads a warp and two lanes a thread.
    return {"LANES": 64 * warps, "VECTOR": max(2, 16 // ITEMSIZE[dtype])}


def plan_softmax_forward(spec: Softmax, target: Target) -> Plan:
    """x -> y: softmax or log-softmax [rows, columns], or log-sum-exp [rows], of each row."""
    builder = PlanBuilder(1, 1)
    add_row_kernel(
        builder,
        (softmax_forward_kernel, softmax_forward_looped_kernel),
        (spec.rows, spec.columns),
        {"x": BufferArg(0, spec.dtype), "y": BufferArg(1, spec.dtype)},
        {"COLUMNS": spec.columns, "KIND": spec.kind},
        spec.tile,
        online_tile(spec.dtype) | {"DOUBLE": spec.dtype == "fp64"},
    )
    return builder.build()


def plan_softmax_backward(spec: Softmax, target: Target) -> Plan:
    """dy, y -> dx for softmax and log-softmax; dy, x, lse -> dx for log-sum-exp."""
    inputs = 3 if spec.kind == "logsumexp" else 2
    builder = PlanBuilder(inputs, 1)
    names = {"dy": 0, "saved": 1, "lse": inputs - 1, "dx": inputs}
    add_row_kernel(
        builder,
        (softmax_backward_kernel, softmax_backward_looped_kernel),
        (spec.rows, spec.columns),
        {name: BufferArg(index, spec.dtype) for name, index in names.items()},
        {"COLUMNS": spec.columns, "KIND": spec.kind},
        spec.tile,
        {"BLOCK": 4096, "DOUBLE": spec.dtype == "fp64"},
    )
    return builder.build()
