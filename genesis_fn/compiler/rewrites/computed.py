"""Reductions of arrays that are computed and never read, such as those of all pairs of bodies.

An array of broadcast operands, x[:, None] - x[None, :], has n x n elements of n numbers. Where its
elements lie in memory means nothing: it never is there. Its reductions are rewritten into the forms
that make one cheap kernel:

* A short one, as of the coordinates of a distance, is a sum of its terms, and no reduction.
* Values with few components, as forces, are reduced component by component: what the components
  share, as the distance, is computed once, and one kernel writes all of them.
* Reduced axes become the last ones: sums over rows and over columns have one form, and share a
  kernel with each other.
* One to a single number goes by rows first, and shares a kernel with reductions of rows.
* A product of such an array with a few columns, as of a matrix of kernels with gradients, is a sum
  for each of them, which shares a kernel with the other reductions.

Energy and forces of 8192 bodies moved 2304 MiB in five kernels, 2.1 ms on an H200 (JAX: 0.58); in
these forms they move 0.25 MiB in two (docs/cuda.md, "Generated kernels").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.compiler.fusion.value_graph import kind_of
from genesis_fn.compiler.loop_ir.kernel import is_reduction, reduced_axes
from genesis_fn.compiler.options import enabled
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Index, IndexGuard
from genesis_fn.core.backend.lowering import Elementwise, Piece, Reduce, View, moved
from genesis_fn.core.jaxpr import Atom, Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.elementwise import convert_p
from genesis_fn.primitives.reductions.reduce import reduce_sum_p
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, transpose_p

_SHORT = 8  # elements of a reduction that is written out
_COMPONENTS = 8  # along the last axis, or columns of a product, at most
_LARGE = 1 << 16  # elements of an array that is worth another form
_COMPUTED = 8  # times as many bytes as what it is computed from
_ROWS, _ROW = 512, 128  # a reduction to one number goes by so many rows, of so many elements
_MOST_STEPS = 256  # equations between an array and what it is computed from
_TERMS = {"add": ew.add_n.prim, "maximum": ew.max.prim, "minimum": ew.min.prim}


def _component_index(at: Index, x: Aval, *, axes: tuple[int, ...], number: int) -> Index:
    along = iter(ix.unravel(ix.const(number), tuple([x.shape[a] for a in axes])))
    kept = iter(at)
    return tuple([next(along) if a in axes else next(kept) for a in range(x.ndim)])


component_p = Primitive(
    "component",
    lambda x, *, axes, number: x.update(tuple([n for a, n in enumerate(x.shape) if a not in axes])),
    lowering=moved(_component_index, shares=False),
    listed=False,
)
"""Element `number` along `axes`: a primitive of the compiler's own programs."""


def _stacked_pieces(k: int, at: Index, *avals: Aval) -> list[Piece]:
    index, part = at[:-1], at[-1]
    pieces: list[Piece] = [(n, index, (IndexGuard(part, n, n + 1),)) for n in range(len(avals) - 1)]
    return [*pieces, (len(avals) - 1, index, ())]


components_p = Primitive(
    "components",
    lambda *xs: xs[0].update((*xs[0].shape, len(xs))),
    lowering=View(_stacked_pieces, joins=True, shares=False, interleaves=True),
    listed=False,
)
"""The operands as components along a new last axis: a primitive of the compiler's own programs."""


