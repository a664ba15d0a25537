"""From a body to a plan: the launches of its kernels, and what each of them reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from genesis_fn.backends.cuda.codegen.emit import Parameter
from genesis_fn.backends.cuda.codegen.loop_nests import write_kernel
from genesis_fn.backends.cuda.codegen.loops import ErrorWord, Loops, PartialResult, needed
from genesis_fn.backends.cuda.codegen.split_reduction import plan_kernels
from genesis_fn.backends.cuda.codegen.tiling import (
    PERSISTENT,
    Tiling,
    stencil_columns,
    tile_columns,
)
from genesis_fn.compiler.loop_ir import reindex
from genesis_fn.compiler.loop_ir.kernel import KernelIR, peak_live
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.target import Target
from genesis_fn.core.jaxpr import Var
from genesis_fn.kernels.language.expressions import PRELUDE
from genesis_fn.kernels.plan import BufferArg, Launch, Plan, Workspace

_CROWDED = 72, 112  # values of a thread at once, with which 128 registers are enough but not sure


@dataclass(frozen=True, slots=True)
class BufferUse:
    """What a launch reads and writes, as numbers of the plan's buffers. `looped`: it makes several
    passes, and may write an element before all that read it have."""

    reads: frozenset[int]
    writes: frozenset[int]
    looped: bool


@dataclass(slots=True)
class GeneratedKernels:
    """The plan of a body. Its buffers are the values `reads`, then `writes`, then the error word if
    it is `checked`, then workspaces; `uses` is what each launch does with them."""

    plan: Plan
    reads: list[Var]
    writes: list[Var]
    sources: list[str]
    uses: list[BufferUse]
    checked: bool

    def elementwise(self, body: KernelIR, v: Var, u: Var) -> bool:
        """Whether `v` may be written over `u`: each launch that reads `u` comes before the one that
        writes `v`, or reads exactly the elements that it writes."""
        out, source = len(self.reads) + self.writes.index(v), self.reads.index(u)
        # Equal element offsets are equal bytes only for elements of one size.
        if v.aval.dtype.itemsize != u.aval.dtype.itemsize:
            return False
        n = next(n for n, use in enumerate(self.uses) if out in use.writes)
        if any(source in use.reads for use in self.uses[n + 1 :]):
            return False
        if source not in self.uses[n].reads:
            return True
        # In the second kernel only what follows the reduction is loaded again; in the first one (or
        # the only one) any load counts.
        read = list(range(len(body.instrs)))
        if n:
            stop = "column_reduce" if body.domain.row_column else "reduce"
            after = [
                k
                for _, _, k in body.stores
                if body.instrs[k].after_column_reduce or body.instrs[k].level
            ]
            read = needed(body.instrs, after, stop)
        offsets = [offset for target, offset, _ in body.stores if target is v]
        loads = {
            body.instrs[k].meta[1]
            for k in read
            if body.instrs[k].op == "load" and body.instrs[k].meta[0] is u
        }
        # Neighbours that are stored as one access must be loaded as one, by the same thread.
        return not self.uses[n].looped and (not loads or loads == {*offsets})


KernelCache: TypeAlias = dict[Any, tuple[list[Var], GeneratedKernels]]


def generate_once(
    body: KernelIR, target: Target, known: KernelCache, sites: Sequence[int] = ()
) -> GeneratedKernels:
    """`generate(body, target, sites)`, or from `known` the kernels of a body that differs in its
    values only, as those of repeated layers do."""
    # The key leaves out which values are read and written: kernels name buffers by position. Of the
    # 775 launches of a 28-layer training step 69 are distinct (docs/cuda.md, "The first call").
    values, shape = body.shape()
    key = shape, *sites
    if key not in known:
        known[key] = values, generate(body, target, sites)
    before, made = known[key]
    now = dict(zip(before, values, strict=True))
    return replace(made, reads=[now[v] for v in made.reads], writes=[now[v] for v in made.writes])


def generate(body: KernelIR, target: Target, sites: Sequence[int] = ()) -> GeneratedKernels:
    """Generate the launches that compute a body's stores on `target`; `sites` are those of its
    `checks` in the error word."""
    over = body.domain
    split = over.wants_split(target)
    loops = _reindexed(
        Loops(over.kept, over.reduced, over.inner, body.instrs, body.stores, body.counters, sites),
        split,
    )
    kernels, partial = plan_kernels(loops, split, target)
    loads = [loops.instrs[n].meta[0] for n in loops.of("load")]
    reads = list(dict.fromkeys([*loads, *loops.counters]))
    writes = list(dict.fromkeys([v for v, _, _ in loops.stores]))
    # Buffers of a plan: reads, writes, then workspaces. A value that is both is two buffers here,
    # bound to one address when it is updated in place.
    number = {Parameter(v, False): n for n, v in enumerate(reads)}
    number |= {Parameter(v, True): len(number) + n for n, v in enumerate(writes)}
    if sites:
        number[Parameter(ErrorWord(), True)] = len(number)
    steps, sources, uses = [], [], []
    for part, tiling in kernels:
        function, parameters = write_kernel(part, tiling)
        at = {name: _buffer(p, number) for name, p in parameters.items()}
        arguments = {name: BufferArg(at[name], p.kind) for name, p in parameters.items()}
        steps.append(
            Launch(
                function,
                tiling.grid,
                arguments,
                {},
                tiling.warps,
                3,
                max_registers=_register_cap(part, tiling, target),
            )
        )
        sources.append(function.text.removeprefix(PRELUDE))
        uses.append(
            BufferUse(
                frozenset([at[name] for name, p in parameters.items() if not p.written]),
                frozenset([at[name] for name, p in parameters.items() if p.written]),
                tiling.kind == "looped",
            )
        )
    spaces = tuple([Workspace(max(16, size)) for size in partial])
    plan = Plan(len(reads), len(writes) + bool(sites), tuple(steps), spaces)
    return GeneratedKernels(plan, reads, writes, sources, uses, bool(sites))


def _buffer(p: Parameter, number: Mapping[Parameter, int]) -> int:
    """The number of a parameter's buffer in the plan. Partial results are workspaces, so last."""
    return len(number) + p.target.number if type(p.target) is PartialResult else number[p]


