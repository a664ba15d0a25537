"""Other forms of a generated kernel, for the ones that Triton cannot compile as they are.

Triton 3.6 fails on some reductions whose result is both stored and computed with: its removal of
layout conversions takes the one of the store, which comes later, for the computation. Where the
stores are, and how many warps there are, decides whether it does; neither changes what a kernel
computes. Measured on the kernels of a residual network with batch normalisation: 5 of 22 fail as
they are, each compiles in one of the next two forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ASSIGNED = re.compile(r"\s*(\w+) = ")
# What a store must stay behind: other accesses of memory, and what orders them.
_ORDERED = ("tl.load(", "tl.store(", "tl.atomic", "barrier", "wait", "descriptor")


def other_forms(text: str, warps: int) -> Iterator[tuple[str, int]]:
    """(text, number of warps) of each form, the nearest to the original first."""
    moved = stores_early(text)
    yield moved, warps
    while warps > 1:
        warps //= 2
        yield text, warps
        yield moved, warps


def stores_early(text: str) -> str:
    """The source with each store moved up to the value that it stores, as far as no other access
    of memory lies between.

    >>> stores_early("y = x + 1\\nz = y * 2\\ntl.store(b, y)").split("\\n")
    ['y = x + 1', 'tl.store(b, y)', 'z = y * 2']
    """
    lines: list[str] = []
    for line in text.split("\n"):
        at = len(lines)
        if line.lstrip().startswith("tl.store("):
            read = set(re.findall(r"\w+", line))
            while at and _may_pass(line, read, lines[at - 1]):
                at -= 1
        lines.insert(at, line)
    return "\n".join(lines)


def _may_pass(store: str, read: set[str], before: str) -> bool:
    """Whether a store may come before the line `before`: an assignment of the same block that
    touches no memory, of a name that the store does not read."""
    assigned = _ASSIGNED.match(before)
    indent = len(store) - len(store.lstrip())
    return (
        assigned is not None
        and len(before) - len(before.lstrip()) == indent
        and assigned[1] not in read
        and not any(word in before for word in _ORDERED)
    )
