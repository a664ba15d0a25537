"""Functions with rules of their own, run as Python by the traces that meet them.

Traces see such a function as a `Call`, on flat arrays. A derivative runs the rule on the values
that it has, so that Python sees them wherever they are concrete, and vmap hands on a call of its
own (`Batched`). Only where a program is being recorded is the function staged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.primitive import Primitive, bind, ctx, is_linear, typeof
from genesis_fn.primitives.define import instantiate, move_batch
from genesis_fn.primitives.reduce import reduce_sum
from genesis_fn.transforms.batch import BatchTrace, BatchTracer, resumed
from genesis_fn.transforms.call import no_forward_mode
from genesis_fn.transforms.linearize import SplitTrace
from genesis_fn.transforms.stage import StageTrace


class Call(Protocol):
    """A function on flat arrays with rules of its own. `learned` is what is known of its outputs
    after a run; `forward` says whether there is a rule for forward mode."""

    owner: Any  # the user's function, which keeps staged programs
    learned: Any
    perturbed: tuple[bool, ...] | None  # which arguments have tangents, where `fwd` is to know

    @property
    def symbolic(self) -> bool:
        """Whether its rules tell zeros apart: they get None for a zero tangent or cotangent."""
        ...

    @property
    def name(self) -> str:
        """What messages call the function."""
        ...

    @property
    def forward(self) -> bool:
        """Whether there is a rule for forward mode."""
        ...

    def key(self) -> tuple:
        """What tells staged programs of the call apart."""
        ...

    def fun(self, *xs: Any) -> list[Any]:
        """The outputs."""
        ...

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """(outputs, their tangents), if `forward`."""
        ...

    def fwd(self, *xs: Any) -> tuple[list[Any], list[Any], Callable]:
        """(outputs, residuals, backward): backward(residuals, cts) gives a cotangent per argument
        of floating dtype."""
        ...

    def staged(self, prim: Primitive, xs: Sequence[Any]) -> list[Any]:
        """The outputs in a program that is being recorded."""
        ...


class Inline(Primitive):
    """A primitive that runs Python functions given as parameters."""

    __slots__ = ()

    def eager(self, args: tuple, params: dict[str, Any]) -> Any:
        assert self.inline is not None
        return self.inline(*args, **params)

    def abstract(self, avals: tuple, params: dict[str, Any]) -> Any:
        """Never remembered: the memory would keep functions and what they close over."""
        return self.shape(*avals, **params)


def _stage(trace: StageTrace, args: tuple, *, call: Call, prim: Primitive) -> list[Any]:
    # A tape is there to be transposed: no further derivative will ask for the rule.
    return call.fun(*args) if trace.is_tape else call.staged(prim, args)


def _batch(
    trace: BatchTrace, xs: Sequence[Any], dims: Sequence[Any], *, call: Call, prim: Primitive
) -> Any:
    batched = Batched(call, trace, dims)
    outs = bind(prim, *xs, call=batched)
    return outs, batched.out_dims


def _call_primitive(name: str, **rules: Any) -> Primitive:
    prim = Inline(name, lambda *avals, **_: [], multi=True, **rules)
    prim.inline = lambda *xs, call: call.fun(*xs)
    prim.stage = lambda trace, args, *, call: _stage(trace, args, call=call, prim=prim)
    prim.batch = lambda trace, xs, dims, *, call: _batch(trace, xs, dims, call=call, prim=prim)
    return prim


def forward_rule(
    primals: Sequence[Any], tangents: Sequence[Any], jvp: Callable, consts: int = 0,
    symbolic: bool = False,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """(outputs, tangents or None) by a rule that takes a tangent for every argument, or None for
    zero if it is `symbolic`."""
    given = list(tangents[consts:])
    if not symbolic:
        given = [instantiate(t, typeof(x)) for t, x in zip(given, primals[consts:])]
    outs, ts = jvp(primals, given)
    return outs, [t if dtypes.is_inexact(typeof(o).dtype) else None for t, o in zip(ts, outs)]


custom_jvp_call_p = _call_primitive(
    "custom_jvp_call",
    jvp=lambda primals, tangents, *, call: forward_rule(
        primals, tangents, call.jvp, symbolic=call.symbolic
    ),
)


# ---- reverse rules ----


def _vjp_forward(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> Any:
    if not call.forward:
        raise no_forward_mode(call.name)
    return forward_rule(primals, tangents, call.jvp)


def _vjp_linearize(nonzero: Sequence[bool], *xs: Any, call: Call) -> Any:
    call.perturbed = tuple(nonzero)
    outs, saved, backward = call.fwd(*xs)
    kinds = tuple([typeof(o) for o in outs])
    diff = [i for i, x in enumerate(xs) if dtypes.is_inexact(typeof(x).dtype)]
    given = [i for i in diff if nonzero[i]]
    count = len(saved)

    def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        back = dict(zip(diff, backward(residuals[:count], cts), strict=True))
        return [back[i] for i in given]

    def push(residuals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        if not call.forward:
            raise no_forward_mode(call.name)
        moved = dict(zip(given, tangents))
        return forward_rule(residuals[count:], [moved.get(i) for i in range(len(xs))], call.jvp)[1]

    residuals = [*saved, *xs] if call.forward else saved

    def apply(*ts: Any) -> list[Any]:
        moved = [ts[i] for i in given]
        if type(ctx.trace) is SplitTrace and not any(map(ctx.trace.holds, moved)):
            return push(residuals, moved)
        back = bind(
            pullback_p, *residuals, *moved, pull=pull, push=push, residuals=len(residuals),
            out_avals=kinds, name=call.name, symbolic=call.symbolic,
        )  # fmt: skip
        return [t if dtypes.is_inexact(k.dtype) else None for t, k in zip(back, kinds)]

    return outs, apply


custom_vjp_call_p = _call_primitive("custom_vjp_call", linearize=_vjp_linearize, jvp=_vjp_forward)


def _pull(
    cts: Sequence[Any], *operands: Any, pull: Callable, residuals: int, out_avals: tuple[Aval, ...],
    symbolic: bool, **_: Any,
) -> list[Any]:  # fmt: skip
    if not symbolic:
        cts = [instantiate(ct, a) for ct, a in zip(cts, out_avals, strict=True)]
    line, ctx.line = ctx.line, None  # the rule is the user's and has lines of its own
    try:
        back = pull(operands[:residuals], cts)
    finally:
        ctx.line = line
    return [None] * residuals + [
        ct if is_linear(x) else None for ct, x in zip(back, operands[residuals:], strict=True)
    ]


# A linear map on a tape, whose transpose is a Python function: `pull(residuals, output cotangents)`
# gives a cotangent per tangent, `push(residuals, tangents)` the output's tangents.
pullback_p = Inline(
    "pullback", lambda *avals, out_avals, **_: list(out_avals), multi=True, transpose=_pull
)
pullback_p.inline = lambda *xs, push, residuals, **_: push(xs[:residuals], xs[residuals:])


# ---- under vmap ----


class Wrapped:
    """A call of which a trace hands a form of its own to the trace around it."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def forward(self) -> bool:
        return self.call.forward

    @property
    def symbolic(self) -> bool:
        return self.call.symbolic

    @property
    def perturbed(self) -> tuple[bool, ...] | None:
        """Which arguments have tangents, where `fwd` is to know."""
        return self.call.perturbed

    @perturbed.setter
    def perturbed(self, value: tuple[bool, ...] | None) -> None:
        """As of the call itself: its arguments are those of this one."""
        self.call.perturbed = value

    @property
    def owner(self) -> Any:
        """The user's function, which keeps staged programs."""
        return self.call.owner

    @property
    def learned(self) -> Any:
        """What is known of the outputs after a run, for runs that a kept program replaces."""
        return self.call.learned

    @learned.setter
    def learned(self, value: Any) -> None:
        """As `learned` gave it after an earlier run."""
        self.call.learned = value

    def staged(self, prim: Primitive, xs: Sequence[Any]) -> list[Any]:
        return self.owner.staged_call(prim, self, xs)


