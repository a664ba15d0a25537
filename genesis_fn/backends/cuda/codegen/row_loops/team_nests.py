"""Writes the kernel of a loop whose rows a team of programs shares (`compiler/row_loops/team.py`).

A program is a member of the team of its rows: `program_id(0)` says which one, `program_id(1)` which
team. Its matrices are loaded ahead of the loop; Triton keeps them in shared memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.backends.cuda.codegen.kernel_text import source_kernel
from genesis_fn.backends.cuda.codegen.loops import SITES, is_wide
from genesis_fn.backends.cuda.codegen.row_loops.row_nests import PRECISION, RowTiling, RowWriter
from genesis_fn.compiler.loop_ir.kernel import Instr
from genesis_fn.compiler.row_loops.nest import RowStep
from genesis_fn.compiler.row_loops.team import Shared, TeamNest
from genesis_fn.core.jaxpr import Var
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.language.expressions import loaded, stored
from genesis_fn.kernels.plan import BufferArg, Launch, Memset, Plan, Workspace
from genesis_fn.kernels.plan_builder import cdiv, next_power_of_two

_MODULE = "genesis_fn.kernels.language.team"
_APART = 16  # counters of 8 bytes from a team's to the next one's: another line of the cache
# Past the first cache, which knows nothing of what other processors write.
_PAST = ', cache_modifier=".cg"'
POLLS = 1 << 24  # looks at a counter before a member gives up, about 12 s


def plan_team_nest(
    nest: TeamNest, site: int, sites: Sequence[int] = ()
) -> tuple[Plan, list[Var], str]:
    """(plan, the values that it reads, source) of a nest's kernel; it writes `nest.results`, and
    the error word, at `site` if members wait in vain, at the `sites` of `nest.checks`."""
    teams = cdiv(nest.rows, nest.block)
    warps = 4 if nest.block <= 32 else 8
    writer = _TeamWriter(nest, RowTiling(nest.block, warps), site, sites)
    function, parameters = writer.write()
    reads = list(dict.fromkeys([v for v, written in parameters.values() if not written]))
    number = {(v, False): n for n, v in enumerate(reads)}
    number |= {(v, True): len(reads) + n for n, v in enumerate(nest.results)}
    arguments = {
        name: BufferArg(number[key], NAMES[key[0].aval.dtype]) for name, key in parameters.items()
    }
    word = len(reads) + len(nest.results)
    arguments["error"] = BufferArg(word, "i64")
    arguments["arrived"] = BufferArg(word + 1, "i64")
    workspaces = [Workspace(8 * _APART * teams)]
    for n in nest.of("share"):
        i = nest.instrs[n]
        arguments[f"x{n}"] = BufferArg(word + 1 + len(workspaces), NAMES[i.dtype])
        workspaces.append(Workspace(2 * nest.rows * i.meta.width * i.dtype.itemsize))
    grid = (nest.members, teams, 1)
    launch = Launch(function, grid, arguments, {}, warps, 1, cooperative=True)
    source = function.text[function.text.index(f"def {function.name}(") :]
    steps = (Memset(word + 1), launch)
    return Plan(len(reads), len(nest.results) + 1, steps, tuple(workspaces)), reads, source


class _TeamWriter(RowWriter):
    """Writes the lines of one kernel. `pending` are the shared rows that this member has written
    since the team last met."""

    nest: TeamNest

    def __init__(self, nest: TeamNest, tiling: RowTiling, site: int, sites: Sequence[int]) -> None:
        super().__init__(nest, tiling, sites)
        self.site = site
        self.pending: set[int] = set()

    def write(self) -> tuple[SourceKernel, Mapping[str, tuple[Var, bool]]]:
        nest, block = self.nest, self.tiling.block
        self._find_wide()
        self.line("member = tl.program_id(0)")
        self.line(f"p = tl.program_id(1) * {block} + tl.arange(0, {block})[:, None]")
        self._bounded("p", nest.rows, nest.rows % block == 0)
        for name, n in nest.lanes.items():
            padded = next_power_of_two(n)
            self.line(f"{name}_part = tl.arange(0, {padded})[None, :]")
            mine = "" if name in nest.whole else f"member * {n} + "
            self.line(f"{name} = {mine}{name}_part")
            if n != padded:
                self.masks[name] = f"{name}_in"
                self.line(f"{name}_in = {name}_part < {n}")
            self._widened(name)
        self.line(f"arrived += tl.program_id(1) * {_APART}")
        self.line("meetings = tl.full((), 0, tl.int64)")
        for n in nest.of("share"):
            self.line(f"half{n} = tl.full((), 0, tl.int32)")
        for number in range(len(nest.groups)):
            self._matrices(number)
        self._block(0)
        body = "".join([f"{line}\n" for line in self.lines])
        shares = [f"x{n}" for n in nest.of("share")]
        names = ", ".join([*self.parameters, "error", "arrived", *shares])
        return source_kernel("team", names, body, _MODULE), self.parameters

    # ---- waiting for each other ----

    def _block(self, block: int, made: Collection[int] = ()) -> None:
        # What is carried is shared first, so that one meeting does for all of it.
        instrs = self.nest.instrs
        first = [
            n
            for n in self.nest.blocks[block]
            if instrs[n].op == "share"
            and all(
                self.nest.block_of[a] != block or instrs[a].op == "carried" for a in instrs[n].args
            )
        ]
        for n in first:
            if n not in made:
                self._instruction(n)
        super()._block(block, {*made, *first})

    def _loop(self, step: RowStep) -> None:
        self._meet()
        super()._loop(step)

    def _copies(self, step: RowStep) -> int:
        return 1

    def _meet(self) -> None:
        if self.pending:
            self.line("meetings = meetings + 1")
            everybody = f"meetings * {self.nest.members}"
            self.line(f"meet(arrived, {everybody}, error, {self.site * SITES}, {POLLS})")
            self.pending.clear()

    def _define(self, name: str, n: int, i: Instr) -> None:
        if i.op == "share":
            self._share(n, i)
        elif i.op == "product":
            self._product(n, i)
        else:
            if i.op == "whole" and i.args[0] in self.pending:
                self._meet()
            super()._define(name, n, i)

    # ---- shared rows ----

    def _share(self, n: int, i: Instr) -> None:
        """Write this member's parts. Halves take turns: who is behind still reads the other one."""
        meta: Shared = i.meta
        self.line(f"half{n} = 1 - half{n}")
        for a, part in zip(i.args, meta.parts):
            value = self.nest.instrs[a]
            names = part.names | value.names | {"p"}
            address = f"p * {meta.width} + {part.text()}"
            mask = self._mask([x for x in names if x in self.masks], ())
            text = stored(self._whole(self.value[a], self._named(value, names)), i.dtype)
            self.line(
                f"tl.store({self._row(n)} + ({address}), {text}{', ' + mask if mask else ''})"
            )
        self.pending.add(n)

    def _named(self, i: Instr, names: Collection[str]) -> Instr:
        """An instruction's value as one that depends on `names`."""
        return Instr(i.op, i.args, i.meta, i.dtype, frozenset(names), 0)

    def _row(self, n: int) -> str:
        """The address of a shared row's half."""
        size = self.nest.rows * self.nest.instrs[n].meta.width
        return f"x{n} + half{n} * {size}"

    def _text(self, i: Instr) -> str:
        if i.op != "whole":
            return super()._text(i)
        (n,) = i.args
        width = self.nest.instrs[n].meta.width
        return loaded(self._read(f"{self._row(n)} + (p * {width} + {i.meta})", i), i.dtype)

    def _read(self, address: str, i: Instr) -> str:
        mask = self._mask([x for x in i.names if x in self.masks], ())
        other = f", mask={mask}, other=0" if mask else ""
        return f"tl.load({address}{other}{_PAST})"

    # ---- products ----

    def _matrices(self, number: int) -> None:
        """Load the chunks of a group's matrix, as m{number}_{chunk}; columns of one element of the
        lane are neighbours, so that a warp has what its elements need."""
        nest = self.nest
        group = nest.groups[number]
        tiles, meta = nest.tiles(group), nest.instrs[group[0]].meta
        each, count = nest.lanes[meta.lane], next_power_of_two(len(group))
        mine = f"_m{number}"
        spread = "[None, None, :]" if tiles.splits > 1 else "[None, :]"
        self.line(f"column{number} = tl.arange(0, {tiles.columns}){spread}")
        self.line(f"{meta.lane}{mine} = member * {each} + column{number} // {count}")
        padded = each != next_power_of_two(each)
        columns = [f"(column{number} // {count} < {each})"] if padded else []
        for chunk in range(tiles.chunks):
            inside = self._chunk_index(number, chunk, mine, 1)
            masks = " & ".join([*columns, *inside])
            offsets = [nest.instrs[n].meta.offset.text(mine) for n in group]
            address = offsets[-1]
            for g in range(len(group) - 2, -1, -1):
                address = f"tl.where(column{number} % {count} <= {g}, {offsets[g]}, {address})"
            other = f", mask={masks}, other=0.0" if masks else ""
            pointer = self._pointer(meta.source, False)
            self.line(f"m{number}_{chunk} = tl.load({pointer} + ({address}){other})")

    def _chunk_index(self, number: int, chunk: int, suffix: str, axis: int) -> list[str]:
        """Define the contracted index of a chunk, along the last axis but `axis`; return the mask
        of those that there are, if not all are."""
        nest = self.nest
        tiles, meta = nest.tiles(nest.groups[number]), nest.instrs[nest.groups[number][0]].meta
        spread = ["[None, :]", "[:, None]"][axis]
        text = f"tl.arange(0, {tiles.depth})"
        if chunk:
            text = f"({chunk * tiles.depth} + {text})"
        if tiles.splits > 1:
            first = f"tl.arange(0, {tiles.splits})[:, None, None] * {tiles.depth * tiles.chunks}"
            text = f"{first} + {text}{spread.replace('[', '[None, ')}"
        else:
            text = f"{text}{spread}"
        self.line(f"k{suffix} = {text}")
        exact = tiles.splits * tiles.depth * tiles.chunks == meta.depth
        return [] if exact else [f"(k{suffix} < {meta.depth})"]

    def _product(self, n: int, i: Instr) -> None:
        """Write a group's products with the first of them: one product, of which each takes its
        columns."""
        nest = self.nest
        (number,) = [k for k, group in enumerate(nest.groups) if n in group]
        group, meta = nest.groups[number], i.meta
        if n == group[0]:
            self._multiply(number, i)
        name = self.value[n]
        if len(group) == 1:
            self.line(f"{name} = product{number}")
            return
        columns, count = next_power_of_two(nest.lanes[meta.lane]), next_power_of_two(len(group))
        shape = f"({self.tiling.block}, {columns}, {count})"
        self.line(f"{name} = tl.reshape(product{number}, {shape})")
        here = f"tl.arange(0, {count})[None, None, :] == {group.index(n)}"
        self.line(f"{name} = tl.sum(tl.where({here}, {name}, 0.0), 2)")

    def _multiply(self, number: int, i: Instr) -> None:
        nest, block = self.nest, self.tiling.block
        tiles, meta = nest.tiles(nest.groups[number]), i.meta
        cube = tiles.splits > 1
        if i.args and i.args[0] in self.pending:
            self._meet()
        mine = f"_x{number}"
        shape = f"{f'{tiles.splits}, ' if cube else ''}{block}, {tiles.columns}"
        self.line(f"sum{number} = tl.zeros(({shape}), tl.float32)")
        spread = "[None, :, :]" if cube else ""
        self.line(f"p{mine} = {self._widest('p')}{spread}")
        rows = [f"{self.masks['p']}{spread}"] if "p" in self.masks else []
        if meta.row is None:
            (shared,) = i.args
            width = nest.instrs[shared].meta.width
            address, past = f"{self._row(shared)} + (p{mine} * {width} + k{mine})", _PAST
        else:
            row, offset = meta.row
            address, past = f"{self._pointer(row, False)} + ({offset.text(mine)})", ""
            for name in sorted(offset.names - {"p", "k"}):
                self.line(f"{name}{mine} = {self._widest(name)}")
        for chunk in range(tiles.chunks):
            masks = " & ".join([*rows, *self._chunk_index(number, chunk, mine, 0)])
            other = f", mask={masks}, other=0.0" if masks else ""
            tile = f"tl.load({address}{other}{past})"
            precision = PRECISION[meta.precision]
            self.line(f'sum{number} = dot({tile}, m{number}_{chunk}, sum{number}, "{precision}")')
        whole = f"tl.sum(sum{number}, 0)" if cube else f"sum{number}"
        self.line(f"product{number} = {whole}")

    def _widest(self, name: str) -> str:
        return f"{name}_wide" if name in self.wide else name

    def _find_wide(self) -> None:
        super()._find_wide()
        rows = [self.nest.instrs[n].meta.row for n in self.nest.of("product")]
        for row in rows:
            if row is not None and is_wide(row[1]):
                self.wide |= row[1].names
