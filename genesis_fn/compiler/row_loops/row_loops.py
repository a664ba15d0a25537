"""Turns loops whose bodies work row by row into one kernel each.

A graph runs the kernels of a loop's body once for each step, at about 4 us a step and more for each
kernel. Rows that do not wait for each other need none of that: a thread runs the whole loop for its
row, and what the loop carries never leaves its registers.
"""

from __future__ import annotations

import functools
import math

from genesis_fn.compiler.loop_ir.kernel import Infeasible, loop_slice_p
from genesis_fn.compiler.loop_ir.known_places import by_index, is_exact
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.row_loops.nest import RowNest
from genesis_fn.compiler.row_loops.team import LEAST_PART, TeamNest
from genesis_fn.compiler.scans.accumulations import without_accumulations
from genesis_fn.compiler.target import Target
from genesis_fn.core.backend.lowering import Source, View
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p

_MOST_ELEMENTS = 16  # of a row's lanes that one thread has
_LARGE = 1 << 16  # bytes of one program's matrices
_TILES = 8192  # bytes of shared memory beside matrices
_TEAM_ROWS = (16, 32, 64)
_SIZES_TRIED = 2
_MANY_INSTRUCTIONS = 512  # of which an unrolled table of 64 elements has 970, and takes 2.5 s
# In 2 us of a processor: as steps of a graph a loop has no use for them.
_MOST_SHUFFLES = 1 << 17

row_loop_p = Primitive(
    "row_loop", lambda *avals, nest, updates: nest.avals, multi=True, listed=False
)
"""A loop as one kernel, of the compiler's own programs: `nest` is the `RowNest` that it runs,
`updates` the number of the operand in whose memory each result may be, or None."""


