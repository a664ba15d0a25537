"""Products of vectors, matrices and tensors: matmul, dot, einsum and their relatives."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, cast

from genesis_fn.core import dtypes, errors
from genesis_fn.core.primitive import shown, with_weak
from genesis_fn.core.types.annotations import Array, ArrayLike, DTypeLike
from genesis_fn.lax.promotion import broadcast, broadcast_shapes, promote_arrays, strong, value
from genesis_fn.numpy.manipulation.shapes import expand_dims, moveaxis, ravel, stack
from genesis_fn.numpy.mathematics.reductions import sum as sum_over
from genesis_fn.numpy.mathematics.ufuncs import conj, located, multiply, subtract
from genesis_fn.primitives import elementwise as p
from genesis_fn.primitives.dot_general import PrecisionLike, dot_general
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.primitives.shape import (
    broadcasted_iota,
    canonical_axes,
    canonical_axis,
    pad,
    reshape,
    slice,
    transpose,
)
from genesis_fn.transforms.staging.one_call import as_one_call


def _pair(name: str, a: Any, b: Any, preferred: Any) -> tuple[Any, Any, Any]:
    x, y = promote_arrays(name, (a, b))
    return x, y, None if preferred is None else dtypes.dtype(preferred)


def _mismatch(what: str, x: Any, y: Any, problem: str) -> errors.ShapeError:
    return located(errors.ShapeError(f"{what} {shown(x)} @ {shown(y)}: {problem}"))  # type: ignore


@as_one_call
def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The matrix product of the last two axes, leading axes broadcast; vectors lose their axis.

    16-bit floats accumulate in float32. Raises ShapeError naming both operands.
    """
    x, y, preferred = _pair("matmul", a, b, preferred_element_type)
    if x.ndim == 0 or y.ndim == 0:
        raise _mismatch("matmul", x, y, "scalars are multiplied by *")
    inner_x, inner_y = x.aval.shape[-1], y.aval.shape[max(y.ndim - 2, 0)]
    if inner_x != inner_y:
        raise _mismatch("matmul", x, y, f"inner dimensions {inner_x} and {inner_y} differ")
    if x.ndim <= 2 and y.ndim <= 2:
        numbers = (((x.ndim - 1,), (0,)), ((), ()))
        return dot_general(x, y, numbers, precision, preferred)
    if y.ndim <= 2:
        # A stack of matrices times one: the stack's rows are rows of one product.
        return dot_general(x, y, (((x.ndim - 1,), (0,)), ((), ())), precision, preferred)
    if x.ndim == 1:
        x_batch: tuple[int, ...] = ()
    else:
        x_batch = x.aval.shape[:-2]
    y_batch = y.aval.shape[:-2]
    try:
        batch = broadcast_shapes(x_batch, y_batch)
    except errors.ShapeError:
        raise _mismatch("matmul", x, y, f"batches {x_batch} and {y_batch} differ") from None
    return _batched(x, y, len(x_batch), batch, precision, preferred)


