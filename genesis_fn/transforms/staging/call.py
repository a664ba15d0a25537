"""Primitives that call a program: `jit`, and regions of `amp`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Primitive, bind, is_linear
from genesis_fn.primitives.factories import filled
from genesis_fn.transforms.autodiff.linearize import jvp_jaxpr, linearize_jaxpr
from genesis_fn.transforms.autodiff.transpose import transpose_jaxpr
from genesis_fn.transforms.batching.batch import at_front, batch_jaxpr


def linearize_call(
    nonzero: Sequence[bool], xs: Sequence[Any], jaxpr: Jaxpr, call: Primitive | None = None
) -> Any:
    """The linearize rule of running `jaxpr` on `xs`: its forward and tangent programs are calls."""
    call = call or jit_p
    count = len(jaxpr.outs)
    forward, tangent, out_nonzero, _ = linearize_jaxpr(jaxpr, tuple(nonzero), (False,) * count)
    outs = bind(call, *xs, jaxpr=forward)
    primals, residuals = outs[:count], outs[count:]

    def apply(*ts: Any) -> list[Any]:
        tangents = [t for t in ts if t is not None]
        return filled(out_nonzero, bind(call, *residuals, *tangents, jaxpr=tangent))

    return primals, apply


def jvp_call(
    primals: Sequence[Any], tangents: Sequence[Any], jaxpr: Jaxpr, call: Primitive | None = None
) -> Any:
    """The forward-mode rule of running `jaxpr`: one call computes outputs and tangents."""
    nonzero = tuple([t is not None for t in tangents])
    program, out_nonzero = jvp_jaxpr(jaxpr, nonzero, (False,) * len(jaxpr.outs))
    outs = bind(call or jit_p, *primals, *[t for t in tangents if t is not None], jaxpr=program)
    count = len(jaxpr.outs)
    return outs[:count], filled(out_nonzero, outs[count:])


def batch_call(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[int | None],
    jaxpr: Jaxpr,
    axis_name: Hashable,
    call: Primitive | None = None,
    **params: Any,
) -> tuple[list[Any], list[int | None]]:
    """The batching rule of running `jaxpr`: one call of the program over batches."""
    batched = tuple([d is not None for d in dims])
    program, out_batched = batch_jaxpr(jaxpr, size, batched, (False,) * len(jaxpr.outs), axis_name)
    outs = bind(call or jit_p, *at_front(size, xs, dims), jaxpr=program, **params)
    return outs, [0 if b else None for b in out_batched]


def call_primitive(name: str) -> Primitive:
    """A primitive that runs a program, differentiated and batched into calls of itself."""
    prim = Primitive(name, lambda *avals, jaxpr: jaxpr.out_avals, multi=True, program="jaxpr")
    prim.takes = lambda *, jaxpr: jaxpr.in_avals
    prim.linearize = lambda nonzero, *xs, jaxpr: linearize_call(nonzero, xs, jaxpr, prim)
    prim.jvp = lambda primals, tangents, *, jaxpr: jvp_call(primals, tangents, jaxpr, prim)
    prim.batch = lambda size, xs, dims, *, jaxpr, axis_name=None: batch_call(
        size, xs, dims, jaxpr, axis_name, prim
    )

    def transpose(cts: Sequence[Any], *operands: Any, jaxpr: Jaxpr) -> list[Any]:
        linear = tuple([is_linear(x) for x in operands])
        nonzero = tuple([ct is not None for ct in cts])
        program = transpose_jaxpr(jaxpr, linear, nonzero)
        values = [x for x in operands if not is_linear(x)]
        return filled(
            linear, bind(prim, *values, *[ct for ct in cts if ct is not None], jaxpr=program)
        )

    prim.transpose = transpose
    return prim


jit_p = call_primitive("jit")
jit_p.plain = True
# A program traced under `amp`: an enclosing `amp` does not change its precision.
region_p = call_primitive("precision_region")
# A program that `amp` runs in float32 as a whole.
wide_p = call_primitive("wide_region")
