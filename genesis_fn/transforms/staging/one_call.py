"""Functions of a few operations that, called without jit, run as one program.

Where a call of the device costs more than what an operation computes, the operations of `mean` or
of a sum of arrays of two shapes are recorded at the first call of operands of a type, and the
backend makes one function of them (`Backend.in_one`), if it can. For operands that are traced, or
not arrays of one device, the operations run as they are written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.configuration import config
from genesis_fn.core.primitive import Tracer, ctx, explain
from genesis_fn.transforms.staging.stage_trace import stage

P = ParamSpec("P")
R = TypeVar("R")

_apart: set[str] = set()  # kinds of devices that join no operations: known at their first call
_MOST_KEPT = 1024  # types of operands that each function keeps programs for
# Parameters that two values which compare equal cannot tell apart, beside their type.
_STATIC = frozenset((type(None), bool, int, str, type))


def as_one_call(f: Callable[P, R]) -> Callable[P, R]:
    """`f`, a function from arrays and parameters to an array, as one program where that is cheaper.

    Parameters are None, numbers that are no floats, tuples of integers, strings and dtypes; with
    others, lists among them, the operations of `f` run as they are. So they do where `f` gives no
    array, or one of its operands.
    """
    programs: dict[Any, Callable[..., Any] | None] = {}

    @functools.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        first: Any = args[0] if args else None
        if type(first) is ArrayImpl and first.sig.device.kind in _apart:
            return f(*args, **kwargs)
        trace = ctx.trace
        if (trace is not None and not trace.at_once) or ctx.watch is not None:
            return f(*args, **kwargs)
        # The names of keywords stand apart from values, which may be strings too.
        key: list[Any] = [config.current(), len(args), *kwargs]
        arrays: list[ArrayImpl] = []
        for a in (*args, *kwargs.values()) if kwargs else args:
            kind = type(a)
            if kind is ArrayImpl:
                arrays.append(cast(ArrayImpl, a))
                key.append(a.sig)  # pyright: ignore[reportAttributeAccessIssue]
            elif kind in _STATIC or isinstance(a, np.dtype):
                key.append((kind, a))
            elif kind is tuple and all([type(i) is int for i in cast(Any, a)]):
                key.append(a)
            else:
                return f(*args, **kwargs)
        found = tuple(key)
        try:
            run = programs[found]
        except KeyError:
            if len(programs) >= _MOST_KEPT:
                programs.clear()
            run = programs[found] = _program(f, args, kwargs, arrays)
        if run is None:
            return f(*args, **kwargs)
        try:
            return run(*arrays)
        except Exception as error:
            raise explain(error, arrays) from None

    return cast(Callable[P, R], call)


def _program(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], arrays: list[ArrayImpl]
) -> Callable[..., Any] | None:
    """What runs `f` on arrays like these as one program; None if nothing does so."""
    settings = config.current()
    loud = settings.debug_nans or settings.debug_infs or settings.disable_jit
    loud = loud or settings.numpy_dtype_promotion != "standard"
    if loud or settings.numpy_rank_promotion != "allow" or not arrays:
        return None  # these look at every operation
    device = arrays[0].sig.device
    if device.kind == "mesh":
        return None
    if not device.backend.joins_operations:
        _apart.add(device.kind)
        return None
    if any([a.sig.device is not device for a in arrays]):
        return None
    weak: list[bool] = []

    def flat(*tracers: Any) -> list[Any]:
        rest = iter(tracers)
        given = [next(rest) if type(a) is ArrayImpl else a for a in args]
        named = {k: next(rest) if type(a) is ArrayImpl else a for k, a in kwargs.items()}
        out = f(*given, **named)
        if not isinstance(out, Tracer):
            raise _NoArray
        weak.append(out.weak)
        return [out]

    try:
        avals = [a.sig.aval for a in arrays]
        jaxpr, captured = stage(flat, avals, weak=[a.weak for a in arrays])
    except Exception:  # whatever it is: the operations themselves say it, with their line
        return None
    if captured or jaxpr.effect or jaxpr.outs[0] in jaxpr.invars:
        return None
    return device.backend.in_one(jaxpr, device, weak[0])


class _NoArray(Exception):
    """Raised while a function is recorded that gives something else than an array."""
