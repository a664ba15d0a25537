"""Lowers one primitive to a torch function, for operands of given avals.

The function of an elementwise primitive is part of its definition where it is an expression. Longer
ones, those of other primitives, and those of fused functions are registered by `lowerings`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from genesis_fn.backends.cpu.storage import (
    NARROW_FLOATS,
    SIGNED_STORAGE,
    TORCH_DTYPE,
    through_float32,
    through_numpy,
)
from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import Primitive
from genesis_fn.transforms.custom.fused_functions import Fused

F = TypeVar("F", bound=Callable[..., Any])

# `build(avals, **params)` -> torch function, by primitive.
RULES: dict[Primitive, Callable[..., Callable[..., Any]]] = {}
# Primitives whose results never alias their operands.
FRESH_RESULTS: set[Primitive] = set()
# Elementwise functions of complex tensors, where torch's are wrong for some values.
OF_COMPLEX: dict[Primitive, Callable[..., Any]] = {}


@dataclass(frozen=True, slots=True)
class FusedFunction:
    """`compute(*tensors, **static)` is the torch function of a fused function where
    `fits(avals, **static)`. `opaque`: TorchInductor must not look inside, since torch has a kernel
    that Inductor would not generate."""

    compute: Callable[..., list[Any]]
    fits: Callable[..., bool]
    opaque: bool


# By the name of the fused function.
FUSED: dict[str, FusedFunction] = {}


def lower_primitive(
    prim: Primitive, avals: Sequence[Any], params: dict[str, Any]
) -> Callable[..., Any]:
    """A function of torch tensors (and Python scalars where `avals` has scalars)."""
    build = RULES.get(prim)
    if build is not None:
        return build(avals, **params)
    lowering = prim.lowering
    if type(lowering) is not Elementwise or lowering.torch is None:
        raise errors.BackendError(f"{prim.name} has no lowering on the CPU")
    return _around(prim, lowering.torch, lowering.numpy, avals, **params)


def has_lowering(prim: Primitive) -> bool:
    """Whether `lower_primitive` knows the primitive."""
    return prim in RULES or (type(prim.lowering) is Elementwise and prim.lowering.torch is not None)


def lowers(*prims: Primitive, fresh: bool = False) -> Callable[[F], F]:
    """Decorator: `build(avals, **params)` makes the torch function of these primitives; `fresh`:
    its results are memory of their own."""

    def register(build: F) -> F:
        RULES.update(dict.fromkeys(prims, build))
        FRESH_RESULTS.update(prims if fresh else ())
        return build

    return register


def computes(*prims: Primitive) -> Callable[[F], F]:
    """Decorator: `f(*tensors, **params)` is the torch function of these primitives, whatever the
    operands are."""

    def register(f: F) -> F:
        lowers(*prims)(lambda avals, **params: with_params(f, params))
        return f

    return register


def computes_fused(
    name: str,
    *,
    kinds: Sequence[DType] = dtypes.FLOATS,
    labels: int | None = None,
    fits: Callable[..., bool] | None = None,
    opaque: bool = False,
    results: int | None = None,
    **given: object,
) -> Callable[[F], F]:
    """Decorator: `f(*tensors, **static, **given)` is the torch function of the fused function of
    this name, where it `fits` (by default, where all operands are of `kinds`, but the `labels`,
    which are int32 or int64). `results`: how many of the function's first are its results."""

    def of_kinds(avals: Sequence[Aval], **static: Any) -> bool:
        allowed = [(dtypes.I32, dtypes.I64) if i == labels else kinds for i in range(len(avals))]
        return all(a.dtype in these for a, these in zip(avals, allowed))

    def register(f: F) -> F:
        compute = with_params(f, given)
        if results is not None:
            compute = lambda *xs, **static: f(*xs, **static, **given)[:results]
        FUSED[name] = FusedFunction(compute, fits or of_kinds, opaque)
        return f

    return register


def fused_function(
    op: Fused[..., Any], avals: Sequence[Any], static: tuple[Any, ...]
) -> FusedFunction | None:
    """The torch function of a fused function, if it has one that fits operands of these avals."""
    found = FUSED.get(op.name)
    arrays = all(type(a) is Aval for a in avals)
    return found if found and arrays and found.fits(avals, **dict(static)) else None


def elementwise(prim: Primitive, numpy: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Decorator: `f(*tensors, **params)` computes this elementwise primitive for dtypes that torch
    has, and `numpy` (or the definition's) unsigned integers that it lacks."""

    def register(f: F) -> F:
        lowering = prim.lowering
        assert type(lowering) is Elementwise
        unsigned = numpy or lowering.numpy
        lowers(prim, fresh=True)(functools.partial(_around, prim, f, unsigned))
        return f

    return register


def _around(
    prim: Primitive,
    f: Callable[..., Any],
    numpy: Callable[..., Any] | None,
    avals: Sequence[Any],
    /,
    **params: Any,
) -> Callable[..., Any]:
    """`f`, wrapped for dtypes that torch does not compute in: 8-bit floats are computed in float32,
    unsigned integers in their signed storage where that wraps the same way, else by NumPy."""
    kind = next(a.dtype for a in avals if type(a) is Aval)
    if kind in NARROW_FLOATS:
        return through_float32(f, kind)
    lowering = prim.lowering
    assert type(lowering) is Elementwise
    if kind in SIGNED_STORAGE and not lowering.wraps:
        if numpy is None:
            raise errors.DTypeError(f"no operation for {kind.name} on the CPU")
        return through_numpy(numpy, kind)
    if dtypes.is_complex(kind) and prim in OF_COMPLEX:
        return functools.partial(OF_COMPLEX[prim], kind=TORCH_DTYPE[kind])
    return with_params(f, params)


def with_params(f: Callable[..., Any], params: dict[str, Any]) -> Callable[..., Any]:
    """`f` with `params` bound: a function of the operands alone."""
    return functools.partial(f, **params) if params else f
