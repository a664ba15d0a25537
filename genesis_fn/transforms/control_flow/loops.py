"""while_loop, fori_loop and map.

The rules of the primitive `while` come first. A `fori_loop` with known bounds and `map` are scans
(`scanning.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Aval
from genesis_fn.core.configuration import config
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Jaxpr, memoized
from genesis_fn.core.primitive import (
    Primitive,
    Tracer,
    bind,
    ctx,
    default_device_of,
    typeof,
    with_weak_types,
)
from genesis_fn.core.types.annotations import ArrayLike, PyTree
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import filled, instantiate, move_batch
from genesis_fn.transforms.autodiff.linearize import jvp_jaxpr
from genesis_fn.transforms.batching.batch import batch_jaxpr
from genesis_fn.transforms.batching.predicated_checks import guarded, has_checks
from genesis_fn.transforms.control_flow.scanning import (
    carry_mismatch,
    fixed_point,
    known_number,
    named_scan,
    resolve_carry,
    scan,
)
from genesis_fn.transforms.keys import key_uses
from genesis_fn.transforms.sharding.varying import check_in_step
from genesis_fn.transforms.staging.api_util import flatten_arrays, labels_of, missing, name_of
from genesis_fn.transforms.staging.stage_trace import evaluate, stage, stage_closed

T = TypeVar("T")


def _shape(*avals: Aval, body: Jaxpr, **_: Any) -> list[Aval]:
    return body.out_avals


def _linearize(nonzero: Sequence[bool], *xs: Any, **params: Any) -> Any:
    """Run the loop, and again with tangents when those are there: the number of steps is unknown,
    so no residuals can be stacked. A linearized loop is evaluated forwards; its transpose is
    refused."""
    return bind(while_p, *xs, **params), lambda *ts: _jvp(xs, ts, **params)[1]


def _transpose(cts: Sequence[Any], *operands: Any, body: Jaxpr, **_: Any) -> list[Any]:
    raise errors.NotDifferentiableError(
        f"reverse-mode differentiation of a while loop ({body.name}): its number of steps is not "
        f"known, so nothing can be saved for the way back\n"
        f"  at {(ctx.line or where()).describe()}\n"
        "  use scan, or fori_loop with static bounds; jvp works through while loops"
    )


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    cond: Jaxpr,
    body: Jaxpr,
    cond_consts: int,
    body_consts: int,
) -> Any:
    a, b = cond_consts, body_consts
    at = slice(b, None)

    def step(mask: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        result = jvp_jaxpr(body, mask, mask[at])
        return result, result[1]

    start = [t is not None for t in tangents[a:]]
    (program, _), mask = fixed_point(step, start, at)
    count = len(body.outs)
    ts = [instantiate(t, typeof(p)) for t, p, m in zip(tangents[a:], primals[a:], mask) if m]
    n_consts = sum(mask[:b])
    # `jvp_jaxpr` gives [constants, carry, constants' tangents, carry's tangents]; a loop takes its
    # constants, with tangents, in front of its carry.
    v = program.invars
    body2 = Jaxpr(
        [
            *v[:b],
            *v[b + count : b + count + n_consts],
            *v[b : b + count],
            *v[b + count + n_consts :],
        ],
        program.eqns,
        program.outs,
        (),
        program.name,
    )
    extra_avals = body2.in_avals[b + n_consts + count :]
    outs = bind(
        while_p,
        *primals[: a + b],
        *ts[:n_consts],
        *primals[a + b :],
        *ts[n_consts:],
        cond=_with_extra_carry(cond, tuple(extra_avals)),
        body=body2,
        cond_consts=a,
        body_consts=b + n_consts,
    )
    return outs[:count], filled(mask[at], outs[count:])


@memoized
def _with_extra_carry(cond: Jaxpr, extra: tuple[Aval, ...]) -> Jaxpr:
    """The condition of a loop whose carry has further values at its end."""
    count = len(cond.invars)
    return stage_closed(
        lambda *xs: evaluate(cond, *xs[:count]), [*cond.in_avals, *extra], cond.name
    )


def _batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    cond: Jaxpr,
    body: Jaxpr,
    cond_consts: int,
    body_consts: int,
    axis_name: Any = None,
) -> Any:
    a, b = cond_consts, body_consts
    batched = [d is not None for d in dims]
    # A carry that the body returns as it is stays unbatched, however the examples diverge.
    changes = [o is not i for o, i in zip(body.outs, body.invars[b:])]

    def step(mask: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        cond_mask = tuple(batched[:a]) + mask[b:]
        test, (diverges,) = batch_jaxpr(cond, size, cond_mask, (False,), axis_name)
        if diverges:  # examples stop at different steps, so whatever the body changes differs
            mask = mask[:b] + tuple([m or c for m, c in zip(mask[b:], changes)])
        program, batched_outs = batch_jaxpr(body, size, mask, mask[b:], axis_name)
        return (test, diverges, program), batched_outs

    (test, diverges, program), mask = fixed_point(step, batched[a:], slice(b, None))
    moved = [
        move_batch(x, d, 0, size) if m else x for x, d, m in zip(xs, dims, [*batched[:a], *mask])
    ]
    if diverges:
        # The loop runs while any example goes on; the body tests each again and updates those.
        batched_carry = tuple(mask[b:])
        test, _ = batch_jaxpr(cond, size, (*batched[:a], *batched_carry), (True,), axis_name)
        checks = has_checks(body)
        if checks:
            program, _ = batch_jaxpr(guarded(body), size, (True, *mask), batched_carry, axis_name)
        program = _while_active(test, program, a, b, checks, batched_carry)
        # The body evaluates the condition as well, so it takes that one's constants first.
        moved = [*moved[:a], *moved[:a], *moved[a:]]
        outs = bind(
            while_p, *moved, cond=_any_active(test), body=program, cond_consts=a, body_consts=a + b
        )
    else:
        outs = bind(while_p, *moved, cond=test, body=program, cond_consts=a, body_consts=b)
    return outs, [0 if m else None for m in mask[b:]]


@memoized
def _any_active(test: Jaxpr) -> Jaxpr:
    """The condition of a batched loop: whether any example goes on."""
    from genesis_fn.primitives.reductions.reduce import reduce_or

    return stage_closed(
        lambda *xs: [reduce_or(evaluate(test, *xs)[0], (0,))], test.in_avals, test.name
    )


@memoized
def _while_active(
    test: Jaxpr, body: Jaxpr, a: int, b: int, checks: bool, batched: tuple[bool, ...]
) -> Jaxpr:
    """[condition's constants, body's constants, carry] -> carry, updated where the example goes on.

    With `checks`, `body` first takes the mask of examples that go on. A carry that is not `batched`
    is loop-invariant and is returned as it is.
    """
    from genesis_fn.transforms.control_flow.conditionals import broadcast_mask

    def f(*xs: Any) -> list[Any]:
        carry = xs[a + b :]
        active = evaluate(test, *xs[:a], *carry)[0]
        new = evaluate(body, *([active] if checks else []), *xs[a:])
        return [
            ops.select(broadcast_mask(active, typeof(n)), n, c) if m else c
            for n, c, m in zip(new, carry, batched)
        ]

    avals = body.in_avals[1:] if checks else body.in_avals
    return stage_closed(f, [*test.in_avals[:a], *avals], body.name)


while_p = Primitive(
    "while", _shape, multi=True, linearize=_linearize, jvp=_jvp, transpose=_transpose, batch=_batch
)
while_p.takes = lambda *, cond, body, cond_consts, **_: [
    *cond.in_avals[:cond_consts],
    *body.in_avals,
]
while_p.key_uses = key_uses.of_while
while_p.guard = lambda ins, active, *, cond_consts, **_: [
    active,
    *ins[:cond_consts],
    active,
    *ins[cond_consts:],
]


def while_loop(
    cond_fun: Callable[[PyTree], ArrayLike], body_fun: Callable[[PyTree], T], init_val: PyTree
) -> T:
    """Repeat `val = body_fun(val)` while `cond_fun(val)` holds.

    Differentiable in forward mode only: the number of steps is not known, so that nothing can be
    saved for a reverse pass. Under `vmap` the loop runs until the last example is done.

    Args:
        cond_fun: function of the value that returns a boolean scalar.
        body_fun: function from the value to the next one, of equal structure, shapes and dtypes.
        init_val: pytree of arrays or numbers. A number takes the dtype that `body_fun` returns.

    Returns:
        The last value.

    Raises:
        TreeError, TypeError: `body_fun` changes structure, shape or dtype, or `cond_fun` returns
            no boolean scalar.

    >>> lax.while_loop(lambda x: x < 100, lambda x: x * 3, 1)
    Array(243, dtype=int32)
    """
    return _while(cond_fun, body_fun, init_val, init_val, "while_loop", name_of(body_fun))


def _while(
    cond_fun: Callable[..., Any],
    body_fun: Callable[..., Any],
    init_val: Any,
    user_value: Any,
    what: str,
    name: str,
) -> Any:
    """Stage and bind a while loop. Errors call the loop `what` and its body `name`.

    `user_value` is the user's part of the value, the last component: `fori_loop` carries its
    counter in front of it.
    """
    leaves, treedef, weak = flatten_arrays(init_val, "while_loop's init_val")
    # Values under vmap, say, are not concrete: then the loop is staged all the same.
    if config.current().disable_jit and all(_concrete(x) for x in leaves):
        # Arrays, as with jit: an ndarray would be changed in place by a body that writes `x += 1`.
        value = tree.unflatten(treedef, leaves)
        while bool(cond_fun(value)):
            value = body_fun(value)
        return value
    names = [f"{what}: the value{p}" for p in tree.paths(user_value)]
    names = [""] * (len(leaves) - len(names)) + names  # the counter in front has no name
    weak_outs: list[bool] = []

    def body(*xs: Any) -> list[Any]:
        nonlocal weak_outs
        out = body_fun(tree.unflatten(treedef, xs))
        new, structure = tree.flatten(out)
        if structure != treedef:
            returned = out if user_value is init_val else out[-1]
            raise errors.TreeError(
                f"{what}: {name} returned another structure: "
                f"{tree.first_difference(user_value, returned, 'the value')}\n"
                f"  at {where().describe()}{missing(returned)}"
            )
        result = [instantiate(as_array(x), k) for x, k in zip(new, avals)]
        weak_outs = [x.weak for x in result]
        return result

    def test(*xs: Any) -> list[Any]:
        out = cond_fun(tree.unflatten(treedef, xs))
        if not is_value(out):
            raise TypeError(
                f"{what}: {name_of(cond_fun)} must return a boolean scalar, got {out!r:.60}\n"
                f"  at {where().describe()}{missing(out)}"
            )
        return [as_array(out)]

    avals = [typeof(x) for x in leaves]
    while True:  # until no weak leaf of the carry takes another dtype: see resolve_carry
        with default_device_of(leaves):
            body_jaxpr, body_captured = stage(
                body,
                avals,
                name=name,
                weak=weak,
                repeated=True,  # a key captured from outside draws the same at every step
                labels=labels_of(body_fun, (init_val,)),
            )
        avals, weak, changed = resolve_carry(avals, weak, body_jaxpr.out_avals)
        if not changed:
            break
    for i, (k, o) in enumerate(zip(avals, body_jaxpr.out_avals)):
        if k is not o:
            raise carry_mismatch(body_jaxpr, i, k, o, names[i], name)
    leaves = [instantiate(ops.convert(x, k.dtype), k) for x, k in zip(leaves, avals)]
    with default_device_of(leaves):
        cond_jaxpr, cond_captured = stage(
            test, avals, name=name_of(cond_fun), weak=weak, labels=labels_of(cond_fun, (init_val,))
        )
    test_aval = cond_jaxpr.out_avals[0]
    if test_aval.shape != () or test_aval.dtype != dtypes.BOOL:
        raise TypeError(
            f"while_loop: {name_of(cond_fun)} must return a boolean scalar, got {test_aval}\n"
            f"  at {where().describe()}"
        )
    check_in_step(test_aval, [cond_jaxpr, body_jaxpr], what)
    outs = key_uses.user_call(
        while_p,
        *cond_captured,
        *body_captured,
        *leaves,
        cond=cond_jaxpr,
        body=body_jaxpr,
        cond_consts=len(cond_captured),
        body_consts=len(body_captured),
    )
    return tree.unflatten(treedef, with_weak_types(outs, weak_outs))


def _concrete(x: Any) -> bool:
    return type(x) is ArrayImpl or x.concrete() is not None


def _known_bound(x: Any) -> int:
    """Return a bound whose value is known as an int. Raises TypeError for other numbers."""
    value = x.device.backend.to_numpy(x) if type(x) is ArrayImpl else x
    try:
        number = np.asarray(value).item()
        if number == int(number):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(f"fori_loop: bounds are integers, got {x!r:.60}\n  at {where().describe()}")


def _known_bounds(lower: Any, upper: Any) -> tuple[Any, int] | None:
    """(the first index, the number of steps) where both bounds are known, as those of eager
    derivatives are, else None: also where a traced one is no whole number. The index is a tracer
    where `lower` is one: what the body does with it has a derivative too."""
    if not isinstance(lower, Tracer) and not isinstance(upper, Tracer):
        start = _known_bound(lower)
        return start, max(_known_bound(upper) - start, 0)
    values = [x.concrete() if isinstance(x, Tracer) else x for x in (lower, upper)]
    if values[0] is None or values[1] is None:
        return None
    try:
        length = max(_known_bound(values[1]) - _known_bound(values[0]), 0)
    except TypeError:
        return None
    dtype = dtypes.promote_types(typeof(as_array(lower)).dtype, typeof(as_array(upper)).dtype)
    return ops.convert(as_array(lower), dtype), length


def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    # Users annotate the index as int as well as Array: as in JAX.
    body_fun: Callable[[Any, PyTree], T],
    init_val: PyTree,
    *,
    unroll: int | bool = 1,
) -> T:
    """Repeat `val = body_fun(i, val)` for i from `lower` to `upper` - 1.

    With known bounds it is a `scan`, differentiable in both modes; with traced bounds it is a
    `while_loop`, differentiable in forward mode only.

    Args:
        lower, upper: integer scalars; traced ones may be floats. No step is done if
            `upper` <= `lower`.
        body_fun: function of (i, value) that returns the next value, of equal structure, shapes and
            dtypes.
        init_val: pytree of arrays or numbers.
        unroll: steps per iteration of the loop that runs; True for all. Ignored with traced bounds.

    Returns:
        The last value.

    Raises:
        TreeError, TypeError: `body_fun` changes structure, shape or dtype, a known bound is no
            integer, or a traced one no real scalar.

    >>> lax.fori_loop(0, 5, lambda i, total: total + i, 0)
    Array(10, dtype=int32)
    """
    known = _known_bounds(lower, upper)
    if known is not None:
        start, length = known

        def step(carry: Any, _: None) -> Any:
            i, value = carry
            new = body_fun(i, value)
            difference = tree.first_difference(init_val, new, "the value")
            if difference is not None:
                raise errors.TreeError(
                    f"fori_loop: {name_of(body_fun)} returned another structure: {difference}\n"
                    f"  at {where().describe()}{missing(new)}"
                )
            return (ops.add(i, 1), new), None

        functools.update_wrapper(step, body_fun)  # messages call the body by the user's name
        names = ["", *(f"fori_loop: the value{p}" for p in tree.paths(init_val))]
        with default_device_of(tree.leaves(init_val)):
            init = (as_array(known_number(start)), init_val)
        (_, value), _ = named_scan(step, init, None, length, False, unroll, "strict", names)
        return value
    with default_device_of(tree.leaves((lower, upper, init_val))):
        low, high = as_array(lower), as_array(upper)
    if any(not _is_real_scalar(typeof(x)) for x in (low, high)):
        raise TypeError(
            f"fori_loop: bounds are real scalars, got {typeof(low)} and {typeof(high)}\n"
            f"  at {where().describe()}"
        )
    dtype = dtypes.promote_types(typeof(low).dtype, typeof(high).dtype)
    low, high = ops.convert(low, dtype), ops.convert(high, dtype)
    _, value = _while(
        lambda carry: ops.lt(carry[0], high),
        lambda carry: (ops.add(carry[0], 1), body_fun(carry[0], carry[1])),
        (low, init_val),
        init_val,
        "fori_loop",
        name_of(body_fun),
    )
    return value


def _is_real_scalar(kind: Aval) -> bool:
    return kind.shape == () and (dtypes.is_integer(kind.dtype) or dtypes.is_float(kind.dtype))


def map(f: Callable[[PyTree], T], xs: PyTree, *, batch_size: int | None = None) -> T:
    """Apply `f` to every slice along the leading axis, one after the other, as a loop.

    It needs the memory of one call (of `batch_size` calls), where `vmap(f)` needs that of all.

    Args:
        f: function of one slice of `xs`.
        xs: pytree of arrays [n, ...].
        batch_size: how many slices are mapped at a time, by `vmap`; None or 0: one, without `vmap`.

    Returns:
        The results stacked, a pytree of arrays [n, ...].

    Raises:
        ValueError: `batch_size` is negative, or the leading axes differ.

    >>> lax.map(lambda x: x ** 2, jnp.arange(4))
    Array([0, 1, 4, 9], dtype=int32)
    """
    if batch_size is not None and batch_size < 0:
        raise ValueError(f"map: batch_size must not be negative, got {batch_size}")
    if not batch_size:
        return scan(lambda _, x: (None, f(x)), None, xs)[1]
    # A scan over chunks [n // batch_size, batch_size, ...], and one vmap of the remainder.
    from genesis_fn.primitives.shape import concatenate, reshape, slice_in_dim
    from genesis_fn.transforms.batching.mapped_axes import vmap

    leaves, treedef, _ = flatten_arrays(xs, "map's xs")
    total = typeof(leaves[0]).shape[0]
    whole = total - total % batch_size
    pieces = []
    if whole:
        chunks = [
            reshape(
                slice_in_dim(x, 0, whole, axis=0),
                (whole // batch_size, batch_size, *typeof(x).shape[1:]),
            )
            for x in leaves
        ]
        done = scan(lambda _, x: (None, vmap(f)(x)), None, tree.unflatten(treedef, chunks))[1]
        pieces.append(tree.map(lambda y: reshape(y, (whole, *typeof(y).shape[2:])), done))
    if whole < total:
        rest = [slice_in_dim(x, whole, total, axis=0) for x in leaves]
        pieces.append(vmap(f)(tree.unflatten(treedef, rest)))
    return pieces[0] if len(pieces) == 1 else tree.map(lambda *ys: concatenate(ys, 0), *pieces)
