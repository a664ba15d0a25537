"""Substitution with triangles whose columns warps hold, on right sides beside them."""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.linalg.medium.columns import (
    RING,
    add_products,
    at_row,
    element_at,
    element_of_warp,
)
from genesis_fn.kernels.linalg.small.elements import (
    kept,
    negative,
    product,
    reciprocal,
    where_parts,
)


@triton.jit
def diagonal_of(columns, position, warp, WARPS: tl.constexpr, COMPLEX: tl.constexpr):
    """The parts of each row's element on the diagonal."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    found = columns[:PARTS]
    for j in tl.static_range(1, len(columns) // PARTS):
        entry = columns[j * PARTS : (j + 1) * PARTS]
        found = where_parts(position == j * WARPS + warp, entry, found, COMPLEX)
    return element_of_warp(found, position % WARPS == warp, COMPLEX)


@triton.jit
def substitute_some(
    columns, sides, inverses, position, order, warp, START: tl.constexpr, END: tl.constexpr,
    WARPS: tl.constexpr, LOWER: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """Steps of the groups START to END of `substitute`, those of a lower triangle upwards, of an
    upper one downwards, with these vectors of columns."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    number = tl.zeros((WARPS, 32), tl.int32)
    for step in range(START, END):
        group = step if LOWER else START + END - 1 - step
        # The columns of this group are in the first vector, or the last: they rotate.
        if LOWER:
            own = columns[:PARTS]
            columns = columns[PARTS:] + own
        else:
            own = columns[len(columns) - PARTS :]
            columns = own + columns[: len(columns) - PARTS]
        for turn in range(WARPS):
            owner = turn if LOWER else WARPS - 1 - turn
            k = group * WARPS + owner
            factor = element_of_warp(own, warp == owner, COMPLEX)
            holder = at_row(order, number + k)
            factor = product(factor, element_at(inverses, holder, COMPLEX), COMPLEX)
            later = position > k if LOWER else position < k
            less = kept(later, negative(factor, COMPLEX), COMPLEX)
            sides = add_products(sides, less, holder, COMPLEX)
    return sides


@triton.jit
def substitute(
    columns, sides, position, order, warp, GROUPS: tl.constexpr, WARPS: tl.constexpr,
    LOWER: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """T^-1 B of the triangle of GROUPS vectors of columns, whatever stands in the other one: rows
    are in `position`, and that of position k is order[k]."""
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    inverses = reciprocal(diagonal_of(columns, position, warp, WARPS, COMPLEX), COMPLEX)
    for some in tl.static_range(0, GROUPS, RING):
        if LOWER:
            sides = substitute_some(
                columns[PARTS * some : PARTS * min(some + RING, GROUPS)], sides, inverses, position,
                order, warp, some, min(some + RING, GROUPS), WARPS, LOWER, COMPLEX,
            )  # fmt: skip
        else:
            sides = substitute_some(
                columns[PARTS * max(GROUPS - RING - some, 0) : PARTS * (GROUPS - some)], sides,
                inverses, position, order, warp, max(GROUPS - RING - some, 0), GROUPS - some, WARPS,
                LOWER, COMPLEX,
            )  # fmt: skip
    solved = ()
    for j in tl.static_range(len(sides) // PARTS):
        solved = solved + product(sides[j * PARTS : (j + 1) * PARTS], inverses, COMPLEX)
    return solved