def computed_reductions(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with the reductions of computed arrays in the forms that the module describes."""
    if not enabled("computed"):
        return jaxpr
    found = [e for e in jaxpr.eqns if _is_candidate(e)]
    products = {e.outs[0]: p for e in jaxpr.eqns if (p := _NarrowProduct.of(e)) is not None}
    if not found and not products:
        return jaxpr
    # Most programs have reductions, as of norms, of what they read: that is soon seen.
    producer = {o: e for e in jaxpr.eqns for o in e.outs}
    below = lambda x: _bytes_below(x, producer, set())
    products = {o: p for o, p in products.items() if p.is_computed(below(p.wide))}
    if not products and not any([_is_computed(e, below(e.ins[0])) for e in found]):
        return jaxpr
    rewriting = _Rewriting(_in_memory(jaxpr, products), products)
    for e in jaxpr.eqns:
        rewriting.take(e)
    return Jaxpr(jaxpr.invars, rewriting.eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _is_candidate(e: Eqn) -> bool:
    """Whether an equation is a reduction that has other forms, whatever it reduces."""
    if not is_reduction(e) or type(e.ins[0]) is not Var:
        return False
    how = e.prim.lowering
    assert type(how) is Reduce
    x = e.ins[0].aval
    forms = how.combine in _TERMS and not how.position and "axes" in e.params
    return forms and dtypes.is_float(x.dtype) and x.ndim > 1 and x.size >= _LARGE


def _length(e: Eqn) -> int:
    """The number of elements that a reduction makes one of."""
    return math.prod([e.ins[0].aval.shape[a] for a in reduced_axes(e)])


def _is_computed(e: Eqn, read: int | None) -> bool:
    """Whether a reduction, computed from so many bytes, is of an array that is better never in
    memory: the result of a short one, the operand of another."""
    if read is None:
        return False
    if _length(e) <= _SHORT:
        return read <= e.outs[0].aval.nbytes
    return read * _COMPUTED <= e.ins[0].aval.nbytes


def _is_passed(e: Eqn) -> bool:
    """Whether the result of an equation is computed where it is read; short reductions will be."""
    return kind_of(e) in ("map", "view") or (_is_candidate(e) and _length(e) <= _SHORT)


@dataclass(frozen=True, slots=True)
class _NarrowProduct:
    """A product of a large matrix, `wide`, whose dimension `along` is contracted, with one of few
    columns, which are its dimension `columns` (None of a vector)."""

    wide: Var
    along: int
    narrow: Var
    columns: int | None
    first: bool  # whether the columns come first in the result

    @classmethod
    def of(cls, e: Eqn) -> _NarrowProduct | None:
        """An equation as such a product; None if it is none."""
        if e.prim is not dot_general_p or not all([type(i) is Var for i in e.ins]):
            return None
        contracted, (batch, _) = e.params["dimension_numbers"]
        kinds = [x.aval.dtype for x in (*e.ins, *e.outs)]
        real = all([dtypes.is_float(k) and not dtypes.is_complex(k) for k in kinds])
        if batch or not real or [len(c) for c in contracted] != [1, 1]:
            return None
        sides = list(zip(e.ins, [c for (c,) in contracted]))
        first = sides[0][0].aval.size < sides[1][0].aval.size
        (narrow, over), (wide, along) = sides if first else sides[::-1]
        depth = narrow.aval.shape[over]
        few = depth > 0 and narrow.aval.ndim <= 2 and narrow.aval.size <= _COMPONENTS * depth
        if not few or wide.aval.ndim < 2 or wide.aval.size < _LARGE:
            return None
        return cls(wide, along, narrow, 1 - over if narrow.aval.ndim == 2 else None, first)

    def is_computed(self, read: int | None) -> bool:
        """Whether the matrix, computed from so many bytes, is better never in memory."""
        return read is not None and read * _COMPUTED <= self.wide.aval.nbytes


def _bytes_below(x: Var, producer: dict[Var, Eqn], in_memory: Collection[Var]) -> int | None:
    """The bytes in memory that the elements of `x` are computed from, each once; None if `x` is no
    larger than one of them, or is one itself."""
    total, seen, todo = 0, {x}, [x]
    while todo:
        v = todo.pop()
        e = producer.get(v)
        if e is None or v in in_memory or not _is_passed(e):
            if v is x or v.aval.nbytes >= x.aval.nbytes:
                return None
            total += v.aval.nbytes
            continue
        new = [i for i in e.ins if type(i) is Var and i not in seen]
        seen.update(new)
        todo += new
        if len(seen) > _MOST_STEPS:
            return None
    return total


def _in_memory(jaxpr: Jaxpr, products: Collection[Atom]) -> set[Var]:
    """The values that are in memory whatever kernels compute: results, and operands of steps of
    other kinds, but for `products`, which will be sums."""
    found = set(jaxpr.outs)
    for e in reversed(jaxpr.eqns):
        kind = "reduce" if e.outs and e.outs[0] in products else kind_of(e)
        if kind == "opaque" or (kind == "view" and not found.isdisjoint(e.outs)):
            found.update([i for i in e.ins if type(i) is Var])
    return found


class _Rewriting:
    """The equations so far, what makes each value, and the values that are made of components."""

    def __init__(self, in_memory: set[Var], products: dict[Var, _NarrowProduct]) -> None:
        self.in_memory = in_memory
        self.products = products
        self.eqns: list[Eqn] = []
        self.producer: dict[Var, Eqn] = {}
        self.parts: dict[Var, Sequence[Var]] = {}

    def take(self, e: Eqn) -> None:
        """Add an equation of the program, in its new form."""
        product = self.products.get(e.outs[0]) if e.outs else None
        if product is not None and self._summed(e, product):
            return
        if not self._by_components(e) and not (_is_candidate(e) and self._reduced(e)):
            self._keep(e)

    def _keep(self, e: Eqn) -> None:
        self.eqns.append(e)
        self.producer.update(dict.fromkeys(e.outs, e))

    def _add(
        self, e: Eqn, prim: Primitive, ins: Sequence[Atom], out: Var | None = None, **params: Any
    ) -> Var:
        """Add an equation in the place of `e`: its result."""
        o = out or Var(prim.abstract(tuple([i.aval for i in ins]), params))
        self._keep(e.replace(prim=prim, ins=list(ins), params=params, outs=[o]))
        return o

    def _reduced(self, e: Eqn) -> bool:
        """Add another form of a reduction, if that is cheaper."""
        x, axes, out = e.ins[0], reduced_axes(e), e.outs[0]
        if not _is_computed(e, _bytes_below(x, self.producer, self.in_memory)):
            return False
        count = _length(e)
        if count <= _SHORT:
            terms = [self._add(e, component_p, [x], axes=axes, number=n) for n in range(count)]
            self._join(e, terms, out)
            return True
        last = x.aval.ndim - 1
        if last not in axes and 1 < x.aval.shape[last] <= _COMPONENTS:
            numbers = range(x.aval.shape[last])
            each = [self._add(e, component_p, [x], axes=(last,), number=n) for n in numbers]
            self.parts[out] = parts = [self._along(e, v, axes, None) for v in each]
            self._add(e, components_p, parts, out)
        else:
            self._along(e, x, axes, out)
        return True

    def _summed(self, e: Eqn, product: _NarrowProduct) -> bool:
        """Add a product of a computed matrix as a sum for each of the other one's columns."""
        x, narrow, out = product.wide, product.narrow, e.outs[0]
        if not product.is_computed(_bytes_below(x, self.producer, self.in_memory)):
            return False
        kind = dtypes.F64 if out.aval.dtype == dtypes.F64 else dtypes.F32
        wide = lambda v: v if v.aval.dtype == kind else self._add(e, convert_p, [v], dtype=kind)
        x, columns = wide(x), [wide(narrow)]
        if product.columns is not None:
            axes, count = (product.columns,), narrow.aval.shape[product.columns]
            columns = [
                self._add(e, component_p, columns, axes=axes, number=n) for n in range(count)
            ]
        shape, dims = x.aval.shape, (product.along,)
        total = e.replace(prim=reduce_sum_p, params={"axes": (product.along,)})
        parts = []
        for column in columns:
            terms = [x, self._add(e, broadcast_in_dim_p, [column], shape=shape, dims=dims)]
            part = self._along(total, self._add(e, ew.mul.prim, terms), (product.along,), None)
            same = part.aval.dtype == out.aval.dtype
            parts.append(part if same else self._add(e, convert_p, [part], dtype=out.aval.dtype))
        if product.columns is None:
            self._add(e, reshape_p, parts, out, shape=out.aval.shape)
        elif product.first:
            joined = self._add(e, components_p, parts)
            order = (joined.aval.ndim - 1, *range(joined.aval.ndim - 1))
            self._add(e, transpose_p, [joined], out, permutation=order)
        else:
            self.parts[out] = parts
            self._add(e, components_p, parts, out)
        return True

    def _join(self, e: Eqn, terms: Sequence[Var], out: Var) -> None:
        """Combine the terms of a short reduction."""
        how = e.prim.lowering
        assert type(how) is Reduce
        prim = _TERMS[how.combine]
        if how.combine == "add":
            self._add(e, prim, terms, out)
            return
        first, *rest = terms
        for n, term in enumerate(rest, 1):
            first = self._add(e, prim, [first, term], out if n == len(rest) else None)

    def _along(self, e: Eqn, x: Var, axes: tuple[int, ...], out: Var | None) -> Var:
        """Reduce a computed array along its last axes."""
        shape = x.aval.shape
        kept = tuple([a for a in range(len(shape)) if a not in axes])
        order = (*kept, *axes)
        if order != tuple(range(len(shape))):
            x = self._add(e, transpose_p, [x], permutation=order)
            shape, axes = x.aval.shape, tuple(range(len(kept), len(shape)))
        # Rows of 16-bit floats would be rounded before they are added.
        if not kept and x.aval.dtype not in dtypes.NARROW and len(shape) > 1:
            rows = math.prod(shape[:-1])
            if rows >= _ROWS and shape[-1] >= _ROW:
                x = self._add(e, e.prim, [x], axes=(len(shape) - 1,))
                axes = tuple(range(len(shape) - 1))
        return self._add(e, e.prim, [x], out, axes=axes)

    def _by_components(self, e: Eqn) -> bool:
        """Add an elementwise equation of values of components as one for each component."""
        if type(e.prim.lowering) is not Elementwise or kind_of(e) != "map":
            return False
        operands = [self.parts.get(i) if type(i) is Var else i for i in e.ins]
        if None in operands or not any([type(i) is list for i in operands]):
            return False
        count = e.outs[0].aval.shape[-1]
        (out,) = e.outs
        self.parts[out] = parts = [
            self._add(
                e,
                e.prim,
                [i[n] if type(i) is list else i for i in operands],
                Var(out.aval.update(out.aval.shape[:-1])),
                **e.params,
            )
            for n in range(count)
        ]
        self._add(e, components_p, parts, out)
        return True
