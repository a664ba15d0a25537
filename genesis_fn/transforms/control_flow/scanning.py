"""scan: a loop with a carry over the leading axis of arrays, differentiable in both modes.

The body program takes [constants, carry, slices of xs] and returns [carry, ys]. A linear scan (one
on a tape) also has operands in which it is not linear, at fixed places: `residuals = (a, b)` says
that the first a constants and the last b xs are such.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.aval import Aval, aval
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
from genesis_fn.primitives.factories import filled, instantiate, move_batch, zeros
from genesis_fn.transforms.autodiff.linearize import jvp_jaxpr, linearize_jaxpr
from genesis_fn.transforms.autodiff.transpose import transpose_flat
from genesis_fn.transforms.batching.batch import batch_jaxpr
from genesis_fn.transforms.keys import key_uses
from genesis_fn.transforms.staging import dependency
from genesis_fn.transforms.staging.api_util import flatten_arrays, missing, name_of
from genesis_fn.transforms.staging.call import jit_p
from genesis_fn.transforms.staging.stage import evaluate, stage, stage_closed

T = TypeVar("T")


def sliced(kind: Aval) -> Aval:
    """The aval of one step's slice."""
    return aval(kind.shape[1:], kind.dtype)


def stacked(kind: Aval, length: int) -> Aval:
    """The aval of `length` values."""
    return aval((length, *kind.shape), kind.dtype)


def _shape(*avals: Aval, jaxpr: Jaxpr, carry: int, length: int, **_: Any) -> list[Aval]:
    outs = jaxpr.out_avals
    return outs[:carry] + [stacked(a, length) for a in outs[carry:]]


def fixed_point(
    step: Callable[[tuple[bool, ...]], tuple[T, Sequence[bool]]], mask: Sequence[bool], at: slice
) -> tuple[T, list[bool]]:
    """Grow the carry part of `mask` until what `step` says of the carry adds nothing."""
    mask = list(mask)
    while True:
        result, found = step(tuple(mask))
        grown = [a or b for a, b in zip(mask[at], found)]
        if grown == mask[at]:
            return result, mask
        mask[at] = grown


# ---- reverse mode ----


@memoized
def _split_invariant(
    forward: Jaxpr, consts: int, carry: int, outs: int
) -> tuple[Jaxpr, Jaxpr, list[tuple[str, int]]]:
    """(program of the loop-invariant residuals, forward body without them, where residuals are).

    A residual that depends on constants only is computed once, before the loop, instead of being
    stacked `length` times; one that is a slice of xs is the xs operand itself.
    """
    invariant: set[Var] = set(forward.invars[:consts])
    before: list[Eqn] = []
    for e in forward.eqns:
        if not e.prim.effect and all(type(i) is not Var or i in invariant for i in e.ins):
            invariant.update(e.outs)
            before.append(e)
    residuals = forward.outs[outs:]
    hoisted = [v for v in residuals if v in invariant]
    xs = {v: i for i, v in enumerate(forward.invars[consts + carry :])}
    kept = [v for v in residuals if v not in invariant and v not in xs]
    places, once, steps = [], 0, 0
    for v in residuals:
        if v in invariant:
            places.append(("once", once))
            once += 1
        elif v in xs:
            places.append(("xs", xs[v]))
        else:
            places.append(("stacked", steps))
            steps += 1
    pre = Jaxpr(forward.invars[:consts], dead_code(before, hoisted)[0], hoisted, (), forward.name)
    body_outs = [*forward.outs[:outs], *kept]
    body = Jaxpr(forward.invars, dead_code(forward.eqns, body_outs)[0], body_outs, (), forward.name)
    return pre, body, places


