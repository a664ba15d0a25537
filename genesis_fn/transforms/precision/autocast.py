"""amp: each operation in the dtype of its precision class.

"low" operations (contractions) run in the policy's 16-bit dtype, "high" ones (exponentials,
reductions, losses) in float32, the rest in the widest dtype among their operands. Functions marked
`wide` (losses of several operations) run in float32 as a whole. Programs inside calls, loops,
branches and checkpoints are rewritten too (`_RULES`); custom derivative rules are opaque and keep
the dtypes that they have without `amp`.

An `AutocastTracer` holds a value in the dtype that it is computed in, and the aval that it has
without `amp`, which is what the program sees. Where no program is being recorded, an
`AutocastTrace` runs the function operation by operation. Where one is, and inside another `amp`,
the function becomes a region, whose program is rewritten and which the outer `amp` leaves alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from genesis_fn.core import dtypes, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Aval
from genesis_fn.core.diagnostics.traceback import boundary
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Jaxpr, jaxprs_in, memoized
from genesis_fn.core.primitive import (
    SCALARS,
    CallSite,
    Primitive,
    Trace,
    Tracer,
    bind,
    ctx,
    gives_weak,
    located,
    running,
    typeof,
)
from genesis_fn.core.types.annotations import Array, DTypeLike
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.elementwise import convert
from genesis_fn.primitives.ragged_dot import ragged_contraction_p, ragged_dot_p
from genesis_fn.transforms.autodiff.checkpointing import checkpoint_p
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.custom_call import Wrapped
from genesis_fn.transforms.custom.fused_functions import fused_p
from genesis_fn.transforms.sharding.shard_mapping import shard_map_p
from genesis_fn.transforms.sharding.varying import on_mesh
from genesis_fn.transforms.staging.api_util import FlatFunction, flatten_arrays, labels_of, name_of
from genesis_fn.transforms.staging.call import jit_p, region_p, wide_p
from genesis_fn.transforms.staging.stage_trace import StageTrace, evaluate, stage, stage_closed

P = ParamSpec("P")
R = TypeVar("R")


class HasComputeDtype(Protocol):
    """What says the dtype of computation, as an `amp.Policy` does."""

    @property
    def compute_dtype(self) -> DTypeLike:
        """The dtype of contractions."""
        ...


@dataclasses.dataclass(frozen=True)
class AutocastPolicy:
    """What an `amp` does: the 16-bit `compute` dtype, and classes that differ from the primitives'
    own.

    `overrides` maps names of primitives or fused functions to "low", "high" or "follow".
    """

    compute: DType
    overrides: tuple[tuple[str, str], ...] = ()

    def of(self, prim: Primitive, params: Mapping[str, Any]) -> str:
        """The precision class of an operation."""
        op = params["op"] if prim is fused_p else prim
        return dict(self.overrides).get(op.name, op.precision)


def _cast(x: Any, dtype: DType) -> Any:
    return x if type(x) in SCALARS else convert(x, dtype)


def _operands(xs: Sequence[Any], cls: str, low: DType) -> list[Any]:
    """Cast the operands of one operation to the dtype of its class."""
    floats = [typeof(x).dtype for x in xs if type(x) not in SCALARS]
    floats = [d for d in floats if dtypes.is_float(d)]
    if not floats:
        return list(xs)
    # No class narrows float64: nobody has it but by asking for it.
    if cls == "low" and dtypes.F64 not in floats:
        target = low
    elif cls == "high":
        target = dtypes.F32 if dtypes.F64 not in floats else dtypes.F64
    else:
        target = functools.reduce(dtypes.promote_types, floats)
        if len(set(floats)) == 1:
            return list(xs)
    return [
        _cast(x, target) if type(x) not in SCALARS and dtypes.is_float(typeof(x).dtype) else x
        for x in xs
    ]


class AutocastTracer(Tracer):
    """A value, perhaps in another dtype than the program sees (`aval`)."""

    __slots__ = ("value",)

    def __init__(self, trace: AutocastTrace, value: Any, aval: Aval, weak: bool = False) -> None:
        self.owner, self.value, self.aval, self.weak = trace, value, aval, weak

    def with_weak_type(self, weak: bool) -> AutocastTracer:
        return AutocastTracer(self.owner, self.value, self.aval, weak)  # pyright: ignore[reportArgumentType]

    def concrete(self) -> Any:
        """The Array, where the function runs operation by operation on concrete values."""
        value = self.value.concrete() if isinstance(self.value, Tracer) else self.value
        if value is None:
            return None
        with running(None):
            return _cast(value, self.aval.dtype)

    def carrier(self) -> Tracer | None:
        return self.value.carrier() if isinstance(self.value, Tracer) else None

    def origin(self) -> str:
        if isinstance(self.value, Tracer):
            return self.value.origin()
        called = self.owner.called
        return super().origin() if called is None else called.origin(self.value)


class AutocastTrace(Trace):
    """Casts operands by precision class; operations run under `parent`. Without a policy operands
    have the dtypes that the program sees."""

    __slots__ = ("parent", "policy")

    def __init__(
        self, parent: Trace | None, policy: AutocastPolicy | None, called: CallSite | None = None
    ) -> None:
        super().__init__("amp", called)
        self.parent, self.policy = parent, policy

    def process(self, prim: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        avals = tuple([x if type(x) in SCALARS else x.aval for x in args])
        ctx.trace = self.parent
        try:
            if self.policy is None:
                return bind(prim, *map(without_autocast, args), **params)
            if (
                prim.stage is not None
            ):  # a custom call: its rules are opaque, so it keeps its dtypes
                call = params["call"] if params["jaxpr"] else Unaffected(params["call"])
                outs = bind(prim, *map(without_autocast, args), call=call, jaxpr=params["jaxpr"])
                return [AutocastTracer(self, o, o.aval, o.weak) for o in outs]
            # On the avals that the program sees: errors are those that it has without `amp`.
            try:
                out = prim.abstract(avals, params)
            except Exception as error:
                raise located(error) from None
            xs = [x.value if type(x) is AutocastTracer else x for x in args]
            rule = _RULES.get(prim)
            if rule is not None:
                result = rule(prim, avals, xs, params, self.policy)
            elif any(True for _ in jaxprs_in(params)):  # runs programs that no rule rewrites
                result = bind(prim, *map(without_autocast, args), **params)
            else:
                xs = _operands(xs, self.policy.of(prim, params), self.policy.compute)
                result = bind(prim, *xs, **params)
        finally:
            ctx.trace = self
        if prim.multi:
            return [AutocastTracer(self, r, k) for r, k in zip(result, out, strict=True)]
        return AutocastTracer(self, result, out, gives_weak(prim, args, out))

    def run(self, f: Callable[..., Any], xs: Sequence[Array], avals: Sequence[Aval]) -> list[Any]:
        """Run `f` on values that the program sees as `avals`, and return its outputs."""
        args = [AutocastTracer(self, x, k, x.weak) for x, k in zip(xs, avals, strict=True)]
        try:
            with running(self):
                return f(*args)
        finally:
            self.alive = False


def without_autocast(x: Array) -> Array:
    """Return a value in the dtype that it has without `amp`."""
    return _cast(x.value, x.aval.dtype) if type(x) is AutocastTracer else x


class Unaffected(Wrapped):
    """A custom call within `amp` that keeps its dtypes. It may close over values of the `amp`."""

    __slots__ = ()

    def key(self) -> tuple[Any, ...]:
        return "amp", self.call.key()

    def _run(self, f: Callable[..., Any], *args: Any) -> Any:
        with running(AutocastTrace(ctx.trace, None)):
            return f(*args)

    def fun(self, *xs: Any) -> list[Any]:
        return self._run(self.call.fun, *xs)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return self._run(self.call.jvp, primals, tangents)

    def fwd(
        self, nonzero: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable[..., Any]]:
        outs, saved, pull = self._run(self.call.fwd, nonzero, xs)
        return outs, saved, functools.partial(self._run, pull)

    def pull(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        return self._run(self.call.pull, residuals, cts)


def recorded(trace: Trace | None) -> bool:
    """Whether operations under a trace are recorded in a program, or cast by an `amp`."""
    while trace is not None:
        if isinstance(trace, (StageTrace, AutocastTrace)):
            return True
        trace = trace.parent  # pyright: ignore[reportAttributeAccessIssue]
    return False


def _evaluate(jaxpr: Jaxpr, policy: AutocastPolicy, xs: Sequence[Any]) -> list[Any]:
    trace = AutocastTrace(ctx.trace, policy)
    outs = trace.run(lambda *args: evaluate(jaxpr, *args), xs, jaxpr.in_avals)
    return [o.value if type(o) is AutocastTracer else o for o in outs]


@memoized
def autocast_jaxpr(
    jaxpr: Jaxpr, policy: AutocastPolicy, avals: tuple[Aval, ...], keep: tuple[bool, ...]
) -> Jaxpr:
    """Rewrite a program for inputs of `avals`; outputs marked in `keep` keep their dtypes."""

    def f(*args: Any) -> list[Any]:
        outs = _evaluate(jaxpr, policy, args)
        return [
            _cast(o, k.dtype) if fixed else o for o, k, fixed in zip(outs, jaxpr.out_avals, keep)
        ]

    return stage_closed(f, avals, jaxpr.name)


def _avals(xs: Sequence[Any]) -> tuple[Aval, ...]:
    return tuple([typeof(x) for x in xs])


def _rewrite_call(
    prim: Primitive,
    avals: tuple[Any, ...],
    xs: Sequence[Any],
    params: dict[str, Any],
    policy: AutocastPolicy,
) -> Any:
    inner = params["jaxpr"]
    program = autocast_jaxpr(inner, policy, _avals(xs), (False,) * len(inner.outs))
    return bind(prim, *xs, **{**params, "jaxpr": program})


def _rewrite_parts(
    prim: Primitive,
    avals: tuple[Any, ...],
    xs: Sequence[Any],
    params: dict[str, Any],
    policy: AutocastPolicy,
) -> Any:
    """The program of a part, on operands in the dtypes of the whole arrays."""
    inner = params["jaxpr"]
    kinds = [v.update(dtype=typeof(x).dtype) for v, x in zip(inner.in_avals, xs, strict=True)]
    with on_mesh(params["mesh"], params["manual"]):
        program = autocast_jaxpr(inner, policy, tuple(kinds), (False,) * len(inner.outs))
    return bind(prim, *xs, **{**params, "jaxpr": program})


def _rewrite_wide(
    prim: Primitive,
    avals: tuple[Any, ...],
    xs: Sequence[Any],
    params: dict[str, Any],
    policy: AutocastPolicy,
) -> Any:
    xs = [
        _cast(x, dtypes.F32) if type(x) not in SCALARS and typeof(x).dtype in dtypes.NARROW else x
        for x in xs
    ]
    return _evaluate(params["jaxpr"], dataclasses.replace(policy, compute=dtypes.F32), xs)


def _rewrite_scan(
    prim: Primitive,
    avals: tuple[Any, ...],
    xs: Sequence[Any],
    params: dict[str, Any],
    policy: AutocastPolicy,
) -> Any:
    # The carry keeps its dtypes, since what goes in and comes out must agree; constants, xs and ys
    # may be narrow.
    inner, consts, carry = params["jaxpr"], params["consts"], params["carry"]
    start = consts + carry
    xs = [
        _cast(x, k.dtype) if consts <= n < start else x for n, (x, k) in enumerate(zip(xs, avals))
    ]
    rows = [typeof(x).update(typeof(x).shape[1:]) for x in xs[start:]]
    keep = (True,) * carry + (False,) * (len(inner.outs) - carry)
    program = autocast_jaxpr(inner, policy, _avals(xs[:start]) + tuple(rows), keep)
    return bind(prim, *xs, **{**params, "jaxpr": program})


def _rewrite_while(
    prim: Primitive,
    avals: tuple[Any, ...],
    xs: Sequence[Any],
    params: dict[str, Any],
    policy: AutocastPolicy,
) -> Any:
    # The condition is not rewritten, so it needs its constants and the carry as they are.
    xs = [x if type(x) in SCALARS else _cast(x, k.dtype) for x, k in zip(xs, avals)]
    body = params["body"]
    program = autocast_jaxpr(body, policy, tuple(body.in_avals), (True,) * len(body.outs))
    return bind(prim, *xs, **{**params, "body": program})


def _rewrite_cond(
    prim: Primitive,
    avals: tuple[Any, ...],
    xs: Sequence[Any],
    params: dict[str, Any],
    policy: AutocastPolicy,
) -> Any:
    # Outputs keep their dtypes: those of all branches must agree.
    branches = tuple(
        [
            autocast_jaxpr(b, policy, _avals(xs[1:]), (True,) * len(b.outs))
            for b in params["branches"]
        ]
    )
    return bind(prim, *xs, branches=branches)


def _rewrite_fused(
    prim: Primitive,
    avals: tuple[Any, ...],
    xs: Sequence[Any],
    params: dict[str, Any],
    policy: AutocastPolicy,
) -> Any:
    op = params["op"]
    if policy.of(prim, params) == "each":
        return _rewrite_call(jit_p, avals, xs, {"jaxpr": params["jaxpr"]}, policy)
    exact = {i: _cast(x, avals[i].dtype) for i, x in enumerate(xs) if i in op.exact}
    others = [x for i, x in enumerate(xs) if i not in exact]
    cast = iter(_operands(others, policy.of(prim, params), policy.compute))
    xs = [exact[i] if i in exact else next(cast) for i in range(len(xs))]
    return op.bind(xs, params["jaxpr"].cache["in_tree"], params["static"])[0]


def _rewrite_dot(
    prim: Primitive,
    avals: tuple[Any, ...],
    xs: Sequence[Any],
    params: dict[str, Any],
    policy: AutocastPolicy,
) -> Any:
    xs = _operands(xs, policy.of(prim, params), policy.compute)
    if params.get("preferred_element_type") == dtypes.F32 and avals[0].dtype == dtypes.F32:
        # It is the operands' own dtype without `amp`, not a request for a wider result.
        params = {**params, "preferred_element_type": None}
    return bind(prim, *xs, **params)


# rule(primitive, types without amp, operands, parameters, policy) -> outputs
_RULES: Mapping[
    Primitive,
    Callable[[Primitive, tuple[Any, ...], Sequence[Any], dict[Any, Any], AutocastPolicy], Any],
] = {
    jit_p: _rewrite_call,
    shard_map_p: _rewrite_parts,
    wide_p: _rewrite_wide,
    checkpoint_p: _rewrite_call,
    scan_p: _rewrite_scan,
    while_p: _rewrite_while,
    cond_p: _rewrite_cond,
    fused_p: _rewrite_fused,
    dot_general_p: _rewrite_dot,
    ragged_dot_p: _rewrite_dot,
    ragged_contraction_p: _rewrite_dot,
}


def as_autocast_policy(
    policy: DTypeLike | HasComputeDtype | AutocastPolicy, overrides: Mapping[str, str] | None = None
) -> AutocastPolicy:
    """The AutocastPolicy of a dtype, a dtype's name, or a Policy (its compute dtype)."""
    if isinstance(policy, AutocastPolicy):
        compute, overridden = policy.compute, dict(policy.overrides)
    else:
        spec: Any = getattr(policy, "compute_dtype", policy)
        compute, overridden = dtypes.dtype(spec), {}
    if not dtypes.is_float(compute):
        raise TypeError(f"amp: the compute dtype must be floating, got {compute.name}")
    merged = {**overridden, **(overrides or {})}
    for name, cls in merged.items():
        if cls not in ("low", "high", "follow"):
            raise ValueError(
                f'amp: override {name!r} must be "low", "high" or "follow", got {cls!r}'
            )
    return AutocastPolicy(compute, tuple(sorted(merged.items())))


