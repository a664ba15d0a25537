"""Split reductions: the loops of a body as one kernel, or as two with partial results between them.

Where there are too few rows to fill the GPU, each row is split among programs and a second kernel
combines their partial results; the columns of slabs are combined the same way. There are no
atomics: the order of summation depends on the shape and the GPU only, so results are reproducible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from genesis_fn.backends.cuda.codegen.loops import Loops, needed
from genesis_fn.backends.cuda.codegen.tiling import (
    Tiling,
    choose_tiling,
    combine_tiling,
    loads_ahead,
    looped_tile,
    slab_tiling,
)
from genesis_fn.compiler.loop_ir import reindex
from genesis_fn.compiler.loop_ir.kernel import Instr
from genesis_fn.compiler.target import Target
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr
from genesis_fn.kernels.plan_builder import cdiv

Kernels: TypeAlias = list[tuple[Loops, Tiling]]


def plan_kernels(loops: Loops, split: bool, target: Target) -> tuple[Kernels, list[int]]:
    """(the kernels that compute `loops`, the bytes of each workspace of partial results). `split`:
    there are too few rows to fill the GPU."""
    if loops.of("column_reduce"):
        kernels, op, results = _slabs(loops, target), "column_reduce", loops.depth
    elif split:
        kernels, op, results = _split_reduction(loops, target), "reduce", loops.rows
    else:
        return [(loops, choose_tiling(loops, target))], []
    each = results * kernels[0][1].splits
    return kernels, [
        p.dtype.itemsize * each for left in loops.partial_results(op).values() for p in left
    ]


def _split_reduction(loops: Loops, target: Target) -> Kernels:
    """Two kernels: partial reductions (and stores that need none), then their combination."""
    rows, instrs = loops.rows, loops.instrs
    tiling = _partial_tiling(loops, target)
    # Stores that need no reduction stay in the first kernel, which has the elements at hand.
    early = [s for s in loops.stores if instrs[s[2]].level == 0]
    late = [s for s in loops.stores if instrs[s[2]].level > 0]
    first = replace(loops, stores=early)
    offset = _partial_offset(ix.var("r", tiling.splits), ix.var("p", rows), rows)
    combined, position = _combining(loops, "reduce", range(len(instrs)), offset)
    stores = [(v, e, position[n]) for v, e, n in late]
    second = Loops(rows, tiling.splits, False, combined, stores, loops.counters, loops.sites)
    return [(first, tiling), (second, combine_tiling(rows, tiling.splits))]


def _partial_tiling(loops: Loops, target: Target) -> Tiling:
    """The tiling of the first kernel: as many splits as fill the GPU, at least two chunks each."""
    block, chunk, warps = looped_tile(loops)
    blocks = cdiv(loops.rows, block)
    # At most four programs for each processor, and 256 splits: rows of the second kernel.
    count = max(1, min(4 * target.processors // blocks, cdiv(loops.depth, 2 * chunk), 256))
    length = cdiv(cdiv(loops.depth, count), chunk) * chunk
    count = cdiv(loops.depth, length)
    return Tiling(
        "looped",
        (blocks, count, 1),
        block,
        chunk,
        warps=warps,
        splits=count,
        length=length,
        final=False,
        stages=loads_ahead(loops, block * chunk),
    )


def _slabs(loops: Loops, target: Target) -> Kernels:
    """Two kernels: rows with partial reductions of the columns, then the combination of those."""
    columns, instrs = loops.depth, loops.instrs
    tiling = slab_tiling(loops, target)
    early = [s for s in loops.stores if "p" in s[1].names]
    late = [s for s in loops.stores if "p" not in s[1].names]
    first = replace(loops, inner=True, stores=early)
    # Late stores run over columns, which are the rows of the second kernel.
    chosen = needed(instrs, [n for _, _, n in late], stop="column_reduce")
    offset = _partial_offset(ix.var("k", tiling.splits), ix.var("r", columns), columns)
    combined, position = _combining(loops, "column_reduce", chosen, offset)
    stores = [(v, e, position[n]) for v, e, n in late]
    by = {"r": ix.var("p", columns), "k": ix.var("r", tiling.splits)}
    moved, kept = reindex.substitute_indices(combined, stores, [by])
    second = Loops(columns, tiling.splits, False, moved, kept, loops.counters, loops.sites)
    return [(first, tiling), (second, combine_tiling(columns, tiling.splits))]


def _partial_offset(part: Expr, row: Expr, rows: int) -> Expr:
    """The offset of a split's result for a row in a `PartialResult`."""
    return ix.add(ix.scale(part, rows), row)


def _combining(
    loops: Loops, op: str, chosen: Iterable[int], offset: Expr
) -> tuple[list[Instr], dict[int, int]]:
    """(the instructions `chosen`, with each reduction of kind `op` replaced by one of its partial
    results, which are loaded at `offset`; the new positions of instructions)."""
    parts = loops.partial_results(op)
    result: list[Instr] = []
    position: dict[int, int] = {}
    for n in chosen:
        i = loops.instrs[n]
        if n in parts:
            # An argmax is reduced from two loads, its partial extremes and their positions.
            begin = len(result)
            result += [
                Instr("load", (), (part, offset, frozenset()), part.dtype, offset.names, 0)
                for part in parts[n]
            ]
            kind, args = "reduce", tuple(range(begin, len(result)))
        else:
            kind, args = i.op, tuple([position[a] if type(a) is int else a for a in i.args])
        result.append(
            Instr(kind, args, i.meta, i.dtype, i.names, i.level, i.eqn, approximate=i.approximate)
        )
        position[n] = len(result) - 1
    return result, position
