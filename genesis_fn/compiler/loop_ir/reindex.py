"""Changes of a kernel's loops, by substituting its loop variables.

A pointwise kernel that reads one element for each row of `n` becomes one over rows, so that these
elements are loaded and computed once a row. A row that a concatenation or a pad divides into equal
segments is unrolled: one iteration computes an element of every segment, none of them under a
condition, and loads once what the segments share. The rotation of queries and keys takes a third of
the instructions so (`docs/cuda.md`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from genesis_fn.compiler.loop_ir.kernel import Instr, Literal
from genesis_fn.compiler.loop_ir.lookups import is_start
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guards, IndexGuard

Store = tuple[Any, Expr, int]  # (target, offset, instruction)

_MIN_ROW, _MAX_ROW = 32, 4096  # elements of a row that a flat kernel is divided into
_MAX_SEGMENTS = 4
_MIN_SEGMENT = 16  # elements
_COMBINABLE = ("add", "maximum", "minimum")  # reductions whose segments are combined first


def row_length(instrs: Sequence[Instr], points: int) -> int:
    """The length of the rows that a flat kernel's expressions divide `p` into; 0 for none."""
    # Index arithmetic divides `p` by the sizes of rows: each divisor is a candidate.
    found: set[int] = set()
    for e in _expressions(instrs):
        found.update(_divisors(e))
    fits = [
        c
        for c in found
        if _MIN_ROW <= c <= _MAX_ROW and c & (c - 1) == 0 and points % c == 0 and c < points
    ]
    return min(fits, default=0)


def as_rows(
    instrs: Sequence[Instr], stores: Sequence[Store], points: int, length: int
) -> tuple[list[Instr], list[Store]]:
    """The flat kernel as one in which `p` runs over rows and `r` along them."""
    rows = points // length
    position = ix.add(ix.scale(ix.var("p", rows), length), ix.var("r", length))
    return substitute_indices(instrs, stores, [{"p": position}])


def segment_length(instrs: Sequence[Instr], depth: int) -> int:
    """The length of the equal segments that conditions divide a row of `depth` into; `depth` if
    they do not, or into too many or too short ones."""
    size = depth
    for i in instrs:
        if i.op == "reduce":
            combinable = i.meta[0].combine in _COMBINABLE and not i.meta[0].position
            if not (combinable and dtypes.is_float(instrs[i.args[0]].dtype)):
                return depth
        # The greatest common divisor of all edges along the row.
        for g in _guards(i):
            if g.expr.names == frozenset("r"):
                edges = _edges(g)
                if edges is None:
                    continue
                size = math.gcd(size, *edges)
    segments = depth // size
    return size if segments <= _MAX_SEGMENTS and size >= _MIN_SEGMENT else depth


