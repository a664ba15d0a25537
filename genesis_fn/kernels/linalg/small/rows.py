"""Stacks of small matrices in registers: a thread holds a row, as one vector for each column.

A program is one warp, for as many matrices as its lanes hold rows: lane m * ROWS + i has row i of
its m-th matrix. A column of 32 lanes is one register, so an element (i, k) is read by all lanes of
its matrix with one shuffle.

Loops over pivots are run-time loops, so that the code to compile does not grow with the square of
the number of rows. They carry columns as a tuple that rotates by one each step, so that the pivot's
is always the first, and that leaves out those that are done every `RING` steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.plan_builder import next_power_of_two

LANES = 32
"""Of a warp: the most rows that a matrix may have."""

RING: tl.constexpr = tl.constexpr(8)
"""The steps of one run-time loop, over columns that rotate."""


@triton.jit
def at_lane(x, lane):
    """x[lane] for each lane."""
    return tl.gather(x, lane, 0)


@triton.jit
def over_rows(x, ROWS: tl.constexpr, LARGEST: tl.constexpr):
    """The largest (or smallest) of each matrix's integers, in all of its lanes."""
    rows = tl.reshape(x, (32 // ROWS, ROWS))
    found = tl.max(rows, 1) if LARGEST else tl.min(rows, 1)
    return tl.reshape(tl.broadcast_to(found[:, None], (32 // ROWS, ROWS)), (32,))


@triton.jit
def row_offsets(
    start, inside, numbers, WIDTH: tl.constexpr, GROUP: tl.constexpr, STRIDE: tl.constexpr
):
    """(offsets, mask) [lanes, WIDTH] of numbers from `start` on, of which `numbers` are there, in
    groups of GROUP neighbours; groups are STRIDE apart."""
    j = tl.arange(0, WIDTH)[None, :]
    mask = inside[:, None] & (j < numbers)
    return start[:, None] + (j // GROUP * STRIDE + j % GROUP), mask


@triton.jit
def vectors_of(block, WIDTH: tl.constexpr):
    """The columns of a block [lanes, WIDTH]."""
    LINES: tl.constexpr = block.shape[0]
    parts = (block,)
    # Part r has every S-th number from the r-th on; its halves every 2 S-th.
    for level in tl.static_range(WIDTH.bit_length() - 1):
        even = ()
        odd = ()
        for r in tl.static_range(2**level):
            left, right = tl.split(tl.reshape(parts[r], (LINES, WIDTH // 2 ** (level + 1), 2)))
            even = even + (left,)
            odd = odd + (right,)
        parts = even + odd
    vectors = ()
    for j in tl.static_range(WIDTH):
        vectors = vectors + (tl.reshape(parts[j], (LINES,)),)
    return vectors


@triton.jit
def block_of(vectors, WIDTH: tl.constexpr):
    """A block [lanes, WIDTH] of vectors, and of zeros behind them."""
    LINES: tl.constexpr = vectors[0].shape[0]
    parts = vectors
    for _ in tl.static_range(len(vectors), WIDTH):
        parts = parts + (tl.zeros_like(vectors[0]),)
    for level in tl.static_range(WIDTH.bit_length() - 1):
        joined = ()
        for r in tl.static_range(WIDTH // 2 ** (level + 1)):
            pairs = tl.join(parts[r], parts[r + WIDTH // 2 ** (level + 1)])
            joined = joined + (tl.reshape(pairs, (LINES, 2 ** (level + 1))),)
        parts = joined
    whole = parts[0]  # pyright: ignore[reportGeneralTypeIssues]  joined
    return tl.reshape(whole, (LINES, WIDTH))


@triton.jit
def read_rows(
    base, start, inside, numbers, WIDTH: tl.constexpr, GROUP: tl.constexpr, STRIDE: tl.constexpr
):
    """WIDTH vectors, a power of two: the numbers of each lane's row, behind them zeros.

    As one access, which Triton follows through the whole program, so that many take long to
    compile. It is coalesced, and goes to threads through shared memory; with whole rows in threads
    from the start, kernels took as long (H200).
    """
    offsets, mask = row_offsets(start, inside, numbers, WIDTH, GROUP, STRIDE)
    return vectors_of(tl.load(base + offsets, mask, other=0.0), WIDTH)


@triton.jit
def write_rows(
    base,
    start,
    inside,
    vectors,
    numbers,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Writes the first `numbers` of the vectors, at most WIDTH, to where `read_rows` reads."""
    block = block_of(vectors, WIDTH)
    offsets, mask = row_offsets(start, inside, numbers, WIDTH, GROUP, STRIDE)
    tl.store(base + offsets, block, mask)


def group_of(width: int, name: str) -> int:
    """The numbers that one access of a thread moves: 16 bytes, or all `width` of a row."""
    return min(width, 16 // ITEMSIZE[name])


def row_constants(n: int, name: str, is_complex: bool) -> dict[str, int]:
    """The constants of kernels over matrices [n, n] of such numbers."""
    rows = next_power_of_two(n)
    width = 2 * rows if is_complex else rows
    return {
        "N": n, "ROWS": rows, "COMPLEX": is_complex, "WIDTH": width,
        "GROUP": group_of(width, name),
    }  # fmt: skip


def side_constants(columns: int, name: str, is_complex: bool) -> dict[str, int]:
    """The constants of kernels over so many columns of right sides."""
    width = next_power_of_two(columns) * (2 if is_complex else 1)
    return {"SIDES": columns, "SIDES_WIDTH": width, "SIDES_GROUP": group_of(width, name)}
