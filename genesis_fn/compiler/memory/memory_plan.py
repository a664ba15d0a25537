"""The offsets of a program's temporaries in one arena."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

ALIGNMENT = 256


def aligned(size: int) -> int:
    """`size` rounded up to the alignment of buffers; at least one unit."""
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


def pack(
    sizes: Mapping[int, int], lives: Mapping[int, tuple[int, int]]
) -> tuple[dict[int, int], int]:
    """({buffer: offset}, bytes of the arena).

    `lives[b] = (first, last)`: the live range of buffer b in steps, both included. Best fit in the
    order of first use; free neighbours are coalesced.
    """
    # Of buffers that begin at one step the largest first: it is hardest to fit.
    starts = sorted(lives, key=lambda b: (lives[b][0], -sizes[b]))
    ending: list[tuple[int, int]] = []
    free: list[tuple[int, int]] = []  # (offset, size), in order
    offsets: dict[int, int] = {}
    top = 0
    for b in starts:
        first, last = lives[b]
        size = aligned(sizes[b])
        while ending and ending[0][0] < first:
            _, gone = ending.pop(0)
            _release(free, offsets[gone], aligned(sizes[gone]))
        n, at = min([(n, at) for at, n in free if n >= size], default=(0, 0))
        if n:
            free.remove((at, n))
            if n > size:
                insort(free, (at + size, n - size))
        else:
            # A free block at the end of the arena grows instead of staying a hole.
            at = free.pop()[0] if free and sum(free[-1]) == top else top
            top = at + size
        offsets[b] = at
        insort(ending, (last, b))
    return offsets, top


def _release(free: list[tuple[int, int]], at: int, size: int) -> None:
    k = bisect_left(free, (at, 0))
    if k < len(free) and free[k][0] == at + size:
        size += free.pop(k)[1]
    if k and sum(free[k - 1]) == at:
        at, before = free.pop(k - 1)
        size += before
        k -= 1
    free.insert(k, (at, size))