def row_loops(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """`jaxpr` with each loop that works row by row as a `row_loop`."""
    wanted = enabled("row_loops") or enabled("team_loops")
    if not wanted or not any(e.prim in (scan_p, while_p) for e in jaxpr.eqns):
        return jaxpr
    outer: dict[Var, Eqn] = {}
    known: set[Var] = set()  # by their index alone
    eqns = []
    for e in jaxpr.eqns:
        eqns += _row_loop(e, outer, target) if e.prim in (scan_p, while_p) else [e]
        if by_index(e, known):
            known.update(e.outs)
        # What is only moved, or known by its index, but for floats, which may take long. A slice of
        # a loop around this one is an array: that loop's counter lies in memory.
        how = e.prim.lowering
        moved = type(how) is View and not how.joins and e.prim is not loop_slice_p
        if type(how) is Source or moved or (is_exact(e) and known.issuperset(e.outs)):
            outer.update(dict.fromkeys(e.outs, e))
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _row_loop(e: Eqn, outer: dict[Var, Eqn], target: Target) -> list[Eqn]:
    values = [v for v in (*e.ins, *e.outs) if type(v) is Var]
    if not all([v.aval.size for v in values]) or any([target.lacks(v.aval.dtype) for v in values]):
        return [e]
    found = _nest(e, outer, target)
    parts = without_accumulations(e) if e.prim is scan_p else None
    if parts is not None:
        ahead, scan, behind = parts
        other = _nest(scan, outer | {v: x for x in ahead for v in x.outs}, target)
        # Without its sums over rows a loop has more of them, or any.
        if other is not None and (found is None or _rows(other) > _rows(found)):
            return [*ahead, other, *behind]
    return [e if found is None else found]


def _is_simpler(nest: RowNest, other: RowNest) -> bool:
    return 2 * len(nest.instrs) < len(other.instrs) and not nest.of("gather")


def _rows(e: Eqn) -> int:
    return e.params["nest"].rows


def _nest(e: Eqn, outer: dict[Var, Eqn], target: Target) -> Eqn | None:
    found: RowNest | None = None
    if enabled("row_loops"):
        found = _of_rows(e, outer, target) or _of_rows(e, outer, target, parts=True)
        # Elements that change places do so in registers last: unrolled ones need not.
        if found is None or len(found.instrs) > _MANY_INSTRUCTIONS:
            other = _of_rows(e, outer, target, gathers=True)
            # Q-learning, its table in lanes: 0.11 ms for 0.32, first call 0.65 s for 2.5 (H200).
            if found is None or (other is not None and _is_simpler(other, found)):
                found = other
    # Triton takes 6 s for the matrices of a GRU of 128 units in one program, and 1 s for a team's.
    if enabled("team_loops") and (found is None or found.matrix_bytes() > _LARGE):
        found = _of_team(e, outer, target) or found
    if found is None:
        return None
    operands = found.operands()
    overwritten = [None if type(found) is TeamNest else found.overwritten(v) for v in e.outs]
    updates = tuple([None if x is None else operands.index(x) for x in overwritten])
    params = {"nest": found, "updates": updates}
    return e.replace(prim=row_loop_p, ins=operands, params=params)


def _of_rows(
    e: Eqn, outer: dict[Var, Eqn], target: Target, parts: bool = False, gathers: bool = False
) -> RowNest | None:
    made = functools.partial(_made, e, outer, target, parts=parts, gathers=gathers)
    found = made()
    if found is None or found.uneven:
        # Rows that compute the same are worth it if there are few of them.
        other = made(common=True)
        if found is None or (other is not None and other.work < found.work):
            found = other
    width = 0 if found is None else _lane_width(found, target)
    if found is None or not width:
        return found
    return made(common=found.common, width=width) or found


def _of_team(e: Eqn, outer: dict[Var, Eqn], target: Target) -> TeamNest | None:
    """A loop whose matrices are too large for one program, or None if they are for a team.

    Members read whole rows, so that few rows and many members are best. An LSTM of 512 units and
    64 rows took 5.5 us a step in teams of 32 with 16 rows, 7.3 with 32 rows and twice the products
    to a member, 8.2 in one team of 128 (H200).
    """
    one = _member(e, outer, 1, _TEAM_ROWS[0])
    if one is None:
        return None
    common = math.gcd(*[n for name, n in one.lanes.items() if name not in one.whole])
    for rows in _TEAM_ROWS:
        most = min(target.processors // -(-one.rows // rows), common // LEAST_PART)
        sizes = [n for n in range(most, 1, -1) if common % n == 0]
        for members in sizes[:_SIZES_TRIED]:
            found = _member(e, outer, members, rows)
            if found is not None and found.shared_bytes() <= target.shared_memory - _TILES:
                return found
    return None


def _member(e: Eqn, outer: dict[Var, Eqn], members: int, block: int) -> TeamNest | None:
    try:
        return TeamNest(e, outer, members, block)
    except Infeasible:
        return None


def _lane_width(nest: RowNest, target: Target) -> int:
    """How many threads share the lanes of a row; 0: one has each.

    What rows have once is computed by each of a row's threads: as few as make a warp for each of a
    processor's four schedulers. A rollout of 4,096 rows with 32 lanes took 2.4 us a step with 32
    threads to a row, 1.2 with 4 (H200).
    """
    most = max(nest.lanes.values(), default=0)
    if not most or nest.of("dot") or nest.of("gather") or nest.lanes.twins:
        return 0
    wanted = max(1, 128 * target.processors // nest.rows)
    width = max(1 << min(5, wanted.bit_length() - 1), most // _MOST_ELEMENTS)
    return width if width < most and all(n % width == 0 for n in nest.lanes.values()) else 0


def _made(
    e: Eqn,
    outer: dict[Var, Eqn],
    target: Target,
    common: bool = False,
    width: int = 0,
    parts: bool = False,
    gathers: bool = False,
) -> RowNest | None:
    try:
        found = RowNest(e, outer, common, width, parts, gathers)
    except Infeasible:
        return None
    fits = found.matrix_bytes() <= target.shared_memory - _TILES
    return found if fits and _shuffles(found, target) <= _MOST_SHUFFLES else None


def _shuffles(nest: RowNest, target: Target) -> int:
    """The shuffles of a step by which a processor gathers elements along lanes: for each element of
    a row one for each that a thread has along the lane."""
    gathers = [nest.instrs[n] for n in nest.of("gather")]
    each = [
        nest.lanes.elements(i.names) * max(1, nest.lanes.padded(i.meta[1]) // 32) for i in gathers
    ]
    return -(-nest.rows // target.processors) * sum(each)
