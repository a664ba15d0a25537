"""amp: rewrite a program by each primitive's precision class.

"low" operations (contractions) run in the policy's 16-bit type, "high" ones (exponentials,
reductions, losses) in float32, the rest in the widest type among their inputs. The functions marked
`wide` (losses made of several operations) run in float32 as a whole. Sub-programs of
calls, loops, branches and checkpoints are rewritten too; custom derivative rules are opaque and
keep the dtypes they were traced with.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from genesis_fn.core import dtypes, tree
from genesis_fn.core.array import Array
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, memoized
from genesis_fn.core.primitive import SCALARS, Tracer, bind, ctx, typeof
from genesis_fn.core.traceback import boundary
from genesis_fn.primitives.elementwise import convert
from genesis_fn.transforms.call import region_p, wide_p
from genesis_fn.transforms.flat import FlatFunction, flatten_arrays, name_of
from genesis_fn.transforms.stage import stage, stage_closed


@dataclasses.dataclass(frozen=True)
class Precision:
    """What `amp` does: the 16-bit `compute` type, and classes that differ from the primitives' own.

    `overrides` maps primitive (or fused function) names to "low", "high" or "follow".
    """

    compute: DType
    overrides: tuple[tuple[str, str], ...] = ()

    def of(self, eqn: Eqn) -> str:
        """The class of an equation."""
        op = eqn.params.get("op") if eqn.prim.name == "fused" else None
        name, own = (
            (op.name, op.precision) if op is not None else (eqn.prim.name, eqn.prim.precision)
        )
        return dict(self.overrides).get(name, own)


_HALF = (dtypes.BF16, dtypes.F16)
_NARROW = (*_HALF, dtypes.F8E4, dtypes.F8E5)


def _cast(x: Any, kind: DType) -> Any:
    return x if type(x) in SCALARS else convert(x, kind)


def _operands(xs: Sequence[Any], cls: str, low: DType) -> list[Any]:
    """The operands of one equation in the dtype of its class."""
    floats = [typeof(x).dtype for x in xs if type(x) not in SCALARS]
    floats = [d for d in floats if dtypes.is_float(d)]
    if not floats:
        return list(xs)
    if cls == "low" and dtypes.F64 not in floats:
        target = low
    elif cls == "high":
        target = dtypes.F32 if all(d in (*_NARROW, dtypes.F32) for d in floats) else dtypes.F64
    else:
        target = functools.reduce(dtypes.promote_types, floats)
        if len(set(floats)) == 1:
            return list(xs)
    return [
        _cast(x, target) if type(x) not in SCALARS and dtypes.is_float(typeof(x).dtype) else x
        for x in xs
    ]


def _evaluate(jaxpr: Jaxpr, policy: Precision, args: Sequence[Any]) -> list[Any]:
    env: dict[Var, Any] = dict(zip(jaxpr.invars, args, strict=True))
    for e in jaxpr.eqns:
        ctx.line = e.where
        xs = [env[i] if type(i) is Var else i for i in e.ins]
        rule = _RULES.get(e.prim.name)
        if rule is not None:
            outs = rule(e, xs, policy)
        elif _opaque(e):
            outs = _as_traced(e, xs)
        else:
            xs = _operands(xs, policy.of(e), policy.compute)
            outs = bind(e.prim, *xs, **e.params)
        env.update(zip(e.outs, outs if e.prim.multi else (outs,)))
    return [env[o] for o in jaxpr.outs]


def _opaque(e: Eqn) -> bool:
    return any(type(v) is Jaxpr or type(v) is tuple and any(type(j) is Jaxpr for j in v)
               for v in e.params.values())  # fmt: skip


def _as_traced(e: Eqn, xs: Sequence[Any]) -> Any:
    """The equation on operands cast back to the dtypes it was traced with."""
    xs = [_cast(x, i.aval.dtype) if type(i) is Var else x for x, i in zip(xs, e.ins)]
    return bind(e.prim, *xs, **e.params)


@memoized
def autocast_jaxpr(
    jaxpr: Jaxpr, policy: Precision, avals: tuple[Aval, ...], keep: tuple[bool, ...]
) -> Jaxpr:
    """The rewritten program for inputs of `avals`; outputs marked in `keep` keep their dtypes."""

    def f(*args: Any) -> list[Any]:
        outs = _evaluate(jaxpr, policy, args)
        return [
            _cast(o, k.dtype) if fixed else o for o, k, fixed in zip(outs, jaxpr.out_avals, keep)
        ]

    return stage_closed(f, avals, jaxpr.name)


def _kinds(xs: Sequence[Any]) -> tuple[Aval, ...]:
    return tuple([typeof(x) for x in xs])


def _rewrite_jit(e: Eqn, xs: Sequence[Any], policy: Precision) -> Any:
    return _evaluate(e.params["jaxpr"], policy, xs)


def _rewrite_wide(e: Eqn, xs: Sequence[Any], policy: Precision) -> Any:
    xs = [
        _cast(x, dtypes.F32) if type(x) not in SCALARS and typeof(x).dtype in _NARROW else x
        for x in xs
    ]
    return _evaluate(e.params["jaxpr"], dataclasses.replace(policy, compute=dtypes.F32), xs)


def _rewrite_checkpoint(e: Eqn, xs: Sequence[Any], policy: Precision) -> Any:
    inner = e.params["jaxpr"]
    free = (False,) * len(inner.outs)
    program = autocast_jaxpr(inner, policy, _kinds(xs), free)
    return bind(e.prim, *xs, jaxpr=program, policy=e.params["policy"])


def _rewrite_scan(e: Eqn, xs: Sequence[Any], policy: Precision) -> Any:
    inner, consts, carry = e.params["jaxpr"], e.params["consts"], e.params["carry"]
    start = consts + carry
    xs = [
        _cast(x, i.aval.dtype) if consts <= n < start else x
        for n, (x, i) in enumerate(zip(xs, e.ins))
    ]
    rows = [typeof(x).update(typeof(x).shape[1:]) for x in xs[start:]]
    keep = (True,) * carry + (False,) * (len(inner.outs) - carry)
    program = autocast_jaxpr(inner, policy, _kinds(xs[:start]) + tuple(rows), keep)
    return bind(e.prim, *xs, **{**e.params, "jaxpr": program})


def _rewrite_while(e: Eqn, xs: Sequence[Any], policy: Precision) -> Any:
    xs = [_cast(x, i.aval.dtype) if type(i) is Var else x for x, i in zip(xs, e.ins)]
    body = e.params["body"]
    program = autocast_jaxpr(body, policy, tuple(body.in_avals), (True,) * len(body.outs))
    return bind(e.prim, *xs, **{**e.params, "body": program})


def _rewrite_cond(e: Eqn, xs: Sequence[Any], policy: Precision) -> Any:
    branches = tuple(
        [
            autocast_jaxpr(b, policy, _kinds(xs[1:]), (True,) * len(b.outs))
            for b in e.params["branches"]
        ]
    )
    return bind(e.prim, *xs, branches=branches)


def _rewrite_fused(e: Eqn, xs: Sequence[Any], policy: Precision) -> Any:
    op = e.params["op"]
    xs = _operands(xs, policy.of(e), policy.compute)
    return op.bind(xs, e.params["jaxpr"].cache["in_tree"], e.params["static"])[0]


def _rewrite_dot(e: Eqn, xs: Sequence[Any], policy: Precision) -> Any:
    xs = _operands(xs, policy.of(e), policy.compute)
    wanted = e.params.get("preferred_element_type")
    params = e.params
    if wanted == dtypes.F32 and e.ins[0].aval.dtype == dtypes.F32:
        # float32 was the operands' own type, not a wish for a wider result.
        params = {**params, "preferred_element_type": None}
    return bind(e.prim, *xs, **params)


_RULES: Mapping[str, Callable[[Eqn, Sequence[Any], Precision], Any]] = {
    "jit": _rewrite_jit,
    "wide_region": _rewrite_wide,
    "checkpoint": _rewrite_checkpoint,
    "scan": _rewrite_scan,
    "while": _rewrite_while,
    "cond": _rewrite_cond,
    "fused": _rewrite_fused,
    "dot_general": _rewrite_dot,
}


def precision_of(policy: Any, overrides: Mapping[str, str] | None = None) -> Precision:
    """The Precision that a dtype, a dtype's name, or a Policy (its compute dtype) stands for."""
    if isinstance(policy, Precision):
        kind, own = policy.compute, dict(policy.overrides)
    else:
        kind, own = dtypes.dtype(getattr(policy, "compute_dtype", policy)), {}
    if not dtypes.is_float(kind):
        raise TypeError(f"amp: the compute dtype must be floating, got {kind.name}")
    merged = {**own, **(overrides or {})}
    for name, cls in merged.items():
        if cls not in ("low", "high", "follow"):
            raise ValueError(
                f'amp: override {name!r} must be "low", "high" or "follow", got {cls!r}'
            )
    return Precision(kind, tuple(sorted(merged.items())))


