"""Tilings: how the loops of a kernel are divided among programs. Five kinds:

* "flat": pointwise, over a flat index.
* "tiled": pointwise, over two-dimensional tiles, where a load is transposed to the stores.
* "row": whole rows in registers, reduced or not.
* "looped": reductions in a loop over the row, with a pass for each that needs an earlier one.
* "slab": slabs of rows whose columns are reduced too (a norm's backward pass).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from genesis_fn.backends.cuda.codegen.loops import Loops, PartialResult, Pointee
from genesis_fn.compiler.loop_ir.kernel import peak_live
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.target import Target
from genesis_fn.core.backend.index import Expr
from genesis_fn.kernels.plan_builder import cdiv, next_power_of_two

PERSISTENT = 16384  # the longest row that stays in registers, in elements
_STENCIL = 8, 256  # rows and columns of a tile of a stencil
_HALO = 4  # rows above and below that a stencil may read, and columns beside
_MANY = 1 << 20  # elements of an array that is worth tiles of several rows
_TILE_ROWS = 64  # of a tile whose rows are neighbours in memory
_SECTOR = 32  # bytes that memory moves at least
_STAGES = 5  # rounds of a loop in shared memory, at most
_UNDER_WAY = 16384  # bytes that a program loads ahead
_PAIRS = 128  # columns of a tile of a computed array, one for each thread
_REGISTERS = 136  # per thread, the most that a slab's tiles are estimated to take
# Of a kernel whose tiles may be smaller: values that are alive in a thread, with which 16 warps fit
# on a processor, and its instructions, half of what the instruction cache of 128 KiB holds. A
# thread's elements are unrolled: at 8 of them kernels of a chain of 24 divisions and derivatives
# took 255 registers, and those of sines 33,000 instructions.
_LIVE = 128
_INSTRUCTIONS = 4096


@dataclass(frozen=True, slots=True)
class Tiling:
    """How loops are divided: `kind` is one of the five above.

    A program covers `block` rows (of "tiled": rows of `columns` elements), and `chunk` elements of
    r at a time. With `splits` above 1 program axis 1 counts splits, of `length` elements of r each;
    in a slab, a program's rows are every `splits`-th block.
    """

    kind: str
    grid: tuple[int, int, int]
    block: int
    chunk: int = 1
    columns: int = 1
    warps: int = 4
    splits: int = 1
    length: int = 0
    final: bool = True  # False: it stores partial results only
    ahead: bool = False  # the next rows are loaded while the present ones are computed
    stages: int = 1  # rounds of a loop whose loads are under way at once

    @property
    def partial(self) -> bool:
        """Whether its reductions cover only a part of the row."""
        return self.kind != "slab" and (self.splits > 1 or not self.final)


def choose_tiling(loops: Loops, target: Target) -> Tiling:
    """The tiling of a kernel whose reductions are not split."""
    if loops.depth > 1:
        return _reduction_tiling(loops, target)
    n = loops.rows
    columns = stencil_columns(loops)
    if columns:
        return _stencil_tiling(loops, columns, target)
    columns = tile_columns(loops)
    if columns:
        rows = n // columns
        grid = (cdiv(rows, 32) * cdiv(columns, 32), 1, 1)
        return Tiling("tiled", grid, 32, 32, columns)
    warps = 8 if len({i.meta[0] for i in loops.instrs if i.op == "load"}) > 2 else 4
    block = 32 * warps * _elements_per_thread(loops, 8)
    # Parts of complex numbers come in twos: as many registers for half as many elements.
    offsets = [i.meta[1] for i in loops.instrs if i.op == "load"] + [s[1] for s in loops.stores]
    if any([e.terms and math.gcd(*e.terms.values()) == 2 for e in offsets]):
        block //= 2
    # Two programs for each processor at least, if there are elements enough.
    while block > 128 and cdiv(n, block) < 2 * target.processors:
        block //= 2
    block = min(block, next_power_of_two(n))
    return Tiling("flat", (cdiv(n, block), 1, 1), block, warps=min(warps, max(1, block // 32)))


def _elements_per_thread(loops: Loops, most: int) -> int:
    """How many elements of a tile a thread computes at once: `most`, which hide the latency of
    memory and of arithmetic, or as many as leave registers for other warps and fit the instruction
    cache. Of 4 or more Triton loads 16 bytes of float32 at once."""
    # Tiles whose rows are neighbours hold an accumulator for each element.
    held = 0 if loops.inner else len(loops.of("reduce"))
    live, size = held + peak_live(loops.instrs, loops.stores), loops.instructions()
    count = most
    while count > 1 and (count * live > _LIVE or count * size > _INSTRUCTIONS):
        count //= 2
    return count


def tile_columns(loops: Loops) -> int:
    """The row length for which tiles make transposed loads consecutive; 0 if flat is as good."""
    across = [
        i
        for i in loops.instrs
        if i.op == "load" and "p" in i.names and not _consecutive(i.meta[1], loops.rows)
    ]
    if not across or loops.rows < 4096:
        return 0
    for i in across:
        # A transposed load contains p % n and p // n: its smallest period n is the row length.
        periods = sorted(_periods(i.meta[1]))
        for n in periods:
            if n >= 8 and loops.rows % n == 0 and loops.rows // n >= 8:
                return n
    return 0


def stencil_columns(loops: Loops) -> int:
    """The row length of a stencil, a flat kernel that reads an array in neighbouring rows; 0 if it
    is none."""
    offsets: dict[Pointee, list[Expr]] = {}
    for n in loops.of("load"):
        target, e, _ = loops.instrs[n].meta
        if e.names == frozenset("p") and e not in offsets.setdefault(target, []):
            offsets[target].append(e)
    for target, found in offsets.items():
        if len(found) < 3 or isinstance(target, PartialResult):
            continue
        guards = [g.expr for i in loops.instrs if i.op == "load" for g in i.meta[2]]
        for n in sorted(set().union(*[_periods(e) for e in (*found, *guards)])):
            if n < 32 or loops.rows % n or loops.rows // n < _STENCIL[0]:
                continue
            rows = loops.rows // n
            if any([_reads_rows(found, n, row) for row in (rows // 2, rows // 3, rows * 5 // 7)]):
                return n
    return 0


def _reads_rows(offsets: Sequence[Expr], n: int, row: int) -> bool:
    """Whether offsets are those of neighbours, as seen from the middle of a row of `n`: a few rows
    apart, and so few that a tile has most of what its rows read. At an edge, where rotations go
    around, they are not."""
    at = row * n + n // 2
    here, right, below = [[e.evaluate({"p": at + k}) for e in offsets] for k in (0, 1, n)]
    (pitch, *others) = {b - a for a, b in zip(here, below)}
    if others or any([b - a != 1 for a, b in zip(here, right)]) or not 0 < pitch < 2 * n:
        return False
    return pitch - 2 * _HALO <= max(here) - min(here) <= 2 * _HALO * pitch


def _stencil_tiling(loops: Loops, columns: int, target: Target) -> Tiling:
    """The tiling of a stencil: tiles of several rows, each of which reads its rows and those next
    to it from the L2 cache once. A program of one row reads that, the one above and the one below:
    with 64 MiB arrays L2 had to move 256 MiB for 128 MiB that memory moved."""
    rows, (block, chunk) = loops.rows // columns, _STENCIL
    chunk = min(chunk, next_power_of_two(columns))
    across = cdiv(columns, chunk)
    while block > 1 and cdiv(rows, block) * across < 2 * target.processors:
        block //= 2
    warps = block * chunk // (32 * _elements_per_thread(loops, 8))
    grid = (cdiv(rows, block) * across, 1, 1)
    return Tiling("tiled", grid, block, chunk, columns, warps=min(16, max(1, warps)))


def _consecutive(e: Expr, n: int) -> bool:
    """Whether neighbours read neighbours, or the same. Steps of 2 are those of a part of packed
    complex numbers, whose other part is read as well; pixels of three channels read a number of
    their pixel three times, and a channel of another pixel at 0, 1, 2, 0, ..."""
    values = [e.evaluate({name: 0 for name in e.names} | {"p": p}) for p in range(min(4, n))]
    return max(values) - min(values) <= 2 * (len(values) - 1)


def _periods(e: Expr) -> set[int]:
    found: set[int] = set()
    for atom in e.terms:
        kind, operand, c = atom.key
        if kind != "var":
            if operand.terms.keys() == {a for a in operand.terms if a.key[:2] == ("var", "p")}:
                found.add(c)
            found |= _periods(operand)
    return found


def _reduction_tiling(loops: Loops, target: Target) -> Tiling:
    rows, depth = loops.rows, loops.depth
    if loops.computed() and depth >= _PAIRS and rows * depth >= _MANY:
        return _pairs_tiling(loops, target)
    # Loads along the row are what a program keeps in registers.
    live = max(1, sum(1 for i in loops.instrs if i.op == "load" and "r" in i.names))
    budget = 4096 if loops.largest <= 4 and live <= 6 else 2048
    padded = next_power_of_two(depth)
    if loops.inner and padded <= PERSISTENT // (loops.largest // 4 or 1):
        block = max(1, min(budget // padded, next_power_of_two(rows)))
        # Fewer rows for each program rather than idle processors.
        while block > 1 and cdiv(rows, block) < 2 * target.processors:
            block //= 2
        each = 16 if live <= 6 else 8
        if not loops.of("reduce") and 8 * loops.instructions() > _INSTRUCTIONS:
            # Of a long chain a thread has no more elements than in a flat kernel.
            each = _elements_per_thread(loops, 8)
            block = max(1, min(block, 512 * each // padded))
        warps = warps_for(block * padded, each)
        return Tiling("row", (cdiv(rows, block), 1, 1), block, padded, warps=warps)
    if not loops.inner and padded <= 64:
        block = max(1, min(max(16, budget // padded), next_power_of_two(rows)))
        return Tiling("row", (cdiv(rows, block), 1, 1), block, padded)
    if not loops.inner and cdiv(rows, _TILE_ROWS) < target.processors:
        # Too few for tiles in a loop, one load after the other: whole rows at once, if they fit.
        block = min(_SECTOR // 4, next_power_of_two(rows))
        warps = warps_for(block * padded, each := _elements_per_thread(loops, 16))
        if block * padded <= 32 * warps * each:
            return Tiling("row", (cdiv(rows, block), 1, 1), block, padded, warps=warps)
    block, chunk, warps = looped_tile(loops)
    stages = loads_ahead(loops, block * chunk)
    return Tiling("looped", (cdiv(rows, block), 1, 1), block, chunk, warps=warps, stages=stages)


def _pairs_tiling(loops: Loops, target: Target) -> Tiling:
    """The tiling of reductions of a computed array, as of all pairs of bodies.

    What it reads has an axis less, so that a tile of several rows loads for each element a part of
    a number: a thread has elements of one column, of which each loop loads one, and of all rows.
    """
    block = min(_elements_per_thread(loops, 16), next_power_of_two(rows := loops.rows))
    while block > 1 and cdiv(rows, block) < 4 * target.processors:
        block //= 2
    return Tiling("looped", (cdiv(rows, block), 1, 1), block, _PAIRS, warps=_PAIRS // 32)


def looped_tile(loops: Loops) -> tuple[int, int, int]:
    """(rows, elements of r, warps) of one tile of a reduction in a loop."""
    each = _elements_per_thread(loops, 16)
    if loops.inner:
        most = (4096 if loops.largest <= 4 else 2048) * each // 16
        chunk = min(most, next_power_of_two(loops.depth))
        return 1, chunk, warps_for(chunk, each)
    # `r` is not the fastest axis: neighbouring rows are, so that a tile needs many of them.
    block = min(_TILE_ROWS, next_power_of_two(loops.rows))
    chunk = min(2048 // block, next_power_of_two(loops.depth))
    return block, chunk, warps_for(block * chunk, each)


def loads_ahead(loops: Loops, elements: int) -> int:
    """How many rounds of a reduction in a loop are loaded at once, with so many elements a tile: as
    many as keep memory busy."""
    if loops.inner or not enabled("loads_ahead"):
        return 1
    tiles = [loops.instrs[n] for n in loops.of("load") if loops.instrs[n].names >= {"p", "r"}]
    size = sum([i.dtype.itemsize for i in tiles]) * elements
    return max(2, min(_STAGES, 1 + cdiv(_UNDER_WAY, size))) if size else 1


def warps_for(elements: int, per_thread: int = 16) -> int:
    """The number of warps of a program whose tile has so many elements."""
    return min(16, max(1, elements // (32 * per_thread)))


def combine_tiling(rows: int, parts: int) -> Tiling:
    """The tiling of the kernel that combines `parts` partial results of each of `rows` rows."""
    padded = next_power_of_two(parts)
    most = 4096 // padded if parts > 1 else 1024
    block = max(1, min(most, next_power_of_two(rows)))
    return Tiling("row", (cdiv(rows, block), 1, 1), block, padded)


def slab_tiling(loops: Loops, target: Target) -> Tiling:
    """The tiling of a slab: tiles that fit 128 registers of 512 threads.

    Registers are estimated as those of the rows that are being loaded, those being computed, and
    the accumulators of column reductions; compiled kernels agree with the estimate.
    """
    instrs = loops.instrs
    padded = next_power_of_two(loops.depth)
    tiles = [n for n in loops.of("load") if instrs[n].names >= {"p", "r"}]
    streams = [n for n in tiles if loops.streams(n)]
    ahead = sum([instrs[n].dtype.itemsize for n in streams]) / 4
    kept = len(loops.of("column_reduce")) + sum(
        [instrs[n].names == frozenset("r") for n in loops.of("load")]
    )
    # Four registers for intermediate values; a tile that does not stream dies early.
    each = ahead + kept + len(streams) + (len(tiles) - len(streams)) / 4 + 4
    each *= loops.largest // 4 or 1
    elements = 32
    while elements > 4 and elements * each > _REGISTERS:
        elements //= 2
    block = min(max(1, 256 * elements // padded), next_power_of_two(cdiv(loops.rows, 4)))
    warps = min(16, max(1, block * padded // (32 * elements)))
    # One wave: as many programs as run at once, each with its share of the blocks of rows.
    resident = max(1, 16 // warps)
    count = min(target.processors * resident, cdiv(loops.rows, block))
    early = block * padded // (32 * warps) * each <= 2 * _REGISTERS
    return Tiling("slab", (count, 1, 1), block, padded, warps=warps, splits=count, ahead=early)
