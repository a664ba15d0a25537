"""Choices between elements of one array, as at the edges of a padded one: a load at a chosen offset
instead of a choice between loads.

What is beyond a corner is one of four elements, each of them under conditions of its own. Triton
3.6 looks for each load at all that depends on the same values, so that a filter of 49 places with
169 loads took 5.8 s to compile; with 58 it took 2.8 (two cores), and as their indices share what
they have in common it takes 2.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from genesis_fn.compiler.loop_ir.kernel import Instr
from genesis_fn.compiler.options import enabled
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guards, IndexGuard

_MANY = 3  # loads that are more than the vectors that one of chosen offsets gives up
_VECTOR = 16  # bytes
_INT32 = 2**31 - 1

Option: TypeAlias = "Element | Choice"


@dataclass(frozen=True, slots=True)
class Element:
    """The element at an offset, which is read where `guards` hold."""

    offset: Expr
    guards: Guards


@dataclass(frozen=True, slots=True)
class Choice:
    """The first option where `conditions` hold, else the second; read where `guards` hold."""

    conditions: Guards
    first: Option
    second: Option
    guards: Guards


@dataclass(frozen=True, slots=True)
class ChosenLoad:
    """A load from `target`, an array or partial results, whose shape has the axes of `names`."""

    target: Any
    choice: Choice
    names: frozenset[str]


def find_choices(
    instrs: Sequence[Instr], stores: Sequence[tuple[Any, Expr, int]]
) -> tuple[Mapping[int, ChosenLoad], frozenset[int]]:
    """(the choices that are loads, by instruction; the instructions that they replace)."""
    if not enabled("choices") or not any([i.op == "where" for i in instrs]):
        return {}, frozenset()
    uses = Counter([a for i in instrs for a in i.operands()])
    uses.update([n for _, _, n in stores])
    options: dict[int, tuple[Any, Option, frozenset[int]]] = {}
    found: dict[int, ChosenLoad] = {}
    for n, i in enumerate(instrs):
        if i.op == "load" and not i.args:
            target, offset, guards = i.meta
            if max(abs(offset.lo), abs(offset.hi)) <= _INT32:
                options[n] = target, Element(offset, guards), frozenset((n,))
        elif i.op == "where" and all([a in options and uses[a] == 1 for a in i.args]):
            (a, first, left), (b, second, right) = [options[k] for k in i.args]
            choice = _choice(i.meta, first, second) if a is b else None
            if choice is not None:
                options[n] = a, choice, left | right | {n}
                found = {k: v for k, v in found.items() if k not in i.args}
                found[n] = ChosenLoad(a, choice, i.names)
    found = {n: c for n, c in found.items() if _is_worth(c.choice, instrs[n].dtype.itemsize)}
    return found, frozenset().union(*[options[n][2] - {n} for n in found])


def _choice(conditions: Guards, first: Option, second: Option) -> Choice | None:
    """The choice of two options; None if it would read under other conditions than they do."""
    if len(conditions) != 1:
        return None
    (condition,) = conditions
    guards = first.guards - conditions
    # The second has what the first has not, where the condition does not hold.
    if frozenset([g for g in second.guards if not _is_opposite(condition, g)]) != guards:
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


def _elements(option: Option) -> list[Element]:
    if type(option) is Element:
        return [option]
    assert type(option) is Choice
    return _elements(option.first) + _elements(option.second)


def _is_worth(choice: Choice, itemsize: int) -> bool:
    """Whether one load, of each element by itself, is cheaper than all of them in vectors."""
    elements = _elements(choice)
    if len(elements) >= _MANY and itemsize >= 4:
        return True
    along = [e.offset for e in elements if not e.offset.names.isdisjoint("pr")]
    return all([e.const * itemsize % _VECTOR for e in along])
