"""Lowers the groups of a fused program to steps over numbered buffers.

Every value in memory is a buffer. `ProgramLowering` gives each group its launches and each value
its buffer; `pack_arena` then assigns offsets. The temporaries of a loop's or branch's body are one
buffer of the program around it, so that a whole program needs one arena. A view is a buffer inside
of another one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from genesis_fn.backends.cuda import lowerings
from genesis_fn.backends.cuda.codegen import GeneratedKernels, KernelCache, generate_once
from genesis_fn.backends.cuda.codegen.row_loops.row_nests import plan_row_nest
from genesis_fn.backends.cuda.codegen.row_loops.team_nests import plan_team_nest
from genesis_fn.backends.cuda.driver.communication import Permute
from genesis_fn.backends.cuda.lower.carries import (
    MOST_TURNS,
    carry_turns,
    elsewhere,
    parallel_copies,
)
from genesis_fn.backends.cuda.lower.fused_matmul import plan_few_rows, plan_matmul_epilogue
from genesis_fn.backends.cuda.lower.fused_sums import plan_fused_sum
from genesis_fn.backends.cuda.lowerings import (
    Constant,
    Contents,
    Exchange,
    HostCall,
    Views,
    checks,
    plan_for,
)
from genesis_fn.backends.cuda.run.steps import (
    Collective,
    Copy,
    ForLoop,
    HostStep,
    SetInteger,
    Step,
    SubProgram,
    Switch,
    While,
    has_host,
    launches,
)
from genesis_fn.compiler.complex_parts.represent import before_parts
from genesis_fn.compiler.complex_parts.steps import called
from genesis_fn.compiler.fusion.fuse import Fusion
from genesis_fn.compiler.fusion.gemv_fusion import is_tiled_matmul
from genesis_fn.compiler.fusion.group import FusionGroup
from genesis_fn.compiler.loop_ir.kernel import SliceStore
from genesis_fn.compiler.memory.inplace import updated_operand
from genesis_fn.compiler.memory.memory_plan import pack
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.row_loops.row_loops import row_loop_p
from genesis_fn.compiler.row_loops.team import TeamNest
from genesis_fn.compiler.simplify.loop_body import loop_body
from genesis_fn.compiler.target import Target
from genesis_fn.core import errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.errors import BackendError
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, e_jaxprs
from genesis_fn.core.primitive import Primitive
from genesis_fn.kernels.plan import BufferArg, Launch, Memset, Plan
from genesis_fn.primitives.indexing.constants import ConstantNumbers, constant_p
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.fused_functions import fused_p
from genesis_fn.transforms.staging.cost_analysis import cost


@dataclass(slots=True)
class StepSummary:
    """What reports say of one step: its name, its traffic in bytes, its operations, the source of
    its kernels and the user's lines. `depth` counts the loops and branches around it."""

    name: str
    traffic: int
    operations: int
    sources: list[str]
    lines: list[str]
    depth: int = 0


@dataclass(slots=True)
class BufferTable:
    """The buffers of a whole program, by number.

    * `bytes[b]`: the size of buffer b.
    * `parent[b] = (a, offset)`: b is part of buffer a. Buffers without a parent are bound to
      addresses by the executable: inputs, outputs, the arena, the error word, pointer tables and
      `contents`.
    * `sites`: the equations that check something, in the order of their sites in the error word.
    * `pointers`: tables of addresses that multi-tensor kernels read; rows of buffer numbers.
    * `contents`: what buffers hold before the program runs, and which no step writes.
    * `read_only`: inputs that no step writes, so that kernels may load them before they wait for
      the kernel ahead of them.
    * `generated`: generated kernels by what they compute.
    """

    target: Target
    bytes: list[int] = field(default_factory=list)
    parent: dict[int, tuple[int, int]] = field(default_factory=dict)
    sites: list[Eqn] = field(default_factory=list)
    error_word: int | None = None
    pointers: dict[int, list[list[int]]] = field(default_factory=dict)
    contents: dict[int, ConstantNumbers] = field(default_factory=dict)
    summaries: list[StepSummary] = field(default_factory=list)
    read_only: set[int] = field(default_factory=set)
    generated: KernelCache = field(default_factory=dict)

    def new(self, size: int) -> int:
        """A buffer of `size` bytes."""
        self.bytes.append(size)
        return len(self.bytes) - 1

    def held(self, numbers: ConstantNumbers) -> int:
        """The buffer that holds these numbers: one, however often a program has them."""
        for b, known in self.contents.items():
            if known == numbers:
                return b
        b = self.new(numbers.array.nbytes)
        self.contents[b] = numbers
        return b

    def view(self, of: int, offset: int, size: int) -> int:
        """The buffer that is a part of another one."""
        if offset == 0 and size == self.bytes[of]:
            return of
        b = self.new(size)
        self.parent[b] = of, offset
        return b

    def root(self, b: int) -> int:
        """The buffer that holds the memory of `b`."""
        while b in self.parent:
            b = self.parent[b][0]
        return b


