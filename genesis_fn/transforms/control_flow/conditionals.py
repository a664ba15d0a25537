"""cond and switch: one of several programs runs, chosen by a traced index.

The rules of the primitive come first, what users call last. All branches of one equation take the
same operands and return the same avals, also after a transform: a rule transforms the branches one
by one and then makes their signatures equal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
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
    ctx,
    default_device_of,
    is_linear,
    typeof,
    with_weak_types,
)
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import filled, instantiate, move_batch, zeros
from genesis_fn.transforms.autodiff.linearize import jvp_jaxpr, linearize_jaxpr
from genesis_fn.transforms.autodiff.transpose import transpose_jaxpr
from genesis_fn.transforms.batching.batch import at_front, batch_jaxpr
from genesis_fn.transforms.batching.predicated_checks import guarded, has_checks, may_be_infinite
from genesis_fn.transforms.keys import key_uses
from genesis_fn.transforms.sharding.varying import check_in_step
from genesis_fn.transforms.staging import dependency
from genesis_fn.transforms.staging.api_util import (
    FlatFunction,
    flatten_arrays,
    labels_of,
    missing,
    name_of,
)
from genesis_fn.transforms.staging.stage_trace import evaluate, share_captures, stage, stage_closed


def _shape(index: Aval, *avals: Aval, branches: tuple[Jaxpr, ...]) -> list[Aval]:
    if index.shape != () or not dtypes.is_integer(index.dtype):
        raise errors.ShapeError(f"cond: the index must be an integer scalar, got {index}")
    return branches[0].out_avals


def _with_common_outputs(
    transform: Callable[..., Any], branches: tuple[Jaxpr, ...]
) -> tuple[list[Any], tuple[bool, ...]]:
    """Transform every branch: (results, outputs that are nonzero in any of them).

    `transform(branch, force)` returns (result, nonzero outputs), the forced ones among them.
    """
    # A program's outputs are fixed when it is made: once a branch finds a further nonzero output,
    # all are transformed again with that one forced.
    force = (False,) * len(branches[0].outs)
    while True:
        results = [transform(b, force) for b in branches]
        nonzero = tuple([any(f) for f in zip(*[r[1] for r in results])]) or force
        if nonzero == force or not force:
            return [r[0] for r in results], nonzero
        force = nonzero


def _linearize(nonzero: Sequence[bool], index: Any, *xs: Any, branches: tuple[Jaxpr, ...]) -> Any:
    mask, count = tuple(nonzero[1:]), len(branches[0].outs)

    def step(branch: Jaxpr, force: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        result = linearize_jaxpr(branch, mask, force)
        return result, result[2]

    results, nonzero_outs = _with_common_outputs(step, branches)
    slots, slot_of = _shared_slots([r[1].in_avals[: r[3]] for r in results])
    forwards = tuple([_with_slots(r[0], count, p, tuple(slots)) for r, p in zip(results, slot_of)])
    tangents = tuple([_from_slots(r[1], r[3], p, tuple(slots)) for r, p in zip(results, slot_of)])
    outs = bind(cond_p, index, *xs, branches=forwards)
    primals, residuals = outs[:count], outs[count:]

    def apply(_: Any, *ts: Any) -> list[Any]:
        dense = [t for t in ts if t is not None]
        return filled(nonzero_outs, bind(cond_p, index, *residuals, *dense, branches=tangents))

    return primals, apply


def _shared_slots(avals: Sequence[Sequence[Aval]]) -> tuple[list[Aval], list[tuple[int, ...]]]:
    """Assign the residuals of all branches to common slots: (avals of the slots, the slot of each
    branch's residuals).
    """
    # Residuals are outputs of the forward cond. Only one branch runs, so branches share slots of
    # equal avals: memory is kept for the largest branch rather than for their sum.
    slots: list[Aval] = []
    slot_of = []
    for branch in avals:
        taken: set[int] = set()
        own = []
        for a in branch:
            free = [i for i, s in enumerate(slots) if s is a and i not in taken]
            if not free:
                slots.append(a)
                free = [len(slots) - 1]
            taken.add(free[0])
            own.append(free[0])
        slot_of.append(tuple(own))
    return slots, slot_of


@memoized
def _with_slots(
    forward: Jaxpr, count: int, slot_of: tuple[int, ...], slots: tuple[Aval, ...]
) -> Jaxpr:
    """A branch's forward program that returns its residuals in their slots, zeros in the others."""

    def f(*args: Any) -> list[Any]:
        outs = evaluate(forward, *args)
        own = dict(zip(slot_of, outs[count:]))
        return outs[:count] + [own[i] if i in own else zeros(s) for i, s in enumerate(slots)]

    return stage_closed(f, forward.in_avals, forward.name)


@memoized
def _from_slots(
    tangent: Jaxpr, nres: int, slot_of: tuple[int, ...], slots: tuple[Aval, ...]
) -> Jaxpr:
    """A branch's tangent program that takes its residuals from their slots."""

    def f(*args: Any) -> list[Any]:
        return evaluate(tangent, *[args[i] for i in slot_of], *args[len(slots) :])

    return stage_closed(f, [*slots, *tangent.in_avals[nres:]], tangent.name)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, branches: tuple[Jaxpr, ...]) -> Any:
    mask = tuple([t is not None for t in tangents[1:]])
    programs, nonzero_outs = _with_common_outputs(
        lambda b, force: jvp_jaxpr(b, mask, force), branches
    )
    dense = [t for t in tangents[1:] if t is not None]
    outs = bind(cond_p, *primals, *dense, branches=tuple(programs))
    count = len(branches[0].outs)
    return outs[:count], filled(nonzero_outs, outs[count:])


