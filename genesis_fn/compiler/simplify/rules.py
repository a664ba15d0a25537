"""Rules of the simplifier for first-order primitives: identities, constants, casts, views.

Each rule returns the results that replace an equation's, or None to keep it (`rewriter.rule`). They
are exact: a rule on floats is right for NaN, infinities and zeros of both signs, or is not applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis_fn.compiler.simplify.rewriter import PYTHON_TYPES, Rewriter, rounded, rule
from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Elementwise, Reduce
from genesis_fn.core.dtypes import BOOL, DType
from genesis_fn.core.jaxpr import Atom, Eqn, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.indexing.scatter import adds_rows, scatter_p, segment_sum_p
from genesis_fn.primitives.ragged_dot import ragged_dot_p
from genesis_fn.primitives.shape import (
    broadcast_in_dim_p,
    concatenate_p,
    copy_p,
    pad_p,
    reshape_p,
    rev_p,
    slice_p,
    split_p,
    transpose_p,
)
from genesis_fn.transforms.autodiff.checkpointing import name_p
from genesis_fn.transforms.custom.fused_functions import fused_p

add, sub, mul, div, neg = ew.add.prim, ew.sub.prim, ew.mul.prim, ew.div.prim, ew.neg.prim
max_, min_, and_, or_ = ew.max.prim, ew.min.prim, ew.bitwise_and.prim, ew.bitwise_or.prim

# ---- identities ----


@rule(name_p, ew.stop_gradient_p, copy_p)
def _identity(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    return [r.array(ins[0], e.outs[0], e)]


@rule(add, sub)
def _sum(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    found, kind = _number(ins), e.outs[0].aval.dtype
    folded = _fold(r, e, prim, ins)
    if folded is not None or found is None:
        return folded
    other, c, right = found
    if c != 0 or kind == BOOL or not (right or prim is add):
        return None
    if dtypes.is_integer(kind):
        return [other]
    # x + -0.0 and x - 0.0 are x; x + 0.0 makes a positive zero of a negative one, so it stays.
    negative = type(c) is float and math.copysign(1.0, c) < 0
    same = type(c) is not complex and negative == (prim is add) and dtypes.is_float(kind)
    return [other] if same else None


@rule(mul, div)
def _product(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    found, kind = _number(ins), e.outs[0].aval.dtype
    folded = _fold(r, e, prim, ins)
    if folded is not None or found is None:
        return folded
    other, c, right = found
    # Never x * 0: it is NaN for infinities and NaN, and -0.0 for negative numbers.
    if c == 1 and (right or prim is mul) and kind != BOOL:
        return [other]
    if prim is mul and c == -1 and dtypes.is_inexact(kind) and not dtypes.is_complex(kind):
        return list(r.apply(neg, [other], {}, e))
    return None


@rule(max_, min_)
def _extreme(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    return [ins[0]] if ins[0] is ins[1] else None


@rule(and_, or_)
def _logic(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    if ins[0] is ins[1]:
        return [ins[0]]
    found = _number(ins)
    folded = _fold(r, e, prim, ins)
    if folded is not None or found is None:
        return folded
    other, c, _ = found
    if e.outs[0].aval.dtype != BOOL or type(c) is not bool:
        return None
    return [other] if c == (prim is and_) else r.full(c, e.outs[0], e)


def _number(ins: list[Any]) -> tuple[Var, Any, bool] | None:
    """(the array, the number, whether the number comes second) of operands that are one of each,
    else None; None for NaN as well, so that rules need not think of it."""
    x, y = ins
    if type(x) is Var and type(y) is Var:
        return None
    other, c = (x, y) if type(x) is Var else (y, x)
    return None if c != c else (other, c, type(x) is Var)


@rule(ew.pow.prim)
def _pow(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    x, y = ins
    return [x] if type(y) in (int, float) and y == 1 and type(x) is Var else None


@rule(neg, ew.bitwise_not.prim)
def _involution(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    inner = r.defining_eqn(ins[0], prim)
    if inner is not None:
        return [inner.ins[0]]
    return _fold(r, e, prim, ins)


@rule(Elementwise)
def _folded(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    return _fold(r, e, prim, ins)


@rule(ew.select_p)
def _select(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    c, x, y = ins
    chosen = r.const.get(c)
    if chosen is not None:
        return [r.array(x if chosen else y, e.outs[0], e)]
    return [x] if x is y and type(x) is Var else None


@rule(ew.add_n.prim)
def _add_n(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    return [ins[0]] if len(ins) == 1 else None


def _fold(r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any]) -> list[Any] | None:
    """Constant folding: an operation on numbers only, in the dtype that it would be computed in."""
    const, lowering = r.const, prim.lowering
    if type(lowering) is not Elementwise or lowering.fold is None:
        return None
    if not all([type(i) is not Var or i in const for i in ins]):
        return None
    # Python numbers alone have no dtype. Torch computes with no wide unsigned one, and the table of
    # folds is not for complex numbers.
    array = next((i for i in ins if type(i) is Var), None)
    if (
        array is None
        or array.aval.dtype in dtypes.WIDE_UNSIGNED
        or dtypes.is_complex(array.aval.dtype)
    ):
        return None
    kind = array.aval.dtype
    values = [const[i] if type(i) is Var else rounded(i, kind) for i in ins]
    if None in values:
        return None
    with np.errstate(all="ignore"):
        value = lowering.fold(*[np.asarray(v).astype(kind) for v in values])
    return r.full(PYTHON_TYPES[dtypes.kind_rank(e.outs[0].aval.dtype)](value), e.outs[0], e)


# ---- rules: casts ----


@rule(ew.convert_p)
def _convert(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    x, target = ins[0], params["dtype"]
    if type(x) is not Var:
        return r.full(x, e.outs[0], e)
    if x.aval.dtype == target:
        return [x]
    # Float to integer is not folded: NumPy's cast of a number out of range is undefined.
    value = r.const.get(x)
    if value is not None and not (dtypes.is_inexact(x.aval.dtype) and dtypes.is_integer(target)):
        if not dtypes.is_complex(x.aval.dtype) and rounded(value, target) is not None:
            return r.full(rounded(value, target), e.outs[0], e)
    # Two casts are one if the first loses nothing: float32 -> float64 -> bfloat16, but not
    # float32 -> float16 -> bfloat16, which rounds twice.
    inner = r.defining_eqn(x, prim)
    if inner is not None and type(inner.ins[0]) is Var:
        source = inner.ins[0]
        if can_represent(x.aval.dtype, source.aval.dtype):
            return list(r.apply(prim, [source], {"dtype": target}, e))
    return None


def can_represent(wide: DType, narrow: DType) -> bool:
    """Whether every value of dtype `narrow` is also one of dtype `wide`."""
    if wide == narrow or narrow == BOOL:
        return True
    if wide == BOOL:
        return False
    if dtypes.is_complex(wide):
        half = dtypes.real_of(wide)
        return can_represent(half, dtypes.real_of(narrow) if dtypes.is_complex(narrow) else narrow)
    if dtypes.is_complex(narrow):
        return False
    if dtypes.is_float(narrow):
        if not dtypes.is_float(wide):
            return False
        a, b = dtypes.finfo(wide), dtypes.finfo(narrow)
        # Only with a wider exponent or an equal layout: F8E4 has no infinity.
        return a.nmant >= b.nmant and a.nexp >= b.nexp and wide != dtypes.F8E4
    # An integer of n bits needs a significand of n bits, the implicit one included.
    signed = int(dtypes.iinfo(narrow).min) < 0
    bits = 8 * narrow.itemsize - signed
    if dtypes.is_float(wide):
        layout = dtypes.finfo(wide)
        return layout.nmant + 1 >= bits and 2 ** (layout.nexp - 1) > bits
    return 8 * wide.itemsize - (int(dtypes.iinfo(wide).min) < 0) >= bits and (
        not signed or int(dtypes.iinfo(wide).min) < 0
    )


# ---- rules: shapes ----


def _constant_view(r: Rewriter, e: Eqn, x: Atom) -> list[Any] | None:
    value = r.const.get(x)
    return None if value is None else r.full(value, e.outs[0], e)


@rule(reshape_p)
def _reshape(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    (x,), target = ins, params["shape"]
    if x.aval.shape == target:
        return [x]
    inner = r.defining_eqn(x, prim)
    if inner is not None:
        return list(r.apply(prim, [inner.ins[0]], {"shape": target}, e))
    value = r.const.get(x)
    if value is not None:
        kind = x.aval.dtype
        return list(r.make(full_p, [], {"value": value, "shape": target, "dtype": kind}, e))
    return None


@rule(transpose_p)
def _transposed(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    (x,), order = ins, params["permutation"]
    if order == tuple(range(len(order))):
        return [x]
    inner = r.defining_eqn(x, prim)
    if inner is not None:
        first = inner.params["permutation"]
        both = tuple([first[i] for i in order])
        return list(r.apply(prim, [inner.ins[0]], {"permutation": both}, e))
    moved = [i for i in order if x.aval.shape[i] != 1]
    if moved == sorted(moved):
        # Only axes of length 1 move: the same memory.
        return list(r.apply(reshape_p, [x], {"shape": tuple([x.aval.shape[i] for i in order])}, e))
    return _constant_view(r, e, x)


@rule(broadcast_in_dim_p)
def _broadcast(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    (x,), target, dims = ins, params["shape"], params["dims"]
    if type(x) is not Var:
        return r.full(x, e.outs[0], e)
    if x.aval.shape == target:
        return [x]
    value = r.const.get(x)
    if value is not None:
        kind = x.aval.dtype
        return list(r.make(full_p, [], {"value": value, "shape": target, "dtype": kind}, e))
    if x.aval.size == math.prod(target):
        return list(r.apply(reshape_p, [x], {"shape": target}, e))
    inner = r.defining_eqn(x, prim)
    if inner is not None and type(inner.ins[0]) is Var:
        both = tuple([dims[d] for d in inner.params["dims"]])
        return list(r.apply(prim, [inner.ins[0]], {"shape": target, "dims": both}, e))
    # A reshape that only inserts axes of length 1 is part of the broadcast.
    inner = r.defining_eqn(x, reshape_p)
    if inner is not None:
        source = inner.ins[0]
        positions = _expanded(source.aval.shape, x.aval.shape)
        if positions is not None:
            both = tuple([dims[d] for d in positions])
            return list(r.apply(prim, [source], {"shape": target, "dims": both}, e))
    return None


def _expanded(before: tuple[int, ...], after: tuple[int, ...]) -> list[int] | None:
    """The dimensions of `after` that are those of `before`, if the others have length 1; else
    None."""
    positions, d = [], 0
    for n in before:
        while d < len(after) and after[d] != n:
            if after[d] != 1:
                return None
            d += 1
        if d == len(after):
            return None
        positions.append(d)
        d += 1
    return positions if all(n == 1 for n in after[d:]) else None


@rule(slice_p)
def _slice(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    (x,) = ins
    if e.outs[0].aval is x.aval:
        return [x]
    inner = r.defining_eqn(x, prim)
    if inner is not None:
        p = inner.params
        # Slices compose: start and stride of the second count steps of the first.
        start = tuple([a + b * s for a, b, s in zip(p["start"], params["start"], p["strides"])])
        steps = tuple([s * t for s, t in zip(p["strides"], params["strides"])])
        sizes = e.outs[0].aval.shape
        # Just beyond the last element read: another limit might lie outside of the operand.
        limit = tuple([a + (n - 1) * s + 1 if n else a for a, n, s in zip(start, sizes, steps)])
        both = {"start": start, "limit": limit, "strides": steps}
        return list(r.apply(prim, [inner.ins[0]], both, e))
    return _constant_view(r, e, x)


@rule(pad_p)
def _pad(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    x, value = ins
    if all([each == (0, 0, 0) for each in params["config"]]):
        return [x]
    if type(value) is Var and value in r.const and value.aval.dtype not in dtypes.WIDE_UNSIGNED:
        return list(r.make(prim, [x, r.const[value]], params, e))
    return None


@rule(rev_p)
def _rev(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    (x,) = ins
    if all([x.aval.shape[d] == 1 for d in params["dimensions"]]):
        return [x]
    return _constant_view(r, e, x)


@rule(concatenate_p)
def _concatenate(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    d = params["dimension"]
    filled = [x for x in ins if x.aval.shape[d]]
    if len(filled) == len(ins) > 1:
        return None
    if len(filled) <= 1:
        return [filled[0] if filled else ins[0]]
    return list(r.make(prim, filled, params, e))


@rule(split_p)
def _split(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    return list(ins) if len(params["sizes"]) == 1 else None


@rule(scatter_p)
def _scatter(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    """A single window overlaps no other, so that nothing need be sorted (`x.at[:, i].set(y)`). Rows
    added to zeros are a sum over segments, which reads no zeros."""
    (x, indices, updates), value = ins, r.const.get(ins[0])
    if math.prod(indices.aval.shape[:-1]) == 1 and not params["unique_indices"]:
        single = {"unique_indices": True, "indices_are_sorted": True}
        return list(r.apply(prim, ins, {**params, **single}, e))
    if not (isinstance(value, (int, float)) and value == 0 and math.copysign(1, value) > 0):
        return None
    if not adds_rows(x.aval, indices.aval, updates.aval, params):
        return None
    (ids,) = r.apply(reshape_p, [indices], {"shape": indices.aval.shape[:-1]}, e)
    same = ("indices_are_sorted", "unique_indices", "deterministic", "mode")
    changed = {"num_segments": x.aval.shape[0]} | {name: params[name] for name in same}
    return list(r.make(segment_sum_p, [updates, ids], changed, e))


@rule(Reduce)
def _reduction(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    (x,), axes = ins, params.get("axes")
    if axes is None:  # a position, which has one axis
        return None
    # Axes of length 1 become a reshape. That keeps -0.0, which a sum started at 0.0 would not.
    single = [a for a in axes if x.aval.shape[a] == 1]
    if not single and axes:
        return None
    sizes = x.aval.shape
    rest = [i for i in range(len(sizes)) if i not in single]
    if single:
        x = r.apply(reshape_p, [x], {"shape": tuple([sizes[i] for i in rest])}, e)[0]
    left = tuple([rest.index(a) for a in axes if a not in single])
    return list(r.apply(prim, [x], {"axes": left}, e)) if left else [x]


# ---- products ----


@rule(dot_general_p)
def _product_of_transposed(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    """Fold transposes of operands into the product: `x @ w.T` contracts the last dimension of `w`,
    which a kernel reads by its strides, where the transpose would be a copy."""
    contracting, batch = params["dimension_numbers"]
    read = [_before_transpose(r, e, x, c, b) for x, c, b in zip(ins, contracting, batch)]
    if not any(read):
        return None
    read = [new or old for new, old in zip(read, zip(ins, contracting, batch))]
    (x, xc, xb), (y, yc, yb) = read
    return list(r.apply(prim, [x, y], {**params, "dimension_numbers": ((xc, yc), (xb, yb))}, e))


def _before_transpose(
    r: Rewriter, e: Eqn, x: Atom, contracting: Sequence[int], batch: Sequence[int]
) -> tuple[Atom, tuple[int, ...], tuple[int, ...]] | None:
    """(operand, contracting dimensions, batch dimensions) of a product's operand before its
    transpose and perhaps a cast; None where that would reorder the result's dimensions."""
    cast = r.defining_eqn(x, ew.convert_p)
    inner = r.defining_eqn(x if cast is None else cast.ins[0], transpose_p)
    if inner is None:
        return None
    (source,), order = inner.ins, inner.params["permutation"]
    free = [order[d] for d in free_dims(len(order), (*contracting, *batch))]
    if free != sorted(free):
        return None
    if cast is not None:
        (source,) = r.apply(ew.convert_p, [source], cast.params, e)
    return source, tuple([order[d] for d in contracting]), tuple([order[d] for d in batch])


