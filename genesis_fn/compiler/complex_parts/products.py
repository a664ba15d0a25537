"""Products of matrices and convolutions of complex numbers, as one real product each.

The parts of the left operand are two elements of the contracted axis, and those of the result two
elements of a free one: the right operand's element w becomes the matrix [[re w, im w],
[-im w, re w]]. A product [m, k] by [k, n] is so a real one, [m, 2k] by [2k, 2n], which reads a
packed left operand and writes a packed result where they lie. With few rows it is [2m, k] by
[k, 2n], and the right operand is read where it lies.

Products of complex64 are good to float32 unless a precision is asked for: an error of TF32 in each
part would be one of all angles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.values import Complex, of_packed, of_parts, on_parts
from genesis_fn.core import dtypes
from genesis_fn.core.primitive import Primitive, bind, typeof
from genesis_fn.primitives.conv import ConvDimensionNumbers, conv_p
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.elementwise import add, neg, sub
from genesis_fn.primitives.ragged_dot import ragged_contraction_p, ragged_dot_p
from genesis_fn.primitives.shape import concatenate, expand_dims, index_in_dim, reshape


def _real_options(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the real product."""
    precision, preferred = params["precision"], params["preferred_element_type"]
    return {
        "precision": "highest" if precision == "default" else precision,
        "preferred_element_type": None if preferred is None else dtypes.real_of(preferred),
    }


def _stacked(x: Any, y: Any, axis: int) -> Any:
    """Two arrays along a new axis."""
    return concatenate([expand_dims(x, axis), expand_dims(y, axis)], axis)


def _matrices(w: Complex, given: int, made: int) -> Any:
    """Each element w as [[re, im], [-im, re]]: new axes `given`, of parts of the left operand, and
    `made`, of parts of the result, both as axes of the returned array."""
    re, im = w.parts
    if made == w.aval.ndim + 1:
        return of_parts(_stacked(re, neg(im), given), _stacked(im, re, given)).packed
    first, second = min(given, made), max(given, made)
    rows = (re, im), (neg(im), re)
    if given > made:
        rows = tuple(zip(*rows))
    # The later axis first: where it goes does not depend on the earlier one but for the shift.
    one, two = [_stacked(a, b, second - 1) for a, b in rows]
    return _stacked(one, two, first)


# ---- dot_general ----


