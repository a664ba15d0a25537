"""Convolutions as a library or a product of matrices computes them.

* A library reads images with channels last, and filters as [outputs, taps, inputs]. What lies
  otherwise is transposed by equations around the convolution, which fuse with what makes its
  operands (the cast of a weight) and reads its result (an optimizer's step). Some of our kernels
  want their filters so, too.
* Where there is none, a convolution with a single tap is a product of matrices, and so is one whose
  window is as large as its input, as the gradient of such a kernel is: the kernels of products are
  faster, and fuse with what reads them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

from genesis_fn.compiler.convolution_form import Form, form_of
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Atom, Eqn, Jaxpr, Var, jaxprs_in
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.conv import ConvDimensionNumbers, conv_p
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.shape import reshape_p, rev_p, transpose_p
from genesis_fn.transforms.custom.fused_functions import fused_p

Layout = Literal["library", "filter", "as it is"]
"""What computes a convolution with the layouts of its equation: a library; a kernel that wants its
filter so; a kernel, in any layout."""
Choose = Callable[[Eqn], Layout]
turned_conv_p = Primitive("turned_conv", conv_p.shape, flops=conv_p.flops, listed=False)
"""A convolution whose taps are in reversed order in memory: the gradient of an image, whose filter
a library reads as the convolution itself does, so that nothing turns it twice. To the library it is
its gradient of an image."""
_KINDS = (dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.F64)


def laid_convolutions(jaxpr: Jaxpr, choose: Choose, keeps: Callable[[Eqn], bool]) -> Jaxpr:
    """`jaxpr`, which is simplified, with its convolutions, those in loops and branches too,
    rewritten as above. `choose(equation)` says what computes a convolution that is laid for a
    library, `keeps(equation)` whether a backend has a kernel for a call of a fused function."""
    found = _rewritten(jaxpr, choose)
    return found if found is jaxpr else simplify_jaxpr(found, keeps)


def _rewritten(jaxpr: Jaxpr, choose: Choose) -> Jaxpr:
    env: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    turned: dict[Var, Eqn] = {}
    for e in jaxpr.eqns:
        ins = [env.get(i, i) if type(i) is Var else i for i in e.ins]
        if any(map(operator.is_not, ins, e.ins)):
            e = e.replace(ins=ins)
        if e.prim is conv_p:
            writer = _Writer(e, eqns, turned)
            found = _laid(writer, e, choose)
            if found is not None:
                env[e.outs[0]] = found
                continue
        elif e.prim is rev_p:
            turned[e.outs[0]] = e
        eqns.append(_inside(e, choose))
    if all(map(operator.is_, eqns, jaxpr.eqns)) and len(eqns) == len(jaxpr.eqns):
        return jaxpr
    outs = [env.get(v, v) for v in jaxpr.outs]
    return Jaxpr(jaxpr.invars, eqns, outs, jaxpr.labels, jaxpr.name)


def _inside(e: Eqn, choose: Choose) -> Eqn:
    """An equation with the programs that it runs rewritten."""
    if e.prim is fused_p or next(jaxprs_in(e.params), None) is None:
        return e
    params = dict(e.params)
    for name, value in e.params.items():
        if type(value) is Jaxpr:
            params[name] = _rewritten(value, choose)
        elif type(value) is tuple and any([type(x) is Jaxpr for x in value]):
            new = [_rewritten(x, choose) if type(x) is Jaxpr else x for x in value]
            params[name] = value if all(map(operator.is_, new, value)) else tuple(new)
    same = all([params[name] is value for name, value in e.params.items()])
    return e if same else e.replace(params=params)


class _Writer:
    """Appends the equations that replace one; `turned` has those that reverse an array."""

    def __init__(self, of: Eqn, eqns: list[Eqn], turned: dict[Var, Eqn]) -> None:
        self._of, self._eqns, self._turned = of, eqns, turned

    def apply(self, prim: Primitive, ins: list[Any], params: dict[str, Any]) -> Var:
        """The result of an equation."""
        e = self.equation(prim, ins, params)
        self._eqns.append(e)
        return e.outs[0]

    def equation(self, prim: Primitive, ins: list[Any], params: dict[str, Any]) -> Eqn:
        """An equation at the place of the one that is replaced."""
        of = self._of
        out = Var(prim.abstract(tuple([x.aval for x in ins]), params))
        return Eqn(prim, ins, params, [out], of.where, of.backward, of.numerics)

    def transposed(self, x: Any, order: tuple[int, ...]) -> Any:
        """An array with its dimensions in another order."""
        if order == tuple(range(len(order))):
            return x
        return self.apply(transpose_p, [x], {"permutation": order})

    def reversed(self, x: Any, dimensions: Sequence[int]) -> Any:
        """An array with its elements in reversed order along these dimensions."""
        before = self.before_reversed(x, dimensions)
        if before is not None:
            return before
        return self.apply(rev_p, [x], {"dimensions": tuple(dimensions)})

    def before_reversed(self, x: Any, dimensions: Sequence[int]) -> Any:
        """The array that an equation reverses along these dimensions to make `x`, which is it
        where all of them have one element; else None."""
        several = lambda dims: {d for d in dims if x.aval.shape[d] > 1}
        if not several(dimensions):
            return x
        e = self._turned.get(x) if type(x) is Var else None
        same = e is not None and several(e.params["dimensions"]) == several(dimensions)
        return e.ins[0] if e is not None and same else None


def _laid(writer: _Writer, e: Eqn, choose: Choose) -> Var | None:
    """The convolution with its arrays laid for what computes it; None to leave it as it is."""
    (x, w), (out,) = e.ins, e.outs
    lhs, rhs, to = e.params["dimension_numbers"]
    spatial = lambda shape, spec: [shape[d] for d in spec[2:]]
    form = form_of(
        e.params["lhs_dilation"], spatial(w.aval.shape, rhs), spatial(out.aval.shape, to)
    )
    choice: Layout = "as it is"
    for routine in ("image", form) if form == "output" and _lies_turned(writer, e) else (form,):
        orders = _orders(e, routine)
        turned = routine == "image"  # the library reads the filter as the convolution itself does
        prim, params = turned_conv_p if turned else conv_p, _laid_params(e, orders)
        laid = [
            Var(v.aval.update(tuple(map(v.aval.shape.__getitem__, o))))
            for v, o in zip((x, w), orders)
        ]
        choice = choose(writer.equation(prim, laid, params))
        if choice == "library":
            w = writer.reversed(w, rhs[2:]) if turned else w
            made = writer.apply(prim, list(map(writer.transposed, (x, w), orders)), params)
            return writer.transposed(made, tuple(map(orders[2].index, range(len(to)))))
    # A kernel reads images as they are, and its operand that is none as it wants it.
    product = _as_product(writer, e)
    in_order = tuple(range(len(lhs)))
    filtered = choice == "filter" and form != "filter" and _last(lhs) == in_order
    if product is not None or not filtered:
        return product
    orders = in_order, _last(rhs), in_order
    operands = list(map(writer.transposed, (x, w), orders))
    return writer.apply(conv_p, operands, _laid_params(e, orders))


Order = tuple[int, ...]
"""Dimensions of an array in the order in which they are to lie."""
Orders = tuple[Order, Order, Order]
"""Those of both operands and the result of a convolution."""


def _last(spec: Sequence[int]) -> Order:
    """Batch, positions, features; of a filter its outputs, taps, inputs."""
    return (spec[0], *spec[2:], spec[1])


def _orders(e: Eqn, form: Form) -> Orders:
    """How the routine of this form reads and writes."""
    lhs, rhs, to = e.params["dimension_numbers"]
    first = lambda spec: _last((spec[1], spec[0], *spec[2:]))
    return {
        "output": (_last(lhs), _last(rhs), _last(to)),
        "image": (_last(lhs), first(rhs), _last(to)),
        "filter": (first(lhs), first(rhs), first(to)),
    }[form]


def _laid_params(e: Eqn, orders: Orders) -> dict[str, Any]:
    """The parameters of a convolution whose arrays lie so."""
    numbers = e.params["dimension_numbers"]
    laid = [tuple(map(o.index, spec)) for spec, o in zip(numbers, orders)]
    return {**e.params, "dimension_numbers": ConvDimensionNumbers(*laid)}


def _lies_turned(writer: _Writer, e: Eqn) -> bool:
    """Whether a convolution without gaps or steps has a filter that lies as the gradient of an
    image reads it: that routine takes as long, and nothing copies the filter.

    Of 256 channels in two groups it takes twice as long (125 us and 65 on an H200).
    """
    w, params, rhs = e.ins[1], e.params, e.params["dimension_numbers"][1]
    if params["feature_group_count"] * params["batch_group_count"] > 1:
        return False
    if max(*params["window_strides"], *params["lhs_dilation"], 1) > 1:
        return False
    before = writer.before_reversed(w, rhs[2:])
    copied = not _in_order(_orders(e, "output")[1], w.aval.shape)
    return before is not None and (before is not w or copied)


def _as_product(writer: _Writer, e: Eqn) -> Var | None:
    """The convolution as a product of matrices that read it where it lies; None if it is none."""
    (x, w), params = e.ins, e.params
    kind, preferred = x.aval.dtype, params["preferred_element_type"]
    if not enabled("pointwise_convolutions") or kind not in _KINDS or kind != w.aval.dtype:
        return None
    if params["feature_group_count"] * params["batch_group_count"] > 1 or 0 in x.aval.shape:
        return None
    if preferred not in (None, kind) and (kind == dtypes.F64 or preferred != dtypes.F32):
        return None
    lhs, rhs, out = params["dimension_numbers"]
    summed = [(lhs[1], rhs[1])]  # dimensions of both operands
    single = []  # of the kernel, which has one tap there
    for at in range(2, len(lhs)):
        size, taps = x.aval.shape[lhs[at]], w.aval.shape[rhs[at]]
        plain = params["padding"][at - 2] == (0, 0) and params["lhs_dilation"][at - 2] == 1
        if plain and taps == 1 and params["window_strides"][at - 2] == 1:
            single.append(rhs[at])
        elif plain and taps == size and params["rhs_dilation"][at - 2] == 1:
            summed.append((lhs[at], rhs[at]))
        else:
            return None
    summed.sort()
    contracting = tuple([a for a, _ in summed]), tuple([b for _, b in summed])
    if not all(map(_is_matrix, contracting, (x.aval.shape, w.aval.shape))):
        return None
    # What the product has, by the dimensions of the convolution's result.
    free = [(lhs[at], out[at]) for at in (0, *range(2, len(lhs))) if lhs[at] not in contracting[0]]
    rows, columns, shape = [o for _, o in sorted(free)], [out[1]], e.outs[0].aval.shape
    in_order, turned = [_in_order(d, shape) for d in (rows + columns, columns + rows)]
    if not (in_order or turned):
        return None
    kept = [n for d, n in enumerate(w.aval.shape) if d not in single]
    matrix = writer.apply(reshape_p, [w], {"shape": tuple(kept)})
    at = tuple([d - sum([s < d for s in single]) for d in contracting[1]])
    sides = [(x, contracting[0]), (matrix, at)]
    (a, at_a), (b, at_b) = sides if in_order else sides[::-1]
    given = {
        "dimension_numbers": ((at_a, at_b), ((), ())),
        "precision": params["precision"],
        "preferred_element_type": preferred,
    }
    product = writer.apply(dot_general_p, [a, b], given)
    return writer.apply(reshape_p, [product], {"shape": shape})


def _is_matrix(dims: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether an operand is a matrix of these dimensions and the others: they follow one another,
    from its first or up to its last one. Those of length 1 are in nobody's way."""
    inside = [d in dims for d, n in enumerate(shape) if n != 1]
    changes = sum([a != b for a, b in zip(inside, inside[1:])])
    return list(dims) == sorted(dims) and changes <= 1


def _in_order(dims: Sequence[int], shape: Sequence[int]) -> bool:
    moved = [d for d in dims if shape[d] != 1]
    return moved == sorted(moved)
