"""nan_trace: find the equation that made a NaN or an infinity, by replaying the program.

Compiled programs run as they are. Only when an output is not finite, the equations of the program
run again one by one on the same inputs (`check_outputs`), and `follow` goes from the output
backwards, through calls, loop iterations and branches, to the equation that made the value from
finite operands. Eager operations are checked one by one, once somebody asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import ArrayImpl, stored
from genesis_fn.core.configuration import config
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive, bind, ctx, run_eagerly_by, running
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.shape import broadcast_in_dim_p, copy_p, reshape_p
from genesis_fn.transforms.autodiff.checkpointing import name_p, without_effects
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p


class Watch(NamedTuple):
    """What to look for, and whether to raise or to print on finding it."""

    nan: bool = True
    inf: bool = True
    action: str = "raise"


class Origin(NamedTuple):
    """Where a bad value came from: an equation with its operands, or input `input_index` of the
    program.

    `inside` are the calls and loop iterations around it, outermost first; `carriers` the equations
    that passed the value on, the last one first.
    """

    eqn: Eqn | None
    operands: list[Any]
    result: Any
    input_index: int = -1
    inside: tuple[str, ...] = ()
    carriers: tuple[Eqn, ...] = ()


def current_watch() -> Watch | None:
    """What this thread looks for: `nan_trace`, else the settings debug_nans and debug_infs."""
    if ctx.watch is not None:
        return ctx.watch
    settings = config.current()
    if settings.debug_nans or settings.debug_infs:
        return Watch(settings.debug_nans, settings.debug_infs)
    return None


# ---- looking at values ----


def _host(x: Any) -> np.ndarray:
    if type(x) is not ArrayImpl:
        return np.asarray(x)
    value = x.device.backend.to_numpy(stored(x))
    narrow = x.dtype in (dtypes.BF16, dtypes.F8E4, dtypes.F8E5)
    return value.astype(np.float32) if narrow else value


def _is_bad(x: Any, watch: Watch) -> bool:
    if type(x) is not ArrayImpl or not dtypes.is_inexact(x.dtype):
        return False
    value = _host(x)
    return bool((watch.nan and np.isnan(value).any()) or (watch.inf and np.isinf(value).any()))


def _summary(x: Any) -> str:
    """`f32[8]: min -0.5, max 2, 1 nan, 0 inf`."""
    if type(x) is not ArrayImpl:
        return repr(x)
    value = _host(x)
    if not value.size:
        return f"{x.aval}"
    if dtypes.is_complex(x.dtype):
        finite = np.abs(value[np.isfinite(value)])
        text = f"|x| from {finite.min():.6g} to {finite.max():.6g}" if finite.size else "not finite"
    else:
        finite = value[np.isfinite(value)] if dtypes.is_float(x.dtype) else value
        text = (
            f"min {finite.min():.6g}, max {finite.max():.6g}" if finite.size else "nothing finite"
        )
    if dtypes.is_inexact(x.dtype):
        text += f", {int(np.isnan(value).sum())} nan, {int(np.isinf(value).sum())} inf"
    return f"{x.aval}: {text}"


# ---- following a value backwards ----


def _run(e: Eqn, xs: Sequence[Any]) -> list[Any]:
    with config.computing(e.numerics):
        outs = bind(e.prim, *xs, **e.params)
    return list(outs) if e.prim.multi else [outs]


def follow(jaxpr: Jaxpr, args: Sequence[Any], index: int, watch: Watch) -> Origin | None:
    """Find the origin of a program's bad output `index`; None if a replay does not show it."""
    env: dict[Var, Any] = dict(zip(jaxpr.invars, args, strict=True))
    producer: dict[Var, Eqn] = {}
    for e in jaxpr.eqns:
        env.update(zip(e.outs, _run(e, [env[i] if type(i) is Var else i for i in e.ins])))
        producer.update((o, e) for o in e.outs)
    v, carriers = jaxpr.outs[index], []
    if not _is_bad(env[v], watch):
        return None
    while v in producer:
        e = producer[v]
        xs = [env[i] if type(i) is Var else i for i in e.ins]
        inner = _inside(e, xs, list(e.outs).index(v), watch)
        if inner is not None and inner.eqn is not None:
            return inner._replace(carriers=(*carriers, *inner.carriers))
        if inner is not None:
            v = e.ins[inner.input_index]
        else:
            bad = [i for i in e.ins if type(i) is Var and _is_bad(env[i], watch)]
            if not bad:
                return Origin(e, xs, env[v], carriers=tuple(carriers))
            v = bad[0]
        carriers.append(e)
    return Origin(None, [], env[v], jaxpr.invars.index(v), carriers=tuple(carriers))


