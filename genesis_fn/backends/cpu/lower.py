"""The torch function that computes one primitive for operands of given avals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core.errors import BackendError
from genesis_fn.core.primitive import Primitive

# Lowerings of higher-order primitives, which need this backend's compiler (`control.py`).
BY_PRIMITIVE: dict[Primitive, Callable[..., Callable]] = {}


def lower(prim: Primitive, avals: Sequence[Any], params: dict[str, Any]) -> Callable:
    """A function of torch tensors (and Python scalars where `avals` has scalars)."""
    build = BY_PRIMITIVE.get(prim) or prim.torch_for
    if build is not None:
        return build(avals, **params)
    if prim.torch is None:
        raise BackendError(f"{prim.name} has no lowering on the CPU")
    return functools.partial(prim.torch, **params) if params else prim.torch


def lowers(prim: Primitive) -> Callable[[Callable], Callable]:
    """Decorator: `build(avals, **params)` makes the torch function of a higher-order primitive."""

    def register(build: Callable) -> Callable:
        BY_PRIMITIVE[prim] = build
        return build

    return register
