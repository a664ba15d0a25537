"""scan: a loop with a carry over the leading axis of arrays, differentiable in both modes.

The body program takes [constants, carry, slices of xs] and returns [carry, ys]; the equation's
operands are [constants, carry, xs]. A scan on a tape is linear, except in the residuals of the
forward pass: `residuals = (a, b)` says that these are the first a constants (loop-invariant ones)
and the last b xs (stacked ones). It is None for a scan of which that is not known, as users write
them.

Read `scan` and `_body` at the end for what is staged, then `_linearize` and `_transpose` for
reverse mode.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, dead_code, memoized
from genesis_fn.core.primitive import (
    SCALARS,
    LinearOperand,
    Primitive,
    bind,
    default_device_of,
    is_linear,
    typeof,
    with_weak,
    with_weak_types,
)
from genesis_fn.core.types.annotations import Array, PyTree
from genesis_fn.primitives.elementwise import add, convert
from genesis_fn.primitives.factories import filled, full, instantiate, move_batch, zeros
from genesis_fn.transforms.autodiff.linearize import jvp_jaxpr, linearize_jaxpr
from genesis_fn.transforms.autodiff.transpose import transpose_flat
from genesis_fn.transforms.batching.batch import batch_jaxpr
from genesis_fn.transforms.keys import key_uses
from genesis_fn.transforms.staging import dependency
from genesis_fn.transforms.staging.api_util import flatten_arrays, missing, name_of
from genesis_fn.transforms.staging.call import jit_p
from genesis_fn.transforms.staging.stage_trace import evaluate, stage, stage_closed

T = TypeVar("T")
Carry = TypeVar("Carry")
Y = TypeVar("Y")


def sliced(kind: Aval) -> Aval:
    """The aval of one step's slice of `kind`."""
    return kind.update(kind.shape[1:])


def stacked(kind: Aval, length: int) -> Aval:
    """The aval of `length` values of `kind`."""
    return kind.update((length, *kind.shape))


def _shape(*avals: Aval, jaxpr: Jaxpr, carry: int, length: int, **_: Any) -> list[Aval]:
    outs = jaxpr.out_avals
    return outs[:carry] + [stacked(a, length) for a in outs[carry:]]


def fixed_point(
    step: Callable[[tuple[bool, ...]], tuple[T, Sequence[bool]]], mask: Sequence[bool], at: slice
) -> tuple[T, list[bool]]:
    """Grow the carry's part `at` of `mask` until `step` adds nothing: (result of `step`, mask).

    `step(mask)` returns (result, flags of the carry that the body returns): what has a tangent, or
    a batch, after one step goes into the next.
    """
    mask = list(mask)
    while True:
        result, flags = step(tuple(mask))
        grown = [a or b for a, b in zip(mask[at], flags)]
        if grown == mask[at]:
            return result, mask
        mask[at] = grown


# ---- reverse mode ----


@memoized
def _split_invariant(
    forward: Jaxpr, consts: int, carry: int, outs: int
) -> tuple[Jaxpr, Jaxpr, list[tuple[str, int]]]:
    """Split off the loop-invariant residuals: (program that computes them, forward body that does
    not return them, where each residual comes from).

    A residual that depends on constants only is computed once, before the loop, instead of being
    stacked `length` times; one that is a slice of xs is the xs operand itself.
    """
    # Equations are in order of dependence: one pass finds all that depend on constants alone.
    invariant: set[Var] = set(forward.invars[:consts])
    before: list[Eqn] = []
    for e in forward.eqns:
        # An effect happens at every step, whatever it depends on.
        if not e.prim.effect and all(type(i) is not Var or i in invariant for i in e.ins):
            invariant.update(e.outs)
            before.append(e)
    residuals = forward.outs[outs:]
    hoisted = [v for v in residuals if v in invariant]
    xs = {v: i for i, v in enumerate(forward.invars[consts + carry :])}
    kept = [v for v in residuals if v not in invariant and v not in xs]
    sources, once, steps = [], 0, 0
    # Where a residual comes from: ("once", output of `pre`), ("xs", operand), ("stacked", output).
    for v in residuals:
        if v in invariant:
            sources.append(("once", once))
            once += 1
        elif v in xs:
            sources.append(("xs", xs[v]))
        else:
            sources.append(("stacked", steps))
            steps += 1
    pre = Jaxpr(forward.invars[:consts], dead_code(before, hoisted)[0], hoisted, (), forward.name)
    # The body keeps an invariant equation only if a step reads its result.
    body_outs = [*forward.outs[:outs], *kept]
    body = Jaxpr(forward.invars, dead_code(forward.eqns, body_outs)[0], body_outs, (), forward.name)
    return pre, body, sources


