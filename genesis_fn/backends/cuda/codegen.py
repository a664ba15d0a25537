"""Triton source of generated kernels: `Body` -> launches.

Shapes are part of the text, names come in order of appearance, so equal structures give equal texts
and compile once. 16-bit floats are float32 in registers. Offsets are 32-bit where they fit.

Five forms: pointwise over a flat index; pointwise over tiles, where a load runs across the order of
the stores; rows on chip, reduced or not; reductions in a loop, one pass for each reduction that
needs an earlier one; slabs of rows, whose columns are reduced too. Rows too few for the machine are
split, and a second kernel joins the parts, as it does for the columns of slabs, in an order that
depends on the shape only.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from genesis_fn.backends.cuda.compile import SourceKernel
from genesis_fn.compiler import index as ix, respell
from genesis_fn.compiler.index import Expr
from genesis_fn.compiler.kernel import NARROW, Body, Instr
from genesis_fn.compiler.options import enabled
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Var
from genesis_fn.kernels.expressions import (
    MEMORY,
    MODULES,
    NAMES,
    PRELUDE,
    expression,
    literal,
    loaded,
    register,
    rounded,
    stored,
)
from genesis_fn.kernels.launch import Buf, Launch, Plan, Workspace
from genesis_fn.kernels.planning import cdiv, next_power_of_two
from genesis_fn.primitives.reduce import extreme_over_nothing

_INT32 = 2**31 - 1
_PERSISTENT = 16384  # the longest row that stays on chip
_PROCESSORS = 132  # of an H100 or H200
_PROGRAMS = 4 * _PROCESSORS
_REGISTERS = 136  # of a thread that the values of a slab are thought to take at most
_COMBINE = {"reduce_prod": "multiply", "reduce_or": "bit_or", "reduce_and": "bit_and"}


@functools.lru_cache(maxsize=8192)
def kernel(name: str, parameters: str, body: str) -> SourceKernel:
    """The kernel of this text; equal texts are one kernel."""
    return SourceKernel(name, f"{PRELUDE}def {name}({parameters}):\n{body}", MODULES)


@dataclass(frozen=True, slots=True)
class Part:
    """A workspace of partial results: number `number`, [parts, rows] of `dtype`."""

    number: int
    dtype: DType


@dataclass(slots=True)
class Loops:
    """A kernel's instructions and stores; what one Triton function computes."""

    rows: int
    depth: int
    inner: bool
    instrs: list[Instr]
    stores: list[tuple[Any, Expr, int]]
    counters: dict[Var, str]
    largest: int = 8  # bytes of the widest register type

    def __post_init__(self) -> None:
        self.largest = max([held(i.dtype).itemsize for i in self.instrs], default=4)


@dataclass(frozen=True, slots=True)
class Use:
    """What a step of a plan reads and writes, as numbers of the plan's buffers; `looped` if it may
    write an element before all that read it have."""

    reads: frozenset[int]
    writes: frozenset[int]
    looped: bool


@dataclass(slots=True)
class Generated:
    """The plan of a body; `reads` and `writes` are what its buffers are, in order, and `uses` what
    each step does with them."""

    plan: Plan
    reads: list[Var]
    writes: list[Var]
    sources: list[str]
    uses: list[Use]

    def elementwise(self, body: Body, v: Var, u: Var) -> bool:
        """Whether `v` may be written over `u`: every step reads `u` before, or reads the very
        elements that it writes."""
        out, source = len(self.reads) + self.writes.index(v), self.reads.index(u)
        if v.aval.dtype.itemsize != u.aval.dtype.itemsize:
            return False
        n = next(n for n, use in enumerate(self.uses) if out in use.writes)
        if any(source in use.reads for use in self.uses[n + 1 :]):
            return False
        if source not in self.uses[n].reads:
            return True
        needed = set(range(len(body.instrs)))
        if n:
            stop = "fold" if body.over.crossed else "reduce"
            after = [k for _, _, k in body.stores if body.instrs[k].late or body.instrs[k].level]
            needed = _needed(body.instrs, after, stop)
        places = [offset for target, offset, _ in body.stores if target is v]
        loads = [
            body.instrs[k].meta[1] for k in needed
            if body.instrs[k].op == "load" and body.instrs[k].meta[0] is u
        ]  # fmt: skip
        return not self.uses[n].looped and all(offset == places[0] for offset in loads)


Known = dict[Any, tuple[list[Var], Generated]]


def generate_once(body: Body, known: Known) -> Generated:
    """`generate(body)`, unless `known` holds what was generated for one that is alike, as those of
    repeated layers are."""
    values, key = body.shape()
    if key not in known:
        known[key] = values, generate(body)
    before, made = known[key]
    now = dict(zip(before, values, strict=True))
    return replace(made, reads=[now[v] for v in made.reads], writes=[now[v] for v in made.writes])


