"""The kernels that a body's loops take: one, or two that hand partial results on.

Rows too few for the machine are split, and a second kernel joins the parts, as it does for the
columns of slabs, in an order that depends on the shape only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from genesis_fn.backends.cuda.codegen.loops import Loops, needed
from genesis_fn.backends.cuda.codegen.tiling import (
    Form,
    form_of,
    joining_form,
    looped_tile,
    slab_form,
    warps_for,
)
from genesis_fn.compiler.loop_ir import reindex
from genesis_fn.compiler.loop_ir.kernel import Instr
from genesis_fn.compiler.target import Target
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr
from genesis_fn.kernels.plan_builder import cdiv

Kernels: TypeAlias = list[tuple[Loops, Form]]


def kernels_of(loops: Loops, split: bool, target: Target) -> tuple[Kernels, list[int]]:
    """(the kernels that compute `loops`, the bytes of each partial result between them). `split`
    says that there are too few rows for a program each."""
    if loops.of("column_reduce"):
        kernels, op, results = _slabs(loops, target), "column_reduce", loops.depth
    elif split:
        kernels, op, results = _halves(loops, target), "reduce", loops.rows
    else:
        return [(loops, form_of(loops, target))], []
    each = results * kernels[0][1].parts
    return kernels, [p.dtype.itemsize * each for left in loops.parts(op).values() for p in left]


def _halves(loops: Loops, target: Target) -> Kernels:
    """Two kernels: partial reductions (and what needs none), then their combination."""
    rows, instrs = loops.rows, loops.instrs
    form = _partial_form(loops, target)
    early = [s for s in loops.stores if instrs[s[2]].level == 0]
    late = [s for s in loops.stores if instrs[s[2]].level > 0]
    first = Loops(rows, loops.depth, loops.inner, instrs, early, loops.counters)
    offset = _part_offset(ix.var("r", form.parts), ix.var("p", rows), rows)
    joined, place = _joined(loops, "reduce", range(len(instrs)), offset)
    stores = [(v, e, place[n]) for v, e, n in late]
    second = Loops(rows, form.parts, False, joined, stores, loops.counters)
    return [(first, form), (second, joining_form(rows, form.parts))]


def _partial_form(loops: Loops, target: Target) -> Form:
    """Programs for parts of the rows, as many as keep the machine busy."""
    block, chunk = looped_tile(loops)
    blocks = cdiv(loops.rows, block)
    count = max(1, min(4 * target.processors // blocks, cdiv(loops.depth, 2 * chunk), 256))
    length = cdiv(cdiv(loops.depth, count), chunk) * chunk
    count = cdiv(loops.depth, length)
    return Form(
        "looped",
        (blocks, count, 1),
        block,
        chunk,
        warps=warps_for(block * chunk),
        parts=count,
        length=length,
        final=False,
    )


def _slabs(loops: Loops, target: Target) -> Kernels:
    """Two kernels: rows with partial folds of the columns, and the combination of those."""
    rows, columns, instrs = loops.rows, loops.depth, loops.instrs
    form = slab_form(loops, target)
    early = [s for s in loops.stores if "p" in s[1].names]
    late = [s for s in loops.stores if "p" not in s[1].names]
    first = Loops(rows, columns, True, instrs, early, loops.counters)
    # What is late runs over columns: they are the rows of the second kernel.
    chosen = needed(instrs, [n for _, _, n in late], stop="column_reduce")
    offset = _part_offset(ix.var("k", form.parts), ix.var("r", columns), columns)
    joined, place = _joined(loops, "column_reduce", chosen, offset)
    stores = [(v, e, place[n]) for v, e, n in late]
    by = {"r": ix.var("p", columns), "k": ix.var("r", form.parts)}
    moved, kept = reindex.substitute_indices(joined, stores, [by])
    second = Loops(columns, form.parts, False, moved, kept, loops.counters)
    return [(first, form), (second, joining_form(columns, form.parts))]


def _part_offset(part: Expr, row: Expr, rows: int) -> Expr:
    """Where in a `Part` what a part leaves behind for a row lies."""
    return ix.add(ix.scale(part, rows), row)


def _joined(
    loops: Loops, op: str, chosen: Iterable[int], offset: Expr
) -> tuple[list[Instr], dict[int, int]]:
    """(the instructions `chosen` with reductions of partial results, at `offset` in their `Part`s,
    in place of those of `op`; new positions)."""
    parts = loops.parts(op)
    result: list[Instr] = []
    place: dict[int, int] = {}
    for n in chosen:
        i = loops.instrs[n]
        if n in parts:
            begin = len(result)
            result += [
                Instr("load", (), (part, offset, frozenset()), part.dtype, offset.names, 0)
                for part in parts[n]
            ]
            kind, args = "reduce", tuple(range(begin, len(result)))
        else:
            kind, args = i.op, tuple([place[a] if type(a) is int else a for a in i.args])
        result.append(
            Instr(kind, args, i.meta, i.dtype, i.names, i.level, i.eqn, approximate=i.approximate)
        )
        place[n] = len(result) - 1
    return result, place
