"""Choices between elements of one array, as at the edges of a padded one: a load at a chosen place
instead of a choice between loads.

A place beyond a corner is one of four elements, each of them under conditions of its own. Triton
looks at all that a kernel computes for each of its loads, so that a filter of 49 places with 169
loads took 6 s to compile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from genesis_fn.backends.cuda.codegen.loops import Loops, Pointee, dtype_of, is_wide
from genesis_fn.compiler.options import enabled
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guards, IndexGuard

_MANY = 3  # loads that are more than the vectors that one of chosen places gives up
_VECTOR = 16  # bytes

Place: TypeAlias = "Element | Choice"


@dataclass(frozen=True, slots=True)
class Element:
    """An element of an array, read where `guards` hold."""

    offset: Expr
    guards: Guards


@dataclass(frozen=True, slots=True)
class Choice:
    """The first place where `conditions` hold, else the second; read where `guards` hold."""

    conditions: Guards
    first: Place
    second: Place
    guards: Guards


@dataclass(frozen=True, slots=True)
class ChosenLoad:
    """A load of `target` at a chosen place, whose shape has the axes of `names`."""

    target: Pointee
    place: Choice
    names: frozenset[str]


def find_choices(loops: Loops) -> tuple[Mapping[int, ChosenLoad], frozenset[int]]:
    """(the choices that are loads, by instruction; the instructions that they replace)."""
    instrs = loops.instrs
    if not enabled("choices") or not any([i.op == "where" for i in instrs]):
        return {}, frozenset()
    uses = Counter([a for i in instrs for a in i.operands()])
    uses.update([n for _, _, n in loops.stores])
    places: dict[int, tuple[Pointee, Place, frozenset[int]]] = {}
    found: dict[int, ChosenLoad] = {}
    for n, i in enumerate(instrs):
        if i.op == "load" and not is_wide(i.meta[1]):
            target, offset, guards = i.meta
            places[n] = target, Element(offset, guards), frozenset((n,))
        elif i.op == "where" and all([a in places and uses[a] == 1 for a in i.args]):
            (a, one, left), (b, other, right) = [places[k] for k in i.args]
            choice = _choice(i.meta, one, other) if a is b else None
            if choice is not None:
                places[n] = a, choice, left | right | {n}
                found = {k: v for k, v in found.items() if k not in i.args}
                found[n] = ChosenLoad(a, choice, i.names)
    found = {n: c for n, c in found.items() if _is_worth(c)}
    return found, frozenset().union(*[places[n][2] - {n} for n in found])


def _choice(conditions: Guards, first: Place, second: Place) -> Choice | None:
    """The choice of two places; None if it would read under other conditions than they do."""
    if len(conditions) != 1:
        return None
    (condition,) = conditions
    guards = first.guards - conditions
    # The second has what the first has not, where the condition does not hold.
    if {g for g in second.guards if not _is_opposite(condition, g)} != guards:
        return None
    return Choice(conditions, first, second, guards)


def _is_opposite(a: IndexGuard, b: IndexGuard) -> bool:
    """Whether one of two conditions on an index holds wherever the other does not."""
    difference = ix.add(b.expr, ix.scale(a.expr, -1))
    if difference.terms:
        return False
    n = difference.const  # b.expr is a.expr + n
    lo, hi = b.lo - n, b.hi - n
    below = a.lo <= a.expr.lo or lo <= a.expr.lo and hi >= a.lo
    above = a.hi > a.expr.hi or hi > a.expr.hi and lo <= a.hi
    return below and above


def _elements(place: Place) -> list[Element]:
    if type(place) is Element:
        return [place]
    assert type(place) is Choice
    return _elements(place.first) + _elements(place.second)


def _is_worth(c: ChosenLoad) -> bool:
    """Whether one load, of each element by itself, is cheaper than all of them in vectors."""
    elements, size = _elements(c.place), dtype_of(c.target).itemsize
    if len(elements) >= _MANY and size >= 4:
        return True
    along = [e.offset for e in elements if not e.offset.names.isdisjoint("pr")]
    return all([e.const * size % _VECTOR for e in along])