def _linearize(
    nonzero: Sequence[bool],
    *xs: Any,
    jaxpr: Jaxpr,
    consts: int,
    carry: int,
    length: int,
    reverse: bool,
    unroll: int,
    residuals: tuple[Any, ...],
) -> Any:
    count = len(jaxpr.outs)
    at = slice(consts, consts + carry)

    def step(mask: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        result = linearize_jaxpr(jaxpr, mask, mask[at] + (False,) * (count - carry))
        return result, result[2][:carry]

    (forward, tangent, found, nres), mask = fixed_point(step, nonzero, at)
    pre, body, places = _split_invariant(forward, consts, carry, count)
    once = bind(jit_p, *xs[:consts], jaxpr=pre) if pre.outs else []
    options = {"carry": carry, "length": length, "reverse": reverse, "unroll": unroll}
    outs = bind(scan_p, *xs, jaxpr=body, consts=consts, residuals=(0, 0), **options)
    primals, steps = outs[:count], outs[count:]

    fixed = [i for i, (kind, _) in enumerate(places) if kind == "once"]
    moving = [i for i, (kind, _) in enumerate(places) if kind != "once"]
    fixed_values = [once[places[i][1]] for i in fixed]
    moving_values = [
        xs[consts + carry + places[i][1]] if places[i][0] == "xs" else steps[places[i][1]]
        for i in moving
    ]
    n_consts = sum(mask[:consts])
    n_carry = sum(mask[at])
    inner = tangent.invars
    program = Jaxpr(
        [*(inner[i] for i in fixed), *inner[nres:], *(inner[i] for i in moving)],
        tangent.eqns,
        tangent.outs,
        (),
        tangent.name,
    )
    options["carry"] = n_carry

    def apply(*ts: Any) -> list[Any]:
        given = [instantiate(t, typeof(x)) for t, x, m in zip(ts, xs, mask) if m]
        back = bind(
            scan_p,
            *fixed_values,
            *given,
            *moving_values,
            jaxpr=program,
            consts=len(fixed) + n_consts,
            residuals=(len(fixed), len(moving)),
            **options,
        )
        return filled(found, back)

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
    residuals: tuple[int, int],
) -> list[Any]:
    """Linear by position: an operand that is a concrete (zero) array is linear all the same."""
    a, b = residuals
    end = len(operands) - b
    fixed, moving = operands[:a], operands[end:]
    linear = operands[a:end]
    kinds = [x.aval if is_linear(x) else typeof(x) for x in linear]
    n_consts = consts - a
    ys = jaxpr.out_avals[carry:]
    ct_carry = [instantiate(c, k) for c, k in zip(cts[:carry], kinds[n_consts:])]
    ct_ys = [instantiate(c, stacked(k, length)) for c, k in zip(cts[carry:], ys)]
    # Cotangents of constants are summed over the steps: in float32 at least, rounded once.
    sums = [k.update(dtype=dtypes.widened(k.dtype)) for k in kinds[:n_consts]]
    body = _transposed_body(jaxpr, a, n_consts, carry, b)
    outs = bind(
        scan_p,
        *fixed,
        *[zeros(k) for k in sums],
        *ct_carry,
        *ct_ys,
        *moving,
        jaxpr=body,
        consts=a,
        carry=n_consts + carry,
        length=length,
        reverse=not reverse,
        unroll=unroll,
        residuals=(0, 0),
    )
    back = [convert(o, k.dtype) for o, k in zip(outs[:n_consts], kinds)] + outs[n_consts:]
    return [None] * a + [o if is_linear(x) else None for o, x in zip(back, linear)] + [None] * b


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
        fixed, totals, ct_carry, ct_ys, moving = map(take, (a, n_consts, carry, len(ys), b))
        operands = [*fixed, *map(LinearOperand, linear), *moving]
        back = transpose_flat(jaxpr, operands, [*ct_carry, *ct_ys])[a : a + len(linear)]
        totals = [
            t if c is None else add(t, convert(c, typeof(t).dtype)) for t, c in zip(totals, back)
        ]
        return totals + [instantiate(c, k) for c, k in zip(back[n_consts:], linear[n_consts:])]

    given = [*avals[:a], *sums, *linear[n_consts : n_consts + carry], *ys, *avals[len(avals) - b :]]
    return stage_closed(f, given, jaxpr.name)


