"""Updates of one window of each array: what a scatter, or an update at a computed place, makes of
an element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.compiler.loop_ir.known_places import known_place
from genesis_fn.compiler.loop_ir.lookups import Start
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Index
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.indexing.gather_dims import window_sizes
from genesis_fn.primitives.indexing.indexing import dynamic_update_slice_p
from genesis_fn.primitives.indexing.scatter import scatter_p

UPDATES = (scatter_p, dynamic_update_slice_p)
# Kinds of a scatter that combine what was there with what it brings are named like the operation.
_COMBINES = {f.prim.name: f.prim for f in (ew.add, ew.mul, ew.min, ew.max)}


def combine_of(kind: str) -> Primitive | None:
    """What a kind of scatter makes of what was there and of what it brings; None: the latter."""
    return _COMBINES.get(kind)


@dataclass(frozen=True, slots=True)
class UpdateWindow:
    """What may take the place of an element of an array, or be added to it: element `index` of
    `value`, if the element lies along each start's dimension where that one says."""

    value: Any
    index: Index
    starts: Sequence[Start]


def update_of(producer: dict[Var, Eqn], e: Eqn, at: Index) -> UpdateWindow | None:
    """The update of element `at` of the result of one of `UPDATES`; None if there may be several
    for an element, or it is of some of an axis but of more than one element."""
    return (_scattered if e.prim is scatter_p else _sliced)(producer, e, at)


def _sliced(_: dict[Var, Eqn], e: Eqn, at: Index) -> UpdateWindow | None:
    x, value, *firsts = e.ins
    wide = [i for i in firsts if type(i) is Var and i.aval.dtype == dtypes.U64]
    if type(value) is not Var or wide:
        return None
    starts, index = [], list(at)
    for d, (first, n, size) in enumerate(zip(firsts, x.aval.shape, value.aval.shape)):
        if n != size:
            if size != 1:
                return None
            index[d] = ix.ZERO
            starts.append(Start(d, first, (), n, True, n))
    return UpdateWindow(value, tuple(index), starts)


def _scattered(producer: dict[Var, Eqn], e: Eqn, at: Index) -> UpdateWindow | None:
    x, indices, value = e.ins
    if type(indices) is not Var or type(value) is not Var or indices.aval.dtype == dtypes.U64:
        return None
    numbers = e.params["dimension_numbers"]
    sizes, lengths = window_sizes(x.aval, value.aval, numbers), indices.aval.shape[:-1]
    # Which of the index vectors is an element's: an expression along each axis.
    batch = {k: ix.ZERO for k, n in enumerate(lengths) if n == 1}
    for d, k in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims):
        batch[k] = at[d]
    # A component that numbers the index vectors themselves, as `x.at[arange(n), i]` has one.
    here = tuple([ix.var(f"b{k}", n) if n != 1 else ix.ZERO for k, n in enumerate(lengths)])
    computed = []
    for k, d in enumerate(numbers.scatter_dims_to_operand_dims):
        n = x.aval.shape[d]
        numbered = [j for j, length in enumerate(lengths) if j not in batch and length == n]
        first = known_place(producer, indices, (*here, ix.const(k))) if numbered else None
        same = [j for j in numbered if here[j] == first]
        if same:
            batch[same[0]] = at[d]
        else:
            computed.append((k, d, n))
    # One index vector for each element, and windows of one element or of all along an axis.
    moves = {d for _, d, _ in computed}
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    if len(batch) < len(lengths) or any([sizes[d] != 1 for d in moves]):
        return None
    if any([sizes[d] != n for d, n in enumerate(x.aval.shape) if d not in moves | gone]):
        return None
    around = [batch[k] for k in range(len(lengths))]
    inside = [ix.ZERO if d in moves else at[d] for d in range(len(at)) if d not in gone]
    starts = [Start(d, indices, (*around, ix.const(k)), n) for k, d, n in computed]
    rest, window = iter(around), iter(inside)
    index = [
        next(window) if d in numbers.update_window_dims else next(rest)
        for d in range(value.aval.ndim)
    ]
    return UpdateWindow(value, tuple(index), starts)