def _transpose(
    cts: Sequence[Any], index: Any, *operands: Any, branches: tuple[Jaxpr, ...]
) -> list[Any]:
    linear = tuple([is_linear(x) for x in operands])
    nonzero = tuple([ct is not None for ct in cts])
    programs = tuple([transpose_jaxpr(b, linear, nonzero) for b in branches])
    residuals = [x for x in operands if not is_linear(x)]
    back = bind(cond_p, index, *residuals, *[ct for ct in cts if ct is not None], branches=programs)
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
    if dims[0] is None:  # all examples take the same branch: it stays one cond
        programs, batched_outs = _with_common_outputs(
            lambda b, force: batch_jaxpr(b, size, mask, force, axis_name), branches
        )
        outs = bind(cond_p, xs[0], *operands, branches=tuple(programs))
        return outs, [0 if f else None for f in batched_outs]
    # Examples choose different branches: run all of them and select.
    all_outs = (True,) * len(branches[0].outs)
    index = move_batch(xs[0], dims[0], 0, size)
    last = len(branches) - 1
    taken = [_takes_branch(index, i, last) for i in range(len(branches))]
    results = []
    for b, active in zip(branches, taken):
        inputs, batched = operands, mask
        # An example that does not take a branch must neither trip its checks nor get its NaNs.
        if may_be_infinite(b):
            inputs, batched = _differentiable_where(active, size, operands, mask)
        if has_checks(b):
            program, _ = batch_jaxpr(guarded(b), size, (True, *batched), all_outs, axis_name)
            results.append(evaluate(program, active, *inputs))
        else:
            results.append(evaluate(batch_jaxpr(b, size, batched, all_outs, axis_name)[0], *inputs))
    outs: list[Any] = []
    forwarded = _forwarded_operands(branches)
    for cases, operand in zip(zip(*results), forwarded):
        if operand is not None and not mask[operand]:
            outs.append(operands[operand])  # the same value in every branch: nothing to select
            continue
        out = cases[-1]
        for i in range(last - 1, -1, -1):
            out = ops.select(broadcast_mask(taken[i], typeof(out)), cases[i], out)
        outs.append(out)
    return outs, [None if p is not None and not mask[p] else 0 for p in forwarded]


def _forwarded_operands(branches: Sequence[Jaxpr]) -> list[int | None]:
    """For each output the operand that every branch returns unchanged, None where there is no such
    one."""
    forwarded = []
    for outs in zip(*[b.outs for b in branches]):
        positions = {b.invars.index(o) if o in b.invars else None for b, o in zip(branches, outs)}
        forwarded.append(positions.pop() if len(positions) == 1 else None)
    return forwarded


