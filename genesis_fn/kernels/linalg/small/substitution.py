"""Substitution with triangles whose rows stand in lanes, on right sides beside them."""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.linalg.small.elements import (
    add_products,
    element_at,
    kept,
    negative,
    product,
    reciprocal,
    where_parts,
)
from genesis_fn.kernels.linalg.small.rows import RING, at_lane


@triton.jit
def substitute_some(
    columns, sides, scale, position, order, first, START: tl.constexpr, END: tl.constexpr,
    LOWER: tl.constexpr, UNIT: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """Steps START to END of `substitute`, those of a lower triangle upwards, of an upper one
    downwards, with these columns."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    for step in range(START, END):
        k = step if LOWER else START + END - 1 - step
        # The column of this step is the first, or the last: they rotate.
        if LOWER:
            column = columns[:PARTS]
            columns = columns[PARTS:] + column
        else:
            column = columns[len(columns) - PARTS :]
            columns = column + columns[: len(columns) - PARTS]
        holder = first + at_lane(order, first + k)
        factor = column
        if not UNIT:
            pivot = element_at(column, holder, COMPLEX)
            inverse = reciprocal(pivot, COMPLEX)
            scale = where_parts(position == k, inverse, scale, COMPLEX)
            factor = product(column, inverse, COMPLEX)
        later = position > k if LOWER else position < k
        less = kept(later, negative(factor, COMPLEX), COMPLEX)
        sides = add_products(sides, less, holder, len(sides), COMPLEX)
    return sides, scale


@triton.jit
def substitute(
    columns, sides, position, order, first, N: tl.constexpr, LOWER: tl.constexpr,
    UNIT: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """T^-1 B of the triangle of N `columns`, whatever stands in the other one: lanes hold the rows
    in `position`, those of position k are in lane first + order[first + k]."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    one = tl.zeros_like(columns[0]) + 1.0
    scale = (one, tl.zeros_like(one)) if COMPLEX else (one,)
    for some in tl.static_range(0, N, RING):
        if LOWER:
            sides, scale = substitute_some(
                columns[PARTS * some : PARTS * min(some + RING, N)], sides, scale, position, order,
                first, some, min(some + RING, N), LOWER, UNIT, COMPLEX,
            )  # fmt: skip
        else:
            sides, scale = substitute_some(
                columns[PARTS * max(N - RING - some, 0) : PARTS * (N - some)], sides, scale,
                position, order, first, max(N - RING - some, 0), N - some, LOWER, UNIT, COMPLEX,
            )  # fmt: skip
    if UNIT:
        return sides
    solved = ()
    for j in tl.static_range(len(sides) // PARTS):
        solved = solved + product(sides[j * PARTS : (j + 1) * PARTS], scale, COMPLEX)
    return solved