def _register_cap(loops: Loops, tiling: Tiling, target: Target) -> int | None:
    """The cap on registers per thread with which 16 warps fit on a processor: of slabs, and of
    threads of one element whose values all but fill that many."""
    if tiling.kind != "slab":
        alone = tiling.block * tiling.chunk == 32 * tiling.warps
        live = peak_live(loops.instrs, loops.stores) if alone else 0
        if not _CROWDED[0] <= live <= _CROWDED[1]:
            return None
    return target.registers // (32 * max(tiling.warps, 16))


def _reindexed(loops: Loops, split: bool) -> Loops:
    """Reindex loops for cheaper index arithmetic: a flat kernel over rows becomes one of rows, and
    rows that conditions cut into equal segments are computed one segment after the other.

    On an H200 the rotated norms of queries and keys took a third of the instructions so, which were
    33 an element, most of them index arithmetic (docs/cuda.md, "Generated kernels").
    """
    rows, depth, inner = loops.rows, loops.depth, loops.inner
    instrs, stores = loops.instrs, loops.stores
    if not enabled("split_rows"):
        return loops
    # A flat kernel that finds rows by `p // n` and `p % n` gets them as loop variables instead.
    if depth == 1:
        tiled = stencil_columns(loops) or tile_columns(loops)
        length = 0 if tiled else reindex.row_length(instrs, rows)
        if not length:
            return loops
        instrs, stores = reindex.as_rows(instrs, stores, rows, length)
        rows, depth, inner = rows // length, length, True
    # A rotation computes both halves of a row under a condition: as parts of a row, each half is
    # computed once and without one.
    if inner and not split and depth <= PERSISTENT:
        length = reindex.segment_length(instrs, depth)
        if length < depth:
            instrs, stores = reindex.unrolled_segments(instrs, stores, depth, length)
            depth = length
    return Loops(rows, depth, inner, instrs, stores, loops.counters, loops.sites)
