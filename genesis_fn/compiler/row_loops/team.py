"""Loops whose rows are shared by a team of programs: recurrent networks with large matrices.

A member of a team has a part of each lane of its rows, and the columns of the matrices that give
this part, which stay in its shared memory for the whole loop. Where a whole row is needed, to
multiply it by a matrix or to reduce it, each member writes its part to memory, the team meets, and
all read the row. Nothing else leaves a member's registers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.compiler.loop_ir.kernel import Infeasible
from genesis_fn.compiler.row_loops.axes import Axis
from genesis_fn.compiler.row_loops.nest import RowNest
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr
from genesis_fn.core.backend.lowering import Reduce
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.transforms.control_flow.scanning import scan_p

LEAST_PART = 8  # elements of a lane that a member has
_TILE = 8192  # elements of a row that are read at once
_MOST_COLUMNS = 256  # of a member's matrices that are multiplied as one
_MOST_EXACT = 1 << 15  # operations of a member's product without tensor cores, of about 8 us


@dataclass(frozen=True, slots=True)
class ProductTiles:
    """How a member multiplies: in `chunks` of `depth`, of each of `splits` of the contracted axis,
    which warps have one each; `columns` are those of its matrix, padded."""

    splits: int
    depth: int
    chunks: int
    columns: int

    def matrix(self) -> int:
        """The elements of the matrix."""
        return self.splits * self.depth * self.chunks * self.columns


@dataclass(frozen=True, slots=True)
class Shared:
    """A whole row that members write: `parts` are the offsets of what each of them has."""

    parts: tuple[Expr, ...]
    width: int


@dataclass(frozen=True, slots=True)
class TeamProduct:
    """A row of length `depth` times columns of a matrix in memory, at `offset` in `k` and `lane`.

    The row is a shared one, or lies at `row` in memory: (variable, offset in `k`).
    """

    depth: int
    lane: str
    precision: Any
    source: Var
    offset: Expr
    row: tuple[Var, Expr] | None


class TeamNest(RowNest):
    """The instructions of a member. A team of `members` has `block` of the rows. Sizes of `lanes`
    are those of a member's parts, `whole` are lanes that it has all of.

    Operations beyond those of `RowNest`, with their `meta`:

    * "share", the members' parts of a row: `Shared`; "whole": a shared row, along a whole lane
    * "product" of a shared row, or of one in memory: `TeamProduct`
    """

    waiting = RowNest.waiting | {"whole", "product"}

    def __init__(self, e: Eqn, outer: dict[Var, Eqn], members: int, block: int) -> None:
        self.members, self.block = members, block
        self.whole: set[str] = set()
        super().__init__(e, outer, common=True, parts=True)
        if not self.of("product") or "p" not in self._row_names():
            raise Infeasible
        self.groups = self._grouped()

    def _row_names(self) -> frozenset[str]:
        return frozenset().union(*[self.instrs[n].names for n in self.of("product")])

    def _indices_along(self, n: int, axis: Axis) -> Sequence[Expr]:
        found = self._classes.find(axis)
        split = n >= LEAST_PART and found not in self._rows_at
        if not split or self._classes.is_moved(axis):
            return super()._indices_along(n, axis)
        width = n // self.members
        if n % self.members or width < LEAST_PART:
            raise Infeasible
        return [ix.var(self._lane(found, n, width), n)]

    def _turned_indices(self, indices: Sequence[Expr]) -> Sequence[Expr]:
        """A member's tiles have two axes."""
        raise Infeasible

    def _enter(self, e: Eqn) -> None:
        # Members would have to meet before they read what others stacked.
        if e.prim is scan_p and len(e.outs) > e.params["carry"]:
            raise Infeasible
        super()._enter(e)

    # ---- whole rows ----

    def _share(self, parts: Sequence[tuple[int, Expr]], width: int, dtype: DType) -> int:
        """The row of which this member has `parts`, (instruction, offset)."""
        if 2 * width * self.rows >= 1 << 31 or dtypes.is_complex(dtype):
            raise Infeasible
        shared = Shared(tuple([offset for _, offset in parts]), width)
        return self._emit("share", tuple([n for n, _ in parts]), shared, dtype)

    def _across(self, n: int, how: Reduce, lane: str, e: Eqn, dtype: DType) -> int:
        instr = self.instrs[n]
        width = self.lanes[lane] * self.members
        shared = self._share([(n, ix.var(lane, width))], width, instr.dtype)
        whole = f"w{width}"
        self.lanes[whole] = width
        self.whole.add(whole)
        # Rows that have it in common have a copy each.
        number = self._emit("whole", (shared,), whole, instr.dtype, frozenset(("p", whole)))
        return super()._across(number, how, whole, e, dtype)

    def _tile_product(
        self,
        e: Eqn,
        index_l: list[Any],
        index_r: list[Any],
        pieces: Sequence[Expr],
        lanes: Collection[str],
    ) -> int | None:
        (name,) = lanes
        sides = self._sides(e, index_l, index_r, name)
        if sides is None:
            raise Infeasible
        tile, tile_index, axis, matrix_at = sides
        depth, precision = tile.aval.shape[axis], e.params["precision"]
        exact = tile.aval.dtype == dtypes.F32 and precision == "highest"
        # One member alone is asked for the sizes only.
        if exact and self.members > 1 and 2 * 16 * depth * self.lanes[name] > _MOST_EXACT:
            raise Infeasible
        k = ix.var("k", depth)
        matrix = matrix_at(k)
        if matrix is None:
            raise Infeasible
        source, offset = matrix
        tile_index[axis] = k
        found = self._in_memory(tile, tuple(tile_index), sliced=True)
        row = None if found is None else (found[0], ix.ravel(found[1], found[0].aval.shape))
        meta = TeamProduct(depth, name, precision, source, offset, row)
        if row is not None:
            names = row[1].names - {"k"} | {name}
            n = self._emit("product", (), meta, dtypes.F32, frozenset(names), e)
            return self._rounded(n, e.outs[0].aval.dtype)
        parts = []
        for piece in pieces:
            tile_index[axis] = piece
            parts.append((self.at(tile, tuple(tile_index), frozenset()), piece))
        along = pieces[0].names & set(self.lanes)
        if any(self.instrs[n].names >= along for n, _ in parts):
            shared = self._share(parts, depth, tile.aval.dtype)
            names = frozenset().union(*[self.instrs[n].names for n, _ in parts]) - along
            n = self._emit("product", (shared,), meta, dtypes.F32, names | {name}, e)
            return self._rounded(n, e.outs[0].aval.dtype)
        raise Infeasible

    def operands(self) -> list[Var]:
        found = super().operands()
        for n in self.of("product"):
            meta = self.instrs[n].meta
            found += [meta.source, *([meta.row[0]] if meta.row else [])]
        return list(dict.fromkeys(found))

    # ---- products of one row ----

    def _grouped(self) -> list[list[int]]:
        """The products that are computed as one: of the same row, with columns of one matrix."""
        groups: dict[Any, list[int]] = {}
        for n in self.of("product"):
            i = self.instrs[n]
            meta = i.meta
            key = (i.args, meta.depth, meta.lane, meta.precision, meta.source, meta.row)
            groups.setdefault((*key, self.block_of[n]), []).append(n)
        found = []
        for numbers in groups.values():
            most = max(1, _MOST_COLUMNS // self.lanes[self.instrs[numbers[0]].meta.lane])
            found += [numbers[k : k + most] for k in range(0, len(numbers), most)]
        return found

    def tiles(self, group: Sequence[int]) -> ProductTiles:
        """The tiles of a group of products."""
        meta = self.instrs[group[0]].meta
        columns = _padded(self.lanes[meta.lane]) * _padded(len(group))
        # Four warps have 16 columns each, or parts of the contracted axis where columns are fewer.
        splits = max(1, 64 // columns)
        while splits > 1 and meta.depth < 16 * splits:
            splits //= 2
        each = -(-meta.depth // splits)
        depth = max(16, min(_padded(each), _TILE // (splits * self.block)))
        return ProductTiles(splits, depth, -(-each // depth), columns)

    def shared_bytes(self) -> int:
        """The shared memory that a member needs: all its matrices, and tiles of rows."""
        total = rows = 0
        for group in self.groups:
            itemsize = self.instrs[group[0]].meta.source.aval.dtype.itemsize
            tiles = self.tiles(group)
            total += tiles.matrix() * itemsize
            rows = max(rows, tiles.splits * tiles.depth * self.block * itemsize)
        return total + 2 * rows


def _padded(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()