def unrolled_segments(
    instrs: Sequence[Instr], stores: Sequence[Store], depth: int, length: int
) -> tuple[list[Instr], list[Store]]:
    """The kernel with `r` running over one segment, and all segments computed in each iteration."""
    r = ix.var("r", length)
    maps = [{"r": ix.shift(r, k * length)} for k in range(depth // length)]
    return substitute_indices(instrs, stores, maps)


def substitute_indices(
    instrs: Sequence[Instr], stores: Sequence[Store], mappings: Sequence[Mapping[str, Expr]]
) -> tuple[list[Instr], list[Store]]:
    """(instructions, stores) with the loop variables replaced, once by each of `mappings`:
    reductions along a row combine the copies of their operand first."""
    out: list[Instr] = []
    seen: dict[Any, int] = {}

    # Equal instructions are one: what the copies share is loaded and computed once.
    def emit(i: Instr, op: str, args: tuple[Any, ...], meta: Any, names: frozenset[str]) -> int:
        key = (op, args, meta, i.dtype)
        if key not in seen:
            seen[key] = len(out)
            out.append(
                Instr(
                    op,
                    args,
                    meta,
                    i.dtype,
                    names,
                    i.level,
                    i.eqn,
                    i.after_column_reduce,
                    i.approximate,
                )
            )
        return seen[key]

    def below(args: tuple[Any, ...]) -> frozenset[str]:
        return frozenset().union(*[out[a].names for a in args if type(a) is int])

    copy_of: list[list[int]] = [[] for _ in mappings]
    mappings = [dict(mapping) for mapping in mappings]
    for n, i in enumerate(instrs):
        if i.op == "reduce":
            args = [copied[i.args[0]] for copied in copy_of]
            x = args[0]
            for y in args[1:]:
                combined = Instr("combine", (), None, instrs[i.args[0]].dtype, i.names, i.level)
                combined.level = instrs[i.args[0]].level
                combined.approximate = i.approximate
                x = emit(combined, "combine", (x, y), i.meta, below((x, y)))
            whole = emit(i, "reduce", (x,), i.meta, below((x,)) - {"r"})
            for copied in copy_of:
                copied.append(whole)
            continue
        for k, (copied, mapping) in enumerate(zip(copy_of, mappings)):
            if i.op == "start":
                name, count, check, guards = i.meta
                new = name if len(mappings) == 1 else f"{name}_{k}"
                mapping[name] = ix.var(new, count)
                i = Instr("start", i.args, (new, count, check, guards), i.dtype, i.names, i.level)
            copied.append(
                _copied(
                    i, [copied[a] if type(a) is int else a for a in i.args], mapping, emit, below
                )
            )
        assert all(len(copied) == n + 1 for copied in copy_of)
    # A result that does not depend on `r` is the same in every copy, and stored once.
    written: dict[tuple[Any, Expr], Store] = {}
    for copied, mapping in zip(copy_of, mappings):
        for target, offset, value in stores:
            e = _substitute_all(offset, mapping)
            written.setdefault((target, e), (target, e, copied[value]))
    return out, list(written.values())


def _copied(
    i: Instr, args: Sequence[Any], mapping: Mapping[str, Expr], emit: Any, below: Any
) -> int:
    operands = tuple(args)
    if i.op == "load":
        target, offset, guards = i.meta
        held = _substitute_guards(guards, mapping)
        if held is None:
            zero = False if i.dtype == dtypes.BOOL else 0
            return emit(i, "const", (), Literal(zero), frozenset())
        e = _substitute_all(offset, mapping)
        names = _loop_names(below(operands), e, *[g.expr for g in held])
        return emit(i, "load", operands, (target, e, held), names)
    if i.op == "index":
        e = _substitute_all(i.meta, mapping)
        return emit(i, "index", operands, e, _loop_names(below(operands), e))
    if i.op == "start":
        name, count, check, guards = i.meta
        held = _substitute_guards(guards, mapping)
        if held is None:  # nowhere, so that there is nothing to check
            check, held = None, frozenset()
        names = _loop_names(below(operands), *[g.expr for g in held])
        return emit(i, "start", operands, (name, count, check, held), names)
    if i.op == "where":
        held = _substitute_guards(i.meta, mapping)
        if held is None:
            return operands[1]
        if not held:
            return operands[0]
        names = _loop_names(below(operands), *[g.expr for g in held])
        return emit(i, "where", operands, held, names)
    names = frozenset("r") if i.op == "column_reduce" else below(operands)
    return emit(i, i.op, operands, i.meta, names)


def _loop_names(names: frozenset[str], *exprs: Expr) -> frozenset[str]:
    """`names` and those of the loop variables that stand in expressions."""
    return names.union(*[[x for x in e.names if not is_start(x)] for e in exprs])


def _substitute_all(e: Expr, mapping: Mapping[str, Expr]) -> Expr:
    for name, value in mapping.items():
        e = ix.substitute(e, name, value)
    return e


def _substitute_guards(guards: Guards, mapping: Mapping[str, Expr]) -> Guards | None:
    return ix.holding([IndexGuard(_substitute_all(g.expr, mapping), g.lo, g.hi) for g in guards])


def _guards(i: Instr) -> Guards:
    if i.op == "load":
        return i.meta[2]
    return i.meta if i.op == "where" else frozenset()


def _expressions(instrs: Sequence[Instr]) -> Iterator[Expr]:
    for i in instrs:
        if i.op == "load":
            yield i.meta[1]
        elif i.op == "index":
            yield i.meta
        for g in _guards(i):
            yield g.expr


def _divisors(e: Expr) -> Iterator[int]:
    for atom in e.terms:
        kind, operand, c = atom.key
        if kind != "var":
            # The remainder of a quotient, p // d % c, has the period c * d.
            within = [a.key[2] for a in operand.terms if a.key[0] == "div"]
            yield c * math.prod(within) if len(operand.terms) == 1 else c
            yield from _divisors(operand)


def _edges(g: IndexGuard) -> list[int] | None:
    """The positions along `r` at which a guard begins and ceases to hold; None if it does not hold
    in an interval."""
    if len(g.expr.terms) != 1:
        return None
    ((atom, k),) = g.expr.terms.items()
    if k != 1 or atom.key[0] != "var":
        return None
    edges = (g.lo - g.expr.const, g.hi - g.expr.const)
    return [e for e in edges if atom.lo < e <= atom.hi]
