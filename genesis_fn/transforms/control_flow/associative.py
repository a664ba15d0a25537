"""associative_scan: the combinations of all prefixes of arrays.

It is a Python recursion over slices. Where a program is staged, and the function computes each
element of what is in its place, the whole is one fused function, `prefixes`, which has the
recursion as its reference: a backend may combine in one pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, dead_code
from genesis_fn.core.primitive import Tracer, typeof
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import move_batch, zero_of
from genesis_fn.primitives.shape import concatenate, pad, rev, slice_in_dim
from genesis_fn.transforms.custom.fused_functions import fused
from genesis_fn.transforms.staging.api_util import flatten_arrays, missing, name_of
from genesis_fn.transforms.staging.stage_trace import StageTracer, evaluate, inlined, stage

T = TypeVar("T")
Combine = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


def associative_scan(
    fn: Callable[[PyTree, PyTree], T], elems: PyTree, reverse: bool = False, axis: int = 0
) -> T:
    """Combine all prefixes of `elems` along an axis by an associative function.

        out[0] = elems[0], out[i] = fn(out[i - 1], elems[i])

    It takes O(log n) steps, each of which combines many pairs at once: combine neighbours, scan the
    half-length result, fill in between.

    Source: Blelloch, "Prefix sums and their applications", 1990.

    Args:
        fn: function of two pytrees like `elems`, elementwise along `axis`; it keeps structure,
            shapes and dtypes.
        elems: pytree of arrays of one length along `axis`.
        reverse: whether to combine suffixes, from the end on.
        axis: the axis that is scanned.

    Returns:
        The combinations, a pytree like `elems`.

    Raises:
        ValueError: `axis` does not exist, or lengths along it differ.
        TreeError, TypeError: `fn` changes structure, shape or dtype.

    >>> lax.associative_scan(jnp.add, jnp.arange(1, 6))
    Array([ 1,  3,  6, 10, 15], dtype=int32)
    """
    leaves, treedef, _ = flatten_arrays(elems, "associative_scan's elems")
    ndim = typeof(leaves[0]).ndim
    if not -ndim <= axis < ndim:
        raise ValueError(f"associative_scan: axis {axis} does not fit {typeof(leaves[0])}")
    axis %= ndim
    sizes = {typeof(x).shape[axis] for x in leaves}
    if len(sizes) > 1:
        raise ValueError(f"associative_scan: lengths along axis {axis} differ: {sorted(sizes)}")

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        out = fn(tree.unflatten(treedef, a), tree.unflatten(treedef, b))
        leaves_out, structure = tree.flatten(out)
        if structure != treedef:
            difference = tree.first_difference(elems, out, "the elements")
            raise errors.TreeError(
                f"associative_scan: {name_of(fn)} must keep the structure: {difference}\n"
                f"  at {where().describe()}{missing(out)}"
            )
        for x, y, path in zip(b, leaves_out, tree.paths(out)):
            if typeof(y) is not typeof(x):
                raise TypeError(
                    f"associative_scan: the elements{path} go in as {typeof(x)} and come out of "
                    f"{name_of(fn)} as {typeof(y)}\n  at {where().describe()}\n"
                    "  shapes and dtypes must stay: cast one with .astype(...)"
                )
        return leaves_out

    formula = _formula(combine, leaves, axis) if all(map(_is_staged, leaves)) else None
    if formula is None:
        outs = _scanned(combine, leaves, axis, reverse)
    else:
        kept = tuple(range(len(leaves)))
        outs = prefixes(*leaves, formula=formula, axis=axis, reverse=bool(reverse), kept=kept)
    return tree.unflatten(treedef, outs)


def _scanned(combine: Combine, leaves: Sequence[Any], axis: int, reverse: bool) -> list[Any]:
    """The scan of flat arrays: combine neighbours, scan the half-length result, fill in between."""
    xs = [rev(x, (axis,)) for x in leaves] if reverse else list(leaves)
    outs = _forwards(combine, xs, axis)
    return [rev(x, (axis,)) for x in outs] if reverse else outs


def _forwards(combine: Combine, xs: list[Any], axis: int) -> list[Any]:
    n = typeof(xs[0]).shape[axis]
    if n < 2:
        return xs
    # out[1::2] is the scan of neighbours' combinations; out[2::2] adds one element to each.
    pairs = combine(_section(xs, axis, 0, n - 1, 2), _section(xs, axis, 1, n, 2))
    odd = _forwards(combine, list(pairs), axis)
    later = None
    if n > 2:
        before = odd if n % 2 else _section(odd, axis, 0, n // 2 - 1)
        later = combine(before, _section(xs, axis, 2, n, 2))
    first = _section(xs, axis, 0, 1)
    even = first if later is None else [concatenate([a, b], axis) for a, b in zip(first, later)]
    return [_interleave(a, b, axis, n) for a, b in zip(even, odd)]


def _section(xs: Sequence[Any], axis: int, start: int, stop: int, step: int = 1) -> list[Any]:
    return [slice_in_dim(x, start, stop, step, axis) for x in xs]


def _interleave(a: Any, b: Any, axis: int, n: int) -> Any:
    def spread(x: Any, low: int) -> Any:
        size = typeof(x).shape[axis]
        config = [(0, 0, 0)] * typeof(x).ndim
        config[axis] = (low, n - low - (2 * size - 1), 1)
        # Padded with zeros and added: both halves stay dense slices, with no gather or scatter.
        return pad(x, zero_of(x), config)

    x, y = spread(a, 0), spread(b, 1)
    return ops.bitwise_or(x, y) if typeof(x).dtype == dtypes.BOOL else ops.add(x, y)


# ---- functions of elements ----


@dataclass(frozen=True, slots=True)
class Formula:
    """A function of two lists of n arrays that gives n, each element of the operands' in its place.

    `program` computes it, by elementwise equations alone; it holds for arrays of any shape. Equal
    formulas compute the same: `key` says what.
    """

    key: tuple[Any, ...]
    program: Jaxpr = field(compare=False, repr=False)

    def __call__(self, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        """The combination of two lists of arrays."""
        return evaluate(self.program, *a, *b)


def _is_staged(x: Any) -> bool:
    """Whether a value is one of a program being recorded, or a batch of one. Others are computed
    as they come, where a program of their own would have to be compiled."""
    while isinstance(x, Tracer) and not isinstance(x, StageTracer):
        x = getattr(x, "value", None)
    return isinstance(x, StageTracer)


def _formula(combine: Combine, leaves: Sequence[Any], axis: int) -> Formula | None:
    """The formula of a function of these arrays; None if it has none, or a program of few slices
    is as good, which fuses with what is around it."""
    kinds = {(typeof(x).shape, x.weak) for x in leaves}
    if len(kinds) > 1 or leaves[0].weak or typeof(leaves[0]).shape[axis] < _SHORTEST:
        return None
    # Of one step: the recursion calls the function for halves of all lengths.
    steps = [typeof(x) for x in leaves]
    return formula_of(
        combine, [a.update((*a.shape[:axis], 1, *a.shape[axis + 1 :])) for a in steps]
    )


_SHORTEST = 16  # steps of a scan that is one function


def formula_of(combine: Combine, avals: Sequence[Aval]) -> Formula | None:
    """The formula of a function of two lists of arrays of these avals; None if it is none: it has
    arrays of its own, or arrays whose elements depend on each other, or are no real numbers."""
    count, shape = len(avals), avals[0].shape
    if not all([_is_real(a.dtype) for a in avals]):
        return None
    program, captured = stage(lambda *xs: combine(xs[:count], xs[count:]), [*avals, *avals])
    program = inlined(program)
    eqns, _ = dead_code(program.eqns, program.outs)
    if captured or not all([_is_elementwise(e, shape) for e in eqns]):
        return None
    number: dict[Any, int] = {v: i for i, v in enumerate(program.invars)}
    key = []
    for e in eqns:
        operands = tuple([number[i] if type(i) is Var else (type(i), repr(i)) for i in e.ins])
        number[e.outs[0]] = len(number)
        key.append((e.prim, operands, tuple(sorted(e.params.items())), e.numerics))
    if not all([o in number for o in program.outs]):
        return None
    outs = tuple([number[o] for o in program.outs])
    found = (tuple([a.dtype for a in avals]), tuple(key), outs)
    try:
        hash(found)
    except TypeError:  # a parameter that is no value
        return None
    return Formula(found, Jaxpr(program.invars, eqns, program.outs, (), program.name))


def _is_real(dtype: Any) -> bool:
    return dtype == dtypes.BOOL or dtypes.is_integer(dtype) or dtypes.is_float(dtype)


def _is_elementwise(e: Eqn, shape: tuple[int, ...]) -> bool:
    if type(e.prim.lowering) is not Elementwise or e.prim.multi or e.prim.effect:
        return False
    values = [v for v in (*e.ins, *e.outs) if type(v) is Var]
    return all([v.aval.shape == shape and _is_real(v.aval.dtype) for v in values])


def _batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    formula: Formula,
    axis: int,
    reverse: bool,
    kept: tuple[int, ...],
) -> tuple[list[Any], list[int]]:
    moved = [move_batch(x, d, 0, size) for x, d in zip(xs, dims)]
    outs = prefixes(*moved, formula=formula, axis=axis + 1, reverse=reverse, kept=kept)
    return outs, [0] * len(outs)


@fused("prefixes", static=("formula", "axis", "reverse", "kept"), precision="each", batch=_batch)
def prefixes(
    *leaves: Any, formula: Formula, axis: int, reverse: bool, kept: tuple[int, ...]
) -> list[Any]:
    """The scan of arrays of one shape by a formula: results number `kept`."""
    outs = _scanned(formula, leaves, axis, reverse)
    return [outs[i] for i in kept]
