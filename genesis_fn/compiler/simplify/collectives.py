"""Collectives of a mesh in the form that communication libraries have.

A process's program is rewritten so that what is exchanged is contiguous and is added in a dtype
that libraries add in, by equations around the collective that fuse with their neighbours:

* gathered, scattered and exchanged dimensions come first. A large matrix whose columns are gathered
  or scattered is turned: its parts are, and products read and write either layout, where moving
  blocks of columns would copy the whole matrix;
* floats narrower than float32 are added as float32, as a ring would round at every hop; 16-bit
  integers as 32-bit ones, which wrap alike;
* extremes of floats are those of integers in the same order, as libraries drop NaN; NaN is greater
  than every number to a maximum, and less to a minimum;
* along an axis of one device a collective is its operand.

The rewriting is the same on every process, and so are the programs: `axis_index` stays, since a
constant in its place would let one process drop a collective that the others wait in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn.compiler.simplify.rewriter import use_counts
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.errors import BackendError
from genesis_fn.core.jaxpr import Atom, Eqn, Jaxpr, Var, jaxprs_in, memoized
from genesis_fn.core.primitive import Primitive
from genesis_fn.core.sharding.mesh import MeshAxis
from genesis_fn.primitives.elementwise import (
    bitcast_p,
    bitwise_and,
    bitwise_xor,
    convert_p,
    ne,
    select_p,
    shift_right_arithmetic,
)
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.shape import reshape_p, transpose_p
from genesis_fn.transforms.batching.collectives import (
    all_gather_invariant_p,
    all_gather_p,
    assume_invariant_p,
    axis_index_p,
    pmax_p,
    pmin_p,
    psum_invariant_p,
    psum_p,
    psum_scatter_p,
    pvary_p,
)
from genesis_fn.transforms.batching.exchanges import all_to_all_p, ppermute_p

_ADDED_AS = {
    **dict.fromkeys(dtypes.NARROW, dtypes.F32),
    **dict.fromkeys((dtypes.I16, dtypes.U16, dtypes.BOOL), dtypes.I32),
}
# Elements of a matrix that is turned. A smaller one is copied within a few microseconds, and in one
# layout with its neighbours, so that products of both can be summed in one accumulator.
_LARGE = 4 << 20
_GATHERS = (all_gather_p, all_gather_invariant_p)
# The integer type of a float's bits, and the bits of a NaN that is the greatest of these integers.
_ORDERED_AS = {dtypes.F32: (dtypes.I32, 0x7FC00000), dtypes.F64: (dtypes.I64, 0x7FF8000000000000)}


@memoized
def _concerned(jaxpr: Jaxpr) -> tuple[bool]:
    """Whether a program has collectives, or values that vary."""
    found = any([v.aval.varying for v in jaxpr.invars]) or any(
        [e.prim.collective or any([v.aval.varying for v in e.outs]) for e in jaxpr.eqns]
    )
    return (found or any([_concerned(j)[0] for e in jaxpr.eqns for j in jaxprs_in(e.params)]),)


@memoized
def contiguous_collectives(jaxpr: Jaxpr) -> Jaxpr:
    """A process's program with its collectives, those in loops and branches too, rewritten as
    above. Nothing varies within one process: no aval of the result says so."""
    if not _concerned(jaxpr)[0]:
        return jaxpr
    env: dict[Var, Atom] = {}
    turned = _turned(jaxpr)

    def plain(v: Var) -> Var:
        if v.aval.varying:
            env[v] = Var(_fixed(v.aval))
        return env.get(v, v)

    invars = [plain(v) for v in jaxpr.invars]
    eqns: list[Eqn] = []
    for e in jaxpr.eqns:
        ins = [env.get(i, i) if type(i) is Var else i for i in e.ins]
        axis = e.params.get("axis_name") if e.prim.collective else None
        if type(axis) is MeshAxis and e.prim is not axis_index_p:
            if e in turned and axis.size > 1:
                whole = turned[e]
                made, x = (whole, ins[0]) if e.prim in _GATHERS else (e, whole.ins[0])
                env[made.outs[0]] = _TURNED[e.prim](_Writer(e, eqns), e, env.get(x, x))
            else:
                env[e.outs[0]] = _rewritten(e, ins[0], axis, eqns)
            continue
        if e.outs and e.outs[0] in env:
            continue  # the reshape of a turned matrix
        params = {k: _with_programs(p) for k, p in e.params.items()}
        eqns.append(e.replace(ins=ins, params=params, outs=[plain(v) for v in e.outs]))
    outs = [env.get(v, v) for v in jaxpr.outs]
    return Jaxpr(invars, eqns, outs, jaxpr.labels, jaxpr.name)


def _turned(jaxpr: Jaxpr) -> dict[Eqn, Eqn]:
    """The gathers and scatters of a matrix's columns, each with the reshape that merges its blocks
    of columns, or that cuts them."""
    uses = use_counts(jaxpr.eqns, jaxpr.outs)
    reshapes = {e.outs[0]: e for e in jaxpr.eqns if e.prim is reshape_p}
    reshapes |= {e.ins[0]: e for e in jaxpr.eqns if e.prim is reshape_p}
    found = {}
    for e in jaxpr.eqns:
        if e.prim is psum_scatter_p or e.prim in _GATHERS:
            gathers = e.prim in _GATHERS
            blocks = (e.outs if gathers else e.ins)[0]
            reshape = reshapes.get(blocks) if type(blocks) is Var else None
            if reshape is None or uses[blocks] != 1 or e.params["axis"] != 1:
                continue
            whole = (reshape.outs if gathers else reshape.ins)[0]
            matrix = blocks.aval.ndim == 3 and whole.aval.ndim == 2
            if matrix and whole.aval.shape[0] == blocks.aval.shape[0]:
                if whole.aval.size >= _LARGE:
                    found[e] = reshape
    return found


def _with_programs(value: Any) -> Any:
    if type(value) is Jaxpr:
        return contiguous_collectives(value)
    if type(value) is Aval:
        return _fixed(value)
    return tuple(map(_with_programs, value)) if type(value) is tuple else value


def _fixed(aval: Aval) -> Aval:
    return aval.update(varying=frozenset()) if aval.varying else aval


class _Writer:
    """Appends equations in place of `at`."""

    def __init__(self, at: Eqn, eqns: list[Eqn]) -> None:
        self._at, self._eqns = at, eqns

    def __call__(self, prim: Primitive, *ins: Atom, **params: Any) -> Var:
        """The result of one more equation."""
        avals = tuple([i.aval if type(i) is Var else i for i in ins])
        out = Var(_fixed(prim.abstract(avals, params)))
        self._eqns.append(self._at.replace(prim=prim, ins=ins, params=params, outs=[out]))
        return out

    def converted(self, x: Var, dtype: dtypes.DType) -> Var:
        """`x` as another dtype."""
        return x if x.aval.dtype == dtype else self(convert_p, x, dtype=dtype)

    def moved(self, x: Var, source: int, target: int) -> Var:
        """`x` with dimension `source` at `target`."""
        order = [d for d in range(x.aval.ndim) if d != source]
        order.insert(target, source)
        return x if source == target else self(transpose_p, x, permutation=tuple(order))


def _rewritten(e: Eqn, x: Atom, axis: MeshAxis, eqns: list[Eqn]) -> Atom:
    rule = _RULES.get(e.prim)
    if rule is None:
        raise BackendError(
            f"{e.prim.name} along an axis of a mesh is not for programs, at {e.where}"
        )
    write = _Writer(e, eqns)
    if type(x) is not Var:
        kind = e.outs[0].aval if e.prim.updates is not None else None
        if kind is None:
            raise BackendError(f"{e.prim.name} of the number {x!r}, at {e.where}")
        x = write(full_p, value=x, shape=kind.shape, dtype=kind.dtype)
    return rule(write, e, x, axis)


def _same(write: _Writer, e: Eqn, x: Var, axis: MeshAxis) -> Atom:
    return x


def _sum(write: _Writer, e: Eqn, x: Var, axis: MeshAxis) -> Atom:
    if axis.size == 1:
        return x
    kind = x.aval.dtype
    added = write.converted(x, _ADDED_AS.get(kind, kind))
    return write.converted(write(e.prim, added, **e.params), kind)


def _scatter(write: _Writer, e: Eqn, x: Var, axis: MeshAxis) -> Atom:
    at, kind = e.params["axis"], x.aval.dtype
    if axis.size == 1:
        return write(reshape_p, x, shape=_without(x.aval.shape, at))
    x = write.moved(write.converted(x, _ADDED_AS.get(kind, kind)), at, 0)
    return write.converted(write(e.prim, x, **e.params | {"axis": 0}), kind)


def _gather(write: _Writer, e: Eqn, x: Var, axis: MeshAxis) -> Atom:
    at, shape = e.params["axis"], x.aval.shape
    if axis.size == 1:
        return write(reshape_p, x, shape=(*shape[:at], 1, *shape[at:]))
    return write.moved(write(e.prim, x, **e.params | {"axis": 0}), 0, at)


def _turned_gather(write: _Writer, e: Eqn, x: Var) -> Atom:
    rows, columns = x.aval.shape
    parts = write(e.prim, write.moved(x, 1, 0), **e.params | {"axis": 0})
    return write.moved(write(reshape_p, parts, shape=(e.params["size"] * columns, rows)), 1, 0)


def _turned_scatter(write: _Writer, e: Eqn, x: Var) -> Atom:
    kind, size = x.aval.dtype, e.params["size"]
    rows, columns = x.aval.shape
    x = write.moved(write.converted(x, _ADDED_AS.get(kind, kind)), 1, 0)
    parts = write(reshape_p, x, shape=(size, columns // size, rows))
    part = write(e.prim, parts, **e.params | {"axis": 0})
    return write.converted(write.moved(part, 1, 0), kind)


def _all_to_all(write: _Writer, e: Eqn, x: Var, axis: MeshAxis) -> Atom:
    split, concat = e.params["split"], e.params["concat"]
    x = write.moved(x, split, 0)
    if axis.size > 1:
        x = write(e.prim, x, **e.params | {"split": 0, "concat": 0})
    return write.moved(x, 0, concat)


def _permute(write: _Writer, e: Eqn, x: Var, axis: MeshAxis) -> Atom:
    if axis.size == 1 and e.params["perm"]:
        return x
    if not e.params["perm"]:
        return write(full_p, value=0, shape=x.aval.shape, dtype=x.aval.dtype)
    return write(e.prim, x, **e.params)


def _extreme(write: _Writer, e: Eqn, x: Var, axis: MeshAxis) -> Atom:
    if axis.size == 1:
        return x
    kind = x.aval.dtype
    if kind in (dtypes.I16, dtypes.U16):
        wide = write(e.prim, write.converted(x, dtypes.I32), **e.params)
        return write.converted(wide, kind)
    if kind not in dtypes.FLOATS:
        return write(e.prim, x, **e.params)
    wide = write.converted(x, dtypes.F32 if kind in dtypes.NARROW else kind)
    ordered, nan = _ORDERED_AS[wide.aval.dtype]
    bits = write(bitcast_p, wide, dtype=ordered)
    greatest = write(
        full_p, value=nan if e.prim is pmax_p else -1, shape=bits.aval.shape, dtype=ordered
    )
    bits = write(select_p, write(ne.prim, wide, wide), greatest, bits)
    found = write(e.prim, _flipped(write, bits), **e.params)
    number = write(bitcast_p, _flipped(write, found), dtype=wide.aval.dtype)
    return write.converted(number, kind)


def _flipped(write: _Writer, bits: Var) -> Var:
    """The bits of floats as integers in the same order, and back: negative ones are reversed."""
    size = 8 * bits.aval.dtype.itemsize
    shape, dtype = bits.aval.shape, bits.aval.dtype
    number = lambda value: write(full_p, value=value, shape=shape, dtype=dtype)
    negative = write(shift_right_arithmetic.prim, bits, number(size - 1))
    changed = write(bitwise_and.prim, negative, number(2 ** (size - 1) - 1))
    return write(bitwise_xor.prim, bits, changed)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


_RULES: dict[Primitive, Callable[[_Writer, Eqn, Var, MeshAxis], Atom]] = {
    psum_p: _sum, psum_invariant_p: _sum, psum_scatter_p: _scatter,
    pmax_p: _extreme, pmin_p: _extreme,
    all_gather_p: _gather, all_gather_invariant_p: _gather, all_to_all_p: _all_to_all,
    ppermute_p: _permute, pvary_p: _same, assume_invariant_p: _same,
}  # fmt: skip
_TURNED = {
    psum_scatter_p: _turned_scatter,
    all_gather_p: _turned_gather,
    all_gather_invariant_p: _turned_gather,
}