def _batched(x: Any, y: Any, x_batch: int, batch: tuple[int, ...], precision: Any, preferred: Any):
    """matmul of stacks: axes along which both have the batch's length are batch dimensions; those
    of one operand alone are free dimensions of that one."""
    n = len(batch)
    y_batch = y.ndim - 2
    x_axis = {i: i - (n - x_batch) for i in range(n) if i >= n - x_batch}
    y_axis = {i: i - (n - y_batch) for i in range(n) if i >= n - y_batch}
    shared, own = [], []
    drop_x, drop_y = [], []
    for i in range(n):
        in_x = i in x_axis and x.aval.shape[x_axis[i]] == batch[i] and batch[i] != 1
        in_y = i in y_axis and y.aval.shape[y_axis[i]] == batch[i] and batch[i] != 1
        if i in x_axis and not in_x:
            drop_x.append(x_axis[i])
        if i in y_axis and not in_y:
            drop_y.append(y_axis[i])
        if in_x and in_y:
            shared.append(i)
        elif in_x or in_y:
            own.append((i, in_x))
    vector = x_batch == 0 and x.ndim == 1
    x_kept = [i for i in range(x.ndim) if i not in drop_x]
    y_kept = [i for i in range(y.ndim) if i not in drop_y]
    xs = reshape(x, [x.aval.shape[i] for i in x_kept]) if drop_x else x
    ys = reshape(y, [y.aval.shape[i] for i in y_kept]) if drop_y else y
    xb = tuple([x_kept.index(x_axis[i]) for i in shared])
    yb = tuple([y_kept.index(y_axis[i]) for i in shared])
    result = dot_general(xs, ys, (((xs.ndim - 1,), (ys.ndim - 2,)), (xb, yb)), precision, preferred)
    # dot_general's order: shared, x's own batch and rows, y's own batch and columns.
    labels: list[Any] = list(shared)
    labels += [i for i, in_x in own if in_x] + ([] if vector else ["rows"])
    labels += [i for i, in_x in own if not in_x] + ["columns"]
    target: list[Any] = sorted([*shared, *[i for i, _ in own]])
    target += ([] if vector else ["rows"]) + ["columns"]
    result = transpose(result, [labels.index(t) for t in target])
    lengths = [*batch, *([] if vector else [x.aval.shape[-2]]), y.aval.shape[-1]]
    return reshape(result, lengths)


@as_one_call
def dot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """NumPy's dot: the last axis of `a` with the last but one of `b`; a product for scalars."""
    x, y, preferred = _pair("dot", a, b, preferred_element_type)
    if x.ndim == 0 or y.ndim == 0:
        product = multiply(x, y)
        return product if preferred is None else p.convert(product, preferred)
    contract_y = max(y.ndim - 2, 0)
    if x.aval.shape[-1] != y.aval.shape[contract_y]:
        raise _mismatch(
            "dot",
            x,
            y,
            f"inner dimensions {x.aval.shape[-1]} and {y.aval.shape[contract_y]} differ",
        )
    return dot_general(x, y, (((x.ndim - 1,), (contract_y,)), ((), ())), precision, preferred)


def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: int | Sequence[int] | Sequence[Sequence[int]] = 2,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The product of `a` and `b` summed over `axes`: a count, or (axes of a, axes of b)."""
    x, y, preferred = _pair("tensordot", a, b, preferred_element_type)
    if isinstance(axes, (tuple, list)):
        first, second = [
            canonical_axes(tuple(s) if isinstance(s, (tuple, list)) else s, v.ndim, "tensordot")
            for s, v in zip(axes, (x, y), strict=True)
        ]
    else:
        n = operator.index(cast(int, axes))
        if n > min(x.ndim, y.ndim):
            raise _mismatch("tensordot", x, y, f"neither may have fewer than {n} axes")
        first, second = tuple(range(x.ndim - n, x.ndim)), tuple(range(n))
    lengths = [[v.aval.shape[i] for i in axs] for v, axs in ((x, first), (y, second))]
    if lengths[0] != lengths[1]:
        raise _mismatch("tensordot", x, y, f"lengths {lengths[0]} and {lengths[1]} differ")
    return dot_general(x, y, ((first, second), ((), ())), precision, preferred)


def vdot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The sum of conj(a) * b over all elements."""
    return dot(
        ravel(conj(a)), ravel(b), precision=precision, preferred_element_type=preferred_element_type
    )


def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int = -1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The sum of conj(x1) * x2 along `axis`, other axes broadcast."""
    x, y, preferred = _pair("vecdot", x1, x2, preferred_element_type)
    i, j = canonical_axis(axis, x.ndim, "vecdot"), canonical_axis(axis, y.ndim, "vecdot")
    if x.aval.shape[i] != y.aval.shape[j]:
        raise _mismatch("vecdot", x, y, f"lengths differ along axis {axis}")
    x, y = moveaxis(conj(x), i, -1), moveaxis(y, j, -1)
    shape = broadcast_shapes(x.aval.shape, y.aval.shape)
    x, y = broadcast(x, shape), broadcast(y, shape)
    n = len(shape) - 1
    batch = tuple(range(n))
    return dot_general(x, y, (((n,), (n,)), (batch, batch)), precision, preferred)


def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Matrices times vectors, leading axes broadcast."""
    x, y = promote_arrays("matvec", (x1, x2))
    return matmul(x, expand_dims(y, -1))[..., 0]