@functools.cache  # `simplify` caches programs by this function's identity
def keeps_fused(target: Target) -> Callable[[Eqn], bool]:
    """A predicate: whether a call stays one step. So does a fused function that `target` has a
    kernel for, unless generating it together with the casts and sums around it is better."""

    def keeps(e: Eqn) -> bool:
        known = lowerings.kernel_of(e.params["op"]) if e.prim is fused_p else None
        if known is None or known.generated:
            return False
        avals = [i.aval if type(i) is Var else i for i in e.ins]
        return plan_for(e.prim, avals, e.params, target, numerics=e.numerics) is not None

    return keeps


@dataclass(slots=True)
class ScheduledStep:
    """Steps that stay together when steps are moved, with the buffers that they read and write."""

    steps: list[Step]
    reads: list[int]
    writes: list[int]
    scratch: list[int] = field(default_factory=list)
    launch: Launch | None = None  # the only one, if it was generated
    traffic: int = 0
    summary: StepSummary | None = None
    alone: bool = False  # it takes so long that no launch gains by being part of it


@dataclass(slots=True)
class Schedule:
    """A program, or the body of a loop or branch, as `items` in order. Results are in the buffers
    `outputs`; buffer `base`, of `arena` bytes, holds the temporaries."""

    items: list[ScheduledStep]
    outputs: list[int]
    base: int
    arena: int

    @property
    def steps(self) -> list[Step]:
        """The steps, in order."""
        return [s for item in self.items for s in item.steps]


