"""Cumulative sum, product, maximum, minimum and log-sum-exp along one axis, of any length.

One program walks a line with a carry where lines are many. A few long lines are cut into chunks:
the first kernel reduces each, the second scans each from the total of those before it. The order of
combination depends on shapes and the number of multiprocessors alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import FLOATING, ITEMSIZE, UNSIGNED
from genesis_fn.kernels.language.language import cast, log1p, up
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv, next_power_of_two

OPERATIONS = ("add", "mul", "max", "min", "logaddexp")
PROGRAMS = 8  # for each multiprocessor, where lines are cut into chunks


@dataclass(frozen=True, slots=True)
class Scan:
    """The running `operation` along the middle axis of [outer, length, inner], from either end."""

    outer: int
    length: int
    inner: int
    dtype: str
    operation: str = "add"
    reverse: bool = False

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise ValueError(f"a scan's operation is one of {OPERATIONS}, not {self.operation!r}")
        if self.operation == "logaddexp" and self.dtype not in FLOATING:
            raise ValueError(f"logaddexp needs a floating type, not {self.dtype}")

    @property
    def accumulator(self) -> str:
        """The type that values are combined in."""
        size = ITEMSIZE[self.dtype]
        if self.dtype in FLOATING:
            return "fp64" if size == 8 else "fp32"
        return self.dtype if size >= 4 else "i32"

    @property
    def identity(self) -> int | float:
        """The value that changes nothing."""
        if self.operation in ("add", "mul"):
            one = int(self.operation == "mul")
            return float(one) if self.dtype in FLOATING else one
        if self.dtype in FLOATING:
            return float("inf") if self.operation == "min" else float("-inf")
        bits = 8 * ITEMSIZE[self.accumulator]
        signed = self.accumulator not in UNSIGNED
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return high if self.operation == "min" else low


@triton.jit
def nan_max(a, b):
    """The larger of a and b; NaN if either is."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def nan_min(a, b):
    """The smaller of a and b; NaN if either is."""
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def add(a, b):
    """a + b."""
    return a + b


@triton.jit
def multiply(a, b):
    """a * b."""
    return a * b


@triton.jit
def log_add_exp(a, b):
    """log(exp(a) + exp(b))."""
    high = nan_max(a, b)
    gap = -tl.abs(a - b)
    return tl.where(tl.abs(high) == float("inf"), high, high + log1p(tl.exp(gap)))


@triton.jit
def combine(a, b, OPERATION: tl.constexpr):
    """a OPERATION b."""
    if OPERATION == "add":
        return a + b
    elif OPERATION == "mul":
        return a * b
    elif OPERATION == "max":
        return nan_max(a, b)
    elif OPERATION == "min":
        return nan_min(a, b)
    else:
        return log_add_exp(a, b)


@triton.jit
def scanned(x, AXIS: tl.constexpr, OPERATION: tl.constexpr):
    """The running OPERATION of a tile along AXIS."""
    if OPERATION == "add":
        return tl.cumsum(x, AXIS)
    elif OPERATION == "mul":
        return tl.cumprod(x, AXIS)
    elif OPERATION == "max":
        return tl.associative_scan(x, AXIS, nan_max)
    elif OPERATION == "min":
        return tl.associative_scan(x, AXIS, nan_min)
    else:
        return tl.associative_scan(x, AXIS, log_add_exp)


@triton.jit
def reduced(x, AXIS: tl.constexpr, OPERATION: tl.constexpr):
    """The OPERATION of all elements of a tile along AXIS."""
    if OPERATION == "add":
        return tl.reduce(x, AXIS, add)
    elif OPERATION == "mul":
        return tl.reduce(x, AXIS, multiply)
    elif OPERATION == "max":
        return tl.reduce(x, AXIS, nan_max)
    elif OPERATION == "min":
        return tl.reduce(x, AXIS, nan_min)
    else:
        return tl.reduce(x, AXIS, log_add_exp)


