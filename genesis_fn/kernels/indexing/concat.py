"""Concatenation along any axis, in one launch of a kernel that only moves bits.

Seen as [outer, width] matrices the operands are side by side in the rows of the output. Wide ones
are copied tile by tile, each program inside one operand; narrow ones are gathered by output
element, so that stores stay contiguous. Elements are widened to the largest unit that divides
every width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv, next_power_of_two

MOST = 8  # operands of one launch
TILE = 256
NARROW = 64  # bytes: operands all narrower are gathered by output element


@dataclass(frozen=True, slots=True)
class Concatenate:
    """The concatenation of arrays of `shapes` along `axis`."""

    shapes: tuple[tuple[int, ...], ...]
    axis: int
    dtype: str

    def __post_init__(self) -> None:
        if not self.shapes:
            raise ValueError("concatenate needs at least one array")
        rank = len(self.shapes[0])
        if not 0 <= self.axis < rank:
            raise ValueError(f"axis {self.axis} is not an axis of {rank} dimensions")
        rests = {s[: self.axis] + s[self.axis + 1 :] for s in self.shapes}
        if len(rests) > 1 or any(len(s) != rank for s in self.shapes):
            raise ValueError(f"{self.shapes} differ in more than axis {self.axis}")

    @property
    def outer(self) -> int:
        """The number of rows of the operands, seen as matrices."""
        return math.prod(self.shapes[0][: self.axis])

    @property
    def widths(self) -> tuple[int, ...]:
        """Elements of one row of each operand."""
        return tuple(math.prod(s[self.axis :]) for s in self.shapes)


@triton.jit
def copy_tile(
    x,
    out,
    tile,
    OUTER: tl.constexpr,
    WIDTH: tl.constexpr,
    OFFSET: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Copy tile number `tile` of one operand to its position in the output."""
    ACROSS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    row = (tile // ACROSS) * ROWS + tl.arange(0, ROWS)
    column = (tile % ACROSS) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < OUTER)[:, None] & (column < WIDTH)
    r = (row.to(tl.int64) if WIDE else row)[:, None]
    v = tl.load(x + r * WIDTH + column, mask, other=0, eviction_policy="evict_first")
    tl.store(out + OFFSET + r * TOTAL + column, v, mask)


@triton.jit
def concatenate_tiles_kernel(
    x0,
    x1,
    x2,
    x3,
    x4,
    x5,
    x6,
    x7,
    out,
    OUTER: tl.constexpr,
    TOTAL: tl.constexpr,
    COUNT: tl.constexpr,
    WIDTHS: tl.constexpr,
    OFFSETS: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Up to eight operands [OUTER, WIDTHS[i]] side by side into rows of TOTAL, a tile a program."""
    # TILES[i] is the first tile of operand i: each program takes one uniform branch.
    tile = tl.program_id(0)
    xs = (x0, x1, x2, x3, x4, x5, x6, x7)
    for i in tl.static_range(COUNT):
        if (tile >= TILES[i]) & (tile < TILES[i + 1]):
            copy_tile(
                xs[i],
                out,
                tile - TILES[i],
                OUTER,
                WIDTHS[i],
                OFFSETS[i],
                TOTAL,
                ROWS[i],
                COLUMNS[i],
                WIDE,
            )


@triton.jit
def concatenate_elements_kernel(
    x0,
    x1,
    x2,
    x3,
    x4,
    x5,
    x6,
    x7,
    out,
    OUTER: tl.constexpr,
    TOTAL: tl.constexpr,
    COUNT: tl.constexpr,
    WIDTHS: tl.constexpr,
    OFFSETS: tl.constexpr,
    FIRST: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Narrow operands side by side: a program fills BLOCK elements of the output from all."""
    # The operands fill columns FIRST .. FIRST + SPAN of each row of the output.
    position = tl.program_id(0)
    position = (position.to(tl.int64) if WIDE else position) * BLOCK + tl.arange(0, BLOCK)
    inside = position < OUTER * SPAN
    row = position // SPAN
    column = (position - row * SPAN).to(tl.int32) + FIRST
    v = tl.zeros((BLOCK,), out.dtype.element_ty)
    xs = (x0, x1, x2, x3, x4, x5, x6, x7)
    for i in tl.static_range(COUNT):
        own = inside & (column >= OFFSETS[i]) & (column < OFFSETS[i] + WIDTHS[i])
        at = row * WIDTHS[i] + (column - OFFSETS[i])
        v = tl.where(own, tl.load(xs[i] + at, own, other=0), v)
    tl.store(out + row * TOTAL + column, v, inside)


def plan_concatenate(spec: Concatenate, target: Target) -> Plan:
    """The operands, in order -> one array; one launch for every eight non-empty operands."""
    count = len(spec.shapes)
    builder = PlanBuilder(count, 1)
    size = ITEMSIZE[spec.dtype]
    widths = [w * size for w in spec.widths]
    total = sum(widths)
    if 0 in (spec.outer, total):
        return builder.build()
    # Bytes to units: 8, 4, 2 or 1 of them, whichever divides every width.
    unit = math.gcd(8, *widths)
    operands, offset = [], 0
    for i, width in enumerate(widths):
        if width:
            operands.append((i, width // unit, offset // unit))
        offset += width
    dtype = f"i{8 * unit}"
    for start in range(0, len(operands), MOST):
        group = operands[start : start + MOST]
        # The kernel has eight pointers; unused ones repeat the last operand.
        padded = [*group, *[group[-1]] * (MOST - len(group))]
        arguments = {f"x{i}": BufferArg(index, dtype) for i, (index, _, _) in enumerate(padded)}
        arguments["out"] = BufferArg(count, dtype)
        constants = {
            "OUTER": spec.outer,
            "TOTAL": total // unit,
            "COUNT": len(group),
            "WIDTHS": tuple(w for _, w, _ in group),
            "OFFSETS": tuple(o for _, _, o in group),
            "WIDE": spec.outer * total // unit + TILE > INT32_MAX,
        }
        # By tiles, each inside one operand; rows of a few bytes would leave their tiles mostly
        # empty.
        if max(w for _, w, _ in group) * unit >= NARROW or spec.outer == 1:
            columns = [min(next_power_of_two(w), TILE) for _, w, _ in group]
            rows = [min(next_power_of_two(spec.outer), max(1, TILE // c)) for c in columns]
            firsts = [0]
            for (_, w, _), c, r in zip(group, columns, rows, strict=True):
                firsts.append(firsts[-1] + cdiv(w, c) * cdiv(spec.outer, r))
            tiling = {"TILES": tuple(firsts), "ROWS": tuple(rows), "COLUMNS": tuple(columns)}
            builder.launch(concatenate_tiles_kernel, (firsts[-1],), arguments, constants | tiling)
        else:
            first = group[0][2]
            span = group[-1][2] + group[-1][1] - first
            builder.launch(
                concatenate_elements_kernel,
                (cdiv(spec.outer * span, 1024),),
                arguments,
                constants | {"FIRST": first, "SPAN": span, "BLOCK": 1024},
            )
    return builder.build()