def _inside(e: Eqn, xs: Sequence[Any], out: int, watch: Watch) -> Origin | None:
    """Find the origin within an equation that runs programs; an `input_index` is then an operand of
    `e`."""
    if e.prim is scan_p:
        return _in_scan(e, xs, out, watch)
    if e.prim is while_p:
        return _in_while(e, xs, out, watch)
    if e.prim is cond_p:
        branches = e.params["branches"]
        chosen = min(max(int(_host(xs[0])), 0), len(branches) - 1)
        found = follow(branches[chosen], xs[1:], out, watch)
        if found is None or found.eqn is None:
            return found and found._replace(input_index=found.input_index + 1)
        return _within(found, f"branch {chosen} of cond{_at(e)}")
    inner = e.params[e.prim.program] if e.prim.program else None
    if inner is None:
        return None
    found = follow(inner, xs, out, watch)
    return _within(found, f"{inner.name or e.prim}{_at(e)}") if found and found.eqn else found


def _within(found: Origin, location: str) -> Origin:
    return found._replace(inside=(location, *found.inside))


def _at(e: Eqn) -> str:
    return f" at {e.where}" if e.where else ""


def _row(x: Any, i: int) -> Any:
    from genesis_fn.primitives.shape import index_in_dim

    return index_in_dim(x, i, 0, keepdims=False)


def _program(jaxpr: Jaxpr, xs: Sequence[Any]) -> Callable[..., Any]:
    device = next((x.device.home for x in xs if type(x) is ArrayImpl), None)
    if device is None:
        from genesis_fn.core.device import default_device

        device = default_device()
    return device.backend.compile(jaxpr, device)


def _in_scan(e: Eqn, xs: Sequence[Any], out: int, watch: Watch) -> Origin | None:
    body, consts, carry = (e.params[n] for n in ("jaxpr", "consts", "carry"))
    length, start = e.params["length"], consts + carry
    order = list(range(length - 1, -1, -1) if e.params["reverse"] else range(length))
    step = _program(body, xs)
    fixed, states, rows = list(xs[:consts]), [list(xs[consts:start])], xs[start:]
    first_bad = None
    for n, i in enumerate(order):
        outs = step(*fixed, *states[-1], *[_row(x, i) for x in rows])
        states.append(list(outs[:carry]))
        if out >= carry and first_bad is None and _is_bad(outs[out], watch):
            first_bad = n
    n = first_bad if out >= carry else length - 1
    if n is None:
        return None
    while n >= 0:
        i = order[n]
        found = follow(body, [*fixed, *states[n], *[_row(x, i) for x in rows]], out, watch)
        if found is None:
            return None
        if found.eqn is not None:
            return _within(found, f"iteration {i} of scan{_at(e)}")
        if not consts <= found.input_index < start:
            return found
        out, n = found.input_index - consts, n - 1
    return Origin(None, [], None, consts + out)


def _in_while(e: Eqn, xs: Sequence[Any], out: int, watch: Watch) -> Origin | None:
    a, b = e.params["cond_consts"], e.params["body_consts"]
    test, step = _program(e.params["cond"], xs), _program(e.params["body"], xs)
    states = [list(xs[a + b :])]
    while bool(_host(test(*xs[:a], *states[-1])[0])):
        states.append(step(*xs[a : a + b], *states[-1]))
    for n in range(len(states) - 2, -1, -1):
        found = follow(e.params["body"], [*xs[a : a + b], *states[n]], out, watch)
        if found is None:
            return None
        if found.eqn is not None:
            return _within(found, f"iteration {n} of while_loop{_at(e)}")
        if found.input_index < b:
            return found._replace(input_index=a + found.input_index)
        out = found.input_index - b
    return Origin(None, [], None, a + b + out)


# ---- telling the user ----


