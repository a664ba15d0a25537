"""Calls: the `jit` primitive, which runs a program, and `linear_call`, a linear map with a
transpose of its own, which custom derivatives, checkpoints and fused functions leave on the
tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core import errors
from genesis_fn.core.aval import aval
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Primitive, bind, ctx, is_linear
from genesis_fn.core.source import where
from genesis_fn.primitives.define import instantiate, move_batch
from genesis_fn.transforms.batch import at_front, batch_jaxpr
from genesis_fn.transforms.linearize import jvp_jaxpr, linearize_jaxpr
from genesis_fn.transforms.stage import StageTrace
from genesis_fn.transforms.transpose import transpose_jaxpr


def linearize_call(
    nonzero: Sequence[bool], xs: Sequence[Any], jaxpr: Jaxpr, call: Primitive | None = None
) -> Any:
    """The linearize rule of running `jaxpr` on `xs`: its forward and tangent programs are calls."""
    call = call or jit_p
    count = len(jaxpr.outs)
    forward, tangent, found, _ = linearize_jaxpr(jaxpr, tuple(nonzero), (False,) * count)
    outs = bind(call, *xs, jaxpr=forward)
    primals, residuals = outs[:count], outs[count:]

    def apply(*ts: Any) -> list[Any]:
        given = [t for t in ts if t is not None]
        back = iter(bind(call, *residuals, *given, jaxpr=tangent))
        return [next(back) if n else None for n in found]

    return primals, apply


def jvp_call(
    primals: Sequence[Any], tangents: Sequence[Any], jaxpr: Jaxpr, call: Primitive | None = None
) -> Any:
    """The forward-mode rule of running `jaxpr`: one call computes outputs and tangents."""
    nonzero = tuple([t is not None for t in tangents])
    program, found = jvp_jaxpr(jaxpr, nonzero, (False,) * len(jaxpr.outs))
    outs = bind(call or jit_p, *primals, *[t for t in tangents if t is not None], jaxpr=program)
    count = len(jaxpr.outs)
    rest = iter(outs[count:])
    return outs[:count], [next(rest) if n else None for n in found]


def call_primitive(name: str) -> Primitive:
    """A primitive that runs a program, differentiated and batched into calls of itself."""
    prim = Primitive(name, lambda *avals, jaxpr: jaxpr.out_avals, multi=True, program="jaxpr")
    prim.linearize = lambda nonzero, *xs, jaxpr: linearize_call(nonzero, xs, jaxpr, prim)
    prim.jvp = lambda primals, tangents, *, jaxpr: jvp_call(primals, tangents, jaxpr, prim)

    def transpose(cts: Sequence[Any], *operands: Any, jaxpr: Jaxpr) -> list[Any]:
        linear = tuple([is_linear(x) for x in operands])
        nonzero = tuple([ct is not None for ct in cts])
        program = transpose_jaxpr(jaxpr, linear, nonzero)
        given = [x for x in operands if not is_linear(x)]
        back = iter(bind(prim, *given, *[ct for ct in cts if ct is not None], jaxpr=program))
        return [next(back) if n else None for n in linear]

    def batch(
        size: int, xs: Sequence[Any], dims: Sequence[Any], *, jaxpr: Jaxpr, axis_name: Any = None
    ) -> Any:
        batched = tuple([d is not None for d in dims])
        program, found = batch_jaxpr(jaxpr, size, batched, (False,) * len(jaxpr.outs), axis_name)
        outs = bind(prim, *at_front(size, xs, dims), jaxpr=program)
        return outs, [0 if b else None for b in found]

    prim.transpose, prim.batch = transpose, batch
    return prim


jit_p = call_primitive("jit")
jit_p.plain = True
# The program of `amp`: an enclosing `amp` leaves its precision alone.
region_p = call_primitive("precision_region")
# A program that `amp` runs in float32 as a whole.
wide_p = call_primitive("wide_region")


# ---- linear_call ----


def _linear_call_linearize(nonzero: Sequence[bool], *xs: Any, forward: Any, **params: Any) -> Any:
    # Not linear in its residuals: differentiate the forward map itself.
    return linearize_call(nonzero, xs, _forward(forward, params["name"]))


def no_forward_mode(name: str) -> Exception:
    """The error for forward mode of a function that has a rule for reverse mode only."""
    return errors.NotDifferentiableError(
        f"forward-mode differentiation of {name}, which defines only a reverse rule (defvjp)\n"
        f"  at {where().describe()}\n  define a forward rule too: {name}.def_jvp(...)"
    )


def _forward(forward: Jaxpr | None, name: str) -> Jaxpr:
    if forward is None:
        raise no_forward_mode(name)
    return forward


def _linear_call_transpose(
    cts: Sequence[Any], *operands: Any, backward: Jaxpr, residuals: int, out_avals: Any, **_: Any
) -> list[Any]:
    cts = [instantiate(ct, a) for ct, a in zip(cts, out_avals, strict=True)]
    back = bind(jit_p, *operands[:residuals], *cts, jaxpr=backward)
    return [None] * residuals + [
        ct if is_linear(x) else None for ct, x in zip(back, operands[residuals:], strict=True)
    ]


def _linear_call_batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, forward: Jaxpr | None, backward: Jaxpr,
    residuals: int, out_avals: Any, name: str, axis_name: Any = None,
) -> Any:  # fmt: skip
    res = at_front(size, xs[:residuals], dims[:residuals])
    # Every linear operand is batched, so that the transpose of the repetition sums its cotangent.
    tangents = [move_batch(x, d, 0, size) for x, d in zip(xs[residuals:], dims[residuals:])]
    batched = tuple([d is not None for d in dims[:residuals]])
    every = (True,) * len(out_avals)
    if forward is not None:
        mask = batched + (True,) * len(tangents)
        forward, _ = batch_jaxpr(forward, size, mask, every, axis_name)
    backward, _ = batch_jaxpr(backward, size, batched + every, (True,) * len(tangents), axis_name)
    outs = linear_call(
        res,
        tangents,
        forward=forward,
        backward=backward,
        out_avals=tuple([aval((size, *a.shape), a.dtype) for a in out_avals]),
        name=name,
    )
    return outs, [0] * len(outs)


linear_call_p = Primitive(
    "linear_call",
    lambda *avals, out_avals, **_: list(out_avals),
    multi=True,
    program="forward",
    linearize=_linear_call_linearize,
    jvp=lambda primals, tangents, *, forward, name, **_: jvp_call(
        primals, tangents, _forward(forward, name)
    ),
    transpose=_linear_call_transpose,
    batch=_linear_call_batch,
)


def linear_call(
    residuals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    forward: Jaxpr | None,
    backward: Jaxpr,
    out_avals: tuple,
    name: str,
) -> list[Any]:
    """A linear map of `tangents`, given by the program `forward` ([residuals, tangents] -> outputs;
    None where only reverse mode is defined) and its transpose `backward` ([residuals, output
    cotangents] -> tangents' cotangents)."""
    if forward is None and not (isinstance(ctx.trace, StageTrace) and ctx.trace.is_tape):
        _forward(None, name)
    return bind(
        linear_call_p, *residuals, *tangents, forward=forward, backward=backward,
        residuals=len(residuals), out_avals=out_avals, name=name,
    )  # fmt: skip