@rule(ragged_dot_p)
def _ragged_product_of_transposed(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    """Fold a transpose of every group's matrix into the product, which reads either layout."""
    x, w, sizes = ins
    cast = r.defining_eqn(w, ew.convert_p)
    inner = r.defining_eqn(w if cast is None else cast.ins[0], transpose_p)
    if inner is None:
        return None
    (source,), order = inner.ins, inner.params["permutation"]
    last = len(order) - 1
    if tuple(order) != (*range(last - 1), last, last - 1):
        return None
    if cast is not None:
        (source,) = r.apply(ew.convert_p, [source], cast.params, e)
    turned = {**params, "rhs_transposed": not params["rhs_transposed"]}
    return list(r.apply(prim, [x, source, sizes], turned, e))


# ---- fused functions ----


@rule(fused_p)
def _fused(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    """Forward the results of a fused function that are operands, mostly residuals, and merge those
    that come twice: a kernel need not write them."""
    body = params["jaxpr"]
    operand = {v: x for v, x in zip(body.invars, ins) if type(x) is Var}
    if len(set(body.outs)) == len(body.outs) and operand.keys().isdisjoint(body.outs):
        return None
    made = r.make(prim, ins, params, e, e.outs if prim is e.prim else None)
    first: dict[Var, Atom] = {}
    for o, result in zip(body.outs, made, strict=True):
        first.setdefault(o, result)
    return [operand.get(o, first[o]) for o in body.outs]