def amp(
    fun: Callable | None = None,
    policy: Any = "bfloat16",
    *,
    overrides: Mapping[str, str] | None = None,
    enabled: bool = True,
) -> Any:
    """`fun` in mixed precision: contractions in `policy` (a 16-bit dtype, or a Policy),
    exponentials, reductions and losses in float32, outputs in the dtypes they have without it.

    `overrides` maps primitive names to "low", "high" or "follow". `enabled=False` shields `fun`
    from an enclosing `amp`. Composes with grad, jit, vmap, scan and checkpoint on either side.
    """
    if fun is None:
        return functools.partial(amp, policy=policy, overrides=overrides, enabled=enabled)
    precision = precision_of(policy, overrides)

    @boundary(fun)
    def in_mixed_precision(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree, weak = flatten_arrays((args, kwargs), f"an argument of {name_of(fun)}: ")
        flat = FlatFunction(lambda a, k: fun(*a, **k), in_tree)
        functools.update_wrapper(flat.f, fun)
        jaxpr, captured = stage(flat, _kinds(leaves), name=name_of(fun), weak=weak)
        if enabled:
            avals = tuple(jaxpr.in_avals)
            jaxpr = autocast_jaxpr(jaxpr, precision, avals, (True,) * len(jaxpr.outs))
        return flat.called(bind(region_p, *captured, *leaves, jaxpr=jaxpr))

    return in_mixed_precision


def wide(fun: Callable) -> Callable:
    """Decorator: under `amp`, `fun` is computed in float32 as a whole, its contractions and its
    plain arithmetic too, as torch.autocast computes losses. Elsewhere nothing changes."""

    @boundary(fun)
    def computed_wide(*args: Any, **kwargs: Any) -> Any:
        if ctx.trace is None:
            return fun(*args, **kwargs)
        leaves, in_tree = tree.flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if type(x) is Array or isinstance(x, Tracer)]
        operands = tuple([leaves[i] for i in places])
        if not operands:
            return fun(*args, **kwargs)

        def on_arrays(*xs: Any) -> Any:
            given = dict(zip(places, xs))
            a, k = tree.unflatten(in_tree, [given.get(i, x) for i, x in enumerate(leaves)])
            return fun(*a, **k)

        functools.update_wrapper(on_arrays, fun)
        flat = FlatFunction(on_arrays, tree.structure(operands))
        weak = [getattr(x, "weak", False) for x in operands]
        jaxpr, captured = stage(flat, _kinds(operands), name=name_of(fun), weak=weak)
        return flat.output(bind(wide_p, *captured, *operands, jaxpr=jaxpr))

    return computed_wide


__all__ = ["Precision", "amp", "autocast_jaxpr", "precision_of", "wide"]