class ProgramLowering:
    """Lowers the groups of one program: of the whole, or of the body of a loop or branch.

    * `inputs`: the buffers of the program's inputs.
    * `targets`: the buffers that its outputs must end in; None: any. A target may be the buffer of
      an input, which is overwritten once nothing reads it any more (donation, the carry of a loop).
    * `extra`: buffers of further values: the stacked results of a scan.
    * `placed`: values that are written into a slice of one of `extra`.
    * `turns`: outputs with a target may end in the buffer of another one, or in a new one.
    * `schedule`: schedules a body, given (table, program, inputs, targets, placed, extra, depth).
    """

    def __init__(
        self,
        table: BufferTable,
        jaxpr: Jaxpr,
        fusion: Fusion,
        inputs: Sequence[int],
        targets: Sequence[int | None],
        schedule: Callable[..., Schedule],
        placed: dict[Var, SliceStore] | None = None,
        extra: dict[Var, int] | None = None,
        depth: int = 0,
        turns: bool = False,
    ) -> None:
        self.table, self.jaxpr, self.fusion, self.depth = table, jaxpr, fusion, depth
        self.turns = turns
        self.targets, self.placed, self._schedule = targets, placed or {}, schedule
        self.graph = fusion.graph
        self.buffers: dict[Var, int] = dict(zip(jaxpr.invars, inputs)) | (extra or {})
        self.fixed = {table.root(b) for b in self.buffers.values()}
        self.fixed |= {table.root(t) for t in targets if t is not None}
        # Liveness, by which `_free` decides whether a value may take a buffer.
        self._results: set[Var] = set()
        self._made_at: dict[Var, int] = {}
        self._last_read: dict[Var, int] = {}
        self._held: dict[int, list[Var]] = {}
        self.items: list[ScheduledStep] = []

    def lower(self) -> tuple[list[ScheduledStep], list[int]]:
        """Lower all groups: (the items that compute the program, the buffers of its outputs)."""
        self._results |= {self.graph.memory(o)[0] for o in self.jaxpr.outs}
        for n, g in enumerate(self.fusion.groups):
            self._made_at |= dict.fromkeys(g.roots, n)
            self._last_read |= dict.fromkeys(g.reads, n)
        for v, b in self.buffers.items():
            self._held.setdefault(self.table.root(b), []).append(v)
        wanted = self._wanted()
        for g in self.fusion.groups:
            self._group(g, wanted)
        outputs = self._finish()
        return self.items, outputs

    # Buffers of values.

    def buffer(self, v: Var) -> int:
        """The buffer of a value."""
        u, offset = self.graph.memory(v)
        b = self.buffers[u]
        return self.table.view(b, offset, v.aval.nbytes) if u is not v else b

    def temporary(self, size: int) -> int:
        """A new buffer in this program's arena."""
        return self.table.new(size)

    def _wanted(self) -> dict[Var, int]:
        """The buffer that each value should be written to because an output must end there."""
        wanted: dict[Var, int] = {}
        for v, t in zip(self.jaxpr.outs, self.targets):
            u = self.graph.memory(v)[0]
            if t is not None and u not in self.buffers and u not in wanted and v not in self.placed:
                wanted[u] = t
        for u, t in list(wanted.items()):
            # An in-place update writes where its operand is, so the operand is wanted there too.
            while (x := self._updated(u)) is not None:
                if x in self.buffers or x in wanted or x in self._results:
                    break
                wanted[x] = t
                u = x
        return wanted

    def _updated(self, v: Var) -> Var | None:
        """The operand in whose memory the equation of `v` can update it to be `v`."""
        e = self.graph.producer[v]
        if self.graph.kind[id(e)] != "opaque" or not enabled("in_place"):
            return None
        x = updated_operand(e, v)
        if x is None:
            return None
        u, offset = self.graph.memory(x)
        # Not if the step reads the same memory through another operand, or `x` is a part of it.
        shared = sum([type(i) is Var and self.graph.memory(i)[0] is u for i in e.ins]) > 1
        return None if offset or shared or u.aval.nbytes != v.aval.nbytes else u

    def _group(self, g: FusionGroup, wanted: dict[Var, int]) -> None:
        if g.matmul is not None or g.sum is not None:
            for v in g.writes:
                self.buffers[v] = self._write_to(v, wanted, None, None)
            at = len(self.table.summaries)
            self.items.append(self._product(g) if g.sum is None else self._sum(g))
            self.items[-1].summary = self.table.summaries[at]
            return
        if g.kernel is None:
            assert g.eqn is not None
            if g.eqn.prim is constant_p and g.eqn.outs[0] not in self._results:
                # Read where it is.
                b = self.buffers[g.eqn.outs[0]] = self.table.held(g.eqn.params["numbers"])
                self.fixed.add(b)
                return
            for v in g.eqn.outs:
                if v not in self.buffers:
                    self.buffers[v] = self._write_to(v, wanted, None, None)
            at = len(self.table.summaries)
            self.items.append(self._opaque(g))
            self.items[-1].summary = self.table.summaries[at]
            return
        sites = [self.site(e) * lowerings.SITES for e in g.kernel.checks]
        made = generate_once(g.kernel, self.table.target, self.table.generated, sites)
        for v in made.writes:
            if v not in self.buffers:
                self.buffers[v] = self._write_to(v, wanted, g, made)
        names = list(dict.fromkeys(i.eqn.prim.name for i in g.kernel.instrs if i.eqn is not None))
        lines = list(dict.fromkeys(str(self.graph.producer[v].where) for v in g.roots))
        text = f"{'+'.join(names[:6])}{'+..' if len(names) > 6 else ''}" or "copy"
        self.table.summaries.append(
            StepSummary(text, g.traffic, g.operations, made.sources, lines, self.depth)
        )
        self._launched(g, made, self.table.summaries[-1])

    def _launched(self, g: FusionGroup, made: GeneratedKernels, summary: StepSummary) -> None:
        """Append one item for each launch. The second one of a split reduction, which combines
        partial results, is an item of its own so that horizontal fusion can delay it until it
        shares a launch with others like it."""
        plan = made.plan
        scratch = [self.temporary(w.bytes) for w in plan.workspaces]
        buffers = [self.buffers[v] for v in (*made.reads, *made.writes)]
        if made.checked:
            assert self.table.error_word is not None
            buffers.append(self.table.error_word)
        buffers += scratch
        for n, (step, use) in enumerate(zip(plan.steps, made.uses, strict=True)):
            assert type(step) is Launch
            step, order = _renumbered(step)
            item = ScheduledStep(
                [SubProgram((step,), tuple([(buffers[k], 0) for k in order]))],
                [buffers[k] for k in sorted(use.reads)],
                [buffers[k] for k in sorted(use.writes)],
                launch=step,
                traffic=g.traffic,
                summary=summary,
            )
            if n:
                item.traffic = sum([self.table.bytes[b] for b in (*item.reads, *item.writes)])
                item.summary = replace(
                    summary,
                    name=f"{summary.name}, joined",
                    traffic=item.traffic,
                    operations=0,
                    sources=made.sources[n:],
                )
                self.table.summaries.append(item.summary)
            self.items.append(item)
        summary.sources = made.sources[:1]

    def _write_to(
        self, v: Var, wanted: dict[Var, int], g: FusionGroup | None, made: GeneratedKernels | None
    ) -> int:
        """The buffer that `v` is written to: its target if nothing needs the old contents, that of
        the operand it updates if nothing else needs that, or a new one."""
        source = self._updated(v) if g is None else None
        choices = [wanted[v]] if v in wanted else []
        if source is not None and self.table.root(self.buffers[source]) not in self.fixed:
            choices.append(self.buffers[source])
        if v in wanted and self.turns:
            # A result that must not overwrite its own input may overwrite another one, of which
            # nothing is left: of (a, b) -> (b, f(a, b)), f(a, b) that of a.
            free_inputs = [t for t in self.targets if t is not None and t not in wanted.values()]
            choices += [t for t in free_inputs if self.table.bytes[t] == v.aval.nbytes]
        free = [b for b in choices if self._free(b, v, source, g, made)]
        buffer = free[0] if free else self.temporary(v.aval.nbytes)
        self._held.setdefault(self.table.root(buffer), []).append(v)
        return buffer

    def _free(
        self,
        b: int,
        v: Var,
        source: Var | None,
        g: FusionGroup | None,
        made: GeneratedKernels | None,
    ) -> bool:
        """Whether `v` may be written to buffer `b`: nothing needs its contents by then, except the
        step of `v` itself, which may update `source` there."""
        # `_held` lists every value that was ever put into this memory: those that are dead by now
        # pass the tests below.
        held = self._held.get(self.table.root(b), ())
        now = self._made_at[v]
        here = self.fusion.groups[now]
        for u in held:
            if u in self._results or self._last_read.get(u, -1) > now:
                return False
            if self._made_at.get(u) == now:
                return False  # it holds another result of this step
            if u not in here.reads:
                continue
            if g is not None and made is not None and g.kernel is not None:
                # Threads of one kernel run in no order: each element must be read by the thread
                # that overwrites it, or in an earlier launch.
                if not made.elementwise(g.kernel, v, u):
                    return False
            elif u is not source or self.buffers[u] != b:
                return False
        return True

    def planned(self, plan: Plan, reads: Sequence[int], writes: Sequence[int]) -> ScheduledStep:
        """A plan over these buffers."""
        scratch = [self.temporary(w.bytes) for w in plan.workspaces]
        used = (*reads, *writes, *scratch)
        child = SubProgram(plan.steps, tuple([(b, 0) for b in used]))
        return ScheduledStep([child], list(reads), list(writes), scratch)

    def _product(self, g: FusionGroup) -> ScheduledStep:
        """A matrix product with its fused prologue and epilogue."""
        product, e = g.matmul, g.eqn
        assert product is not None and e is not None
        if is_tiled_matmul(e):
            plan, operands = plan_matmul_epilogue(product, g.writes, self.table.target)
        else:
            (v,) = g.writes
            read_only = self.table.read_only
            fixed = all(self.table.root(self.buffer(x.ins[1])) in read_only for x in product.eqns)
            plan, operands = plan_few_rows(product, v, fixed, self.table.target)
        reads = [self.buffer(u) for u in operands]
        bodies = [b for b in (product.prologue, product.epilogue) if b is not None]
        names = [i.eqn.prim.name for b in bodies for i in b.instrs if i.eqn is not None]
        text = "+".join([x.prim.name for x in product.eqns] + list(dict.fromkeys(names)))
        work = sum([_work_of(x) for x in product.eqns])
        self.table.summaries.append(
            StepSummary(text, g.traffic, work, [], [str(e.where)], self.depth)
        )
        return self.planned(plan, reads, [self.buffers[v] for v in g.writes])

    def _sum(self, g: FusionGroup) -> ScheduledStep:
        """A sum by segment that computes what it adds."""
        fused, e = g.sum, g.eqn
        assert fused is not None and e is not None
        sites = [self.site(x) for x in fused.checks]
        plan, operands = plan_fused_sum(fused, sites, self.table.target)
        writes = [self.buffers[v] for v in g.writes]
        if sites:
            assert self.table.error_word is not None
            writes.append(self.table.error_word)
        within = [x.prim.name for x in fused.gathers.values()]
        within += [i.eqn.prim.name for i in fused.updates.instrs if i.eqn is not None]
        text = "+".join([*dict.fromkeys(within), e.prim.name])
        self.table.summaries.append(
            StepSummary(text, g.traffic, g.operations, [], [str(e.where)], self.depth)
        )
        return self.planned(plan, [self.buffer(u) for u in operands], writes)

    def site(self, e: Eqn) -> int:
        """The site of an equation that checks something."""
        self.table.sites.append(e)
        if self.table.error_word is None:
            # One word for the whole program; sites tell its checks apart.
            self.table.error_word = self.table.new(8)
        return len(self.table.sites)

    # Equations that are one step: kernels of `lowerings`, host calls, control flow.

    def _in_place(self, e: Eqn) -> bool:
        """Whether the result of an update has been given the memory of its operand."""
        x = None if e.prim.updates is None else e.ins[e.prim.updates]
        return type(x) is Var and self.buffer(x) == self.buffers[e.outs[0]]

    def _opaque(self, g: FusionGroup) -> ScheduledStep:
        e = g.eqn
        assert e is not None
        # Control flow is summarised before its body, whose steps are listed behind it.
        at = len(self.table.summaries)
        if e.prim in _CONTROL:
            self.table.summaries.append(StepSummary("", 0, 0, [], [str(e.where)], self.depth))
            item = _CONTROL[e.prim](self, e)
            self.table.summaries[at].name = e.prim.name
            return item
        prim, avals, params = called(e)
        site = len(self.table.sites) + 1
        in_place = self._in_place(e)
        if lowerings.has_lowering(prim) or any(e_jaxprs(e)):
            lowered = plan_for(
                prim, avals, params, self.table.target, site, in_place=in_place, numerics=e.numerics
            )
        else:
            lowered = HostCall(prim, tuple(avals), dict(params))
        reads = [self.buffer(i) for i in e.ins if type(i) is Var]
        writes = [self.buffers[v] for v in e.outs]
        name = params["op"].name if prim is fused_p else prim.name
        kernels = []
        if type(lowered) is Plan:
            kernels = [
                getattr(s.kernel, "__name__", getattr(s.kernel, "name", ""))
                for s in lowered.steps
                if isinstance(s, Launch)
            ]
        self.table.summaries.append(
            StepSummary(
                name,
                g.traffic - (2 * avals[0].nbytes if in_place and not e.prim.collective else 0),
                _work_of(e),
                kernels,
                [str(e.where)],
                self.depth,
            )
        )
        if lowered is None:
            raise BackendError(f"{prim.name} has no lowering on CUDA at {e.where}")
        if type(lowered) is HostCall:
            given = iter(reads)
            operands = tuple([next(given) if type(i) is Var else None for i in e.ins])
            return ScheduledStep([HostStep(lowered, operands, tuple(writes))], reads, writes)
        if type(lowered) is Exchange:
            return self._exchange(e, lowered, reads[0], writes[0])
        if type(lowered) is Constant:
            return ScheduledStep([SetInteger(writes[0], lowered.value)], reads, writes)
        if type(lowered) is Contents:
            copy = Copy(writes[0], self.table.held(lowered.numbers), e.outs[0].aval.nbytes)
            return ScheduledStep([copy], [copy.source], writes)
        if type(lowered) is Views:
            for v, b, (source, offset) in zip(e.outs, writes, lowered.sources):
                copy = Copy(b, reads[source], v.aval.nbytes, 0, offset)
                if v.aval.nbytes:
                    self.items.append(ScheduledStep([copy], [reads[source]], [b]))
            return ScheduledStep([], reads, writes)
        assert type(lowered) is Plan
        if checks(lowered, [v.aval for v in e.outs]):
            self.site(e)
            assert self.table.error_word is not None
            writes = [*writes, self.table.error_word]
        return self.planned(lowered, reads, writes)

    def _exchange(self, e: Eqn, lowered: Exchange, read: int, write: int) -> ScheduledStep:
        step = Collective(lowered, read, write, f"{e.prim.name} at {e.where}")
        moved = lowered.communication
        unsent = type(moved) is Permute and moved.sender is None  # then the result is zero
        steps: list[Step] = [Memset(write), step] if unsent else [step]
        return ScheduledStep(steps if e.outs[0].aval.nbytes else [], [read], [write])

    def body(
        self,
        jaxpr: Jaxpr,
        inputs: Sequence[int],
        targets: Sequence[int | None],
        placed: dict[Var, SliceStore] | None = None,
        extra: dict[Var, int] | None = None,
        turns: bool = False,
    ) -> Schedule:
        """Schedule the body of a loop or branch. `body_arena` must then give its arena a parent."""
        return self._schedule(
            self.table, jaxpr, inputs, targets, placed, extra, self.depth + 1, turns
        )

    def body_arena(self, bodies: Sequence[Schedule]) -> int:
        """One buffer for the arenas of bodies that never run at the same time."""
        b = self.temporary(max([s.arena for s in bodies], default=0))
        for s in bodies:
            self.table.parent[s.base] = b, 0
        return b

    def copy_carry(self, carry: Sequence[int], inits: Sequence[int]) -> list[Step]:
        """Copies of the initial carry to the buffers in which the loop updates it."""
        return [
            Copy(c, i, self.table.bytes[c])
            for c, i in zip(carry, inits)
            if self.table.bytes[c] and c != i
        ]

    def _finish(self) -> list[int]:
        """Append copies of outputs that are not where they must be; the buffers of the outputs."""
        ends: list[int] = []
        for v, t in zip(self.jaxpr.outs, self.targets):
            if v in self.placed:
                ends.append(self.buffers[self.placed[v].target])
            else:
                ends.append(self.buffer(v) if t is None else t)
        if self.turns:
            self._take_turns(ends)
        moves = [
            (t, b, v.aval.nbytes)
            for v, t in zip(self.jaxpr.outs, ends)
            if v not in self.placed and (b := self.buffer(v)) != t
        ]
        for copy in parallel_copies(moves, self.table)[0] if moves else ():
            self.items.append(ScheduledStep([copy], [copy.source], [copy.destination]))
        return ends

    def _take_turns(self, ends: list[int]) -> None:
        """Let outputs stay where they are, in place of their targets, if they have the whole buffer
        to themselves: that of another target, or a new one."""
        at = {
            k: self.buffer(self.jaxpr.outs[k]) for k, t in enumerate(self.targets) if t is not None
        }
        taken = {b for k, b in at.items() if b == ends[k]}
        for k, b in at.items():
            new = b not in self.table.parent and b not in self.fixed and self.table.bytes[b]
            if b != ends[k] and b not in taken and (b in self.targets or new):
                ends[k] = b
                taken.add(b)
                self.fixed.add(b)
        # What has to be copied goes where nothing else stayed.
        for k, b in at.items():
            if ends[k] in taken and ends[k] != b:
                ends[k] = self.temporary(self.table.bytes[ends[k]])
                self.fixed.add(ends[k])


