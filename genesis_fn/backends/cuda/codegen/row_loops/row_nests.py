"""Writes the kernel of a loop that runs for each row by itself (`compiler/row_loops/nest.py`).

A program has a block of rows, one to a thread or, with lanes, tiles [rows, lanes]. What a loop
carries stays in registers: `c{n}` in the text, assigned at the end of each step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.backends.cuda.codegen.kernel_text import source_kernel
from genesis_fn.backends.cuda.codegen.loops import INT32, SITES, accumulator, is_wide, map_text
from genesis_fn.backends.cuda.codegen.reductions import reduced
from genesis_fn.backends.cuda.codegen.row_loops.random_words import philox_lines, threefry_lines
from genesis_fn.backends.cuda.codegen.source import kernel
from genesis_fn.compiler.loop_ir.kernel import Instr, Literal
from genesis_fn.compiler.row_loops.nest import RowNest, RowStep, RowStore
from genesis_fn.compiler.row_loops.registers import most_alive
from genesis_fn.compiler.row_loops.stacks import PROGRAM
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, IndexGuard
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Var
from genesis_fn.kernels.language.dtypes import MEMORY, NAMES
from genesis_fn.kernels.language.expressions import literal, loaded, register, rounded, stored
from genesis_fn.kernels.plan import BufferArg, Launch, Plan, Workspace
from genesis_fn.kernels.plan_builder import cdiv, next_power_of_two

PRECISION = {"default": "default", "tf32": "tf32", "tf32x3": "tf32x3", "highest": "ieee"}
_REGISTERS = 192  # of a thread, for the elements that are alive at once
_UNROLLED = 160  # instructions of the unrolled steps of a loop
_MANY, _LONG = 4, 200  # accesses, and instructions, that take long to compile
_MOST_AHEAD = 64  # loads that are made a step ahead
_ACCESSES = ("load", "read", "matrix", "lookup")
_MOST_STEPS = 8  # that are unrolled, so that the loads of all wait together


@dataclass(frozen=True, slots=True)
class RowTiling:
    """A program's `block` rows and `warps`."""

    block: int
    warps: int