def generate(body: Body) -> Generated:
    """The launches that compute a body's stores."""
    over = body.over
    loops = _respelled(Loops(
        over.kept, over.reduced, over.inner, body.instrs, body.stores, body.counters
    ), over.wants_split)  # fmt: skip
    kernels: list[tuple[Loops, _Form]] = []
    parts: list[Part] = []
    if any(i.op == "fold" for i in loops.instrs):
        parts = [
            Part(n, accumulator(loops.instrs[i.args[0]].dtype))
            for n, i in enumerate([i for i in loops.instrs if i.op == "fold"])
        ]
        kernels = _slabs(loops, parts)
    elif over.wants_split and over.reduced > 1:
        parts = _parts(loops)
        kernels = _split(loops, parts)
    else:
        kernels = [(loops, _form(loops))]
    reads = list(dict.fromkeys(_read(loops)))
    writes = list(dict.fromkeys([target for target, _, _ in loops.stores]))
    number = {v: i for i, v in enumerate(reads)}
    outputs = {v: len(reads) + i for i, v in enumerate(writes)}
    base = len(reads) + len(writes)
    steps, sources, sizes, uses = [], [], [0] * len(parts), []
    for part_loops, form in kernels:
        text = _Text(part_loops, form)
        function = text.write()
        arguments = {}
        used: dict[bool, set[int]] = {False: set(), True: set()}
        for name, (target, kind, written) in text.arguments.items():
            if type(target) is Part:
                at = base + target.number
            else:
                at = outputs[target] if written else number[target]
            arguments[name] = Buf(at, kind)
            used[written].add(at)
        uses.append(Use(frozenset(used[False]), frozenset(used[True]), form.kind == "looped"))
        for part in parts:
            columns = part_loops.depth if form.kind == "slab" else part_loops.rows
            sizes[part.number] = max(sizes[part.number], form.parts * columns * part.dtype.itemsize)
        most = 65536 // (32 * max(form.warps, 16)) if form.kind == "slab" else None
        steps.append(Launch(function, form.grid, arguments, {}, form.warps, 3, max_registers=most))
        sources.append(function.text.removeprefix(PRELUDE))
    spaces = tuple([Workspace(max(16, n)) for n in sizes])
    plan = Plan(len(reads), len(writes), tuple(steps), spaces)
    return Generated(plan, reads, writes, sources, uses)


def _parts(loops: Loops) -> list[Part]:
    """What a split reduction leaves behind: extremes with their positions, sums and the like."""
    kinds: list[DType] = []
    for i in loops.instrs:
        if i.op == "reduce":
            kinds.append(accumulator(loops.instrs[i.args[0]].dtype))
            kinds += [i.dtype] * i.meta[0].startswith("arg")
    return [Part(n, kind) for n, kind in enumerate(kinds)]


def _read(loops: Loops) -> list[Var]:
    return [i.meta[0] for i in loops.instrs if i.op == "load"] + list(loops.counters)


def _respelled(loops: Loops, split: bool) -> Loops:
    """The loops with rows where a flat kernel has some, and rows cut where conditions cut them."""
    rows, depth, inner = loops.rows, loops.depth, loops.inner
    instrs, stores = loops.instrs, loops.stores
    if not enabled("parts"):
        return loops
    if depth == 1:
        length = 0 if _tile_columns(loops) else respell.row_length(instrs, rows)
        if not length:
            return loops
        instrs, stores = respell.as_rows(instrs, stores, rows, length)
        rows, depth, inner = rows // length, length, True
    if inner and not split and depth <= _PERSISTENT:
        length = respell.part_length(instrs, depth)
        if length < depth:
            instrs, stores = respell.in_parts(instrs, stores, depth, length)
            depth = length
    return Loops(rows, depth, inner, instrs, stores, loops.counters)


def held(d: DType) -> DType:
    """The dtype that a value of dtype `d` has in registers."""
    return dtypes.F32 if d in NARROW else d


def accumulator(d: DType) -> DType:
    """The dtype that reductions of dtype `d` are kept in."""
    d = held(d)
    if d == dtypes.BOOL or (dtypes.is_integer(d) and d.itemsize < 4):
        return dtypes.U32 if d.kind == "u" else dtypes.I32
    return d


# ---- tiles ----


@dataclass(frozen=True, slots=True)
class _Form:
    """How the loops are cut up: `kind` is "flat", "tiled", "row", "looped" or "slab". A program
    covers `block` rows (of "tiled": rows of `columns`), and `chunk` elements of r at a time. With
    `parts` above 1, program axis 1 says which `length` elements of r are its own; of a slab, a
    program's rows are every `parts`-th block."""

    kind: str
    grid: tuple[int, int, int]
    block: int
    chunk: int = 1
    columns: int = 1
    warps: int = 4
    parts: int = 1
    length: int = 0
    final: bool = True  # whether it stores results; else partial ones
    ahead: bool = False  # whether the next rows are loaded while these are worked on


def _form(loops: Loops) -> _Form:
    if loops.depth > 1:
        return _reduction_form(loops)
    n = loops.rows
    columns = _tile_columns(loops)
    if columns:
        rows = n // columns
        grid = (cdiv(rows, 32) * cdiv(columns, 32), 1, 1)
        return _Form("tiled", grid, 32, 32, columns)
    block = 2048 if len({i.meta[0] for i in loops.instrs if i.op == "load"}) > 2 else 1024
    while block > 128 and cdiv(n, block) < 264:
        block //= 2
    block = min(block, next_power_of_two(n))
    return _Form("flat", (cdiv(n, block), 1, 1), block, warps=8 if block > 1024 else 4)


