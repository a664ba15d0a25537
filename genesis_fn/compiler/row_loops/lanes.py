"""Lanes: loop variables along the axes that a program's tile has beside its rows.

Lane `r0` runs along the tile's second axis. A value that has two axes of lanes (states before and
after a step, of a hidden Markov model) has its second one along the tile's third axis: there the
lane is called `s0`, its *twin*. Both count the elements of the same class of axes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guards, Index, IndexGuard

SECOND, THIRD = 1, 2  # axes of a tile; its first one is that of rows


class Lanes(dict[str, int]):
    """The sizes of lanes, and of the twins that something needs, by name."""

    def __init__(self) -> None:
        super().__init__()
        self._alike: dict[str, frozenset[str]] = {}  # lanes whose tiles have one length

    def within(self, names: Collection[str]) -> list[str]:
        """The lanes among names, in the order of a tile's axes."""
        return sorted([x for x in names if x in self], key=self.axis)

    def axis(self, name: str) -> int:
        """The axis of a tile along which a lane runs."""
        return THIRD if name.startswith("s") else SECOND

    def padded(self, name: str) -> int:
        """The length of a tile along a lane, a power of two."""
        alike = self._alike.get(_first(name), (name,))
        return max([1 << (self[x] - 1).bit_length() for x in alike])

    def pad_alike(self, a: str, b: str) -> None:
        """Have tiles of one length along two lanes, and along their twins."""
        a, b = _first(a), _first(b)
        both = self._alike.get(a, frozenset((a,))) | self._alike.get(b, frozenset((b,)))
        self._alike.update(dict.fromkeys(both, both))

    def elements(self, names: Collection[str]) -> int:
        """How many elements a row of a value with these names has."""
        return math.prod([self[x] for x in names if x in self])

    @property
    def twins(self) -> list[str]:
        """The lanes along a tile's third axis."""
        return [x for x in self if self.axis(x) == THIRD]

    def twin(self, name: str) -> str:
        """The lane of the same elements along the tile's other axis."""
        found = _first(name) if self.axis(name) == THIRD else f"s{name[1:]}"
        self.setdefault(found, self[name])
        return found

    def keep(self, used: Collection[str]) -> None:
        """Forget the twins that are not used: a tile has a third axis where there is one."""
        for x in self.twins:
            if x not in used:
                del self[x]

    def turned(self, e: Expr) -> Expr:
        """An index with each lane's twin in its place."""
        twins = {x: ix.var(self.twin(x), self[x]) for x in self.within(e.names)}
        held = {x: f"{x} held" for x in twins}
        for x in twins:  # in two steps: twins may take each other's places
            e = ix.substitute(e, x, ix.var(held[x], self[x]))
        for x, twin in twins.items():
            e = ix.substitute(e, held[x], twin)
        return e

    def turned_at(self, at: Index, guards: Guards) -> tuple[Index, Guards]:
        """An index and what guards it, with twins in the places of lanes."""
        conditions = [IndexGuard(self.turned(g.expr), g.lo, g.hi) for g in guards]
        return tuple([self.turned(e) for e in at]), frozenset(conditions)


def _first(name: str) -> str:
    """The lane along a tile's second axis of a lane and its twin."""
    return f"r{name[1:]}" if name.startswith("s") else name
