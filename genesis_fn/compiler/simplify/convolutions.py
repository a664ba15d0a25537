"""The rule of the simplifier for convolutions that are matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.simplify.rewriter import Rewriter, rule
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.conv import conv_p
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.shape import reshape_p

_KINDS = (dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.F64)


@rule(conv_p)
def _pointwise(
    r: Rewriter, e: Eqn, prim: Primitive, ins: list[Any], params: dict[Any, Any]
) -> list[Any] | None:
    """A convolution with a single tap, or with a window as large as its input, as the gradient of
    such a kernel has: a product of matrices, where it would need no transposed copy. Its kernels
    are faster than those of convolutions, and it fuses with what reads it."""
    x, w = ins
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
    if not all(map(_one_run, contracting, (x.aval.shape, w.aval.shape))):
        return None
    # What the product has, by the dimensions of the convolution's result.
    free = [(lhs[at], out[at]) for at in (0, *range(2, len(lhs))) if lhs[at] not in contracting[0]]
    rows, columns = [o for _, o in sorted(free)], [out[1]]
    shape = e.outs[0].aval.shape
    (taps,) = r.apply(reshape_p, [w], {"shape": _without(w.aval.shape, single)}, e)
    kept = tuple([d - sum(s < d for s in single) for d in contracting[1]])
    sides = [(x, contracting[0], rows), (taps, kept, columns)]
    if _in_order(columns + rows, shape) and not _in_order(rows + columns, shape):
        sides.reverse()
    elif not _in_order(rows + columns, shape):
        return None
    (a, at_a, _), (b, at_b, _) = sides
    numbers = ((at_a, at_b), ((), ()))
    given = {
        "dimension_numbers": numbers,
        "precision": params["precision"],
        "preferred_element_type": preferred,
    }
    (product,) = r.apply(dot_general_p, [a, b], given, e)
    return list(r.apply(reshape_p, [product], {"shape": shape}, e))


def _one_run(dims: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether an operand is a matrix of these dimensions and the others: they follow one another,
    from its first or up to its last one. Those of length 1 are in nobody's way."""
    inside = [d in dims for d, n in enumerate(shape) if n != 1]
    changes = sum([a != b for a, b in zip(inside, inside[1:])])
    return list(dims) == sorted(dims) and changes <= 1


def _in_order(dims: Sequence[int], shape: Sequence[int]) -> bool:
    moved = [d for d in dims if shape[d] != 1]
    return moved == sorted(moved)


def _without(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    return tuple([n for d, n in enumerate(shape) if d not in dims])