# ---- forward mode, vmap ----


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    consts: int,
    carry: int,
    residuals: tuple[Any, ...],
    **options: Any,
) -> Any:
    count, at = len(jaxpr.outs), slice(consts, consts + carry)

    def step(mask: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        result = jvp_jaxpr(jaxpr, mask, mask[at] + (False,) * (count - carry))
        return result, result[1][:carry]

    (program, found), mask = fixed_point(step, [t is not None for t in tangents], at)
    ts = [instantiate(t, typeof(p)) if m else None for t, p, m in zip(tangents, primals, mask)]
    n = len(primals)
    order = _Interleaved(consts, carry, n, mask)
    body = Jaxpr(
        [program.invars[i] for i in order.ins],
        program.eqns,
        [program.outs[i] for i in order.outs(carry, count, found)],
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
        residuals=(0, 0),
        **options,
    )
    in_order = dict(zip(order.outs(carry, count, found), outs))
    rest = iter(range(count, count + sum(found)))
    return [in_order[i] for i in range(count)], [in_order[next(rest)] if f else None for f in found]


class _Interleaved:
    """Positions that bring [primals, tangents] into [constants, carry, xs] with tangents beside."""

    def __init__(self, consts: int, carry: int, n: int, mask: Sequence[bool]) -> None:
        where_tangent, k = {}, n
        for i, m in enumerate(mask):
            if m:
                where_tangent[i] = k
                k += 1
        self.ins: list[int] = []
        for part in (range(consts), range(consts, consts + carry), range(consts + carry, n)):
            self.ins += [*part, *(where_tangent[i] for i in part if i in where_tangent)]

    def outs(self, carry: int, count: int, found: Sequence[bool]) -> list[int]:
        tangent_at = {i: count + k for k, i in enumerate([i for i, f in enumerate(found) if f])}
        result: list[int] = []
        for part in (range(carry), range(carry, count)):
            result += [*part, *(tangent_at[i] for i in part if i in tangent_at)]
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

    (program, found), mask = fixed_point(step, [d is not None for d in dims], at)
    moved = [
        x if not m else move_batch(x, d, 0 if i < consts + carry else 1, size)
        for i, (x, d, m) in enumerate(zip(xs, dims, mask))
    ]
    outs = bind(scan_p, *moved, jaxpr=program, consts=consts, carry=carry, **options)
    return outs, [(0 if i < carry else 1) if f else None for i, f in enumerate(found)]


scan_p = Primitive(
    "scan", _shape, multi=True, linearize=_linearize, jvp=_jvp, transpose=_transpose, batch=_batch
)
scan_p.depends, scan_p.key_uses = dependency.of_loop, key_uses.of_scan


# ---- what users call ----


def scan(
    f: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    carry: Literal["strict", "cast"] = "strict",
) -> tuple[PyTree, PyTree]:
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
        ValueError: lengths differ, or neither `xs` nor `length` is there.

    >>> lax.scan(lambda total, x: (total + x, total), 0.0, jnp.arange(4.0))
    (Array(6., dtype=float32), Array([0., 0., 1., 3.], dtype=float32))
    """
    if carry not in ("strict", "cast"):
        raise ValueError(
            f'scan: carry is "strict" or "cast", got {carry!r}\n  at {where().describe()}'
        )
    names = [f"scan: the carry{p}" for p in tree.paths(init)]
    return named_scan(f, init, xs, length, reverse, unroll, carry, names)


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
    """`scan`, with what errors call each leaf of the carry."""
    if unroll is not True and operator.index(unroll) < 0:
        raise ValueError(f"scan: unroll is a bool or the number of steps at a time, got {unroll}")
    near = tree.leaves((init, xs))
    with default_device_of(near):
        inits, carry_tree, weak = flatten_arrays(init, "scan's init")
        leaves, xs_tree, _ = flatten_arrays(xs, "scan's xs")
    length = _length(leaves, xs, length)
    if _disabled():
        return _python_loop(f, init, leaves, xs_tree, length, reverse)
    with default_device_of(near):
        jaxpr, captured, inits, y_tree, weak = _body(
            f, inits, carry_tree, weak, leaves, xs_tree, carry, init, names
        )
    count = len(inits)
    if unroll is True or (type(unroll) is int and unroll >= max(length, 2)):
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
            residuals=(0, 0),
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
    """(body program, captured values, initial carry, structure of y, which outputs are weak)."""
    count = len(inits)
    name = name_of(f)
    kinds = [typeof(x) for x in inits]
    slices = [sliced(typeof(x)) for x in leaves]
    y_tree: Any = None
    found_weak: list[bool] = []

    def body(*args: Any) -> list[Any]:
        nonlocal y_tree, found_weak
        c = tree.unflatten(carry_tree, args[:count])
        out = f(c, tree.unflatten(xs_tree, args[count:]))
        if not (isinstance(out, (tuple, list)) and len(out) == 2):
            raise errors.TreeError(
                f"scan: {name} must return (carry, y), got {out!r:.80}\n"
                f"  at {where().describe()}{missing(out)}"
            )
        new, found = tree.flatten(out[0])
        if found != carry_tree:
            difference = tree.first_difference(init, out[0], "the carry")
            raise errors.TreeError(
                f"scan: {name} returned a carry of another structure: {difference}\n"
                f"  at {where().describe()}"
            )
        ys, y_tree = tree.flatten(out[1])
        for x, called in zip(new, names):
            if not is_value(x):
                raise _not_an_array(x, called, name)
        for y, path in zip(ys, tree.paths(out[1])):
            if not is_value(y):
                raise _not_an_array(y, f"scan: y{path}", name)
        new = [as_array(x) for x in new]
        if mode == "cast":
            new = [with_weak(convert(x, k.dtype), w) for x, k, w in zip(new, kinds, weak)]
        result = new + [as_array(y) for y in ys]
        found_weak = [x.weak for x in result]
        return result

    labels = [f"carry{p}" for p in tree.paths(init)]
    labels += [f"x{p}" for p in tree.paths(tree.unflatten(xs_tree, leaves))]
    slices_weak = [x.weak for x in leaves]
    while True:
        jaxpr, captured = stage(
            body,
            [*kinds, *slices],
            name=name,
            labels=labels,
            weak=[*weak, *slices_weak],
            repeated=True,
        )
        outs = jaxpr.out_avals[:count]
        kinds, weak, changed = grown(kinds, weak, outs)
        if not changed:
            break
    for i, (k, o) in enumerate(zip(kinds, outs)):
        if k is not o:
            raise mismatch(jaxpr, i, k, o, names[i], name)
    inits = [convert(x, k.dtype) for x, k in zip(inits, kinds)]
    return jaxpr, captured, inits, y_tree, found_weak


def _not_an_array(x: Any, what: str, function: str) -> Exception:
    return TypeError(
        f"{what} comes out of {function} as {x!r:.60} of type {type(x).__name__}, not an array or "
        f"a number\n  at {where().describe()}"
    )


def mismatch(jaxpr: Jaxpr, i: int, k: Aval, o: Aval, what: str, function: str) -> Exception:
    """The error for output `i` of a loop's body, which goes in as `k` and comes out as `o`."""
    made = next((e for e in jaxpr.eqns if jaxpr.outs[i] in e.outs), None)
    line = made.where if made and made.where else where()
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


def grown(
    kinds: Sequence[Aval], weak: Sequence[bool], outs: Sequence[Aval]
) -> tuple[list[Aval], list[bool], bool]:
    """(avals of a carry, which of it is weak, whether that is new) after a loop's body was staged.

    What goes in weak and comes out in another dtype has that dtype from the start; the body is then
    staged again, and every turn makes less of the carry weak.
    """
    new_kinds, new_weak = list(kinds), list(weak)
    for i, (k, o) in enumerate(zip(kinds, outs)):
        if weak[i] and o.shape == k.shape and o is not k:
            new_kinds[i], new_weak[i] = o, False
    return new_kinds, new_weak, new_weak != list(weak)


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
    """Under `disable_jit`: the loop as Python runs it, on concrete values."""
    if length == 0:
        raise ValueError("scan of length 0 cannot run under disable_jit: it has no y to stack")
    rows: dict[int, list[Any]] = {}
    y_tree: Any = None
    for i in _order(length, reverse):
        carry, y = f(carry, tree.unflatten(xs_tree, [_slice_at(x, i) for x in leaves]))
        flat, y_tree = tree.flatten(y)
        rows[i] = flat
    ys = [_stack(_one_dtype(column)) for column in zip(*[rows[i] for i in range(length)])]
    return carry, tree.unflatten(y_tree, ys)


def _one_dtype(values: Sequence[Any]) -> list[Any]:
    """The values as arrays of one dtype, which Python numbers among them follow."""
    strong = frozenset(typeof(v).dtype for v in values if type(v) not in SCALARS)
    kind, _ = dtypes.promote(
        strong, frozenset(dtypes.scalar_dtype(type(v)) for v in values if type(v) in SCALARS)
    )
    return [as_array(v, kind) if type(v) in SCALARS else convert(v, kind) for v in values]


def one_by_one(
    f: Callable[..., Any],
    size: int,
    xs: Sequence[Array],
    dims: Sequence[int | None],
    unroll: bool = False,
) -> PyTree:
    """What `f` returns for the examples of a batch, one call after the other, stacked."""
    rows = [move_batch(x, d, 0, size) for x, d in zip(xs, dims) if d is not None]

    def step(_: Any, row: list[Any]) -> tuple[Any, Any]:
        given = iter(row)
        return _, f(*[x if d is None else next(given) for x, d in zip(xs, dims)])

    return scan(step, (), rows, length=size, unroll=unroll or 1)[1]
