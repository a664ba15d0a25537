"""cond and switch: one of several programs runs, chosen by a traced index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr, memoized
from genesis_fn.core.primitive import (
    Primitive,
    Tracer,
    bind,
    default_device_of,
    is_linear,
    typeof,
    with_weak_types,
)
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import filled, move_batch, zeros
from genesis_fn.transforms.autodiff.linearize import jvp_jaxpr, linearize_jaxpr
from genesis_fn.transforms.autodiff.transpose import transpose_jaxpr
from genesis_fn.transforms.batching.batch import at_front, batch_jaxpr
from genesis_fn.transforms.batching.predicated_checks import guarded, has_checks, may_be_infinite
from genesis_fn.transforms.keys import key_uses
from genesis_fn.transforms.staging import dependency
from genesis_fn.transforms.staging.api_util import (
    FlatFunction,
    flatten_arrays,
    labels_of,
    missing,
    name_of,
)
from genesis_fn.transforms.staging.stage import evaluate, share_captures, stage, stage_closed


def _shape(index: Aval, *avals: Aval, branches: tuple[Jaxpr, ...]) -> list[Aval]:
    if index.shape != () or not dtypes.is_integer(index.dtype):
        raise errors.ShapeError(f"cond: the index must be an integer scalar, got {index}")
    return branches[0].out_avals


def _union(
    transform: Callable[..., Any], branches: tuple[Jaxpr, ...]
) -> tuple[list[Any], tuple[bool, ...]]:
    """`transform(branch, force)` of every branch, with outputs that any of them found forced."""
    force = (False,) * len(branches[0].outs)
    while True:
        results = [transform(b, force) for b in branches]
        found = tuple([any(f) for f in zip(*[r[1] for r in results])]) or force
        if found == force or not force:
            return [r[0] for r in results], found
        force = found


def _linearize(nonzero: Sequence[bool], index: Any, *xs: Any, branches: tuple[Jaxpr, ...]) -> Any:
    mask, count = tuple(nonzero[1:]), len(branches[0].outs)

    def step(branch: Jaxpr, force: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        result = linearize_jaxpr(branch, mask, force)
        return result, result[2]

    results, found = _union(step, branches)
    slots, places = _shared_slots([r[1].in_avals[: r[3]] for r in results])
    forwards = tuple([_with_slots(r[0], count, p, tuple(slots)) for r, p in zip(results, places)])
    tangents = tuple([_from_slots(r[1], r[3], p, tuple(slots)) for r, p in zip(results, places)])
    outs = bind(cond_p, index, *xs, branches=forwards)
    primals, residuals = outs[:count], outs[count:]

    def apply(_: Any, *ts: Any) -> list[Any]:
        given = [t for t in ts if t is not None]
        return filled(found, bind(cond_p, index, *residuals, *given, branches=tangents))

    return primals, apply


def _shared_slots(avals: Sequence[Sequence[Aval]]) -> tuple[list[Aval], list[tuple[int, ...]]]:
    """(avals of the residual slots, slot of each branch's residuals): branches share slots by
    type."""
    slots: list[Aval] = []
    places = []
    for branch in avals:
        taken: set[int] = set()
        mine = []
        for a in branch:
            free = [i for i, s in enumerate(slots) if s is a and i not in taken]
            if not free:
                slots.append(a)
                free = [len(slots) - 1]
            taken.add(free[0])
            mine.append(free[0])
        places.append(tuple(mine))
    return slots, places


@memoized
def _with_slots(
    forward: Jaxpr, count: int, places: tuple[int, ...], slots: tuple[Aval, ...]
) -> Jaxpr:
    def f(*args: Any) -> list[Any]:
        outs = evaluate(forward, *args)
        mine = dict(zip(places, outs[count:]))
        return outs[:count] + [mine[i] if i in mine else zeros(s) for i, s in enumerate(slots)]

    return stage_closed(f, forward.in_avals, forward.name)


@memoized
def _from_slots(
    tangent: Jaxpr, nres: int, places: tuple[int, ...], slots: tuple[Aval, ...]
) -> Jaxpr:
    def f(*args: Any) -> list[Any]:
        return evaluate(tangent, *[args[i] for i in places], *args[len(slots) :])

    return stage_closed(f, [*slots, *tangent.in_avals[nres:]], tangent.name)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, branches: tuple[Jaxpr, ...]) -> Any:
    mask = tuple([t is not None for t in tangents[1:]])
    programs, found = _union(lambda b, force: jvp_jaxpr(b, mask, force), branches)
    given = [t for t in tangents[1:] if t is not None]
    outs = bind(cond_p, *primals, *given, branches=tuple(programs))
    count = len(branches[0].outs)
    return outs[:count], filled(found, outs[count:])


def _transpose(
    cts: Sequence[Any], index: Any, *operands: Any, branches: tuple[Jaxpr, ...]
) -> list[Any]:
    linear = tuple([is_linear(x) for x in operands])
    nonzero = tuple([ct is not None for ct in cts])
    programs = tuple([transpose_jaxpr(b, linear, nonzero) for b in branches])
    given = [x for x in operands if not is_linear(x)]
    back = bind(cond_p, index, *given, *[ct for ct in cts if ct is not None], branches=programs)
    return filled((False, *linear), back)


def _batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    branches: tuple[Jaxpr, ...],
    axis_name: Any = None,
) -> Any:
    mask = tuple([d is not None for d in dims[1:]])
    operands = at_front(size, xs[1:], dims[1:])
    if dims[0] is None:
        programs, found = _union(
            lambda b, force: batch_jaxpr(b, size, mask, force, axis_name), branches
        )
        outs = bind(cond_p, xs[0], *operands, branches=tuple(programs))
        return outs, [0 if f else None for f in found]
    # Every example chooses for itself: run all branches and select.
    every = (True,) * len(branches[0].outs)
    index = move_batch(xs[0], dims[0], 0, size)
    last = len(branches) - 1
    chosen = [_chosen(index, i, last) for i in range(len(branches))]
    results = []
    for b, active in zip(branches, chosen):
        given, each = operands, mask
        if may_be_infinite(b):
            given, each = _only_where(active, size, operands, mask)
        if has_checks(b):
            program, _ = batch_jaxpr(guarded(b), size, (True, *each), every, axis_name)
            results.append(evaluate(program, active, *given))
        else:
            results.append(evaluate(batch_jaxpr(b, size, each, every, axis_name)[0], *given))
    outs: list[Any] = []
    places = _handed_through(branches)
    for cases, place in zip(zip(*results), places):
        if place is not None and not mask[place]:
            outs.append(operands[place])
            continue
        out = cases[-1]
        for i in range(last - 1, -1, -1):
            out = ops.select(broadcast_mask(chosen[i], typeof(out)), cases[i], out)
        outs.append(out)
    return outs, [None if p is not None and not mask[p] else 0 for p in places]


def _handed_through(branches: Sequence[Jaxpr]) -> list[int | None]:
    """For each output the operand that it is in every branch, None where there is no such one."""
    found = []
    for outs in zip(*[b.outs for b in branches]):
        places = {b.invars.index(o) if o in b.invars else None for b, o in zip(branches, outs)}
        found.append(places.pop() if len(places) == 1 else None)
    return found


def _only_where(
    active: Any, size: int, xs: Sequence[Any], batched: Sequence[bool]
) -> tuple[list[Any], tuple[bool, ...]]:
    """(operands that have derivatives only in the examples that are active, which are batched).

    The selection of a branch's results gives examples that do not take it the cotangent 0, which
    the branch may still turn to NaN (0 * inf). A shared operand is repeated: its cotangent is a sum
    over the examples, out of which a NaN cannot be selected.
    """
    given, each = [], []
    for x, b in zip(xs, batched):
        differentiable = isinstance(x, Tracer) and dtypes.is_inexact(typeof(x).dtype)
        if differentiable:
            whole = x if b else move_batch(x, None, 0, size)
            x = ops.select(broadcast_mask(active, typeof(whole)), whole, ops.stop_gradient(whole))
        given.append(x)
        each.append(b or differentiable)
    return given, tuple(each)


def _chosen(index: Any, i: int, last: int) -> Any:
    """Where branch `i` is the one that the clamped index chooses."""
    if i == last:
        return ops.ge(index, i)
    return ops.eq(index, i) if i else ops.le(index, 0)


def broadcast_mask(mask: Array, kind: Aval) -> Array:
    """A mask of the leading axis, repeated over the others."""
    from genesis_fn.primitives.shape import broadcast_in_dim

    return mask if typeof(mask).shape == kind.shape else broadcast_in_dim(mask, kind.shape, (0,))


cond_p = Primitive(
    "cond", _shape, multi=True, linearize=_linearize, jvp=_jvp, transpose=_transpose, batch=_batch
)
cond_p.depends, cond_p.key_uses = dependency.of_branches, key_uses.of_cond
cond_p.guard = lambda ins, active, **_: [ins[0], active, *ins[1:]]


# ---- what users call ----


def switch(
    index: ArrayLike, branches: Sequence[Callable[..., PyTree]], *operands: PyTree
) -> PyTree:
    """Call the branch that an index chooses: `branches[index](*operands)`.

    Only that branch runs, except under `vmap` over the index, which runs all and selects.

    Args:
        index: integer scalar, clamped to [0, len(branches) - 1].
        branches: functions of `operands`, which return equal structures, shapes and dtypes.
        *operands: pytrees of arrays.

    Returns:
        What the chosen branch returns.

    Raises:
        ValueError: there is no branch.
        TreeError, TypeError: `index` is no integer scalar, or branches return different things.

    >>> lax.switch(1, [jnp.sin, jnp.square, jnp.negative], jnp.array(3.0))
    Array(9., dtype=float32)
    """
    if not branches:
        raise ValueError(f"switch needs at least one branch\n  at {where().describe()}")
    with default_device_of(tree.leaves(operands)):
        chosen: Array = as_array(index)
    kind = typeof(chosen)
    if kind.shape != () or not dtypes.is_integer(kind.dtype):
        raise TypeError(
            f"switch: the index must be an integer scalar, got {kind}\n  at {where().describe()}"
        )
    if len(branches) == 1:
        return branches[0](*operands)
    chosen = ops.min(ops.max(ops.convert(chosen, dtypes.I32), 0), len(branches) - 1)
    return _run(chosen, branches, operands, "switch")


def cond(
    pred: ArrayLike,
    true_fun: Callable[..., PyTree],
    false_fun: Callable[..., PyTree],
    *operands: PyTree,
    operand: PyTree = ...,
) -> PyTree:
    """Call one of two functions: `true_fun(*operands)` if `pred` else `false_fun(*operands)`.

    Only that one runs, except under `vmap` over `pred`, which runs both and selects.

    Args:
        pred: boolean or number scalar; numbers other than 0 are true.
        true_fun, false_fun: functions of `operands`, which return equal structures, shapes and
            dtypes.
        *operands: pytrees of arrays.
        operand: the one operand, as a keyword.

    Returns:
        What the chosen function returns.

    Raises:
        TreeError, TypeError: `pred` is no scalar, or the two return different things.

    >>> lax.cond(True, jnp.sin, jnp.square, jnp.array(0.0))
    Array(0., dtype=float32)
    >>> lax.cond(2 < 1, jnp.sin, jnp.square, jnp.array(3.0))
    Array(9., dtype=float32)
    """
    if operand is not ...:
        operands = (operand,)
    if not callable(true_fun) or not callable(false_fun):
        raise TypeError(
            f"cond takes (pred, true_fun, false_fun, *operands)\n  at {where().describe()}"
        )
    with default_device_of(tree.leaves(operands)):
        condition: Array = as_array(pred)
    kind = typeof(condition)
    if kind.shape != ():
        raise TypeError(
            f"cond: the predicate must be a scalar, got {kind}\n  at {where().describe()}\n"
            "  to choose element by element use where(pred, x, y)"
        )
    if kind.dtype != dtypes.BOOL:
        condition = ops.ne(condition, 0)
    return _run(ops.convert(condition, dtypes.I32), (false_fun, true_fun), operands, "cond")


def _run(
    index: Any, functions: Sequence[Callable[..., Any]], operands: tuple[Any, ...], what: str
) -> Any:
    from genesis_fn.core.array import ArrayImpl
    from genesis_fn.core.configuration import config

    if config.current().disable_jit:
        concrete = index if type(index) is ArrayImpl else index.concrete()
        if concrete is not None:
            return functions[int(concrete.device.backend.to_numpy(concrete))](*operands)
    leaves, in_tree, weak = flatten_arrays(operands, f"an operand of {what}: ")
    staged = []
    with default_device_of([*leaves, index]):
        for f in functions:
            flat = FlatFunction(f, in_tree)
            jaxpr, captured = stage(
                flat,
                [typeof(x) for x in leaves],
                name=name_of(f),
                weak=weak,
                labels=labels_of(f, operands),
            )
            staged.append((flat, jaxpr, captured))
    branches, consts = share_captures([(jaxpr, captured) for _, jaxpr, captured in staged])
    branches = _same_outputs(branches, staged, functions, what)
    outs = key_uses.user_call(cond_p, index, *consts, *leaves, branches=tuple(branches))
    weak = [all(w) for w in zip(*[flat.weak for flat, _, _ in staged])]
    return staged[0][0].output(with_weak_types(outs, weak))


def _same_outputs(
    branches: list[Jaxpr],
    staged: Sequence[tuple[Any, ...]],
    functions: Sequence[Callable[..., Any]],
    what: str,
) -> list[Jaxpr]:
    first = staged[0][0]
    for (flat, _, _), f in zip(staged[1:], functions[1:]):
        if flat.out_tree != first.out_tree:
            expected, got = [
                tree.unflatten(t, [0] * t.num_leaves) for t in (first.out_tree, flat.out_tree)
            ]
            raise errors.TreeError(
                f"{what}: the branches return different structures: "
                f"{tree.first_difference(expected, got, 'output') or 'other containers'} from "
                f"{name_of(f)}\n  expected is what {name_of(functions[0])} returns\n"
                f"  at {where().describe()}{missing(got)}{missing(expected)}"
            )
    kinds = branches[0].out_avals
    for b, f in zip(branches[1:], functions[1:]):
        for i, (a, o) in enumerate(zip(kinds, b.out_avals)):
            if a is not o:
                path = tree.paths(tree.unflatten(first.out_tree, kinds))[i]
                remedy = "by .astype(...)" if a.shape == o.shape else "in shape, as by jnp.pad"
                raise TypeError(
                    f"{what}: output{path} is {a} from {name_of(functions[0])} but {o} from "
                    f"{name_of(f)}\n  at {where().describe()}\n  make both the same {remedy}"
                )
    return branches
