"""Values that depend on no input, computed with NumPy while a program is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from genesis_fn.compiler.simplify.rewriter import rounded
from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Atom, Eqn, Var
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.indexing.constants import constant_p
from genesis_fn.primitives.shape import (
    broadcast_in_dim_p,
    concatenate_p,
    iota_p,
    reshape_p,
    rev_p,
    slice_p,
    transpose_p,
)

# Elements of a value that is computed while compiling: those of a mask, 8192 queries times keys.
MOST_ELEMENTS = 1 << 26


def is_zero(value: Any) -> bool:
    """Whether a number is zero, and not -0.0, beside which what is added keeps its sign."""
    return value is not None and value == 0 and str(value)[0] != "-"


class KnownValues:
    """The values of what depends on no input, computed with NumPy; None for anything else."""

    __slots__ = ("producers", "found", "remembered")

    def __init__(self) -> None:
        self.producers: dict[Any, Eqn] = {}
        self.found: dict[Var, np.ndarray | None] = {}
        self.remembered: dict[Any, Any] = {}

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """What was computed of these values before: layers share masks, which are large."""
        if key not in self.remembered:
            self.remembered[key] = compute()
        return self.remembered[key]

    def of(self, x: Var) -> np.ndarray | None:
        """The value of `x`, or None."""
        if x not in self.found:
            self.found[x] = None  # while its operands are computed
            e = self.producers.get(x)
            if e is not None and x.aval.size <= MOST_ELEMENTS and len(e.outs) == 1:
                self.found[x] = self._computed(e, x)
        return self.found[x]

    def _computed(self, e: Eqn, x: Var) -> np.ndarray | None:
        kind, shape, params = x.aval.dtype, x.aval.shape, e.params
        if e.prim is full_p:
            return np.broadcast_to(np.asarray(params["value"]).astype(kind), shape)
        if e.prim is constant_p:
            return params["numbers"].array
        if e.prim is iota_p:
            d = params["dimension"]
            counted = np.arange(shape[d]).astype(kind)
            return np.broadcast_to(
                np.expand_dims(counted, [i for i in range(len(shape)) if i != d]), shape
            )
        operands = [self._operand(i, e) for i in e.ins]
        if not operands or any([o is None for o in operands]):
            return None
        xs: list[Any] = operands
        if e.prim is broadcast_in_dim_p:
            inner = [1] * len(shape)
            for d, n in zip(params["dims"], xs[0].shape, strict=True):
                inner[d] = n
            return np.broadcast_to(xs[0].reshape(inner), shape)
        if e.prim is reshape_p:
            return xs[0].reshape(shape)
        if e.prim is transpose_p:
            return xs[0].transpose(params["permutation"])
        if e.prim is slice_p:
            bounds = zip(params["start"], params["limit"], params["strides"])
            return xs[0][tuple([slice(a, b, s) for a, b, s in bounds])]
        if e.prim is concatenate_p:
            return np.concatenate(xs, params["dimension"])
        if e.prim is rev_p:
            return np.flip(xs[0], params["dimensions"])
        if e.prim is ew.convert_p:
            lossy = (
                dtypes.is_inexact(xs[0].dtype) and not dtypes.is_float(kind) and kind != dtypes.BOOL
            )
            return None if lossy else xs[0].astype(kind)
        if e.prim is ew.select_p:
            return np.where(*xs).astype(kind)
        lowering = e.prim.lowering
        if type(lowering) is not Elementwise or lowering.fold is None or params:
            return None
        with np.errstate(all="ignore"):
            return np.asarray(lowering.fold(*xs)).astype(kind)

    def _operand(self, x: Atom, e: Eqn) -> np.ndarray | None:
        if type(x) is Var:
            return self.of(x)
        # A Python number has the dtype of the arrays beside it.
        kinds = [i.aval.dtype for i in e.ins[e.prim is ew.select_p :] if type(i) is Var]
        kind = kinds[0] if kinds else e.outs[0].aval.dtype
        value = rounded(x, kind)
        return None if value is None else np.asarray(value).astype(kind)