def pack_arena(
    items: Sequence[ScheduledStep],
    outputs: Sequence[int],
    table: BufferTable,
    fixed: set[int],
    base: int,
) -> int:
    """Assign the temporaries of `items` offsets in the arena, buffer `base`, and return its size.

    A temporary is alive from the first item that touches it to the last. `fixed` buffers, outputs,
    pointer tables, contents and the error word are elsewhere.
    """
    lives: dict[int, tuple[int, int]] = {}
    # The values of a loop's body have the body's arena as their root: one temporary of the loop.
    known = {*table.pointers, *table.contents, table.error_word}
    outside = {*fixed, *known, *map(table.root, outputs)}
    for n, item in enumerate(items):
        for b in map(table.root, (*item.reads, *item.writes, *item.scratch)):
            if b not in outside:
                lives[b] = lives.get(b, (n, n))[0], n
    offsets, size = pack({b: table.bytes[b] for b in lives}, lives)
    for b, at in offsets.items():
        table.parent[b] = base, at
    table.bytes[base] = size
    return size


def _renumbered(launch: Launch) -> tuple[Launch, list[int]]:
    """(the launch with its buffers numbered in the order of its arguments, their old numbers):
    launches of one kernel on other values become equal."""
    order: dict[int, int] = {}
    arguments = {}
    for name, a in launch.arguments.items():
        assert type(a) is BufferArg
        arguments[name] = replace(a, index=order.setdefault(a.index, len(order)))
    return replace(launch, arguments=arguments), list(order)