@overload
def amp(
    fun: Callable[P, R],
    policy: DTypeLike | HasComputeDtype = "bfloat16",
    *,
    overrides: Mapping[str, str] | None = None,
    enabled: bool = True,
) -> Callable[P, R]: ...
@overload
def amp(
    fun: None = None,
    policy: DTypeLike | HasComputeDtype = "bfloat16",
    *,
    overrides: Mapping[str, str] | None = None,
    enabled: bool = True,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def amp(
    fun: Callable[..., Any] | None = None,
    policy: DTypeLike | HasComputeDtype = "bfloat16",
    *,
    overrides: Mapping[str, str] | None = None,
    enabled: bool = True,
) -> Callable[..., Any]:
    """Run a function in mixed precision.

    Contractions run in the dtype of `policy`; exponentials, reductions and losses in float32; other
    operations in the widest dtype among their operands. Outputs have the dtypes that they have
    without `amp`. Works with grad, jit, vmap, scan and checkpoint inside or outside.

    Args:
        fun: function of pytrees of arrays; None to use `amp` as a decorator with options.
        policy: 16-bit dtype, or a `Policy`, whose compute dtype counts.
        overrides: precision classes, "low", "high" or "follow", by name of the primitive or fused
            function.
        enabled: False shields `fun` from an `amp` around it.

    Returns:
        A function like `fun`; without `fun`, a decorator.

    Raises:
        TypeError: the dtype is not floating.
        ValueError: a class in `overrides` is unknown.

    >>> gf.amp(jnp.dot)(jnp.array([1.001]), jnp.array([1.0]))  # 1.001 is 1 in bfloat16
    Array(1., dtype=float32)
    """
    if fun is None:
        return functools.partial(amp, policy=policy, overrides=overrides, enabled=enabled)
    precision = as_autocast_policy(policy, overrides)

    @boundary(fun)
    def in_mixed_precision(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree, weak = flatten_arrays(
            (args, kwargs), f"an argument of {name_of(fun)}: ", lambda: labels_of(fun, args, kwargs)
        )
        flat = FlatFunction(lambda a, k: fun(*a, **k), in_tree)
        functools.update_wrapper(flat.f, fun)
        if not recorded(ctx.trace):
            if not enabled:
                return flat.output(flat(*leaves))
            called = CallSite("amp", name_of(fun), leaves, lambda: labels_of(fun, args, kwargs))
            outs = AutocastTrace(ctx.trace, precision, called).run(flat, leaves, _avals(leaves))
            return flat.called([without_autocast(o) for o in outs])
        jaxpr, captured = stage(flat, _avals(leaves), name=name_of(fun), weak=weak)
        # Also if not enabled: the region is what the `amp` around it leaves alone.
        if enabled:
            avals = tuple(jaxpr.in_avals)
            jaxpr = autocast_jaxpr(jaxpr, precision, avals, (True,) * len(jaxpr.outs))
        return flat.called(bind(region_p, *captured, *leaves, jaxpr=jaxpr))

    return in_mixed_precision


def wide(fun: Callable[P, R]) -> Callable[P, R]:
    """Decorator: under `amp`, compute `fun` in float32 as a whole, its contractions and plain
    arithmetic too, as torch.autocast computes losses. Elsewhere nothing changes."""

    call: Callable[..., Any] = fun

    @boundary(fun)
    def computed_wide(*args: Any, **kwargs: Any) -> Any:
        if not recorded(ctx.trace):
            return fun(*args, **kwargs)
        leaves, in_tree = tree.flatten((args, kwargs))
        positions = [
            i for i, x in enumerate(leaves) if type(x) is ArrayImpl or isinstance(x, Tracer)
        ]
        operands = tuple([leaves[i] for i in positions])
        if not operands:
            return fun(*args, **kwargs)

        def on_arrays(*xs: Any) -> Any:
            replaced = dict(zip(positions, xs))
            a, k = tree.unflatten(in_tree, [replaced.get(i, x) for i, x in enumerate(leaves)])
            return call(*a, **k)

        functools.update_wrapper(on_arrays, fun)
        flat = FlatFunction(on_arrays, tree.structure(operands))
        weak = [getattr(x, "weak", False) for x in operands]
        jaxpr, captured = stage(flat, _avals(operands), name=name_of(fun), weak=weak)
        return flat.output(bind(wide_p, *captured, *operands, jaxpr=jaxpr))

    return computed_wide