def _tile_columns(loops: Loops) -> int:
    """The length of rows such that tiles serve loads that run across them; 0 if flat is as good."""
    across = [
        i for i in loops.instrs
        if i.op == "load" and "p" in i.names and not _consecutive(i.meta[1], loops.rows)
    ]  # fmt: skip
    if not across or loops.rows < 4096:
        return 0
    for i in across:
        # The variable's smallest period, p % n, is the row that the load leaves.
        periods = sorted(_periods(i.meta[1]))
        for n in periods:
            if n >= 8 and loops.rows % n == 0 and loops.rows // n >= 8:
                return n
    return 0


def _consecutive(e: Expr, n: int) -> bool:
    values = [e.evaluate({name: 0 for name in e.names} | {"p": p}) for p in range(min(4, n))]
    return all(b - a == 1 for a, b in zip(values, values[1:])) or len(set(values)) == 1


def _periods(e: Expr) -> set[int]:
    found: set[int] = set()
    for atom in e.terms:
        kind, operand, c = atom.key
        if kind != "var":
            if operand.terms.keys() == {a for a in operand.terms if a.key[:2] == ("var", "p")}:
                found.add(c)
            found |= _periods(operand)
    return found


def _warps(elements: int, per_thread: int = 16) -> int:
    return min(16, max(1, elements // (32 * per_thread)))


def _reduction_form(loops: Loops) -> _Form:
    rows, depth = loops.rows, loops.depth
    live = max(1, sum(1 for i in loops.instrs if i.op == "load" and "r" in i.names))
    budget = 4096 if loops.largest <= 4 and live <= 6 else 2048
    padded = next_power_of_two(depth)
    if loops.inner and padded <= _PERSISTENT // (loops.largest // 4 or 1):
        block = max(1, min(budget // padded, next_power_of_two(rows)))
        while block > 1 and cdiv(rows, block) < 264:
            block //= 2
        warps = _warps(block * padded, 16 if live <= 6 else 8)
        return _Form("row", (cdiv(rows, block), 1, 1), block, padded, warps=warps)
    if not loops.inner and padded <= 64:
        block = max(1, min(max(16, budget // padded), next_power_of_two(rows)))
        return _Form("row", (cdiv(rows, block), 1, 1), block, padded)
    block, chunk = _looped_tile(loops)
    warps = _warps(block * chunk)
    return _Form("looped", (cdiv(rows, block), 1, 1), block, chunk, warps=warps)


def _looped_tile(loops: Loops) -> tuple[int, int]:
    if loops.inner:
        return 1, min(4096 if loops.largest <= 4 else 2048, next_power_of_two(loops.depth))
    block = min(64, next_power_of_two(loops.rows))
    return block, min(2048 // block, next_power_of_two(loops.depth))


def _split(loops: Loops, parts: Sequence[Part]) -> list[tuple[Loops, _Form]]:
    """Two kernels: partial reductions (and what needs none), then their combination."""
    block, chunk = _looped_tile(loops)
    blocks = cdiv(loops.rows, block)
    count = max(1, min(_PROGRAMS // blocks, cdiv(loops.depth, 2 * chunk), 256))
    length = cdiv(cdiv(loops.depth, count), chunk) * chunk
    count = cdiv(loops.depth, length)
    left = iter(parts)
    early, late = [], []
    for store in loops.stores:
        (late if _after_reduction(loops, store) else early).append(store)
    first = Loops(loops.rows, loops.depth, loops.inner, loops.instrs, early, loops.counters)
    warps = _warps(block * chunk)
    form = _Form(
        "looped", (blocks, count, 1), block, chunk, warps=warps, parts=count, length=length,
        final=False,
    )  # fmt: skip
    second: list[Instr] = []
    for i in loops.instrs:
        if i.op != "reduce":
            second.append(i)
            continue
        offset = ix.add(ix.scale(ix.var("r", count), loops.rows), ix.var("p", loops.rows))
        loads = []
        for part in itertools.islice(left, 2 if i.meta[0].startswith("arg") else 1):
            names = offset.names
            loads.append(Instr("load", (), (part, offset, frozenset()), part.dtype, names, 0))
        second.append(Instr("reduce", tuple(loads), i.meta, i.dtype, i.names, i.level))
    then = _numbered(second)
    final = Loops(loops.rows, count, False, then[0], [(v, e, then[1][n]) for v, e, n in late],
                  loops.counters)  # fmt: skip
    if count == 1:
        rows = min(1024, next_power_of_two(loops.rows))
        return [(first, form), (final, _Form("row", (cdiv(loops.rows, rows), 1, 1), rows, 1))]
    padded = next_power_of_two(count)
    rows = max(1, min(4096 // padded, next_power_of_two(loops.rows)))
    return [
        (first, form),
        (final, _Form("row", (cdiv(loops.rows, rows), 1, 1), rows, padded, warps=4)),
    ]


def _slabs(loops: Loops, parts: Sequence[Part]) -> list[tuple[Loops, _Form]]:
    """Two kernels: rows with partial folds of the columns, and the combination of those."""
    instrs = loops.instrs
    form = _slab_form(loops)
    of = dict(zip([n for n, i in enumerate(instrs) if i.op == "fold"], parts))
    early = [s for s in loops.stores if "p" in s[1].names]
    late = [s for s in loops.stores if "p" not in s[1].names]
    first = Loops(loops.rows, loops.depth, True, instrs, early, loops.counters)
    # What is late runs over columns: they are the rows of the second kernel.
    offset = ix.add(ix.scale(ix.var("k", form.parts), loops.depth), ix.var("r", loops.depth))
    second: list[Instr] = []
    place: dict[int, int] = {}
    for n in sorted(_needed(instrs, [n for _, _, n in late], stop="fold")):
        i = instrs[n]
        args = tuple([place[a] if type(a) is int and i.op != "fold" else a for a in i.args])
        op = i.op
        if op == "fold":
            part = of[n]
            second.append(
                Instr("load", (), (part, offset, frozenset()), part.dtype, offset.names, 0)
            )
            op, args = "reduce", (len(second) - 1,)
        second.append(Instr(op, args, i.meta, i.dtype, i.names, i.level, i.eqn, near=i.near))
        place[n] = len(second) - 1
    stores = [(target, e, place[n]) for target, e, n in late]
    by = {"r": ix.var("p", loops.depth), "k": ix.var("r", form.parts)}
    moved, kept = respell.substituted(second, stores, [by])
    final = Loops(loops.depth, form.parts, False, moved, kept, loops.counters)
    padded = next_power_of_two(form.parts)
    rows = max(1, min(4096 // padded, next_power_of_two(loops.depth)))
    return [(first, form), (final, _Form("row", (cdiv(loops.depth, rows), 1, 1), rows, padded))]


def _slab_form(loops: Loops) -> _Form:
    """Tiles for 128 registers of 512 threads, by an estimate that compiled kernels bear out:
    the next rows under way, what is worked on, and the folds' accumulators."""
    instrs, depth = loops.instrs, loops.depth
    padded = next_power_of_two(depth)
    tiles = [i for i in instrs if i.op == "load" and i.names >= {"p", "r"}]
    streams = [i for i in tiles if _streams(loops, i)]
    ahead = sum([i.dtype.itemsize for i in streams]) / 4
    kept = sum([1 for i in instrs if i.op == "fold" or (i.op == "load" and i.names == {"r"})])
    # Four more for what is computed from them; other tiles are used up as they come.
    each = ahead + kept + len(streams) + (len(tiles) - len(streams)) / 4 + 4
    each *= loops.largest // 4 or 1
    elements = 32
    while elements > 4 and elements * each > _REGISTERS:
        elements //= 2
    block = min(max(1, 256 * elements // padded), next_power_of_two(cdiv(loops.rows, 4)))
    warps = min(16, max(1, block * padded // (32 * elements)))
    resident = max(1, 16 // warps)
    count = min(_PROCESSORS * resident, cdiv(loops.rows, block))
    early = block * padded // (32 * warps) * each <= 2 * _REGISTERS
    return _Form("slab", (count, 1, 1), block, padded, warps=warps, parts=count, ahead=early)


def _streams(loops: Loops, i: Instr) -> bool:
    """Whether a load brings new memory with every row."""
    if i.op != "load" or "p" not in i.names:
        return False
    target, _, guards = i.meta
    if any("p" in g.expr.names for g in guards):
        return False
    points = loops.rows * (loops.depth if "r" in i.names else 1)
    return target.aval.size >= points


def _needed(instrs: Sequence[Instr], roots: Sequence[int], stop: str = "") -> set[int]:
    """The instructions that `roots` take, themselves included; those of op `stop` end the walk."""
    found, todo = set(), list(roots)
    while todo:
        n = todo.pop()
        if n not in found:
            found.add(n)
            if instrs[n].op != stop:
                todo.extend(instrs[n].operands())
    return found


def _numbered(instrs: list[Instr]) -> tuple[list[Instr], list[int]]:
    """(the list with operands that are instructions put before their users, new positions)."""
    result: list[Instr] = []
    place: list[int] = []
    for i in instrs:
        args = []
        for a in i.args:
            if type(a) is Instr:
                result.append(a)
                args.append(len(result) - 1)
            else:
                args.append(place[a] if type(a) is int else a)
        result.append(
            Instr(i.op, tuple(args), i.meta, i.dtype, i.names, i.level, i.eqn, near=i.near)
        )
        place.append(len(result) - 1)
    return result, place


def _after_reduction(loops: Loops, store: tuple[Any, Expr, int]) -> bool:
    return loops.instrs[store[2]].level > 0


# ---- text ----


class _Text:
    """Writes the source of one kernel."""

    def __init__(self, loops: Loops, form: _Form) -> None:
        self.loops, self.form = loops, form
        self.lines: list[str] = []
        self.arguments: dict[str, tuple[Any, str, bool]] = {}
        self._names: dict[tuple[Any, bool], str] = {}
        self.depth = 1
        self.value: dict[int, str] = {}
        self.partial = form.kind != "slab" and (form.parts > 1 or not form.final)

    def write(self) -> SourceKernel:
        """The kernel; `arguments` then maps its parameters to buffers."""
        for counter, name in self.loops.counters.items():
            self.line(f"{name} = tl.load({self.pointer(counter, False)})")
        if self.form.kind in ("flat", "tiled"):
            self._pointwise()
        elif self.form.kind == "row":
            self._row()
        elif self.form.kind == "slab":
            self._slab()
        else:
            self._looped()
        name = {
            "flat": "pointwise", "tiled": "tiles", "row": "rows", "looped": "loop", "slab": "slabs",
        }  # fmt: skip
        body = "".join([f"{line}\n" for line in self.lines or ["    pass"]])
        return kernel(name[self.form.kind], ", ".join(self.arguments), body)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def pointer(self, target: Any, stored: bool) -> str:
        """The parameter for a buffer."""
        key = target, stored
        if key not in self._names:
            name = self._names[key] = f"b{len(self._names)}"
            kind = target.dtype if type(target) is Part else target.aval.dtype
            self.arguments[name] = target, NAMES[kind], stored
        return self._names[key]

    # The four forms.

    def _pointwise(self) -> None:
        n, form = self.loops.rows, self.form
        if form.kind == "flat":
            wide = ".to(tl.int64)" if cdiv(n, form.block) * form.block > _INT32 else ""
            self.line(f"p = tl.program_id(0){wide} * {form.block} + tl.arange(0, {form.block})")
            self.masks = {} if n % form.block == 0 else {"p": "p_in"}
            if self.masks:
                self.line(f"p_in = p < {n}")
        else:
            rows, columns = n // form.columns, form.columns
            across = cdiv(columns, form.chunk)
            self.line(f"i = tl.program_id(0) // {across} * {form.block} + "
                      f"tl.arange(0, {form.block})[:, None]")  # fmt: skip
            self.line(f"j = tl.program_id(0) % {across} * {form.chunk} + "
                      f"tl.arange(0, {form.chunk})[None, :]")  # fmt: skip
            self.masks = {}
            if rows % form.block:
                self.masks["i"] = "i_in"
                self.line(f"i_in = i < {rows}")
            if columns % form.chunk:
                self.masks["j"] = "j_in"
                self.line(f"j_in = j < {columns}")
            self.tiled = ix.add(ix.scale(ix.var("i", rows), columns), ix.var("j", columns))
        self._wide_names()
        for n_, _ in enumerate(self.loops.instrs):
            self._emit(n_)
        for store in self.loops.stores:
            self._store(store)

    tiled: Expr | None = None
    masks: dict[str, str]

    def _rows(self) -> None:
        rows, form = self.loops.rows, self.form
        wide = ".to(tl.int64)" if cdiv(rows, form.block) * form.block > _INT32 else ""
        self.line(f"p = tl.program_id(0){wide} * {form.block} + "
                  f"tl.arange(0, {form.block})[:, None]")  # fmt: skip
        self.masks = {}
        if rows % form.block:
            self.masks["p"] = "p_in"
            self.line(f"p_in = p < {rows}")

    def _row(self) -> None:
        self._rows()
        form, depth = self.form, self.loops.depth
        self.line(f"r = tl.arange(0, {form.chunk})[None, :]")
        if depth != form.chunk:
            self.masks["r"] = "r_in"
            self.line(f"r_in = r < {depth}")
        self._wide_names()
        for n in sorted(_needed(self.loops.instrs, [n for _, _, n in self.loops.stores])):
            self._step(n)
        for store in self.loops.stores:
            self._store(store)

    def _slab(self) -> None:
        """Every `parts`-th block of rows, columns accumulated on the way."""
        loops, form, instrs = self.loops, self.form, self.loops.instrs
        folds = [n for n, i in enumerate(instrs) if i.op == "fold"]
        needed = sorted(
            _needed(instrs, [n for _, _, n in loops.stores] + [instrs[n].args[0] for n in folds])
        )
        self.line(f"r = tl.arange(0, {form.chunk})[None, :]")
        self.masks = {}
        if loops.depth != form.chunk:
            self.masks["r"] = "r_in"
            self.line(f"r_in = r < {loops.depth}")
        self._wide_names(with_p=False)
        for n in needed:
            if "p" not in instrs[n].names:
                self._step(n)
        for n in folds:
            kind = accumulator(instrs[instrs[n].args[0]].dtype)
            start = literal(_identity(instrs[n].meta[0], kind), kind)
            shape = f"({form.block}, {form.chunk})"
            self.line(f"a{n} = tl.zeros({shape}, {MEMORY[kind]}) + {start}")
        ahead = [n for n in needed if form.ahead and _streams(loops, instrs[n])]
        rows = f"tl.arange(0, {form.block})[:, None]"
        wide = cdiv(loops.rows, form.block) * form.block + form.parts * form.block > _INT32
        cast = ".to(tl.int64)" if wide else ""
        step = form.parts * form.block
        self.line(f"first = tl.program_id(0){cast} * {form.block}")
        if ahead:
            self.line(f"q = first + {rows}")
            self._load_ahead(ahead)
        self.line(f"for start in range(first, {loops.rows}, {step}):")
        self.depth += 1
        self.line(f"p = start + {rows}")
        if loops.rows % form.block:
            self.masks["p"] = "p_in"
            self.line(f"p_in = p < {loops.rows}")
        self._wide_names(with_r=False)
        for n in ahead:
            self.value[n] = f"v{n}"
            self.line(f"v{n} = {loaded(f'n{n}', instrs[n].meta[0].aval.dtype)}")
        if ahead:
            # The next rows are under way while these are worked on.
            self.line(f"q = p + {step}")
            self._load_ahead(ahead)
        for n in needed:
            if "p" in instrs[n].names and n not in ahead:
                self._step(n)
        for n in folds:
            self._accumulate(n, "p")
        for store in loops.stores:
            self._store(store)
        self.depth -= 1
        self.masks.pop("p", None)
        for k, n in enumerate(folds):
            kind = accumulator(instrs[instrs[n].args[0]].dtype)
            self._finish(n, instrs[n], f"a{n}", kind, 0, whole=True)
            target = self.pointer(Part(k, kind), True)
            mask = f", {self.masks['r']}" if "r" in self.masks else ""
            self.line(f"tl.store({target} + (tl.program_id(0) * {loops.depth} + r), v{n}{mask})")

    def _step(self, n: int) -> None:
        """One instruction of a kernel with rows on chip."""
        i = self.loops.instrs[n]
        if i.op == "reduce":
            x = self._tile(i.args[0], accumulator(self.loops.instrs[i.args[0]].dtype))
            self.value[n] = self._reduced(n, i, x, "r")
        else:
            self._emit(n)

    def _load_ahead(self, loads: Sequence[int]) -> None:
        """n{i}: what the loads find at rows `q`."""
        rows = self.loops.rows
        before, self.masks = self.masks, {**self.masks, "q": "q_in"}
        self.masks.pop("p", None)
        self.line(f"q_in = q < {rows}")
        if any(_is_wide(self.loops.instrs[n].meta[1]) for n in loads):
            self.line("q_wide = q.to(tl.int64)")
        for n in loads:
            i = self.loops.instrs[n]
            target, offset, guards = i.meta
            names = (i.names - {"p"}) | {"q"}
            place = ix.substitute(offset, "p", ix.var("q", rows)) if rows > 1 else offset
            self.line(f"n{n} = {self._loaded(target, place, names, guards)}")
        self.masks = before

    def _looped(self) -> None:
        """One pass over r for each level of reductions, and one for stores that need the last."""
        loops = self.loops
        self._rows()
        instrs = loops.instrs
        fixed = [n for n, i in enumerate(instrs) if "r" not in i.names and i.op != "reduce"]
        stores = [s for s in loops.stores if "r" in s[1].names]
        flat = [s for s in loops.stores if "r" not in s[1].names]
        levels = sorted(
            {instrs[i.args[0]].level for i in instrs if i.op == "reduce"}
            | {instrs[n].level for _, _, n in stores}
        )
        self._wide_names(with_r=False)
        done: set[int] = set()
        for level in levels:
            if self.partial and level > 0:
                break
            for n in fixed:
                if instrs[n].level <= level and n not in done:
                    done.add(n)
                    self._emit(n)
            now = [
                n for n, i in enumerate(instrs)
                if i.op == "reduce" and instrs[i.args[0]].level == level
            ]  # fmt: skip
            here = [s for s in stores if instrs[s[2]].level == level]
            self._pass(now, here)
        if self.partial:
            values: list[str] = []
            for n, i in enumerate(instrs):
                if i.op == "reduce":
                    values += [f"m{n}"] * i.meta[0].startswith("arg") + [self.value[n]]
            for part, value in zip(_parts(loops), values):
                target = self.pointer(part, True)
                mask = f", {self.masks['p']}" if "p" in self.masks else ""
                self.line(
                    f"tl.store({target} + (tl.program_id(1) * {loops.rows} + p), {value}{mask})"
                )
            for store in flat:
                # Every part computes it alike; one of them writes.
                self.line("if tl.program_id(1) == 0:")
                self.depth += 1
                self._store(store)
                self.depth -= 1
            return
        for n in fixed:
            if n not in done:
                self._emit(n)
        for store in flat:
            self._store(store)

    def _pass(self, reductions: list[int], stores: list[tuple[Any, Expr, int]]) -> None:
        loops, form, instrs = self.loops, self.form, self.loops.instrs
        shape = f"({form.block}, {form.chunk})"
        for n in reductions:
            i = instrs[n]
            kind = accumulator(instrs[i.args[0]].dtype)
            start = literal(_identity(i.meta[0], kind), kind)
            self.line(f"a{n} = tl.zeros({shape}, {MEMORY[kind]}) + {start}")
            if i.meta[0].startswith("arg"):
                self.line(f"w{n} = tl.full({shape}, {loops.depth}, tl.int32)")
        if form.parts > 1 or not form.final:
            self.line(f"first = tl.program_id(1) * {form.length}")
            self.line(f"for start in range(first, first + {form.length}, {form.chunk}):")
            exact = loops.depth % form.chunk == 0 and loops.depth == form.length * form.parts
        else:
            self.line(f"for start in range(0, {loops.depth}, {form.chunk}):")
            exact = loops.depth % form.chunk == 0
        self.depth += 1
        self.line(f"r = start + tl.arange(0, {form.chunk})[None, :]")
        before = dict(self.value), dict(self.masks)
        if not exact:
            self.masks["r"] = "r_in"
            self.line(f"r_in = r < {loops.depth}")
        self._wide_names(with_p=False)
        needed = _needed(instrs, [instrs[n].args[0] for n in reductions] + [s[2] for s in stores])
        for n in sorted(needed):
            if "r" in instrs[n].names and instrs[n].op != "reduce":
                self._emit(n)
        for n in reductions:
            self._accumulate(n)
        for store in stores:
            self._store(store)
        self.depth -= 1
        self.value, self.masks = before
        for n in reductions:
            i = instrs[n]
            if i.meta[0].startswith("arg"):
                self._position(n, i, f"w{n}")
            else:
                kind = accumulator(instrs[i.args[0]].dtype)
                self.value[n] = self._finish(n, i, f"a{n}", kind)

    def _accumulate(self, n: int, var: str = "r") -> None:
        i = self.loops.instrs[n]
        kind = accumulator(self.loops.instrs[i.args[0]].dtype)
        x, name = self._tile(i.args[0], kind), i.meta[0]
        if var in self.masks:
            x = f"tl.where({self.masks[var]}, {x}, {literal(_identity(name, kind), kind)})"
        if name == "reduce_sum":
            self.line(f"a{n} += {x}")
        elif name in ("reduce_max", "reduce_min"):
            self.line(f"a{n} = {'maximum' if name == 'reduce_max' else 'minimum'}({x}, a{n})")
        elif name == "reduce_xor":
            self.line(f"a{n} = a{n} ^ {x}")
        elif name in _COMBINE:
            self.line(f"a{n} = {_COMBINE[name]}(a{n}, {x})")
        else:
            self.line(f"x{n} = {x}")
            sign = ">" if name == "argmax" else "<"
            better = f"(x{n} {sign} a{n}) | (w{n} == {self.loops.depth})"
            if dtypes.is_float(kind):
                better = f"({better} | (x{n} != x{n})) & (a{n} == a{n})"
            if "r" in self.masks:
                better = f"({better}) & {self.masks['r']}"
            self.line(f"t{n} = {better}")
            self.line(f"w{n} = tl.where(t{n}, r, w{n})")
            self.line(f"a{n} = tl.where(t{n}, x{n}, a{n})")

    # Reductions of a tile.

    def _tile(self, n: int, kind: DType) -> str:
        """Value n as a whole tile of dtype `kind`."""
        i, text = self.loops.instrs[n], self.value[n]
        if held(i.dtype) != kind:
            text = f"{text}.to({MEMORY[kind]})"
        whole = "r" in i.names and ("p" in i.names or self.form.block == 1)
        return (
            text
            if whole
            else (
                f"tl.broadcast_to({self._block(n, text)}, ({self.form.block}, {self.form.chunk}))"
            )
        )

    def _block(self, n: int, text: str) -> str:
        """`text` as a block of two dimensions."""
        if self.loops.instrs[n].names:
            return text
        kind = accumulator(self.loops.instrs[n].dtype)
        return f"({text} + tl.zeros((1, 1), {MEMORY[kind]}))"

    def _reduced(self, n: int, i: Instr, x: str, var: str) -> str:
        kind = accumulator(self.loops.instrs[i.args[0]].dtype)
        name = i.meta[0]
        if "r" in self.masks:
            x = f"tl.where({self.masks['r']}, {x}, {literal(_identity(name, kind), kind)})"
        if name.startswith("arg"):
            self.line(f"a{n} = {x}")
            here = "r" if len(i.args) == 1 else self._tile(i.args[1], held(i.dtype))
            if "r" in self.masks:
                here = f"tl.where({self.masks['r']}, {here}, {_INT32})"
            self._position(n, i, here)
            return f"v{n}"
        return self._finish(n, i, x, kind)

    def _position(self, n: int, i: Instr, here: str) -> None:
        """v{n}: the least of the positions `here` at which a{n} is its row's extreme."""
        kind = accumulator(self.loops.instrs[i.args[0]].dtype)
        self.line(f"m{n} = {_extreme(f'a{n}', i.meta[0] == 'argmax', kind)}")
        hit = f"a{n} == m{n}"
        if dtypes.is_float(kind):
            hit = f"({hit}) | ((a{n} != a{n}) & (m{n} != m{n}))"
        first = f"tl.min(tl.where({hit}, {here}, {_INT32}), 1, keep_dims=True)"
        self.line(f"v{n} = {first}.to({MEMORY[i.dtype]})")
        self.value[n] = f"v{n}"

    def _finish(
        self, n: int, i: Instr, x: str, kind: DType, axis: int = 1, whole: bool = False
    ) -> str:
        """v{n}: tile `x` reduced along an axis, `whole` in the accumulator's dtype."""
        name = i.meta[0]
        if name == "reduce_sum":
            text = f"tl.sum({x}, {axis}, keep_dims=True)"
        elif name in ("reduce_max", "reduce_min"):
            self.line(f"x{n} = {x}")
            text = _extreme(f"x{n}", name == "reduce_max", kind, axis)
        elif name == "reduce_xor":
            text = f"tl.xor_sum({x}, {axis}, keep_dims=True)"
        else:
            text = f"tl.reduce({x}, {axis}, {_COMBINE[name]}, keep_dims=True)"
        if not (whole or self.partial or held(i.dtype) == kind):
            text = f"{text} != 0" if i.dtype == dtypes.BOOL else f"({text}).to({MEMORY[i.dtype]})"
        self.line(f"v{n} = {text}")
        return f"v{n}"

    # Instructions.

    def _emit(self, n: int) -> None:
        if self.partial and self.loops.instrs[n].level:
            return
        i = self.loops.instrs[n]
        text = _MAKERS[i.op](self, i)
        if i.op == "const":
            self.value[n] = text
            return
        self.line(f"v{n} = {text}")
        self.value[n] = f"v{n}"

    def _names_of(self, names: Any) -> list[str]:
        if self.tiled is None:
            return sorted(names)
        return sorted({*names} - {"p"} | ({"i", "j"} if "p" in names else set()))

    def _expr(self, e: Expr) -> Expr:
        return ix.substitute(e, "p", self.tiled) if self.tiled is not None else e

    def _mask(self, names: Any, guards: Any) -> str:
        parts = [self.masks[x] for x in self._names_of(names) if x in self.masks]
        parts += sorted([self._condition(g) for g in guards])
        return " & ".join(parts)

    def _condition(self, g: Any) -> str:
        return f"({ix.Guard(self._expr(g.expr), g.lo, g.hi).text() or 'True'})"

    def _address(self, offset: Expr, names: Any) -> str:
        """The text of an element offset that varies along all of `names`."""
        offset = self._expr(offset)
        text = offset.text("_wide" if _is_wide(offset) else "")
        missing = [x for x in self._names_of(names) if x not in offset.names]
        return text + "".join([f" + {x} * 0" for x in missing if x in ("p", "q", "r", "i", "j")])

    def _wide_names(self, with_p: bool = True, with_r: bool = True) -> None:
        """64-bit versions of the loop variables, for the offsets that need them."""
        used: set[str] = set()
        for e in [i.meta[1] for i in self.loops.instrs if i.op == "load"] + [
            e for _, e, _ in self.loops.stores
        ]:
            e = self._expr(e)
            if _is_wide(e):
                used |= e.names
        for name in sorted(used):
            if (name == "r" and with_r) or (name != "r" and with_p):
                self.line(f"{name}_wide = {name}.to(tl.int64)")

    def _load(self, i: Instr) -> str:
        target, offset, guards = i.meta
        kind = target.dtype if type(target) is Part else target.aval.dtype
        return loaded(self._loaded(target, offset, i.names, guards), kind)

    def _loaded(self, target: Any, offset: Expr, names: Any, guards: Any) -> str:
        """The text of a load, as it lies in memory."""
        pointer = self.pointer(target, False)
        mask = self._mask(names, guards)
        kind = target.dtype if type(target) is Part else target.aval.dtype
        address = self._address(offset, names)
        zero = "0.0" if dtypes.is_float(kind) else "0"
        extra = f", {mask}, other={zero}" if mask else ""
        return f"tl.load({pointer} + ({address}){extra})"

    def _index(self, i: Instr) -> str:
        e = self._expr(i.meta)
        if not e.names:
            return literal(e.const, i.dtype)
        return rounded(f"({e.text()}).to({register(i.dtype)})", i.dtype)

    def _where(self, i: Instr) -> str:
        a, b = [self.value[x] for x in i.args]
        guards = " & ".join(sorted([self._condition(g) for g in i.meta]))
        return f"tl.where({guards}, {a}, {b})"

    def _round(self, i: Instr) -> str:
        return rounded(self.value[i.args[0]], i.dtype)

    def _map(self, i: Instr) -> str:
        instrs = self.loops.instrs
        operands = [aval((), instrs[a].dtype) if type(a) is int else a.value for a in i.args]
        names = [self.value[a] if type(a) is int else "" for a in i.args]
        return expression(i.meta[0], names, operands, dict(i.meta[1]), i.near)

    def _join(self, i: Instr) -> str:
        a, b = [self.value[x] for x in i.args]
        if i.meta[0] == "reduce_sum":
            return f"({a} + {b})"
        return f"{'maximum' if i.meta[0] == 'reduce_max' else 'minimum'}({a}, {b})"

    def _store(self, store: tuple[Any, Expr, int]) -> None:
        target, offset, n = store
        pointer = self.pointer(target, True)
        names = set(offset.names)
        kind, value = target.aval.dtype, self.value[n]
        value = stored(value, kind)
        address = self._address(offset, names)
        if self.form.kind in ("row", "looped", "slab") and not names & {"p", "r"}:
            address += " + p * 0"
            names = names | {"p"}
        elif self.form.kind == "flat" and not names & {"p"}:
            address += " + p * 0"
            names = names | {"p"}
        elif self.form.kind == "tiled" and not names & {"p"}:
            address += " + i * 0"
        mask = self._mask(names, ())
        self.line(f"tl.store({pointer} + ({address}), {value}{', ' + mask if mask else ''})")


_MAKERS = {
    "load": _Text._load, "index": _Text._index, "where": _Text._where, "round": _Text._round,
    "map": _Text._map, "join": _Text._join,
    "const": lambda self, i: rounded(literal(i.meta.value, i.dtype), i.dtype),
}  # fmt: skip


def _is_wide(e: Expr) -> bool:
    """Whether an offset needs 64 bits."""
    return max(abs(e.lo), abs(e.hi)) > _INT32


def _extreme(x: str, greatest: bool, kind: DType, axis: int = 1) -> str:
    """Text of the extremes of tile `x`, a name, along an axis; NaN where there is one."""
    f = "max" if greatest else "min"
    if not dtypes.is_float(kind):
        return f"tl.{f}({x}, {axis}, keep_dims=True)"
    worst = 'float("-inf")' if greatest else 'float("inf")'
    clean = f"tl.{f}(tl.where({x} != {x}, {worst}, {x}), {axis}, keep_dims=True)"
    nan = f"tl.max(({x} != {x}).to(tl.int32), {axis}, keep_dims=True) != 0"
    return f'tl.where({nan}, float("nan"), {clean})'


def _identity(name: str, kind: DType) -> Any:
    """What a reduction that accumulates in dtype `kind` starts from."""
    if name == "reduce_and":
        return 1 if kind == dtypes.BOOL else ~0
    if name in ("reduce_max", "argmax", "reduce_min", "argmin"):
        return extreme_over_nothing(kind, name in ("reduce_max", "argmax"))
    return 1 if name == "reduce_prod" else 0


__all__ = ["Generated", "accumulator", "generate", "kernel"]