def _work_of(e: Eqn) -> int:
    """Floating-point operations of an opaque equation, 0 where its primitive has no formula; of a
    fused function, those of its reference program."""
    if e.prim is fused_p:
        return int(cost(e.params["jaxpr"])["flops"])
    prim, avals, params = called(e)
    if prim.flops is None:
        return 0
    ins = [a for a in avals if type(a) is Aval]
    outs = prim.abstract(tuple(avals), dict(params))
    return int(prim.flops(ins, outs if prim.multi else [outs], **params))


# ---- control flow ----


def _scan(s: ProgramLowering, e: Eqn) -> ScheduledStep:
    p = e.params
    consts, carry, length = p["consts"], p["carry"], p["length"]
    ins = [s.buffer(i) for i in e.ins]
    outs = [s.buffers[v] for v in e.outs]
    kept, stacks = outs[:carry], outs[carry:]
    counters = s.temporary(4 * _MOST_UNROLLED)
    counter = s.table.view(counters, 0, 4)
    body = loop_body(p["jaxpr"], consts, carry, length, p["reverse"], s.table.target)
    # Stacked results are written slice by slice into theirs. The carry is updated in the buffers of
    # the results, or takes turns.
    inner = s.body(
        body.jaxpr,
        [*ins[:consts], *kept, *ins[consts + carry :], counter],
        [*kept, *[None] * len(stacks)],
        placed=body.slice_stores,
        extra=dict(zip(body.stacks, stacks)),
        turns=enabled("carry_turns"),
    )
    scratch = [counters, s.body_arena([inner]), *set(inner.outputs[:carry]) - {*kept}]
    one, left = inner.steps, inner.outputs[:carry]

    def moved(destinations: Sequence[int], sources: Sequence[int]) -> list[Copy]:
        """Copies of a carry."""
        sized = [(d, b, s.table.bytes[d]) for d, b in zip(destinations, sources) if d != b]
        copies, held = parallel_copies(sized, s.table)
        scratch.extend(held)
        return copies

    turns = carry_turns(kept, left)
    if turns is None:
        one, turns = [*one, *moved(kept, left)], carry_turns(kept, kept)
        assert turns is not None
    # After the last iteration the carry is where the results are.
    first = turns.after(-length)
    steps: list[Step] = [*moved([first.get(b, b) for b in kept], ins[consts : consts + carry])]
    # A loop repeats whole rounds of turns, unless it runs its body once.
    unrolled = _unrolled_iterations(one)
    many = min(length, max(turns.period, unrolled - unrolled % turns.period))
    numbers = [s.table.view(counters, 4 * k, 4) for k in range(many)]
    changes = [turns.after(k - length) | {counter: number} for k, number in enumerate(numbers)]
    copies = [elsewhere(one, s.table, by) for by in changes]
    main = length - length % many if many else 0
    if main:
        repeated = tuple([x for copy in copies for x in copy])
        steps.append(ForLoop(main, BufferArg(counters, "i32"), repeated, many))
    # Behind the loop the counters go on with the numbers of the iterations that are left.
    steps += [x for copy in copies[: length - main] for x in copy]
    return ScheduledStep(steps, ins, outs, scratch)