def _differentiable_where(
    active: Any, size: int, xs: Sequence[Any], batched: Sequence[bool]
) -> tuple[list[Any], tuple[bool, ...]]:
    """Stop the gradient of operands in the examples that do not take a branch: (operands, which of
    them are batched).

    The selection of a branch's results gives these examples the cotangent 0, which the branch may
    still turn to NaN (0 * inf). A shared operand is repeated: its cotangent is a sum over the
    examples, out of which a NaN cannot be selected.
    """
    inputs, flags = [], []
    for x, b in zip(xs, batched):
        differentiable = isinstance(x, Tracer) and dtypes.is_inexact(typeof(x).dtype)
        if differentiable:
            full = x if b else move_batch(x, None, 0, size)
            x = ops.select(broadcast_mask(active, typeof(full)), full, ops.stop_gradient(full))
        inputs.append(x)
        flags.append(b or differentiable)
    return inputs, tuple(flags)


def _takes_branch(index: Any, i: int, last: int) -> Any:
    """Whether the index, clamped to [0, last], chooses branch `i`; one bool per example."""
    if i == last:
        return ops.ge(index, i)
    return ops.eq(index, i) if i else ops.le(index, 0)


def broadcast_mask(mask: Array, aval: Aval) -> Array:
    """Repeat a mask of the leading axis over the other axes of `aval`."""
    from genesis_fn.primitives.shape import broadcast_in_dim

    return mask if typeof(mask).shape == aval.shape else broadcast_in_dim(mask, aval.shape, (0,))


cond_p = Primitive(
    "cond", _shape, multi=True, linearize=_linearize, jvp=_jvp, transpose=_transpose, batch=_batch
)
cond_p.takes = lambda *, branches: [None, *branches[0].in_avals]
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
    # As an index the predicate is 0 for false.
    return _run(ops.convert(condition, dtypes.I32), (false_fun, true_fun), operands, "cond")


def _run(
    index: Any, functions: Sequence[Callable[..., Any]], operands: tuple[Any, ...], what: str
) -> Any:
    """Stage the branches and bind `cond`; under `disable_jit` call the one that a known index
    chooses."""
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
    # Branches take equal operands: what one of them captures is an operand of all.
    branches, consts = share_captures([(jaxpr, captured) for _, jaxpr, captured in staged])
    if ctx.match is not None:
        branches = _varying_branches(branches, typeof(index), what)
    branches = _same_outputs(branches, staged, functions, what)
    outs = key_uses.user_call(cond_p, index, *consts, *leaves, branches=tuple(branches))
    # A result is weak only if every branch returns it weak.
    weak = [all(w) for w in zip(*[flat.weak for flat, _, _ in staged])]
    return staged[0][0].output(with_weak_types(outs, weak))


def _varying_branches(branches: list[Jaxpr], index: Aval, what: str) -> list[Jaxpr]:
    """The branches with operands and outputs that vary over the same axes, those over which `index`
    varies among them: where devices take different branches, what they share must have been told
    apart before, since a sum of gradients within a branch would wait for devices that are in
    another."""
    ins = [k.update(varying=k.varying | index.varying) for k in branches[0].in_avals]
    branches = [stage_closed(functools.partial(evaluate, b), ins, b.name) for b in branches]
    check_in_step(index, branches, what)
    varying = [index.varying.union(*[o.varying for o in outs]) for outs in _rows(branches)]

    def conformed(b: Jaxpr) -> Jaxpr:
        outs = [k.update(varying=v) for k, v in zip(b.out_avals, varying)]
        f = lambda *xs: [instantiate(o, k) for o, k in zip(evaluate(b, *xs), outs)]
        return stage_closed(f, ins, b.name)

    return [conformed(b) for b in branches]


def _rows(branches: Sequence[Jaxpr]) -> Iterable[tuple[Aval, ...]]:
    return zip(*[b.out_avals for b in branches])


def _same_outputs(
    branches: list[Jaxpr],
    staged: Sequence[tuple[Any, ...]],
    functions: Sequence[Callable[..., Any]],
    what: str,
) -> list[Jaxpr]:
    """Return `branches`. Raises TreeError or TypeError where outputs differ from the first
    one's."""
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
    avals = branches[0].out_avals
    for b, f in zip(branches[1:], functions[1:]):
        for i, (a, o) in enumerate(zip(avals, b.out_avals)):
            if a is not o:
                path = tree.paths(tree.unflatten(first.out_tree, avals))[i]
                remedy = "by .astype(...)" if a.shape == o.shape else "in shape, as by jnp.pad"
                raise TypeError(
                    f"{what}: output{path} is {a} from {name_of(functions[0])} but {o} from "
                    f"{name_of(f)}\n  at {where().describe()}\n  make both the same {remedy}"
                )
    return branches