def choose_row_tiling(nest: RowNest, target: Target) -> RowTiling:
    """Rows enough to fill the processors, then wider programs."""
    lanes = max([math.prod(_padded(nest, i.names)) for i in nest.instrs], default=1)
    rows = next_power_of_two(nest.rows)
    if lanes <= 32 and not nest.of("dot"):
        # An element to a thread: a warp to a program before programs of four.
        threads = 128 if nest.rows * lanes >= 256 * target.processors else 32
        block = min(rows, threads // lanes)
        return RowTiling(block, max(1, block * lanes // 32))
    least = 16 if nest.of("dot") else 1
    block = max(least, min(32, rows, 4096 // lanes))
    while block > least and cdiv(nest.rows, block) < target.processors:
        block //= 2
    # Eight elements of a value to a thread, of which many are alive. Matrices are turned and
    # reduced by as few threads as have registers for them: 256 steps of 64 states took 0.65 ms with
    # 4 warps, 0.94 with 8 and 1.59 with 16 (H200).
    wanted = block * lanes // 256
    if nest.lanes.twins:
        wanted = next_power_of_two(cdiv(block * most_alive(nest), 32 * _REGISTERS))
    return RowTiling(block, min(16, max(1, wanted)))


def plan_row_nest(
    nest: RowNest, target: Target, sites: Sequence[int] = (), in_place: bool = False
) -> tuple[Plan, list[Var], str]:
    """(plan, the values that it reads, source) of a nest's kernel; it writes `nest.results`, with
    `in_place` some of them where it has read, and where it checks something the error word, at the
    `sites` of `nest.checks`."""
    tiling = choose_row_tiling(nest, target)
    writer = RowWriter(nest, tiling, sites, in_place)
    function, parameters = writer.write()
    reads = list(dict.fromkeys([v for v, written in parameters.values() if not written]))
    number = {(v, False): n for n, v in enumerate(reads)}
    number |= {(v, True): len(reads) + n for n, v in enumerate(nest.results)}
    outputs = len(nest.results) + bool(sites)
    number |= {(v, True): len(reads) + outputs + n for n, v in enumerate(nest.scratch)}
    arguments = {
        name: BufferArg(number[key], NAMES[key[0].aval.dtype]) for name, key in parameters.items()
    }
    if sites:
        arguments["error"] = BufferArg(len(reads) + len(nest.results), "i64")
    grid = (cdiv(nest.rows, tiling.block), 1, 1)
    launch = Launch(function, grid, arguments, {}, tiling.warps, 1)
    source = function.text[function.text.index(f"def {function.name}(") :]
    scratch = tuple([Workspace(max(16, v.aval.nbytes)) for v in nest.scratch])
    return Plan(len(reads), outputs, (launch,), scratch), reads, source


class RowWriter:
    """Writes the lines of one kernel. `value[n]` is the text of instruction n."""

    def __init__(
        self, nest: RowNest, tiling: RowTiling, sites: Sequence[int], in_place: bool = False
    ) -> None:
        self.nest, self.tiling, self.sites, self.in_place = nest, tiling, sites, in_place
        self.lines: list[str] = []
        self.depth = 1
        self.suffix = ""
        self.value: dict[int, str] = {}
        self.masks: dict[str, str] = {}
        self.wide: set[str] = set()
        self.parameters: dict[str, tuple[Var, bool]] = {}
        self._names: dict[tuple[Var, bool], str] = {}

    def write(self) -> tuple[SourceKernel, Mapping[str, tuple[Var, bool]]]:
        """(kernel, what its parameters point to: a value, and whether it is written)."""
        nest, block = self.nest, self.tiling.block
        self._find_wide()
        if nest.rows > 1:
            cast = ".to(tl.int64)" if cdiv(nest.rows, block) * block > INT32 else ""
            spread = self._spread(0) if nest.lanes else ""
            self.line(f"p = tl.program_id(0){cast} * {block} + tl.arange(0, {block}){spread}")
            self._bounded("p", nest.rows, nest.rows % block == 0)
        for name, n in nest.lanes.items():
            along = self._spread(nest.lanes.axis(name))
            padded = nest.lanes.padded(name)
            self.line(f"{name} = tl.arange(0, {padded}){along}")
            self._bounded(name, n, n == padded)
        if any([PROGRAM in s.offset.names for stores in nest.writes for s in stores]):
            self.line(f"{PROGRAM} = tl.program_id(0)")
            self._widened(PROGRAM)
        self._block(0)
        body = "".join([f"{line}\n" for line in self.lines or ["    pass"]])
        names = [*self.parameters, *(["error"] if self.sites else [])]
        make = source_kernel if self.sites else kernel
        return make("rows", ", ".join(names), body), self.parameters

    def _spread(self, axis: int) -> str:
        """What makes numbers in a row those along an axis of a tile."""
        axes = ["None"] * (3 if self.nest.lanes.twins else 2)
        axes[axis] = ":"
        return f"[{', '.join(axes)}]"

    def _find_wide(self) -> None:
        """Find the variables of offsets that need 64 bits."""
        nest = self.nest
        offsets = [i.meta[1] for i in nest.instrs if i.op in _ACCESSES]
        for e in [*offsets, *[s.offset for stores in nest.writes for s in stores]]:
            if is_wide(e):
                self.wide |= e.names

    def line(self, text: str) -> None:
        """Append a line at the current indentation."""
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def _indented(self) -> Generator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def _bounded(self, name: str, size: int, exact: bool) -> None:
        if not exact:
            self.masks[name] = f"{name}_in"
            self.line(f"{name}_in = {name} < {size}")
        self._widened(name)

    def _widened(self, name: str) -> None:
        if name in self.wide:
            self.line(f"{name}_wide = {name}.to(tl.int64)")

    # ---- blocks and loops ----

    def _block(self, block: int, made: Collection[int] = ()) -> None:
        """Write the instructions of a block but those `made`, and its stores."""
        if not block and len(self.nest.instrs) >= _LONG:
            made = self._carried_loads()
        for n in self.nest.blocks[block]:
            if n not in made:
                self._instruction(n)
        stores = self.nest.writes[block]
        if not block and self.in_place:
            # Threads store where others of their program may have yet to load.
            self.line("tl.debug_barrier()")
        if not block and len(self.nest.instrs) >= _LONG and len(stores) >= _MANY:
            self._carried_stores(stores)
            return
        for store in stores:
            address, value, mask = self._stored(store)
            self.line(f"tl.store({address}, {value}{', ' + mask if mask else ''})")

    # Triton 3.6 looks, for each pointer that an instruction has computed, at everything that
    # depends on what it depends on, and from there again: 6 s of 8 for ten loads before a loop of
    # 700 instructions and 20 stores behind it. It does not for pointers that a loop carries.

    def _carried_loads(self) -> list[int]:
        """Write the loads before all loops, if they are many: those that are written."""
        instrs = self.nest.instrs
        loads = [n for n in self.nest.blocks[0] if instrs[n].op == "load" and instrs[n].names]
        if len(loads) < _MANY:
            return []
        for n in loads:
            self.value[n] = f"v{n}{self.suffix}"
            kind = register(instrs[n].dtype)
            self.line(f"{self.value[n]} = tl.zeros({self._shape(instrs[n].names)}, {kind})")
        with self._once([self._access(instrs[n])[0] for n in loads]):
            for k, n in enumerate(loads):
                target, mask = instrs[n].meta[0], self._access(instrs[n])[1]
                text = loaded(f"tl.load(q{k}{mask})", target.aval.dtype)
                self.line(f"{self.value[n]} = {self._whole(text, instrs[n])}")
        return loads

    def _carried_stores(self, stores: Sequence[RowStore]) -> None:
        """Write the stores behind all loops."""
        found = [self._stored(store) for store in stores]
        with self._once([address for address, _, _ in found]):
            for k, (_, value, mask) in enumerate(found):
                self.line(f"tl.store(q{k}, {value}{', ' + mask if mask else ''})")

    @contextmanager
    def _once(self, addresses: Sequence[str]) -> Generator[None]:
        """A loop of one turn that carries pointers, as q0, q1 and so on."""
        for k, address in enumerate(addresses):
            self.line(f"q{k} = {address}")
        self.line("nothing = opaque(tl.full((), 0, tl.int32))")
        self.line("for once in range(opaque(tl.full((), 1, tl.int32))):")
        with self._indented():
            yield
            for k in range(len(addresses)):
                self.line(f"q{k} += nothing")

    def _instruction(self, n: int) -> None:
        i = self.nest.instrs[n]
        if i.op == "loop":
            self._barrier(i.meta)
            self._loop(i.meta)
            self._barrier(i.meta)
            self.value[n] = ""
        elif i.op == "after":
            self.value[n] = self.value[i.args[0]]
        elif i.op == "const":
            # Constants stand where they are used: the compiler folds them into instructions.
            self.value[n] = rounded(literal(i.meta.value, i.dtype), i.dtype)
        elif i.op != "carried":
            self.value[n] = f"v{n}{self.suffix}"
            self._define(self.value[n], n, i)

    def _barrier(self, step: RowStep) -> None:
        """Around a loop whose stacks are read: a thread may read what another one has written, in
        this step of the loop around or in the one before."""
        if step.shares:
            self.line("tl.debug_barrier()")

    def _loop(self, step: RowStep) -> None:
        for _, here, _ in step.carried:
            # Of one shape and dtype in every step.
            self.value[here] = f"c{here}"
        for k, (first, here, _) in enumerate(step.carried):
            i = self.nest.instrs[here]
            text = self._whole(self.value[first], i)
            self.line(f"c{here} = {_another(text, i.dtype) if k else text}")
        if step.predicate is not None:
            self._while(step)
            return
        copies, early = self._copies(step), self._early_loads(step)
        outer = self.suffix
        if copies == 1:
            self._ahead(step, early if len(early) <= _MOST_AHEAD else ())
            return
        main = step.length - step.length % copies
        self.line(f"for {step.counter}_at in range(0, {main}, {copies}):")
        with self._indented():
            self._unrolled_steps(step, copies, early)
        if main < step.length:
            self.line(f"for {step.counter}_at in range({main}, {step.length}):")
            with self._indented():
                self._count(step, "")
                self._block(step.block)
                self._assign(step)
        self.suffix = outer

    def _ahead(self, step: RowStep, early: Sequence[int]) -> None:
        """A scan whose loads are made a step ahead, while the one before computes."""
        instrs = self.nest.instrs
        if early:
            self.line(f"{step.counter} = tl.full((), 0, tl.int32)")
            self._widened(step.counter)
            for n in early:
                self._define(f"f{n}", n, instrs[n])
        self.line(f"for {step.counter}_at in range({step.length}):")
        with self._indented():
            if early:
                # Beyond the last step that one's values are read again.
                self._count(step, " + 1", step.length - 1)
                for n in early:
                    self.value[n] = f"v{n}{self.suffix}"
                    self.line(f"{self.value[n]} = f{n}")
                for n in early:
                    self._define(f"f{n}", n, instrs[n])
            self._count(step, "")
            self._block(step.block, early)
            self._assign(step)

    def _copies(self, step: RowStep) -> int:
        """How many steps are written one after the other: few instructions leave the time to the
        loads, of which several are then under way."""
        size = len(self.nest.blocks[step.block])
        inner = any(self.nest.instrs[n].op == "loop" for n in self.nest.blocks[step.block])
        # A step of whole matrices leaves its loads the time.
        if inner or self.nest.lanes.twins or not self._early_loads(step):
            return 1
        copies = min(_MOST_STEPS, max(1, _UNROLLED // max(size, 1)), step.length)
        divisors = [k for k in range(1, copies + 1) if step.length % k == 0]
        return max(divisors) if max(divisors) * 2 > copies else copies

    def _early_loads(self, step: RowStep) -> list[int]:
        """The loads that can be made before their step: a read of what a loop in the step itself
        stacks cannot."""
        nest = self.nest
        found = [n for n in nest.blocks[step.block] if step.counter in nest.instrs[n].names]
        is_early = lambda n, i: (
            i.op == "load" or (i.op == "read" and nest.block_of[i.args[0]] != step.block)
        )
        return [n for n in found if is_early(n, nest.instrs[n])]

    def _unrolled_steps(self, step: RowStep, count: int, early: Sequence[int]) -> None:
        """`count` steps of a scan: the loads of all, then one after the other."""
        outer, loads = self.suffix, []
        for k in range(count):
            self.suffix = f"{outer}_{k}"
            self._count(step, f" + {k}")
            for n in early:
                self._instruction(n)
            loads.append({n: self.value[n] for n in early})
        for k in range(count):
            self.suffix = f"{outer}_{k}"
            self._count(step, f" + {k}")
            self.value.update(loads[k])
            self._block(step.block, early)
            self._assign(step)

    def _count(self, step: RowStep, more: str, most: int | None = None) -> None:
        """Define the counter's variable, `more` than the loop's and `most` at most."""
        # A sum with a tensor: of the interpreter's loops the variable is a Python number.
        text = f"tl.full((), 0, tl.int32) + {step.counter}_at{more}"
        if most is not None:
            text = f"tl.minimum({text}, {most})"
        self.line(f"{step.counter} = {text}")
        self._widened(step.counter)

    def _while(self, step: RowStep) -> None:
        assert step.predicate is not None
        name = f"go{step.block}"
        needed = self._needed(step.predicate, step.block)
        self._decide(name, step, needed)
        self.line(f"while {name} != 0:")
        with self._indented():
            self._block(step.block)
            self._assign(step)
            self._decide(name, step, needed)

    def _needed(self, root: int, block: int) -> list[int]:
        """The instructions of a block that one depends on."""
        found: set[int] = set()
        todo = [root]
        while todo:
            n = todo.pop()
            if n not in found and self.nest.block_of[n] == block:
                found.add(n)
                todo += self.nest.instrs[n].operands()
        return sorted(found)

    def _decide(self, name: str, step: RowStep, needed: Collection[int]) -> None:
        """Define whether a program goes on, by the values that its rows carry now."""
        before, suffix = dict(self.value), self.suffix
        self.suffix = f"{suffix}_q"
        for n in needed:
            self._instruction(n)
        assert step.predicate is not None
        text = self.value[step.predicate]
        names = self.nest.instrs[step.predicate].names
        if "p" in self.masks and "p" in names:
            text = f"({text} & p_in)"
        text = f"{text}.to(tl.int32)"
        self.line(f"{name} = tl.max({text})" if "p" in names else f"{name} = {text}")
        self.value, self.suffix = before, suffix

    def _assign(self, step: RowStep) -> None:
        """The next values become those that the loop carries: all at once."""
        moved = [(here, n) for _, here, n in step.carried if n != here]
        for here, n in moved:
            i = self.nest.instrs[here]
            text = self._whole(self.value[n], i)
            # A count that stays one, and no induction variable.
            counts = dtypes.is_integer(i.dtype) and i.dtype.itemsize >= 4
            self.line(f"n{here} = {f'opaque({text})' if counts else text}")
        for here, _ in moved:
            self.line(f"c{here} = n{here}")

    # ---- values ----

    def _shape(self, names: Collection[str]) -> str:
        """The shape of a value that depends on `names`; "" of a single number.

        Numbers are no tiles of one element: for Triton 3.6 the layouts of a long chain of those
        (the words of a key) took minutes.
        """
        lanes = self.nest.lanes
        rows = self.tiling.block if "p" in names else 1
        if "p" not in names and not lanes.within(names):
            return ""
        sizes = [rows, 1, 1] if lanes.twins else [rows, 1] if lanes else [rows]
        for x in lanes.within(names):
            sizes[lanes.axis(x)] = lanes.padded(x)
        return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"

    def _whole(self, text: str, i: Instr) -> str:
        """A value in the shape and register type of instruction `i`."""
        text = f"({text}).to({register(i.dtype)})"
        shape = self._shape(i.names)
        return f"tl.broadcast_to({text}, {shape})" if shape else text

    def _define(self, name: str, n: int, i: Instr) -> None:
        """Write the lines that define instruction n as `name`."""
        if i.op == "words":
            self._words(name, i)
        elif i.op == "reduce":
            self._reduce(name, i)
        elif i.op == "dot":
            self._dot(name, i)
        else:
            self.line(f"{name} = {self._text(i)}")

    def _text(self, i: Instr) -> str:
        values = [self.value[a] if type(a) is int else "" for a in i.args]
        if i.op == "map":
            return map_text(self.nest.instrs, i, values)
        if i.op in ("load", "read"):
            address, mask = self._access(i)
            return loaded(f"tl.load({address}{mask})", i.meta[0].aval.dtype)
        if i.op == "lookup":
            return self._lookup(i, values)
        if i.op == "checked":
            count, check = i.meta
            self._check(i.args[0], values[0], count, check)
            return values[0]
        if i.op == "matrix":
            return self._matrix(i)
        if i.op == "index":
            if not i.meta.names:
                return literal(i.meta.const, i.dtype)
            # Counters of loops are no induction variables where they are numbers.
            counts = not i.meta.names.isdisjoint(self.nest.counters.values())
            text = f"{'opaque' if counts else ''}({i.meta.text()})"
            return rounded(f"{text}.to({register(i.dtype)})", i.dtype)
        if i.op == "where":
            guards = " & ".join(sorted([f"({g.text() or 'True'})" for g in i.meta]))
            return f"tl.where({guards}, {values[0]}, {values[1]})"
        if i.op == "round":
            return rounded(values[0], i.dtype)
        if i.op == "turn":
            return f"tl.permute({self._whole(values[0], self.nest.instrs[i.args[0]])}, (0, 2, 1))"
        if i.op == "gather":
            return self._gather(i, values[0])
        if i.op == "word":
            return f"{values[0]}_{i.meta[0]}"
        assert i.op == "combine"
        a, b = values
        combine = i.meta[0].combine
        return f"({a} + {b})" if combine == "add" else f"{combine}({a}, {b})"

    def _gather(self, i: Instr, text: str) -> str:
        """Elements of a value along a lane, each at its index."""
        (at, lane), x, lanes = i.meta, self.nest.instrs[i.args[0]], self.nest.lanes
        axis, rows = lanes.axis(lane), i.names | (x.names & {"p"})
        whole = self._shape(
            {n for n in rows if lanes.get(n) is None or lanes.axis(n) != axis} | {lane}
        )
        index = f"tl.minimum(tl.maximum({at.text()}, 0), {lanes[lane] - 1})"
        index = f"tl.broadcast_to({index}, {self._shape(rows)})"
        narrow = x.dtype == dtypes.BOOL
        text = f"({text}).to({'tl.int32' if narrow else register(x.dtype)})"
        found = f"tl.gather(tl.broadcast_to({text}, {whole}), {index}, {axis})"
        return f"({found} != 0)" if narrow else found

    def _access(self, i: Instr) -> tuple[str, str]:
        """(the pointers of a load, its further arguments)."""
        target, offset, guards = i.meta
        mask = self._mask(i.names, guards)
        other = f", {mask}, other={_zero(target)}" if mask else ""
        pointer, address = self._pointer(target, i.op == "read"), self._address(offset)
        if mask:
            address += self._spread_over(i.names - offset.names)
        return f"{pointer} + ({address})", other

    def _lookup(self, i: Instr, indices: Sequence[str]) -> str:
        """An element of an array at `indices`, clamped or masked."""
        table, rest, strides, counts, mode, fill, checks = i.meta
        dtype, pointer = table.aval.dtype, self._pointer(table, False)
        address, inside = [self._address(rest)], []
        for n, index, stride, count, check in zip(i.args, indices, strides, counts, checks):
            if check is not None:
                self._check(n, index, count, check)
            held = f"tl.minimum(tl.maximum({index}, 0), {count - 1}).to(tl.int64)"
            address.append(f"{held} * {stride}")
            inside += [f"({index} >= 0)", f"({index} < {count})"]
        mask = self._mask(i.names, ())
        other = f", {mask}, other={_zero(table)}" if mask else ""
        text = loaded(f"tl.load({pointer} + ({' + '.join(address)}){other})", dtype)
        if mode != "fill":
            return text
        fill = rounded(literal(fill, dtype), dtype)
        return f"tl.where({' & '.join(inside)}, {text}, {fill})"

    def _check(self, n: int, index: str, count: int, check: tuple[int, int]) -> None:
        """Flag an error for the rows whose index, instruction n, is none of `count`."""
        of, (number, component) = self.nest.instrs[n], check
        site = self.sites[number] * SITES + min(component, SITES - 1)
        shape = self._shape(of.names) or "(1,)"
        bad = f"({index} < 0) | ({index} >= {count})"
        mask = self._mask(of.names, ())
        bad = f"({bad}) & {mask}" if mask else bad
        rows = self.tiling.block if "p" in of.names else 1
        size = rows * math.prod(_padded(self.nest, of.names))
        flat = [f"tl.reshape(tl.broadcast_to({x}, {shape}), ({size},))" for x in (bad, index)]
        self.line(f"flag_error(error, {flat[0]}, {flat[1]}, {site})")

    def _matrix(self, i: Instr) -> str:
        source, offset, depth, lane, along = i.meta
        padded, width = self.nest.lanes.padded(along), self.nest.lanes[lane]
        self.line(f"k = tl.arange(0, {padded})[:, None]")
        self.line(f"j = tl.arange(0, {self.nest.lanes.padded(lane)})[None, :]")
        offset = ix.substitute(offset, lane, ix.var("j", width))
        masks = [f"(j < {width})"] if lane in self.masks else []
        masks += [f"(k < {depth})"] if padded != depth else []
        other = f", {' & '.join(masks)}, other=0.0" if masks else ""
        return f"tl.load({self._pointer(source, False)} + ({offset.text()}){other})"

    def _dot(self, name: str, i: Instr) -> None:
        tile, matrix = [self.nest.instrs[a] for a in i.args]
        (lane,) = [x for x in tile.names if x in self.nest.lanes]
        text = self._whole(self.value[i.args[0]], tile)
        if lane in self.masks:
            # What lies beyond the lanes is multiplied by zeros, and must be a number.
            text = f"tl.where({self.masks[lane]}, {text}, 0.0)"
        text = stored(text, matrix.dtype)
        (width,), rows = _padded(self.nest, i.names), self.tiling.block
        behind = ""
        if self.nest.lanes.twins:  # tiles of two axes are multiplied
            text = f"tl.reshape({text}, ({rows}, {self.nest.lanes.padded(lane)}))"
            behind = "[:, :, None]"
        zero = f"tl.zeros(({rows}, {width}), tl.float32)"
        precision = PRECISION[i.meta[0]]
        matrix_text = self.value[i.args[1]]
        self.line(f'{name} = dot({text}, {matrix_text}, {zero}, "{precision}"){behind}')

    def _reduce(self, name: str, i: Instr) -> None:
        how, lane = i.meta
        x, text = self.nest.instrs[i.args[0]], self.value[i.args[0]]
        kind = accumulator(x.dtype)
        text = f"({text}).to({MEMORY[kind]})"
        if lane in self.masks:
            text = f"tl.where({self.masks[lane]}, {text}, {literal(how.identity(kind), kind)})"
        self.line(f"{name} = tl.broadcast_to({text}, {self._shape(x.names | {lane})})")
        self.line(f"{name} = {reduced(name, how.combine, kind, self.nest.lanes.axis(lane))}")
        if not i.names:
            self.line(f"{name} = tl.sum({name})")
        if i.dtype == dtypes.BOOL:
            self.line(f"{name} = {name} != 0")
        elif dtypes.widened(i.dtype) != kind:
            self.line(f"{name} = {name}.to({register(i.dtype)})")

    def _words(self, name: str, i: Instr) -> None:
        """A block of random words: `name`_0, `name`_1, ..."""
        k0, k1, *counter = [
            literal(a.value, dtypes.U32) if type(a) is Literal else self.value[a] for a in i.args
        ]
        self.line(f"k0 = ({k0}).to(tl.uint32)")
        self.line(f"k1 = ({k1}).to(tl.uint32)")
        philox = i.meta[0] == "philox"
        a, b, *more = counter
        for line in philox_lines((a, b, more[0], more[1])) if philox else threefry_lines(a, b):
            self.line(line)
        for k in range(4 if philox else 2):
            self.line(f"{name}_{k} = w{k}")

    # ---- memory ----

    def _pointer(self, target: Var, written: bool) -> str:
        # Named in order of appearance, so that equal structures give equal texts.
        key = target, written
        if key not in self._names:
            name = self._names[key] = f"b{len(self._names)}"
            self.parameters[name] = key
        return self._names[key]

    def _address(self, offset: Expr) -> str:
        return offset.text("_wide" if is_wide(offset) else "")

    def _spread_over(self, names: Collection[str]) -> str:
        """What gives an address the axes of these names as well."""
        tiles = [x for x in sorted(names) if x == "p" or x in self.nest.lanes]
        return "".join([f" + {x} * 0" for x in tiles])

    def _mask(self, names: Collection[str], guards: Collection[IndexGuard]) -> str:
        parts = [self.masks[x] for x in sorted(names) if x in self.masks]
        parts += sorted([f"({g.text()})" for g in guards if g.text()])
        return " & ".join(parts)

    def _stored(self, store: RowStore) -> tuple[str, str, str]:
        """(the pointers of a store, its values, its mask)."""
        value = self.nest.instrs[store.value]
        names = store.offset.names | value.names | {x for g in store.guards for x in g.expr.names}
        names = frozenset(x for x in names if x == "p" or x in self.nest.lanes)
        pointer, address = self._pointer(store.target, True), self._address(store.offset)
        # An address has the axes of what is stored there.
        address += self._spread_over(names - store.offset.names)
        text = stored(self._whole(self.value[store.value], value), store.target.aval.dtype)
        mask = self._mask(names, store.guards)
        return f"{pointer} + ({address})", text, mask


def _another(text: str, dtype: DType) -> str:
    """A value that is another one for Triton's front end, and the same for its compiler.

    The front end takes a variable for one that a loop does not change if it has, after a step, the
    very value that it had before the loop. Of two carries with one first value that is so of one
    that takes the other's (positions now and a step ago, that begin alike): it would never change.
    """
    if dtype == dtypes.BOOL:
        return f"({text} | False)"
    return f"({text} * 1.0)" if dtypes.is_float(dtype) else f"({text} + 0)"


def _padded(nest: RowNest, names: Collection[str]) -> list[int]:
    """The sizes of a row's tile of a value with these names."""
    return [nest.lanes.padded(x) for x in nest.lanes.within(names)]


def _zero(target: Var) -> str:
    return "0.0" if dtypes.is_float(target.aval.dtype) else "0"
