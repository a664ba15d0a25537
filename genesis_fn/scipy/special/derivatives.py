"""Functions with their derivatives by each argument in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array
from genesis_fn.transforms.custom.derivative_rules import SymbolicZero, custom_jvp


def with_slopes(f: Callable[..., Array], *slopes: Callable[..., Array]) -> Callable[..., Array]:
    """`f` with `slopes[i](y, *xs)` as its derivative by `xs[i]` where `y = f(*xs)`. The slope of an
    argument that is not differentiated is not computed: some need loops, which have no transpose.
    """
    call = custom_jvp(f)

    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        y = call(*primals)
        total = np.zeros_like(y)
        for t, slope in zip(tangents, slopes, strict=True):
            if not isinstance(t, SymbolicZero):
                total = total + t * slope(y, *primals)
        return y, total

    call.defjvp(rule, symbolic_zeros=True)
    return call
