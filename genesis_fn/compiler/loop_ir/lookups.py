"""Lookups: gathers, rows of tables and dynamic slices that kernels do where the element is needed.

A start that the program computes becomes a variable of the index expressions: it stands for what an
instruction has computed, held within its bounds. Views below the lookup change the index as ever,
so that a kernel reads a padded, scaled or transposed array through its gather. A start that is
arithmetic on loop variables, as that of overlapping frames, is no variable but that arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from genesis_fn.compiler.loop_ir.intervals import only_case
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Index
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.elementwise import add, convert_p, mul, neg, select_p, sub
from genesis_fn.primitives.indexing.gather import gather_p, take_rows_p
from genesis_fn.primitives.indexing.indexing import dynamic_slice_p

if TYPE_CHECKING:
    from genesis_fn.compiler.loop_ir.kernel import Instr

_VARIABLE = "at"  # what names of starts begin with; no loop variable's does


@dataclass(frozen=True, slots=True)
class Start:
    """Where a window begins along dimension `d` of the operand: at element `index` of `value`, or
    at a number; one of `count` places. `wraps`: a negative one counts from the end, of `length`."""

    d: int
    value: Var | int
    index: Index
    count: int
    wraps: bool = False
    length: int = 0

    @property
    def number(self) -> Expr:
        """Where a window begins that does so at a number."""
        assert type(self.value) is int
        n = self.value + (self.length if self.wraps and self.value < 0 else 0)
        return ix.const(min(max(n, 0), self.count - 1))

    def has(self, first: Expr) -> bool:
        """Whether the window may begin there."""
        return 0 <= first.lo and first.hi < self.count


@dataclass(frozen=True, slots=True)
class LookupWindow:
    """The element of the operand that is an element of a lookup's result: `index` and `starts`
    together, one for each component of an index vector."""

    index: Index
    starts: Sequence[Start]


def start_name(n: int) -> str:
    """The variable that stands for the n-th start of a kernel."""
    return f"{_VARIABLE}{n}"


def is_start(name: str) -> bool:
    """Whether a variable stands for a start."""
    return name.startswith(_VARIABLE)


def is_lookup(e: Eqn) -> bool:
    """Whether kernels can do what an equation looks up."""
    if e.prim not in _WINDOWS or type(e.ins[0]) is not Var:
        return False
    if e.prim is not dynamic_slice_p and type(e.ins[1]) is not Var:
        return False
    if not e.ins[0].aval.size or not e.outs[0].aval.size:
        return False
    starts = [i for i in e.ins[1:] if type(i) is Var]
    return all([i.aval.dtype != dtypes.U64 for i in starts])


def is_of_rows(e: Eqn) -> bool:
    """Whether a lookup is of whole rows of a table."""
    if e.prim is take_rows_p:
        return True
    if e.prim is dynamic_slice_p:
        return False
    window, collapsed, mapped, batching, _ = e.params["dimension_numbers"]
    x, batch = e.ins[0].aval, e.ins[1].aval.ndim - 1
    rows = (collapsed, mapped, batching) == ((0,), (0,), ())
    after = window == tuple(range(batch, batch + x.ndim - 1))
    return rows and after and tuple(e.params["slice_sizes"]) == (1, *x.shape[1:])


def window_of(e: Eqn, at: Index) -> LookupWindow:
    """Where element `at` of a lookup's result comes from."""
    return _WINDOWS[e.prim](e, at)


def mode_of(e: Eqn) -> str:
    """What a lookup does with a start out of bounds."""
    return e.params.get("mode", "clip")


def _row(e: Eqn, at: Index) -> LookupWindow:
    table, indices = e.ins
    count = indices.aval.ndim
    start = Start(0, indices, at[:count], table.aval.shape[0])
    return LookupWindow((ix.ZERO, *at[count:]), (start,))


def _gathered(e: Eqn, at: Index) -> LookupWindow:
    operand, indices = e.ins[0].aval, e.ins[1]
    window, collapsed, mapped, batching, index_batching = e.params["dimension_numbers"]
    sizes = e.params["slice_sizes"]
    batch = tuple([x for d, x in enumerate(at) if d not in window])
    inside = iter([at[d] for d in window])
    index = [
        ix.ZERO if d in collapsed or d in batching else next(inside) for d in range(operand.ndim)
    ]
    for d, k in zip(batching, index_batching):
        index[d] = batch[k]
    starts = [
        Start(d, indices, (*batch, ix.const(k)), operand.shape[d] - sizes[d] + 1)
        for k, d in enumerate(mapped)
    ]
    return LookupWindow(tuple(index), starts)


def _sliced(e: Eqn, at: Index) -> LookupWindow:
    operand, sizes = e.ins[0].aval, e.params["slice_sizes"]
    starts = [
        Start(d, s, (), n - size + 1, True, n)
        for d, (s, n, size) in enumerate(zip(e.ins[1:], operand.shape, sizes))
        if n != size
    ]
    return LookupWindow(at, starts)


_WINDOWS: dict[Primitive, Callable[[Eqn, Index], LookupWindow]] = {
    take_rows_p: _row, gather_p: _gathered, dynamic_slice_p: _sliced,
}  # fmt: skip


# ---- starts that are arithmetic on loop variables ----


def known_index(instrs: Sequence[Instr], n: int) -> Expr | None:
    """The expression in loop variables that an integer instruction computes; None if it is none, or
    may overflow."""
    i = instrs[n]
    if not dtypes.is_integer(i.dtype):
        return None
    if i.op == "index":
        return i.meta
    if i.op == "const":
        return ix.const(int(i.meta.value))
    if i.op != "map" or i.meta[0] not in _ARITHMETIC:
        return None
    found = _ARITHMETIC[i.meta[0]](instrs, i.args)
    if found is None:
        return None
    limits = dtypes.iinfo(i.dtype)
    return found if limits.min <= found.lo and found.hi <= limits.max else None


def _operand(instrs: Sequence[Instr], a: Any) -> Expr | None:
    if type(a) is int:
        return known_index(instrs, a)
    return ix.const(a.value) if type(a.value) is int else None


def _sum(instrs: Sequence[Instr], args: Sequence[Any]) -> Expr | None:
    a, b = [_operand(instrs, x) for x in args]
    return None if a is None or b is None else ix.add(a, b)


def _difference(instrs: Sequence[Instr], args: Sequence[Any]) -> Expr | None:
    a, b = [_operand(instrs, x) for x in args]
    return None if a is None or b is None else ix.add(a, ix.scale(b, -1))


def _product(instrs: Sequence[Instr], args: Sequence[Any]) -> Expr | None:
    a, b = [_operand(instrs, x) for x in args]
    if a is None or b is None:
        return None
    if not a.names:
        return ix.scale(b, a.const)
    return None if b.names else ix.scale(a, b.const)


def _negative(instrs: Sequence[Instr], args: Sequence[Any]) -> Expr | None:
    a = _operand(instrs, args[0])
    return None if a is None else ix.scale(a, -1)


def _same(instrs: Sequence[Instr], args: Sequence[Any]) -> Expr | None:
    return _operand(instrs, args[0])


def _chosen(instrs: Sequence[Instr], args: Sequence[Any]) -> Expr | None:
    """The case that bounds decide for, as where a negative index would count from the end."""
    only = only_case(instrs, args)
    return None if only is None else _operand(instrs, only)


_ARITHMETIC: dict[Primitive, Callable[[Sequence[Any], Sequence[Any]], Expr | None]] = {
    add.prim: _sum, sub.prim: _difference, mul.prim: _product, neg.prim: _negative,
    convert_p: _same, select_p: _chosen,
}  # fmt: skip