def _linearize(
    nonzero: Sequence[bool],
    *xs: Any,
    jaxpr: Jaxpr,
    consts: int,
    carry: int,
    length: int,
    reverse: bool,
    unroll: int,
    residuals: tuple[Any, ...] | None,
) -> Any:
    count = len(jaxpr.outs)
    at = slice(consts, consts + carry)

    def step(mask: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        result = linearize_jaxpr(jaxpr, mask, mask[at] + (False,) * (count - carry))
        return result, result[2][:carry]

    (forward, tangent, nonzero_outs, nres), mask = fixed_point(step, nonzero, at)
    pre, body, sources = _split_invariant(forward, consts, carry, count)
    once = bind(jit_p, *xs[:consts], jaxpr=pre) if pre.outs else []
    options = {"carry": carry, "length": length, "reverse": reverse, "unroll": unroll}
    outs = bind(scan_p, *xs, jaxpr=body, consts=consts, residuals=None, **options)
    primals, steps = outs[:count], outs[count:]

    invariant = [i for i, (kind, _) in enumerate(sources) if kind == "once"]
    moving = [i for i, (kind, _) in enumerate(sources) if kind != "once"]
    invariant_values = [once[sources[i][1]] for i in invariant]
    moving_values = [
        xs[consts + carry + sources[i][1]] if sources[i][0] == "xs" else steps[sources[i][1]]
        for i in moving
    ]
    # The tangent program takes [residuals, tangents]; as a loop's body it takes the invariant ones
    # as first constants and the others as last xs, with the tangents (constants, carry, xs)
    # between.
    n_consts = sum(mask[:consts])
    n_carry = sum(mask[at])
    inner = tangent.invars
    program = Jaxpr(
        [*(inner[i] for i in invariant), *inner[nres:], *(inner[i] for i in moving)],
        tangent.eqns,
        tangent.outs,
        (),
        tangent.name,
    )
    options["carry"] = n_carry

    def apply(*ts: Any) -> list[Any]:
        dense = [instantiate(t, typeof(x)) for t, x, m in zip(ts, xs, mask) if m]
        back = bind(
            scan_p,
            *invariant_values,
            *dense,
            *moving_values,
            jaxpr=program,
            consts=len(invariant) + n_consts,
            residuals=(len(invariant), len(moving)),
            **options,
        )
        return filled(nonzero_outs, back)

    return primals, apply


def _transpose(
    cts: Sequence[Any],
    *operands: Any,
    jaxpr: Jaxpr,
    consts: int,
    carry: int,
    length: int,
    reverse: bool,
    unroll: int,
    residuals: tuple[int, int] | None,
) -> list[Any]:
    """Transpose a linear scan: another scan, which runs the other way.

    What is linear is told by position, by `residuals`, since a linear operand may be a concrete
    array of zeros.
    """
    if residuals is None and not all(map(is_linear, operands)):
        options = {"carry": carry, "length": length, "reverse": reverse, "unroll": unroll}
        return _transpose_as_written(cts, operands, jaxpr=jaxpr, consts=consts, **options)
    a, b = residuals or (0, 0)
    end = len(operands) - b
    invariant, moving = operands[:a], operands[end:]
    linear = operands[a:end]
    avals = [x.aval if is_linear(x) else typeof(x) for x in linear]
    n_consts = consts - a
    ys = jaxpr.out_avals[carry:]
    # A loop's body has one signature, so cotangents that are zero become arrays.
    ct_carry = [instantiate(c, k) for c, k in zip(cts[:carry], avals[n_consts:])]
    ct_ys = [instantiate(c, stacked(k, length)) for c, k in zip(cts[carry:], ys)]
    # A constant's cotangent is a sum over the steps, carried in float32 at least and rounded once:
    # a 16-bit sum would lose a rounding at every step.
    sums = [k.update(dtype=dtypes.widened(k.dtype)) for k in avals[:n_consts]]
    body = _transposed_body(jaxpr, a, n_consts, carry, b)
    outs = bind(
        scan_p,
        *invariant,
        *[zeros(k) for k in sums],
        *ct_carry,
        *ct_ys,
        *moving,
        jaxpr=body,
        consts=a,
        carry=n_consts + carry,
        length=length,
        reverse=not reverse,  # the steps are transposed in the opposite order
        unroll=unroll,
        residuals=None,
    )
    back = [convert(o, k.dtype) for o, k in zip(outs[:n_consts], avals)] + outs[n_consts:]
    return [None] * a + [o if is_linear(x) else None for o, x in zip(back, linear)] + [None] * b


def _transpose_as_written(
    cts: Sequence[Any], operands: Sequence[Any], *, jaxpr: Jaxpr, consts: int, **options: Any
) -> list[Any]:
    """Transpose a scan that a derivative rule or a linear function wrote itself: which operands it
    is not linear in (matrices, positions, a counter) is not told by `residuals`. Being linear in
    the others, it is its own derivative at zero, of which the transpose is known."""
    carry = options["carry"]
    at = slice(consts, consts + carry)

    def step(mask: tuple[bool, ...]) -> tuple[None, Sequence[bool]]:
        no_ys = (False,) * (len(jaxpr.outs) - carry)
        return None, linearize_jaxpr(jaxpr, mask, mask[at] + no_ys)[2][:carry]

    _, mask = fixed_point(step, tuple(map(is_linear, operands)), at)
    primals = [zeros(x.aval) if is_linear(x) else x for x in operands]
    _, apply = _linearize(mask, *primals, jaxpr=jaxpr, consts=consts, residuals=None, **options)
    avals = [typeof(x) for x, m in zip(primals, mask) if m]
    ys = [stacked(k, options["length"]) for k in jaxpr.out_avals[carry:]]
    outs = [*jaxpr.out_avals[:carry], *ys]
    program, captured = stage(
        lambda *ts: [instantiate(y, k) for y, k in zip(apply(*filled(mask, ts)), outs)], avals
    )
    back = transpose_flat(program, [*captured, *map(LinearOperand, avals)], cts)
    found = filled(mask, back[len(captured) :])
    return [ct if is_linear(x) else None for ct, x in zip(found, operands)]


@memoized
def _transposed_body(jaxpr: Jaxpr, a: int, n_consts: int, carry: int, b: int) -> Jaxpr:
    """[fixed, sums, carry cts, ys cts, moving] -> [sums, carry cts, xs cts]."""
    avals = jaxpr.in_avals
    linear = avals[a : len(avals) - b]
    sums = [k.update(dtype=dtypes.widened(k.dtype)) for k in linear[:n_consts]]
    ys = jaxpr.out_avals[carry:]

    def f(*args: Any) -> list[Any]:
        rest = iter(args)
        take = lambda n: [next(rest) for _ in range(n)]
        invariant, totals, ct_carry, ct_ys, moving = map(take, (a, n_consts, carry, len(ys), b))
        operands = [*invariant, *map(LinearOperand, linear), *moving]
        back = transpose_flat(jaxpr, operands, [*ct_carry, *ct_ys])[a : a + len(linear)]
        totals = [
            t if c is None else add(t, convert(c, typeof(t).dtype)) for t, c in zip(totals, back)
        ]
        return totals + [instantiate(c, k) for c, k in zip(back[n_consts:], linear[n_consts:])]

    in_avals = [
        *avals[:a],
        *sums,
        *linear[n_consts : n_consts + carry],
        *ys,
        *avals[len(avals) - b :],
    ]
    return stage_closed(f, in_avals, jaxpr.name)


# ---- forward mode, vmap ----


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    consts: int,
    carry: int,
    residuals: tuple[Any, ...] | None,
    **options: Any,
) -> Any:
    count, at = len(jaxpr.outs), slice(consts, consts + carry)

    def step(mask: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        result = jvp_jaxpr(jaxpr, mask, mask[at] + (False,) * (count - carry))
        return result, result[1][:carry]

    # A carry's output is forced to have a tangent where the carry has one; a y is not.
    (program, nonzero_outs), mask = fixed_point(step, [t is not None for t in tangents], at)
    ts = [instantiate(t, typeof(p)) if m else None for t, p, m in zip(tangents, primals, mask)]
    n = len(primals)
    # `jvp_jaxpr` puts tangents last; a scan's operands and results are grouped by their role.
    order = _Interleaved(consts, carry, n, mask)
    body = Jaxpr(
        [program.invars[i] for i in order.ins],
        program.eqns,
        [program.outs[i] for i in order.outs(carry, count, nonzero_outs)],
        (),
        program.name,
    )
    values = [*primals, *(t for t in ts if t is not None)]
    n_carry = carry + sum(mask[at])
    outs = bind(
        scan_p,
        *[values[i] for i in order.ins],
        jaxpr=body,
        consts=consts + sum(mask[:consts]),
        carry=n_carry,
        residuals=None,
        **options,
    )
    in_order = dict(zip(order.outs(carry, count, nonzero_outs), outs))
    rest = iter(range(count, count + sum(nonzero_outs)))
    return [in_order[i] for i in range(count)], [
        in_order[next(rest)] if f else None for f in nonzero_outs
    ]


class _Interleaved:
    """Positions that turn [primals, tangents] into [constants, carry, xs], each group with its
    tangents behind it."""

    def __init__(self, consts: int, carry: int, n: int, mask: Sequence[bool]) -> None:
        where_tangent, k = {}, n
        for i, m in enumerate(mask):
            if m:
                where_tangent[i] = k
                k += 1
        self.ins: list[int] = []
        for group in (range(consts), range(consts, consts + carry), range(consts + carry, n)):
            self.ins += [*group, *(where_tangent[i] for i in group if i in where_tangent)]

    def outs(self, carry: int, count: int, nonzero_outs: Sequence[bool]) -> list[int]:
        tangent_at = {
            i: count + k for k, i in enumerate([i for i, f in enumerate(nonzero_outs) if f])
        }
        result: list[int] = []
        for group in (range(carry), range(carry, count)):
            result += [*group, *(tangent_at[i] for i in group if i in tangent_at)]
        return result


def _batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    consts: int,
    carry: int,
    axis_name: Any = None,
    **options: Any,
) -> Any:
    count, at = len(jaxpr.outs), slice(consts, consts + carry)

    def step(mask: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        force = mask[at] + (False,) * (count - carry)
        result = batch_jaxpr(jaxpr, size, mask, force, axis_name)
        return result, result[1][:carry]

    (program, batched_outs), mask = fixed_point(step, [d is not None for d in dims], at)
    # The batch of xs and ys is their axis 1: axis 0 is the loop's.
    moved = [
        x if not m else move_batch(x, d, 0 if i < consts + carry else 1, size)
        for i, (x, d, m) in enumerate(zip(xs, dims, mask))
    ]
    outs = bind(scan_p, *moved, jaxpr=program, consts=consts, carry=carry, **options)
    return outs, [(0 if i < carry else 1) if f else None for i, f in enumerate(batched_outs)]


scan_p = Primitive(
    "scan", _shape, multi=True, linearize=_linearize, jvp=_jvp, transpose=_transpose, batch=_batch
)
scan_p.takes = lambda *, jaxpr, **_: jaxpr.in_avals
scan_p.depends, scan_p.key_uses = dependency.of_loop, key_uses.of_scan


# ---- what users call ----


def scan(
    f: Callable[[PyTree, PyTree], tuple[Carry, Y]],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    carry: Literal["strict", "cast"] = "strict",
) -> tuple[Carry, Y]:
    """Loop over the leading axis of `xs` with a carry: `carry, ys[i] = f(carry, xs[i])`.

    The body is traced once, or again until the dtypes of Python numbers in `init` are known.
    Differentiable in both modes: reverse mode saves what each step needs, stacked [length, ...].

    Args:
        f: function of (carry, x) that returns (next carry, y). The carry keeps structure, shapes
            and dtypes.
        init: the first carry, a pytree. A Python number takes the dtype that `f` returns for it.
        xs: pytree of arrays [length, ...], or None with `length`.
        length: the number of steps; by default that of `xs`.
        reverse: whether to run from the last slice to the first; ys[i] still belongs to xs[i].
        unroll: steps per iteration of the loop that runs; True for all.
        carry: "strict", or "cast" to cast the carry that `f` returns to the dtypes of `init`.

    Returns:
        (last carry, ys): ys is a pytree of arrays [length, ...].

    Raises:
        TreeError, TypeError: `f` does not return a pair, or the carry changes; with leaf, types and
            line.
        ValueError: lengths differ, neither `xs` nor `length` is there, `unroll` is negative, or
            `carry` is unknown.

    >>> lax.scan(lambda total, x: (total + x, total), 0.0, jnp.arange(4.0))
    (Array(6., dtype=float32), Array([0., 0., 1., 3.], dtype=float32))
    """
    if carry not in ("strict", "cast"):
        raise ValueError(
            f'scan: carry is "strict" or "cast", got {carry!r}\n  at {where().describe()}'
        )
    names = [f"scan: the carry{p}" for p in tree.paths(init)]
    return named_scan(f, init, xs, length, reverse, unroll, carry, names)


def known_number(x: Any) -> Any:
    """An integer of Python or NumPy as a number of the program, by which that can tell what a loop
    counts; anything else as it is."""
    if type(x) is int:
        kind = dtypes.scalar_dtype(int)
    elif isinstance(x, np.integer):
        kind = dtypes.counted(x.dtype)
    else:
        return x
    if not dtypes.iinfo(kind).min <= x <= dtypes.iinfo(kind).max:
        return x
    return with_weak(full((), int(x), kind), type(x) is int)


def named_scan(
    f: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    init: PyTree,
    xs: PyTree,
    length: int | None,
    reverse: bool,
    unroll: int | bool,
    carry: Literal["strict", "cast"],
    names: Sequence[str],
) -> tuple[PyTree, PyTree]:
    """Run `scan`; `names` are what errors call the leaves of the carry."""
    if unroll is not True and operator.index(unroll) < 0:
        raise ValueError(f"scan: unroll is a bool or the number of steps at a time, got {unroll}")
    operands = tree.leaves((init, xs))  # Python numbers among them go to the arrays' device
    with default_device_of(operands):
        inits, carry_tree, weak = flatten_arrays(tree.map(known_number, init), "scan's init")
        leaves, xs_tree, _ = flatten_arrays(xs, "scan's xs")
    length = _length(leaves, xs, length)
    if _disabled() and length:  # a loop of no step says by its program what it would stack
        return _python_loop(f, init, leaves, xs_tree, length, reverse)
    with default_device_of(operands):
        jaxpr, captured, inits, y_tree, weak = _body(
            f, inits, carry_tree, weak, leaves, xs_tree, carry, init, names
        )
    count = len(inits)
    if unroll is True or (type(unroll) is int and unroll >= max(length, 2)):
        # No scan at all: the body's equations are recorded, or run, once per step.
        outs = _unrolled(jaxpr, captured, inits, leaves, length, reverse)
    else:
        outs = key_uses.user_call(
            scan_p,
            *captured,
            *inits,
            *leaves,
            jaxpr=jaxpr,
            consts=len(captured),
            carry=count,
            length=length,
            reverse=reverse,
            unroll=int(unroll),
            residuals=None,
        )
    outs = with_weak_types(outs, weak)
    return tree.unflatten(carry_tree, outs[:count]), tree.unflatten(y_tree, outs[count:])


def _disabled() -> bool:
    from genesis_fn.core.configuration import config

    return config.current().disable_jit


def _length(leaves: Sequence[Any], xs: Any, length: int | None) -> int:
    for x, path in zip(leaves, tree.paths(xs)):
        shape = typeof(x).shape
        if not shape:
            raise ValueError(
                f"scan: xs{path} is a scalar, it needs a leading axis\n  at {where().describe()}"
            )
        if length is None:
            length = shape[0]
        if shape[0] != length:
            raise ValueError(
                f"scan: xs{path} has length {shape[0]}, expected {length}\n"
                f"  at {where().describe()}"
            )
    if length is None:
        raise ValueError(f"scan: pass xs or length=\n  at {where().describe()}")
    return int(length)


def _body(
    f: Callable[..., Any],
    inits: list[Any],
    carry_tree: Any,
    weak: Sequence[bool],
    leaves: Sequence[Any],
    xs_tree: Any,
    mode: str,
    init: Any,
    names: Sequence[str],
) -> Any:
    """Stage the body: (program, captured values, first carry, structure of y, which outputs are
    weak)."""
    count = len(inits)
    name = name_of(f)
    avals = [typeof(x) for x in inits]
    slices = [sliced(typeof(x)) for x in leaves]
    y_tree: Any = None
    weak_outs: list[bool] = []

    def body(*args: Any) -> list[Any]:
        nonlocal y_tree, weak_outs
        c = tree.unflatten(carry_tree, args[:count])
        out = f(c, tree.unflatten(xs_tree, args[count:]))
        if not (isinstance(out, (tuple, list)) and len(out) == 2):
            raise errors.TreeError(
                f"scan: {name} must return (carry, y), got {out!r:.80}\n"
                f"  at {where().describe()}{missing(out)}"
            )
        new, structure = tree.flatten(out[0])
        if structure != carry_tree:
            difference = tree.first_difference(init, out[0], "the carry")
            raise errors.TreeError(
                f"scan: {name} returned a carry of another structure: {difference}\n"
                f"  at {where().describe()}"
            )
        ys, y_tree = tree.flatten(out[1])
        for x, label in zip(new, names):
            if not is_value(x):
                raise _not_an_array(x, label, name)
        for y, path in zip(ys, tree.paths(out[1])):
            if not is_value(y):
                raise _not_an_array(y, f"scan: y{path}", name)
        new = [instantiate(as_array(x), k) for x, k in zip(new, avals)]
        if mode == "cast":  # a weak leaf stays weak, so that the types settle in one round
            new = [with_weak(convert(x, k.dtype), w) for x, k, w in zip(new, avals, weak)]
        result = new + [as_array(y) for y in ys]
        weak_outs = [x.weak for x in result]
        return result

    labels = [f"carry{p}" for p in tree.paths(init)]
    labels += [f"x{p}" for p in tree.paths(tree.unflatten(xs_tree, leaves))]
    slices_weak = [x.weak for x in leaves]
    while True:  # until no weak leaf of the carry takes another dtype: see resolve_carry
        jaxpr, captured = stage(
            body,
            [*avals, *slices],
            name=name,
            labels=labels,
            weak=[*weak, *slices_weak],
            repeated=True,  # a key captured from outside draws the same at every step
        )
        outs = jaxpr.out_avals[:count]
        avals, weak, changed = resolve_carry(avals, weak, outs)
        if not changed:
            break
    for i, (k, o) in enumerate(zip(avals, outs)):
        if k is not o:
            raise carry_mismatch(jaxpr, i, k, o, names[i], name)
    inits = [instantiate(convert(x, k.dtype), k) for x, k in zip(inits, avals)]
    return jaxpr, captured, inits, y_tree, weak_outs


def _not_an_array(x: Any, what: str, function: str) -> Exception:
    return TypeError(
        f"{what} comes out of {function} as {x!r:.60} of type {type(x).__name__}, not an array or "
        f"a number\n  at {where().describe()}"
    )


def carry_mismatch(jaxpr: Jaxpr, i: int, k: Aval, o: Aval, what: str, function: str) -> Exception:
    """The error for output `i` of a loop's body, which goes in as `k` and comes out as `o`."""
    eqn = next((e for e in jaxpr.eqns if jaxpr.outs[i] in e.outs), None)
    line = eqn.where if eqn and eqn.where else where()
    return TypeError(
        f"{what} goes in as {k} and comes out of {function} as {o}\n"
        f"  at {line.describe()}\n  {_remedy(k, o, what)}"
    )


def _remedy(k: Aval, o: Aval, name: str) -> str:
    if k.shape != o.shape:
        return f"its shape must stay: start with {list(o.shape)}, or write into it by .at[...]"
    start = f"start with .astype({o.dtype.name!r})"
    if not name.startswith("scan"):
        return f"{start}, or cast what the body returns to {k.dtype.name!r}"
    return f'{start}, or pass carry="cast" to cast it back at every step'


def resolve_carry(
    avals: Sequence[Aval], weak: Sequence[bool], outs: Sequence[Aval]
) -> tuple[list[Aval], list[bool], bool]:
    """Take over what a body returned for its carry: (avals, which leaves are weak, whether that
    changed anything).

    A weak leaf (a Python number) that comes out in another dtype has that dtype from the start; a
    leaf that comes out varying over more axes varies over them from the start; and the body is
    staged again. It ends: every round makes fewer leaves weak, or some vary over more axes.
    """
    new_avals, new_weak = list(avals), list(weak)
    for i, (k, o) in enumerate(zip(avals, outs)):
        if weak[i] and o.shape == k.shape and o.dtype != k.dtype:
            new_avals[i], new_weak[i] = k.update(dtype=o.dtype), False
        new_avals[i] = new_avals[i].update(varying=k.varying | o.varying)
    return new_avals, new_weak, new_avals != list(avals)


def _slice_at(x: Any, i: int) -> Any:
    from genesis_fn.primitives.shape import index_in_dim

    return index_in_dim(x, i, 0, keepdims=False)


def _stack(values: Sequence[Any]) -> Any:
    from genesis_fn.primitives.shape import concatenate, expand_dims

    return concatenate([expand_dims(v, (0,)) for v in values], 0)


def _order(length: int, reverse: bool) -> range:
    return range(length - 1, -1, -1) if reverse else range(length)


def _unrolled(
    jaxpr: Jaxpr,
    captured: list[Any],
    carry: list[Any],
    xs: Sequence[Any],
    length: int,
    reverse: bool,
) -> list[Any]:
    count, rows = len(carry), {}
    for i in _order(length, reverse):
        outs = evaluate(jaxpr, *captured, *carry, *[_slice_at(x, i) for x in xs])
        carry, rows[i] = outs[:count], outs[count:]
    if not length:
        return [*carry, *(zeros(stacked(a, 0)) for a in jaxpr.out_avals[count:])]
    return [*carry, *(_stack(column) for column in zip(*[rows[i] for i in range(length)]))]


def _python_loop(
    f: Callable[..., Any], carry: Any, leaves: list[Any], xs_tree: Any, length: int, reverse: bool
) -> tuple[Any, Any]:
    """Run the loop, of at least one step, as Python, on concrete values: what `disable_jit` asks
    for."""
    rows: dict[int, list[Any]] = {}
    y_tree: Any = None
    for i in _order(length, reverse):
        carry, y = f(carry, tree.unflatten(xs_tree, [_slice_at(x, i) for x in leaves]))
        flat, y_tree = tree.flatten(y)
        rows[i] = flat
    ys = [_stack(_one_dtype(column)) for column in zip(*[rows[i] for i in range(length)])]
    return carry, tree.unflatten(y_tree, ys)


def _one_dtype(values: Sequence[Any]) -> list[Any]:
    """Convert the values to arrays of one dtype; Python numbers among them follow the arrays."""
    strong = frozenset(typeof(v).dtype for v in values if type(v) not in SCALARS)
    dtype, _ = dtypes.promote(
        strong, frozenset(dtypes.scalar_dtype(type(v)) for v in values if type(v) in SCALARS)
    )
    return [as_array(v, dtype) if type(v) in SCALARS else convert(v, dtype) for v in values]


def map_sequentially(
    f: Callable[..., Any],
    size: int,
    xs: Sequence[Array],
    dims: Sequence[int | None],
    unroll: bool = False,
) -> PyTree:
    """Apply `f` to the examples of a batch one after the other, by a scan, and stack the
    results."""
    rows = [move_batch(x, d, 0, size) for x, d in zip(xs, dims) if d is not None]

    def step(_: Any, row: list[Any]) -> tuple[Any, Any]:
        mapped = iter(row)
        return _, f(*[x if d is None else next(mapped) for x, d in zip(xs, dims)])

    return scan(step, (), rows, length=size, unroll=unroll or 1)[1]
