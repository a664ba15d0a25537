"""Plans of the equations of a program, as the backend makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn.backends.cuda.lowerings import plan_for
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import Target
from genesis_fn.core import tree
from genesis_fn.core.aval import aval
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.kernels.plan import Plan
from genesis_fn.transforms.staging.stage_trace import stage


def has_expression(prim: Primitive) -> bool:
    """Whether kernels can compute the primitive among others, element by element."""
    return type(prim.lowering) is Elementwise and prim.lowering.triton is not None


def plans_of(name: str, f: Callable[..., Any], kinds: Any, target: Target) -> list[Plan]:
    """The plan of each equation of primitive `name` in the program of `f`, for arguments of these
    (shape, dtype)."""
    jaxpr, _ = stage(lambda *xs: tree.leaves(f(*xs)), [aval(s, d) for s, d in kinds])
    plans = []
    for e in simplify_jaxpr(jaxpr).eqns:
        if e.prim.name == name:
            avals = [x.aval if type(x) is Var else x for x in e.ins]
            plan = plan_for(e.prim, avals, e.params, target)
            assert isinstance(plan, Plan)
            plans.append(plan)
    return plans
