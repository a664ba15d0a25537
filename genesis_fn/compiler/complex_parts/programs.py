"""Calls, loops and branches: their programs have two real values for each complex one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.represent import flat_program
from genesis_fn.compiler.complex_parts.values import Complex, of_parts, on_parts
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Primitive, bind
from genesis_fn.transforms.autodiff.checkpointing import checkpoint_p
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.custom_call import custom_call_p
from genesis_fn.transforms.custom.fused_functions import fused_p
from genesis_fn.transforms.staging.call import jit_p, region_p, wide_p


def _flat(xs: Sequence[Any]) -> list[Any]:
    """Operands with two real values for each complex one."""
    return [v for x in xs for v in (x.parts if type(x) is Complex else (x,))]


def _count(xs: Sequence[Any]) -> int:
    """How many values these are in a flat program."""
    return sum([2 if type(x) is Complex else 1 for x in xs])


def _paired(values: Sequence[Any], jaxpr: Jaxpr) -> list[Any]:
    """The results of a flat program, those of `jaxpr`."""
    rest = iter(values)
    return [
        of_parts(next(rest), next(rest)) if dtypes.is_complex(v.aval.dtype) else next(rest)
        for v in jaxpr.outs
    ]


@on_parts(jit_p, region_p, wide_p, checkpoint_p, custom_call_p, fused_p)
def _call(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A call of the program. Kernels of fused functions have no form for complex numbers, and rules
    of their own say nothing to a compiler."""
    jaxpr = params["jaxpr"]
    return _paired(bind(jit_p, *_flat(xs), jaxpr=flat_program(jaxpr)), jaxpr)


@on_parts(scan_p)
def _scan(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    jaxpr, a, b = params["jaxpr"], params["consts"], params["carry"]
    changed = {
        "jaxpr": flat_program(jaxpr),
        "consts": _count(xs[:a]),
        "carry": _count(xs[a : a + b]),
    }
    return _paired(bind(prim, *_flat(xs), **params | changed), jaxpr)


@on_parts(while_p)
def _while(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    a, b = params["cond_consts"], params["body_consts"]
    changed = {
        "cond": flat_program(params["cond"]),
        "body": flat_program(params["body"]),
        "cond_consts": _count(xs[:a]),
        "body_consts": _count(xs[a : a + b]),
    }
    return _paired(bind(prim, *_flat(xs), **params | changed), params["body"])


@on_parts(cond_p)
def _cond(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    branches = params["branches"]
    flat = tuple([flat_program(j) for j in branches])
    return _paired(bind(prim, *_flat(xs), **params | {"branches": flat}), branches[0])