_MOST_UNROLLED = MOST_TURNS  # iterations of a loop that one iteration of its graph node runs
_MOST_LAUNCHES = 96  # of them


def _unrolled_iterations(steps: Sequence[Step]) -> int:
    """How many iterations of a body stand behind each other in a graph.

    An iteration of a conditional node costs about 4 us beside its kernels, some of which take no
    longer.
    """
    if any(map(has_host, steps)):
        return 1
    return max(1, min(_MOST_UNROLLED, _MOST_LAUNCHES // max(1, launches(steps))))


def _while(s: ProgramLowering, e: Eqn) -> ScheduledStep:
    p = e.params
    a, b = p["cond_consts"], p["body_consts"]
    ins = [s.buffer(i) for i in e.ins]
    outs = [s.buffers[v] for v in e.outs]
    start = s.copy_carry(outs, ins[a + b :])
    # The condition writes its result to a byte that the conditional node reads.
    predicate = s.temporary(1)
    test = s.body(p["cond"], [*ins[:a], *outs], [predicate])
    body = s.body(p["body"], [*ins[a : a + b], *outs], outs)
    arena = s.body_arena([test, body])
    loop = While(tuple(test.steps), BufferArg(predicate, "i1"), tuple(body.steps))
    return ScheduledStep([*start, loop], ins, outs, [predicate, arena])


def _cond(s: ProgramLowering, e: Eqn) -> ScheduledStep:
    ins = [s.buffer(i) for i in e.ins]
    outs = [s.buffers[v] for v in e.outs]
    # Every branch writes the results to the same buffers; of the arenas only one is in use.
    bodies = [s.body(branch, ins[1:], outs) for branch in e.params["branches"]]
    arena = s.body_arena(bodies)
    branches = tuple([tuple(body.steps) for body in bodies])
    return ScheduledStep([Switch(BufferArg(ins[0], "i32"), branches)], ins, outs, [arena])


def _row_loop(s: ProgramLowering, e: Eqn) -> ScheduledStep:
    nest = e.params["nest"]
    sites = [s.site(x) for x in nest.checks]
    writes = [s.buffers[v] for v in e.outs]
    if type(nest) is TeamNest:
        sites.append(s.site(e))  # where members wait in vain for each other
        plan, operands, source = plan_team_nest(nest, sites[-1], sites[:-1])
    else:
        in_place = not {s.buffer(i) for i in e.ins}.isdisjoint(writes)
        plan, operands, source = plan_row_nest(nest, s.table.target, sites, in_place)
    s.table.summaries[-1].sources = [source]
    reads = [s.buffer(v) for v in operands]
    if sites:
        assert s.table.error_word is not None
        writes.append(s.table.error_word)
    return replace(s.planned(plan, reads, writes), alone=True)


_CONTROL: dict[Primitive, Callable[[ProgramLowering, Eqn], ScheduledStep]] = {
    scan_p: _scan, while_p: _while, cond_p: _cond, row_loop_p: _row_loop,
}  # fmt: skip


_IN_VAIN = (
    "the programs that share the rows of a loop waited for each other in vain, for about 12 s: "
    "something else holds processors of the GPU; GENESIS_COMPILER_WITHOUT=team_loops runs such "
    "loops step by step"
)


def check_error(table: BufferTable, whole: Jaxpr, jaxpr: Jaxpr, site: int, index: int) -> Exception:
    """The exception for a check of the program that failed at `site` with `index`. `whole` is the
    program before complex numbers became parts, which users know nothing of."""
    e = table.sites[site // lowerings.SITES - 1]
    if e.prim is row_loop_p:
        return errors.at_line(errors.BackendError(_IN_VAIN), e.where)
    e, label = before_parts(whole, e) or (e, jaxpr.label_of(e.ins[0]))
    prim, avals, params = called(e)
    error = lowerings.check_error(prim, avals, params, table.target, site, index)
    if isinstance(error, errors.IndexOutOfRange):
        error = error.naming(label)
    return errors.at_line(error, e.where)