class Batched(Wrapped):
    """A call mapped over a batch by a trace of vmap, for the trace around that one."""

    __slots__ = ("trace", "dims", "out_dims")

    def __init__(self, call: Call, trace: BatchTrace, dims: Sequence[int | None]) -> None:
        super().__init__(call)
        self.trace, self.dims = trace, tuple(dims)
        self.out_dims: list[int | None] = []  # known after a run

    def key(self) -> tuple:
        return self.trace.batch_size, self.trace.axis_name, self.dims, self.call.key()

    @property
    def learned(self) -> tuple:
        """Where the outputs have their batch, beside what the call knows."""
        return self.out_dims, self.call.learned

    @learned.setter
    def learned(self, value: tuple) -> None:
        """As `learned` gave it after an earlier run."""
        self.out_dims, self.call.learned = value

    def _mapped(self, xs: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
        return [
            x if d is None or x is None else BatchTracer(self.trace, x, d) for x, d in zip(xs, dims)
        ]

    def _front(self, x: Any, d: int | None) -> Any:
        return move_batch(x, d, 0, self.trace.batch_size)

    def _whole(self, outs: Sequence[tuple[Any, int | None]]) -> list[Any]:
        """The outputs with their batch in front, where any argument has one: so all rules agree."""
        every = any(d is not None for d in self.dims)
        self.out_dims = [0 if every or d is not None else None for _, d in outs]
        return [x if d is None else self._front(x, e) for (x, e), d in zip(outs, self.out_dims)]

    def fun(self, *xs: Any) -> list[Any]:
        with resumed(self.trace):
            outs = self.call.fun(*self._mapped(xs, self.dims))
        return self._whole([self.trace.split(o) for o in outs])

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        with resumed(self.trace):
            outs, ts = self.call.jvp(
                self._mapped(primals, self.dims), self._mapped(tangents, self.dims)
            )
        outs = self._whole([self.trace.split(o) for o in outs])
        moved = [self.trace.split(t) for t in ts]
        for i, (_, d) in enumerate(moved):
            if d is not None and self.out_dims[i] is None:
                outs[i], self.out_dims[i] = self._front(outs[i], None), 0
        return outs, [
            t if o is None else self._front(t, d) for (t, d), o in zip(moved, self.out_dims)
        ]

    def fwd(self, *xs: Any) -> tuple[list[Any], list[Any], Callable]:
        with resumed(self.trace):
            outs, saved, backward = self.call.fwd(*self._mapped(xs, self.dims))
        outs = self._whole([self.trace.split(o) for o in outs])
        parts = [self.trace.split(r) for r in saved]
        res_dims, out_dims = [d for _, d in parts], self.out_dims
        diff = [d for x, d in zip(xs, self.dims) if dtypes.is_inexact(typeof(x).dtype)]

        def mapped(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            with resumed(self.trace):
                back = backward(self._mapped(residuals, res_dims), self._mapped(cts, out_dims))
            return [self._returned(ct, d) for ct, d in zip(back, diff, strict=True)]

        return outs, [r for r, _ in parts], mapped

    def _returned(self, ct: Any, dim: int | None) -> Any:
        """A cotangent laid out as its argument is; that of one shared by all examples is summed."""
        x, d = self.trace.split(ct)
        if dim is not None:
            return move_batch(x, d, dim, self.trace.batch_size)
        return x if d is None else reduce_sum(x, (d,))


__all__ = [
    "Batched", "Call", "Inline", "Wrapped", "custom_jvp_call_p", "custom_vjp_call_p",
    "forward_rule", "pullback_p",
]  # fmt: skip