def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Conjugated vectors times matrices, leading axes broadcast."""
    x, y = promote_arrays("vecmat", (x1, x2))
    return matmul(expand_dims(conj(x), -2), y)[..., 0, :]


def inner(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The sum over the last axes of `a` and `b`."""
    x, y, preferred = _pair("inner", a, b, preferred_element_type)
    if x.ndim == 0 or y.ndim == 0:
        product = multiply(x, y)
        return product if preferred is None else p.convert(product, preferred)
    return tensordot(x, y, ((-1,), (-1,)), precision=precision, preferred_element_type=preferred)


def outer(a: ArrayLike, b: ArrayLike, out: None = None) -> Array:
    """a[i] * b[j] of the flattened arrays."""
    x, y = promote_arrays("outer", (a, b))
    return multiply(reshape(x, (x.size, 1)), reshape(y, (1, y.size)))


def kron(a: ArrayLike, b: ArrayLike) -> Array:
    """The Kronecker product."""
    x, y = promote_arrays("kron", (a, b))
    n = max(x.ndim, y.ndim)
    xs, ys = [(1,) * (n - v.ndim) + v.aval.shape for v in (x, y)]
    wide = multiply(
        reshape(x, [k for m in xs for k in (m, 1)]), reshape(y, [k for m in ys for k in (1, m)])
    )
    return reshape(wide, [k * m for k, m in zip(xs, ys)])