def message(found: Origin, jaxpr: Jaxpr, output: str) -> str:
    """Describe an origin in at most six lines."""
    what = "nan" if np.isnan(_host(found.result)).any() else "inf"
    if found.eqn is None:
        labels = jaxpr.labels
        label = labels[found.input_index] if found.input_index < len(labels) else ""
        lines = [f"{what} in {output} was already in input {label or found.input_index}"]
        lines.append(f"  {_summary(found.result)}")
    else:
        e = found.eqn
        back = " in the backward pass" if e.backward else ""
        value = _host(found.result)
        count = int((np.isnan(value) if what == "nan" else np.isinf(value)).sum())
        lines = [
            f"{e.prim.name} produced {what}{back}: {count} of {value.size} elements of "
            f"{found.result.aval}"
        ]
        if e.where is not None:
            lines.append(f"  at {e.where.describe()}")
        lines.append("  operands " + "; ".join(_summary(x) for x in found.operands[:3]))
    if found.inside:
        lines.append("  in " + ", in ".join(reversed(found.inside)))
    if found.carriers:
        names = [f"{c.prim.name}{f' ({c.where})' if c.where else ''}" for c in found.carriers]
        names = names[::-1]
        shown = names if len(names) <= 4 else [*names[:2], f"{len(names) - 3} more", names[-1]]
        lines.append(f"  carried to {output} by " + ", ".join(shown))
    return "\n".join(lines[:6])


def check_outputs(jaxpr: Jaxpr, args: Sequence[Any], outs: Sequence[Any]) -> None:
    """Raise (or print) NanError naming the first equation behind an output that is not finite."""
    watch = current_watch()
    if watch is None:
        return
    i = next((i for i, o in enumerate(outs) if _is_bad(o, watch)), None)
    if i is None:
        return
    name = f"output {i} of {jaxpr.name or 'the program'}" if len(outs) > 1 else "the output"
    before, ctx.watch = ctx.watch, _NO_WATCH
    try:
        with running(None), config.override(debug_nans=False, debug_infs=False):
            found = follow(without_effects(jaxpr), args, i, watch)
    finally:
        ctx.watch = before
    if found is None:
        text = f"{name} is not finite; running its {len(jaxpr.eqns)} equations one by one is"
    else:
        text = message(found, jaxpr, name)
    if watch.action == "raise":
        raise errors.NanError(text)
    print(f"NanError: {text}", file=sys.stderr)


_NO_WATCH = Watch(False, False)


# ---- eager operations ----

_plain_eager = Primitive.eager


def _checked_eager(self: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    out = _plain_eager(self, args, params)
    watch = current_watch()
    if watch is None or watch is _NO_WATCH or self in _UNCHECKED:
        return out
    outs = out if self.multi else [out]
    if any(_is_bad(o, watch) for o in outs):
        ins = [Var(a.aval) if type(a) is ArrayImpl else a for a in args]
        out_vars = [Var(o.aval) for o in outs]
        jaxpr = Jaxpr(
            [v for v in ins if type(v) is Var],
            # A backward pass runs operations of the lines that it differentiates.
            [Eqn(self, ins, params, out_vars, ctx.line or where(), ctx.backward)],
            out_vars,
            (),
            self.name,
        )
        check_outputs(jaxpr, [a for a in args if type(a) is ArrayImpl], outs)
    return out


# Not checked: their values are those that the user passed.
_UNCHECKED = frozenset((full_p, copy_p, broadcast_in_dim_p, reshape_p, name_p))


def _install(settings: config.Config | None = None) -> None:
    """Let eager operations be checked; until somebody asks for it, their call path is untouched."""
    if settings is None or settings.debug_nans or settings.debug_infs:
        run_eagerly_by(_checked_eager)


config.listen(_install)


class nan_trace:
    """Context manager that finds the origin of NaN and infinite results of what runs inside.

    Compiled programs run as they are; where an output is not finite, the program is replayed
    equation by equation on the same inputs, and NanError names the primitive, the user's line, its
    operands' range, the loop iteration, and the equations that carried the value to the output.

    Args:
        infs: whether to look for infinities too.
        action: "raise", or "print" to report to stderr and go on.

    Raises:
        NanError: a result is not finite.

    >>> with gf.debug.nan_trace():
    ...     jnp.log(jnp.array(-1.0))
    Traceback (most recent call last):
        ...
    genesis_fn.core.errors.NanError: log produced nan: 1 of 1 elements of f32[]
    ...
    """

    __slots__ = ("watch", "before")

    def __init__(self, *, infs: bool = True, action: str = "raise") -> None:
        if action not in ("raise", "print"):
            raise ValueError(f'nan_trace: action is "raise" or "print", got {action!r}')
        self.watch = Watch(True, infs, action)

    def __enter__(self) -> nan_trace:
        _install()
        self.before, ctx.watch = ctx.watch, self.watch
        return self

    def __exit__(self, *exc: Any) -> None:
        ctx.watch = self.before
