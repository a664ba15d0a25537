"""What is known of values in an attention, and arithmetic on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from genesis_fn.compiler.attention import polynomials as poly
from genesis_fn.compiler.attention.axes import (
    AxisMap,
    Run,
    before_broadcast,
    before_transpose,
    broadcast,
    permuted,
    reshaped,
)
from genesis_fn.compiler.attention.masks import Condition, Producers
from genesis_fn.compiler.attention.polynomials import Polynomial, Symbol
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.dot_general import free_dims
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, transpose_p

FLOATS = (dtypes.BF16, dtypes.F16, dtypes.F32)
VIEWS = (transpose_p, reshape_p, broadcast_in_dim_p)
MOST_TERMS = 12  # of a polynomial that is followed


@dataclass(slots=True)
class Followed:
    """A value of the region: `gates` are conditions without which it is zero, `settled` the results
    that it is computed from."""

    axes: AxisMap
    value: Polynomial
    gates: frozenset[Condition] = frozenset()
    settled: frozenset[Symbol] = frozenset()


@dataclass(frozen=True, slots=True)
class AttentionResult:
    """A variable that is `factor` times the output ("output") or a cotangent ("dq", "dk", "dv",
    "dbias") of the attention, of the cotangent of the output that `of` names."""

    var: Var
    at: int
    kind: str
    of: Symbol
    factor: float
    axes: AxisMap
    gates: frozenset[Condition]


@dataclass(frozen=True, slots=True)
class OutputCotangent:
    """A variable that is `factor` times a cotangent of the output."""

    var: Var
    axes: AxisMap
    factor: float


@dataclass(slots=True)
class ProgramIndex:
    """A program's equations by what they compute and what they read."""

    jaxpr: Jaxpr
    producers: Producers = field(default_factory=dict)
    position: dict[Var, int] = field(default_factory=dict)
    readers: dict[Var, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for n, e in enumerate(self.jaxpr.eqns):
            for o in e.outs:
                self.producers[o], self.position[o] = e, n
            for i in e.ins:
                if type(i) is Var:
                    self.readers.setdefault(i, []).append(n)


def operand_axes(
    ndim: int,
    contracted: Sequence[int],
    batched: Sequence[int],
    inner: Sequence[Run],
    batch: Sequence[Run],
    free: Sequence[Run],
) -> AxisMap:
    """The axes of a product's operand, by those of its parts."""
    found: list[Run] = [()] * ndim
    for dims, runs in (
        (contracted, inner), (batched, batch), (free_dims(ndim, (*contracted, *batched)), free)
    ):  # fmt: skip
        for d, run in zip(dims, runs, strict=True):
            found[d] = run
    return tuple(found)


def before_view(e: Eqn, source: Var, axes: AxisMap) -> AxisMap:
    """The axes of the operand of a view or cast, by those of the result."""
    if e.prim is transpose_p:
        return before_transpose(axes, e.params["permutation"])
    if e.prim is reshape_p:
        return reshaped(axes, source.aval.shape)
    if e.prim is broadcast_in_dim_p:
        return before_broadcast(axes, source.aval.shape, e.params["dims"])
    return axes


def after_view(e: Eqn, axes: AxisMap) -> AxisMap:
    """The axes of the result of a view or cast, by those of the operand."""
    if e.prim is transpose_p:
        return permuted(axes, e.params["permutation"])
    if e.prim is reshape_p:
        return reshaped(axes, e.outs[0].aval.shape)
    if e.prim is broadcast_in_dim_p:
        return broadcast(axes, e.params["shape"], e.params["dims"])
    return axes


def length(run: Run) -> int:
    """The elements along an array axis."""
    return math.prod([a.size for a in run])


def multiple(e: Eqn) -> tuple[Var, float] | None:
    """(operand, number) if an equation multiplies an array by a number other than zero."""
    if e.prim is ew.neg.prim and type(e.ins[0]) is Var:
        return e.ins[0], -1.0
    if e.prim not in (ew.mul.prim, ew.div.prim):
        return None
    x, y = e.ins
    if type(x) is not Var and e.prim is ew.mul.prim:
        x, y = y, x
    if type(x) is not Var or type(y) is Var or not y or not math.isfinite(y):
        return None
    return x, float(y) if e.prim is ew.mul.prim else 1.0 / y


def single_symbol(x: Polynomial) -> tuple[float, Symbol] | None:
    """(factor, symbol) of a multiple of one symbol."""
    if len(x) != 1:
        return None
    ((m, c),) = x.items()
    if len(m) != 1:
        return None
    ((s, n),) = m
    return (c, s) if n == 1 else None


def truth_of(x: Polynomial) -> bool | None:
    """The value of a condition, if it is known."""
    return x[poly.ONE] != 0 if x.keys() == {poly.ONE} else None


# ---- arithmetic ----

Combine = Callable[[Eqn, AxisMap, Sequence[Followed]], "Followed | None"]


def _gates(operands: Sequence[Followed], product: bool) -> frozenset[Condition]:
    """A product is zero where one factor is, a sum where all terms are."""
    found = [f.gates for f in operands if f.value or product]
    if not found:
        return frozenset()
    return found[0].union(*found[1:]) if product else found[0].intersection(*found[1:])


def _sum(e: Eqn, axes: AxisMap, operands: Sequence[Followed]) -> Followed:
    return Followed(axes, poly.add([f.value for f in operands]), _gates(operands, False))


def _difference(e: Eqn, axes: AxisMap, operands: Sequence[Followed]) -> Followed:
    x, y = operands
    value = poly.add([x.value, poly.scaled(y.value, -1.0)])
    return Followed(axes, value, _gates(operands, False))


def _product(e: Eqn, axes: AxisMap, operands: Sequence[Followed]) -> Followed | None:
    x, y = operands
    if len(x.value) * len(y.value) > MOST_TERMS:
        return None
    return Followed(axes, poly.multiply(x.value, y.value), _gates(operands, True))


def _opposite(e: Eqn, axes: AxisMap, operands: Sequence[Followed]) -> Followed:
    (x,) = operands
    return Followed(axes, poly.scaled(x.value, -1.0), x.gates)


def _ratio(e: Eqn, axes: AxisMap, operands: Sequence[Followed]) -> Followed | None:
    x, y = operands
    single = y.value.keys() == {poly.ONE} or all([s.kind == "exp" for m in y.value for s, _ in m])
    under = poly.inverse(y.value) if single else None
    return None if under is None else Followed(axes, poly.multiply(x.value, under), x.gates)


ARITHMETIC: dict[Primitive, Combine] = {
    ew.add.prim: _sum,
    ew.add_n.prim: _sum,
    ew.sub.prim: _difference,
    ew.mul.prim: _product,
    ew.safe_mul.prim: _product,
    ew.neg.prim: _opposite,
    ew.div.prim: _ratio,
}