def cross(
    a: ArrayLike,
    b: ArrayLike,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Array:
    """The cross product of vectors of length 3 (or 2: then the third component alone)."""
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = promote_arrays("cross", (a, b))
    x, y = moveaxis(x, axisa, -1), moveaxis(y, axisb, -1)
    sizes = x.aval.shape[-1], y.aval.shape[-1]
    if any(n not in (2, 3) for n in sizes):
        raise _mismatch("cross", x, y, "vectors must have 2 or 3 components")
    if sizes == (2, 2):
        return subtract(multiply(x[..., 0], y[..., 1]), multiply(x[..., 1], y[..., 0]))
    zero = full((), (0.0 if dtypes.is_inexact(x.dtype) else 0), x.dtype)
    x, y = [
        pad(v, zero, [(0, 0, 0)] * (v.ndim - 1) + [(0, 1, 0)]) if n == 2 else v
        for v, n in zip((x, y), sizes)
    ]
    shape = broadcast_shapes(x.aval.shape, y.aval.shape)
    x, y = broadcast(x, shape), broadcast(y, shape)
    parts = [
        subtract(multiply(x[..., i], y[..., j]), multiply(x[..., j], y[..., i]))
        for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    return strong(stack(parts, axisc))


# ---- diagonals ----


def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonal of axes `axis1` and `axis2`, as a new last axis."""
    a = value(a, "diagonal")
    i, j = canonical_axes((axis1, axis2), a.ndim, "diagonal")
    x = moveaxis(a, (i, j), (-2, -1))
    *front, rows, columns = x.aval.shape
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    if not length:
        return reshape(slice(x, [0] * x.ndim, [*front, 0, 0]), (*front, 0))
    start = offset if offset >= 0 else -offset * columns
    # Element k lies at start + k * (columns + 1) of the flattened matrix.
    flat = reshape(x, (*front, rows * columns))
    stop = start + (length - 1) * (columns + 1) + 1
    zeros = [0] * len(front)
    return slice(flat, (*zeros, start), (*front, stop), (*[1] * len(front), columns + 1))


def trace(
    a: ArrayLike,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike | None = None,
    out: None = None,
) -> Array:
    """The sum of the diagonal."""
    return sum_over(diagonal(a, offset, axis1, axis2), -1, dtype)


def diag(v: ArrayLike, k: int = 0) -> Array:
    """The matrix with vector `v` on its k-th diagonal, or the k-th diagonal of a matrix."""
    v = value(v, "diag")
    if v.ndim == 2:
        return diagonal(v, k)
    if v.ndim != 1:
        raise ValueError(f"diag takes a vector or a matrix, got {v.aval}")
    n = v.size + abs(k)
    row, column = [broadcasted_iota(dtypes.I32, (n, n), i) for i in (0, 1)]
    zero = (False, 0, 0.0, 0j)[dtypes.kind_rank(v.dtype)]
    wide = pad(v, zero, [(max(k, 0), max(-k, 0), 0)])
    found = p.select(
        p.eq(p.add(row, int(k)), column), broadcast(wide, (n, n)), full((n, n), zero, v.dtype)
    )
    return with_weak(found, v.weak)


def diagflat(v: ArrayLike, k: int = 0) -> Array:
    """The matrix with the flattened `v` on its k-th diagonal."""
    return diag(ravel(v), k)


# ---- einsum ----


def einsum(
    subscripts: str | ArrayLike,
    /,
    *operands: ArrayLike | Sequence[Any],
    out: None = None,
    optimize: bool | str | Sequence[Any] = "auto",
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """The sum of products that `subscripts` describe, such as "bij,bjk->bik"; `...` broadcasts.

    Also einsum(x, [0, 1], y, [1, 2], [0, 2]). Operands are contracted pairwise, in the order of
    least work (by opt_einsum where installed). Raises ShapeError naming the subscripts.
    """
    text, args = _parsed(subscripts, operands)
    if any(not isinstance(a, (list, tuple)) and not _is_array(a) for a in args):
        raise TypeError("einsum takes arrays after the subscripts")
    preferred = None if preferred_element_type is None else dtypes.dtype(preferred_element_type)
    xs = promote_arrays("einsum", args)
    inputs, output = _subscripts(text, [x.ndim for x in xs])
    sizes: dict[str, int] = {}
    for names, x in zip(inputs, xs):
        for name, n in zip(names, x.aval.shape):
            if sizes.setdefault(name, n) == 1:
                sizes[name] = n
            elif n not in (1, sizes[name]):
                raise located(
                    errors.ShapeError(
                        f'einsum "{text}": index {name!r} has lengths {sizes[name]} and {n} in '
                        + ", ".join(map(shown, xs))
                    )
                )
    terms = [_simplified(text, names, x, sizes) for names, x in zip(inputs, xs)]
    order = _path(text, [t[0] for t in terms], output, sizes, optimize)
    for pair in order:
        picked = [terms.pop(i) for i in sorted(pair, reverse=True)][::-1]
        kept = set(output).union(*[names for names, _ in terms])
        while len(picked) > 1:
            needed = kept.union(*[names for names, _ in picked[2:]])
            picked[:2] = [_contract(picked[0], picked[1], needed, precision, preferred)]
        terms.append(_summed(picked[0], kept, preferred))
    names, x = _summed(terms[0], set(output), preferred)
    x = transpose(x, [names.index(c) for c in output])
    x = broadcast(x, tuple([sizes[c] for c in output]))
    return x if preferred is None else p.convert(x, preferred)


def einsum_path(
    subscripts: str | ArrayLike,
    /,
    *operands: ArrayLike | Sequence[Any],
    optimize: bool | str | Sequence[Any] = "auto",
) -> tuple[list[tuple[int, ...]], Any]:
    """The order of pairwise contractions that `einsum` takes for these operands.

    Args:
        subscripts: as of `einsum`.
        *operands: as of `einsum`.
        optimize: as of `einsum`: a method of opt_einsum where it is installed, True for the best
            order, False for one after the other.

    Returns:
        (positions of the operands that each step takes from the list, to whose end it puts its
        result; opt_einsum's description, or without it a line of text).

    >>> x = jnp.ones((2, 2))
    >>> einsum_path("ij,jk,kl->il", x, x, x)[0]
    [(0, 1), (0, 1)]
    """
    text, args = _parsed(subscripts, operands)
    shapes = [value(a).aval.shape for a in args]
    inputs, output = _subscripts(text, [len(s) for s in shapes])
    sizes: dict[str, int] = {}
    for names, lengths in zip(inputs, shapes):
        for name, n in zip(names, lengths):
            sizes[name] = max(sizes.get(name, 1), n)
    try:
        import opt_einsum
    except ImportError:
        path = _path(text, inputs, output, sizes, optimize)
        if optimize is False and len(inputs) > 2:
            path = [(0, 1)] * (len(inputs) - 1)
        return path, f"{','.join(inputs)}->{output} in {len(path)} steps: {path}"
    if isinstance(optimize, bool):
        optimize = "optimal" if optimize else [(0, 1)] * (len(inputs) - 1)
    path, described = opt_einsum.contract_path(  # pyright: ignore[reportCallIssue]
        f"{','.join(inputs)}->{output}",
        *[tuple([sizes[c] for c in names]) for names in inputs],
        shapes=True,
        optimize=optimize,  # pyright: ignore[reportArgumentType]
    )
    return [tuple(step) for step in path], described


def _is_array(a: Any) -> bool:
    return hasattr(a, "shape") or isinstance(a, (int, float, complex))


def _parsed(subscripts: Any, operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """(subscript text, operands) for both ways of calling einsum."""
    if isinstance(subscripts, str):
        return subscripts.replace(" ", ""), list(operands)
    given = [subscripts, *operands]
    output = given.pop() if len(given) % 2 else None
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def spell(axes: Sequence[Any]) -> str:
        return "".join("..." if a is Ellipsis else letters[a] for a in axes)

    text = ",".join(spell(axes) for axes in given[1::2])
    return text if output is None else f"{text}->{spell(output)}", given[::2]


def _subscripts(text: str, ndims: Sequence[int]) -> tuple[list[str], str]:
    """(axis names per operand, of the result), with `...` spelled out in unused letters."""
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(ndims):
        raise ValueError(f'einsum "{text}" names {len(inputs)} operands, got {len(ndims)}')
    used = set(text)
    free = [c for c in map(chr, range(0x3B1, 0x3B1 + 64)) if c not in used]
    widest = 0
    for names, n in zip(inputs, ndims):
        if names.count("...") > 1:
            raise ValueError(f'einsum "{text}": {names!r} has more than one "..."')
        if "..." in names:
            widest = max(widest, n - (len(names) - 3))
    dots = "".join(free[:widest])
    spelled = []
    for names, n in zip(inputs, ndims):
        if "..." in names:
            extra = n - (len(names) - 3)
            names = names.replace("...", dots[widest - extra :] if extra > 0 else "")
        if len(names) != n or not all(c.isalpha() for c in names):
            raise ValueError(f'einsum "{text}": {names!r} does not name the {n} axes of an operand')
        spelled.append(names)
    if not arrow:
        letters = "".join(spelled)
        once = [c for c in sorted(set(letters)) if letters.count(c) == 1 and c not in dots]
        return spelled, dots + "".join(once)
    output = right.replace("...", dots)
    if len(set(output)) != len(output) or not set(output) <= set("".join(spelled)):
        raise ValueError(f'einsum "{text}": the result {right!r} repeats or invents an index')
    return spelled, output


def _simplified(text: str, names: str, x: Any, sizes: dict[str, int]) -> tuple[str, Any]:
    """An operand whose axes are distinct and not broadcast; repeated ones become a diagonal."""
    for c in dict.fromkeys(names):
        while names.count(c) > 1:
            i, j = names.index(c), names.rindex(c)
            if x.aval.shape[i] != x.aval.shape[j]:
                problem = f"repeated index {c!r} has two lengths in {shown(x)}"
                raise located(errors.ShapeError(f'einsum "{text}": {problem}'))
            x = diagonal(x, 0, i, j)
            names = names[:i] + names[i + 1 : j] + names[j + 1 :] + c
    squeezed = [i for i, c in enumerate(names) if x.aval.shape[i] == 1 and sizes[c] != 1]
    if squeezed:
        kept = [i for i in range(len(names)) if i not in squeezed]
        x = reshape(x, [x.aval.shape[i] for i in kept])
        names = "".join(names[i] for i in kept)
    return names, x


def _summed(term: tuple[str, Any], kept: set[str], preferred: Any) -> tuple[str, Any]:
    """A term summed over the indices that nothing else needs, in a dtype that holds `preferred`."""
    names, x = term
    axes = [i for i, c in enumerate(names) if c not in kept]
    if axes and preferred is not None:
        x = p.convert(x, dtypes.promote_types(x.dtype, preferred))
    return "".join(c for c in names if c in kept), reduce_sum(x, axes)


def _contract(
    first: tuple[str, Any], second: tuple[str, Any], kept: set[str], precision: Any, preferred: Any
) -> tuple[str, Any]:
    """The product of two terms, summed over the indices that are in neither `kept`."""
    a, x = _summed(first, kept | set(second[0]), preferred)
    b, y = _summed(second, kept | set(a), preferred)
    x, y = promote_arrays("einsum", (x, y))
    both = [c for c in a if c in b]
    batch = [c for c in both if c in kept]
    contract = [c for c in both if c not in kept]
    numbers = (
        (tuple([a.index(c) for c in contract]), tuple([b.index(c) for c in contract])),
        (tuple([a.index(c) for c in batch]), tuple([b.index(c) for c in batch])),
    )
    names = "".join(batch) + "".join(c for c in a if c not in both)
    names += "".join(c for c in b if c not in both)
    if not contract and preferred is None:
        # Nothing is summed: an elementwise product, which fuses with its neighbours.
        return names, _elementwise(a, x, b, y, names)
    return names, dot_general(x, y, numbers, precision, preferred)


def _elementwise(a: str, x: Any, b: str, y: Any, names: str) -> Array:
    def aligned(own: str, v: Any) -> Array:
        order = [own.index(c) for c in names if c in own]
        lengths = iter([v.aval.shape[i] for i in order])
        return reshape(transpose(v, order), [next(lengths) if c in own else 1 for c in names])

    return multiply(aligned(a, x), aligned(b, y))


def _path(
    text: str, inputs: Sequence[str], output: str, sizes: dict[str, int], optimize: Any
) -> list[tuple[int, ...]]:
    """The order of pairwise contractions, as positions in the shrinking list of terms."""
    n = len(inputs)
    if n == 1:
        return [(0,)]
    if n == 2:
        return [(0, 1)]
    if isinstance(optimize, (list, tuple)):
        return [tuple(step) for step in optimize if step != "einsum_path"]
    if optimize is False:
        return [tuple(range(n))]
    try:
        import opt_einsum
    except ImportError:
        return _greedy(inputs, output, sizes)
    shapes = [tuple([sizes[c] for c in names]) for names in inputs]
    kind = "optimal" if optimize is True else optimize if isinstance(optimize, str) else "auto"
    path, _ = opt_einsum.contract_path(  # pyright: ignore[reportCallIssue]
        f"{','.join(inputs)}->{output}",
        *shapes,
        shapes=True,
        optimize=kind,  # pyright: ignore[reportArgumentType]
    )
    return [tuple(step) for step in path]


def _greedy(inputs: Sequence[str], output: str, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Pairs in the order of the least growth in size: each step takes the best pair."""
    terms = [frozenset(names) for names in inputs]
    path: list[tuple[int, ...]] = []

    def volume(names: frozenset[str]) -> int:
        return math.prod(sizes[c] for c in names)

    while len(terms) > 1:
        best: Any = None
        for i in range(len(terms)):
            for j in range(i + 1, len(terms)):
                others = [t for k, t in enumerate(terms) if k not in (i, j)]
                kept = frozenset(output).union(*others)
                result = (terms[i] | terms[j]) & kept
                growth = volume(result) - volume(terms[i]) - volume(terms[j])
                cost = (growth, volume(terms[i] | terms[j]), i, j)
                if best is None or cost < best[0]:
                    best = (cost, result)
        (_, _, i, j), result = best
        terms.pop(j)
        terms.pop(i)
        terms.append(result)
        path.append((i, j))
    return path
