"""Lowers a primitive that is not fused: to a plan of kernels, to views, to a call on the host, or
to an exchange with other processes.

    lowered = plan_for(eqn.prim, avals, eqn.params, target)

Buffers of a plan are the array operands in order (Python scalars are no buffers), then the results,
then the error word, if the plan checks indices (`checks(lowered, outs)`).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from genesis_fn.backends.cuda.codegen.loops import SITES as SITES
from genesis_fn.backends.cuda.lowerings.call import (
    RULES,
    Call as Call,
    Constant as Constant,
    Contents as Contents,
    Exchange as Exchange,
    HostCall as HostCall,
    Lowered as Lowered,
    Views as Views,
    checks as checks,
    lowers as lowers,
    runs_on_host,
)
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval as Aval
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.configuration import config
from genesis_fn.core.configuration.config import Numerics
from genesis_fn.core.errors import BackendError
from genesis_fn.core.jaxpr import jaxprs_in
from genesis_fn.core.primitive import Primitive
from genesis_fn.transforms.custom.fused_functions import Fused, fused_p
from genesis_fn.transforms.debugging.assertions import assert_p

if TYPE_CHECKING:
    from genesis_fn.backends.cuda.lowerings.fused import FusedKernel


def plan_for(
    prim: Primitive,
    avals: Sequence[Any],
    params: Mapping[str, Any],
    target: Target,
    site: int = 1,
    *,
    in_place: bool = False,
    numerics: Numerics | None = None,
) -> Lowered | None:
    """How `prim` runs on `target` with operands of these avals (a Python scalar stands for itself),
    as exactly as the equation's `numerics` say; None: as the settings do.

    None for a fused function without a kernel for them: its reference program runs. The plan of a
    fused function does not write results that are operands, or equal to an earlier result.
    Callbacks and primitives that users define for the CPU run on the host.

    `site`: a failed check sets the error word to site `site * SITES + k`, from which `check_error`
    makes the exception. `in_place`: the result's buffer holds the operand that `prim.updates` names
    already, and is updated. Raises BackendError for a primitive without a lowering.
    """
    if in_place and prim.updates is None:
        raise ValueError(f"{prim.name} cannot update its operand in place")
    numerics = config.current().numerics if numerics is None else numerics
    call = Call(
        prim, tuple(avals), dict(params), target, site, in_place=in_place, numerics=numerics
    )
    kinds = [a.dtype for a in (*call.operands, *call.outs)]
    rule = _rule_of(prim)
    if any(map(target.lacks, kinds)) and not prim.collective:  # these move bytes
        return None if prim is fused_p else HostCall(prim, call.avals, call.params)
    # Of complex numbers kernels know nothing: what reaches this is a step of a library, which has a
    # rule of its own, or a user's primitive that says nothing of parts.
    if rule is not None and (prim in RULES or not any(map(dtypes.is_complex, kinds))):
        return rule(call)
    if any(jaxprs_in(call.params)) or not runs_on_host(prim):
        raise BackendError(f"{prim.name} has no lowering on CUDA")
    return HostCall(prim, call.avals, call.params)


def check_error(
    prim: Primitive,
    avals: Sequence[Any],
    params: Mapping[str, Any],
    target: Target,
    site: int,
    index: int,
) -> Exception:
    """The exception for a check of `prim` that failed at `site` with `index`."""
    # What a message says of the operands does not depend on how exactly they are computed.
    call = Call(prim, tuple(avals), dict(params), target, numerics=config.current().numerics)
    if prim is assert_p:
        from genesis_fn.backends.cuda.lowerings.assertions import assertion_error

        return assertion_error(call, index)
    if prim is fused_p:
        from genesis_fn.backends.cuda.lowerings.fused import label_error

        return label_error(call, index)
    from genesis_fn.backends.cuda.lowerings.indexing import out_of_range

    return out_of_range(call, site % SITES, index)


def kernel_of(op: Fused[..., Any]) -> FusedKernel | None:
    """The kernel of a fused function, if it has one."""
    from genesis_fn.backends.cuda.lowerings.fused import KERNELS

    return KERNELS.get(op.name)


def has_lowering(prim: Primitive) -> bool:
    """Whether `plan_for` knows the primitive."""
    return _rule_of(prim) is not None


def _rule_of(prim: Primitive) -> Callable[[Call], Lowered | None] | None:
    """The rule of a primitive, or the common one of its type of `lowering` (elementwise with an
    expression, view, reduction)."""
    _load()
    own = RULES.get(prim)
    if own is None and type(prim.lowering) is Elementwise and prim.lowering.triton is None:
        return None
    return own or RULES.get(type(prim.lowering))


@functools.cache
def _load() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