@on_parts(dot_general_p)
def _dot(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    x, y = xs
    (xc, yc), (xb, yb) = params["dimension_numbers"]
    options = _real_options(params)
    kind = prim.abstract((x.aval, y.aval), params)
    if x.real or y.real:
        return _with_real(x, y, params["dimension_numbers"], options)
    n, m = x.aval.ndim, y.aval.ndim
    rows = math.prod([x.aval.shape[d] for d in free_dims(n, (*xc, *xb))])
    if 2 * rows < math.prod([x.aval.shape[d] for d in xc]):
        return _of_few_rows(x, y, params["dimension_numbers"], options)
    # Behind the last contracted and the last free axis, so that pairs of axes are neighbours in
    # memory, as the kernel's one contracted and one free axis.
    free = free_dims(m, (*yc, *yb))
    behind_contracted, behind_free = max(yc, default=m - 1) + 1, max(free, default=m - 1) + 1
    if behind_contracted < behind_free:
        given, made = behind_contracted, behind_free + 1
    elif behind_contracted > behind_free:
        given, made = behind_contracted + 1, behind_free
    else:
        given, made = m, m + 1
    wide = _matrices(y, given, made)
    at = lambda dims: tuple([d + (d >= given) + (d + (d >= given) >= made) for d in dims])
    if made < given:
        at = lambda dims: tuple([d + (d >= made) + (d + (d >= made) >= given) for d in dims])
    numbers = (((*xc, n), (*at(yc), given)), (xb, at(yb)))
    packed = bind(prim, x.packed, wide, dimension_numbers=numbers, **options)
    # The free axes of the right operand come in order, the axis of parts behind the last.
    assert typeof(packed).shape == (*kind.shape, 2)
    return of_packed(packed)


def _of_few_rows(x: Complex, y: Complex, numbers: Any, options: dict[str, Any]) -> Complex:
    """The product of a left operand of few rows, which takes as long as reading the right one: that
    is read as it lies. Rows of both parts give all four products of parts."""
    (xc, yc), (xb, yb) = numbers
    up = lambda dims: tuple([d + 1 for d in dims])
    re, im = x.parts
    rows = _stacked(re, im, 0)
    numbers = ((up(xc), yc), (up(xb), yb))
    z = bind(dot_general_p, rows, y.packed, dimension_numbers=numbers, **options)
    at = len(xb)  # the first of the left operand's free axes: that of parts

    def part(i: int, j: int) -> Any:
        return index_in_dim(index_in_dim(z, j, -1, keepdims=False), i, at, keepdims=False)

    return of_parts(sub(part(0, 0), part(1, 1)), add(part(0, 1), part(1, 0)))


def _with_real(x: Complex, y: Complex, numbers: Any, options: dict[str, Any]) -> Complex:
    """The product of a complex and a real operand: of both parts at once."""
    if y.real and x.real:
        re = bind(dot_general_p, x.parts[0], y.parts[0], dimension_numbers=numbers, **options)
        im = bind(dot_general_p, x.parts[0], y.parts[1], dimension_numbers=numbers, **options)
        return of_parts(re, im)
    if x.real:
        made = bind(dot_general_p, x.parts[0], y.packed, dimension_numbers=numbers, **options)
        return of_packed(made)
    parts = [
        bind(dot_general_p, v, y.parts[0], dimension_numbers=numbers, **options) for v in x.parts
    ]
    return of_parts(*parts)


# ---- products of groups of rows ----


@on_parts(ragged_dot_p)
def _ragged_dot(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    x, w, sizes = xs
    rows, turned = x.packed, params["rhs_transposed"]
    lead, (rest, last) = w.aval.shape[:-2], w.aval.shape[-2:]
    m = w.aval.ndim
    # [groups, k, 2, n, 2], or transposed [groups, n, 2, k, 2]
    given, made = (m + 1, m - 1) if turned else (m - 1, m + 1)
    wide = reshape(_matrices(w, given, made), (*lead, 2 * rest, 2 * last))
    flat = reshape(rows, (*x.aval.shape[:-1], 2 * x.aval.shape[-1]))
    options = params | _real_options(params)
    y = bind(prim, flat, wide, sizes, **options)
    return of_packed(reshape(y, (*typeof(y).shape[:-1], typeof(y).shape[-1] // 2, 2)))


@on_parts(ragged_contraction_p)
def _ragged_contraction(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    """All four products of parts are one product of packed rows."""
    x, y, sizes = xs
    flat = [reshape(v.packed, (*v.aval.shape[:-1], 2 * v.aval.shape[-1])) for v in (x, y)]
    z = bind(prim, *flat, sizes, **params | _real_options(params))
    lead = typeof(z).shape[:-2]
    z = reshape(z, (*lead, x.aval.shape[-1], 2, y.aval.shape[-1], 2))
    at = len(lead) + 1

    def part(i: int, j: int) -> Any:
        return index_in_dim(index_in_dim(z, j, at + 2, keepdims=False), i, at, keepdims=False)

    return of_parts(sub(part(0, 0), part(1, 1)), add(part(0, 1), part(1, 0)))


# ---- convolutions ----


@on_parts(conv_p)
def _conv(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Complex:
    """Channels in pairs of parts: group i of features reads group i of channels, as before."""
    x, w = xs
    numbers: ConvDimensionNumbers = params["dimension_numbers"]
    channel, feature = numbers.lhs_spec[1], numbers.out_spec[1]
    given, made = numbers.rhs_spec[1] + 1, numbers.rhs_spec[0] + 1
    given, made = (given, made + 1) if given < made else (given + 1, made)
    wide = _matrices(w, given, made)
    taps = [n * (1 + (d in numbers.rhs_spec[:2])) for d, n in enumerate(w.aval.shape)]
    re, im = x.parts
    pairs = x.packed if channel == x.aval.ndim - 1 else _stacked(re, im, channel + 1)
    inputs = [n * (1 + (d == channel)) for d, n in enumerate(x.aval.shape)]
    options = params | _real_options(params)
    y = bind(prim, reshape(pairs, inputs), reshape(wide, taps), **options)
    shape = typeof(y).shape
    cut = (*shape[:feature], shape[feature] // 2, 2, *shape[feature + 1 :])
    y = reshape(y, cut)
    if feature == len(shape) - 1:
        return of_packed(y)
    return of_parts(*[index_in_dim(y, k, feature + 1, keepdims=False) for k in (0, 1)])