@triton.jit
def line_bases(
    LENGTH: tl.constexpr, INNER: tl.constexpr, LINE_BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    """(numbers, element offsets of the first element) of this program's lines."""
    line = tl.program_id(0) * LINE_BLOCK + tl.arange(0, LINE_BLOCK)
    start = line
    if INNER != 1 or LENGTH != 1:
        outer = line // INNER
        wide = outer.to(tl.int64) if WIDE else outer
        start = wide * (LENGTH * INNER) + (line - outer * INNER)
    return line, start


@triton.jit
def scan_kernel(
    x,
    y,
    totals,
    LINES: tl.constexpr,
    LENGTH: tl.constexpr,
    INNER: tl.constexpr,
    OPERATION: tl.constexpr,
    REVERSE: tl.constexpr,
    IDENTITY: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
    REDUCE: tl.constexpr,
    AXIS: tl.constexpr,
    LINE_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Running sums, products or extremes of a chunk of lines; its totals alone if REDUCE."""
    ACC: tl.constexpr = totals.dtype.element_ty
    line, base = line_bases(LENGTH, INNER, LINE_BLOCK, WIDE)
    exists = line < LINES
    chunk = tl.program_id(1)
    carry = tl.full((LINE_BLOCK,), IDENTITY, ACC)
    if CHUNKS > 1 and not REDUCE:
        # The carry of a chunk: the totals of the chunks before it, combined in order.
        other = tl.arange(0, CHUNKS_PADDED)
        before = exists[:, None] & (other < chunk)[None, :]
        cell = line.to(tl.int64)[:, None] * CHUNKS + other[None, :]
        values = tl.load(totals + cell, before, other=0)
        values = tl.where(before, values, tl.full(values.shape, IDENTITY, ACC))
        carry = reduced(values, 1, OPERATION)
    # Along a line blocks follow each other: the last element of one is the carry of the next.
    lane = tl.arange(0, BLOCK)
    for start in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, LENGTH), BLOCK):
        step = start + lane
        position = LENGTH - 1 - step if REVERSE else step
        offset = position.to(tl.int64) * INNER if WIDE else position * INNER
        if AXIS == 1:
            at = base[:, None] + offset[None, :]
            mask = exists[:, None] & (step < LENGTH)[None, :]
        else:
            at = base[None, :] + offset[:, None]
            mask = exists[None, :] & (step < LENGTH)[:, None]
        v = up(tl.load(x + at, mask, other=0)).to(ACC)
        v = tl.where(mask, v, tl.full(v.shape, IDENTITY, ACC))
        if REDUCE:
            carry = combine(carry, reduced(v, AXIS, OPERATION), OPERATION)
        else:
            v = scanned(v, AXIS, OPERATION).to(ACC)
            if AXIS == 1:
                v = combine(carry[:, None], v, OPERATION)
                # A tile has no indexing: its last element is the sum of it and zeros.
                last = tl.where((lane == BLOCK - 1)[None, :], v, tl.zeros_like(v))
            else:
                v = combine(carry[None, :], v, OPERATION)
                last = tl.where((lane == BLOCK - 1)[:, None], v, tl.zeros_like(v))
            tl.store(y + at, cast(v, y.dtype.element_ty), mask)
            carry = tl.sum(last, AXIS).to(ACC)
    if REDUCE:
        tl.store(totals + line.to(tl.int64) * CHUNKS + chunk, carry, exists)


def add_scan(builder: PlanBuilder, target: Target, spec: Scan, x: BufferArg, y: BufferArg) -> None:
    """Append y = scan of x."""
    lines = spec.outer * spec.inner
    if 0 in (lines, spec.length):
        return
    # The axis with stride one is the tile's last, so that loads are contiguous: along the line, or,
    # where lines are interleaved, across them.
    if spec.inner == 1:
        axis, block = 1, min(next_power_of_two(spec.length), 2048)
        line_block = max(1, min(next_power_of_two(lines), 2048 // block))
    else:
        axis, line_block = 0, min(next_power_of_two(spec.inner), 64)
        block = min(next_power_of_two(spec.length), max(16, 2048 // line_block))
    programs, blocks = cdiv(lines, line_block), cdiv(spec.length, block)
    wanted = PROGRAMS * target.processors
    chunks = 1
    if programs < wanted // 4 and blocks > 4:
        # The second kernel holds a total for each chunk of each of its lines in registers.
        chunks = max(1, min(blocks, wanted // programs, 8192 // line_block))
    chunk = cdiv(blocks, chunks) * block
    chunks = cdiv(spec.length, chunk)
    # Without chunks, only the element type of `totals` is used.
    totals = builder.workspace(lines * chunks if chunks > 1 else 1, spec.accumulator)
    constants = {
        "LINES": lines,
        "LENGTH": spec.length,
        "INNER": spec.inner,
        "OPERATION": spec.operation,
        "REVERSE": spec.reverse,
        "IDENTITY": spec.identity,
        "CHUNK": chunk,
        "CHUNKS": chunks,
        "CHUNKS_PADDED": next_power_of_two(chunks),
        "AXIS": axis,
        "LINE_BLOCK": line_block,
        "BLOCK": block,
        "WIDE": lines * spec.length + block * spec.inner > INT32_MAX,
    }
    arguments = {"x": x, "y": y, "totals": totals}
    warps = max(1, min(8, block * line_block // 256))
    for reduce in (True, False) if chunks > 1 else (False,):
        builder.launch(
            scan_kernel,
            (programs, chunks),
            arguments,
            constants | {"REDUCE": reduce},
            num_warps=warps,
        )


def plan_scan(spec: Scan, target: Target) -> Plan:
    """x -> y, both [outer, length, inner]: y[:, i] combines x[:, 0..i], or x[:, i..] if reversed.

    Narrow floats are combined in float32 and rounded once.
    """
    builder = PlanBuilder(1, 1)
    add_scan(builder, target, spec, BufferArg(0, spec.dtype), BufferArg(1, spec.dtype))
    return builder.build()
