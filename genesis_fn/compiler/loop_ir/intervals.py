"""Between which numbers an integer of a kernel lies, whatever its arguments hold.

An index that is clipped, a remainder, or the bin of a histogram needs no test for one that counts
from the end, and no check: of a kernel that warps images these were half of the instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew

if TYPE_CHECKING:
    from genesis_fn.compiler.loop_ir.kernel import Instr

Interval: TypeAlias = tuple[int, int]
"""The least and the largest number, both of which count."""

_DEPTH = 24  # operations that are looked through


def interval_of(instrs: Sequence[Instr], a: Any) -> Interval | None:
    """Where an operand, an instruction's number or a literal, lies; None if it is no integer."""
    return _Intervals(instrs).of(a, _DEPTH)


def only_case(instrs: Sequence[Instr], args: Sequence[Any]) -> Any:
    """The operand that a choice (condition, x, y) takes everywhere; None if it takes both."""
    found = interval_of(instrs, args[0])
    return args[1 if found[0] else 2] if found is not None and found[0] == found[1] else None


class _Intervals:
    """The intervals of some instructions, each found once."""

    def __init__(self, instrs: Sequence[Instr]) -> None:
        self._instrs = instrs
        self._known: dict[int, Interval | None] = {}

    def of(self, a: Any, depth: int) -> Interval | None:
        """The interval of an operand, which so many operations may be looked through for."""
        if type(a) is not int:
            return (int(a.value), int(a.value)) if type(a.value) in (int, bool) else None
        if a not in self._known:
            self._known[a] = self._found(self._instrs[a], depth)
        return self._known[a]

    def _found(self, i: Instr, depth: int) -> Interval | None:
        if i.op == "const":
            return self.of(i.meta, 0)
        whole = _whole(i.dtype)
        if whole is None:
            return None
        if i.op == "index":
            return _if_inside((i.meta.lo, i.meta.hi), whole)
        if i.op == "start":
            return 0, i.meta[1] - 1
        if i.op != "map" or not depth:
            return whole
        if i.meta[0] is ew.select_p:
            found = self._chosen(i, depth - 1)
        else:
            rule = _RULES.get(i.meta[0])
            args = [self.of(x, depth - 1) for x in i.args] if rule is not None else [None]
            found = None if rule is None or None in args else rule(*args)
        # What may overflow may be anything.
        return whole if found is None else _if_inside(found, whole)

    def _chosen(self, i: Instr, depth: int) -> Interval | None:
        """Either case, where it is taken: one that is made of the number that the condition bounds,
        as of a remainder that may be negative, is made of what it leaves of it."""
        condition, x, y = [self.of(a, depth) for a in i.args]
        if x is None or y is None:
            return None
        if condition is not None and condition[0] == condition[1]:
            return x if condition[0] else y
        tested = self._instrs[i.args[0]] if type(i.args[0]) is int else None
        if tested is None or tested.op != "map" or tested.meta[0] is not ew.lt.prim:
            return _either(x, y)
        number, limit = tested.args
        bound, of = self.of(limit, depth), self.of(number, depth)
        if type(number) is not int or bound is None or of is None:
            return _either(x, y)
        below, above = (of[0], min(of[1], bound[1] - 1)), (max(of[0], bound[0]), of[1])
        return _either(
            self._made_of(i.args[1], number, below, x, depth),
            self._made_of(i.args[2], number, above, y, depth),
        )

    def _made_of(
        self, a: Any, number: int, inside: Interval, otherwise: Interval, depth: int
    ) -> Interval:
        if inside[0] > inside[1] or type(a) is not int:
            return otherwise
        if a == number:
            return inside
        i = self._instrs[a]
        if i.op == "map" and i.meta[0] is ew.add.prim and i.args[0] == number:
            more, whole = self.of(i.args[1], depth), _whole(i.dtype)
            if more is not None and whole is not None:
                return _if_inside((inside[0] + more[0], inside[1] + more[1]), whole)
        return otherwise


def _whole(kind: DType) -> Interval | None:
    if kind == dtypes.BOOL:
        return 0, 1
    if not dtypes.is_integer(kind):
        return None
    limits = dtypes.iinfo(kind)
    return int(limits.min), int(limits.max)


def _if_inside(found: Interval, whole: Interval) -> Interval:
    return found if whole[0] <= found[0] and found[1] <= whole[1] else whole


def _either(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def _product(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _remainder(a: Interval, b: Interval) -> Interval | None:
    """Of a remainder with the sign of what is divided, by a number that is not 0."""
    if b[0] <= 0 <= b[1]:
        return None
    most = max(abs(b[0]), abs(b[1])) - 1
    return (0 if a[0] >= 0 else -min(most, -a[0])), (0 if a[1] <= 0 else min(most, a[1]))


def _masked(a: Interval, b: Interval) -> Interval | None:
    if a[0] == a[1] and b[0] == b[1]:
        return a[0] & b[0], a[0] & b[0]
    ends = [x[1] for x in (a, b) if x[0] >= 0]
    return (0, min(ends)) if ends else None


def _below(a: Interval, b: Interval) -> Interval:
    """Of a < b: 1 if it holds everywhere, 0 if nowhere."""
    return (1, 1) if a[1] < b[0] else (0, 0) if a[0] >= b[1] else (0, 1)


def _not(a: Interval) -> Interval:
    return 1 - a[1], 1 - a[0]


_RULES: dict[Primitive, Callable[..., Interval | None]] = {
    ew.max.prim: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    ew.min.prim: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    ew.add.prim: lambda a, b: (a[0] + b[0], a[1] + b[1]),
    ew.sub.prim: lambda a, b: (a[0] - b[1], a[1] - b[0]),
    ew.mul.prim: _product,
    ew.neg.prim: lambda a: (-a[1], -a[0]),
    ew.rem.prim: _remainder,
    ew.bitwise_and.prim: _masked,
    ew.convert_p: lambda a: a,
    ew.lt.prim: _below,
    ew.ge.prim: lambda a, b: _not(_below(a, b)),
    ew.gt.prim: lambda a, b: _below(b, a),
    ew.le.prim: lambda a, b: _not(_below(b, a)),
}
