"""Pattern fusion: groups of equations for which torch has one kernel.

Matrix product and sum (`addmm`), multiply-add (`addcmul`, `addcdiv`), silu and its gradient, and
sums with zero-padded terms. The fused statement stands at the group's last equation, so that all
operands exist there; intermediate results must have no other use.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from genesis_fn.backends.cpu.emit import (
    Namespace,
    Statement,
    has_native_dtype,
    matrix_product,
    statement_of,
)
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.elementwise import integer_pow_p
from genesis_fn.primitives.shape import broadcast_in_dim_p, pad_p

add, sub, mul, div = ops.add.prim, ops.sub.prim, ops.mul.prim, ops.div.prim
add_n, logistic = ops.add_n.prim, ops.logistic.prim

_DTYPES = (dtypes.F32, dtypes.F64)


def statements(jaxpr: Jaxpr, names: Namespace, lazy: frozenset[Primitive]) -> list[Statement | Eqn]:
    """The statements of a program; equations of primitives in `lazy` are left as they are."""
    matcher = _PatternMatcher(jaxpr, names)
    # Gradients first: they may leave a forward silu as the only user of its gate.
    for merge in (matcher.silu_backward, matcher.merge):
        for e in jaxpr.eqns:
            if e not in matcher.fused and e not in matcher.absorbed:
                merge(e)
    return [
        matcher.fused.get(e) or (e if e.prim in lazy else statement_of(e, names))
        for e in jaxpr.eqns
        if e not in matcher.absorbed
    ]


class _PatternMatcher:
    """Finds patterns: `fused[e]` is the statement that replaces e and the `absorbed` equations."""

    def __init__(self, jaxpr: Jaxpr, names: Namespace) -> None:
        self.names = names
        # Results count twice, so that no pattern absorbs one.
        self.uses: dict[Any, int] = dict.fromkeys(jaxpr.outs, 2)
        self.producer: dict[Var, Eqn] = {}
        for e in jaxpr.eqns:
            for i in e.ins:
                if type(i) is Var:
                    self.uses[i] = self.uses.get(i, 0) + 1
            for o in e.outs:
                self.producer[o] = e
        self.fused: dict[Eqn, Statement] = {}
        self.absorbed: set[Eqn] = set()

    def sole_producer(self, x: Any, *prims: Primitive) -> Eqn | None:
        """The equation that computes `x`, if it is of `prims` and `x` has no other use."""
        e = self.producer.get(x) if type(x) is Var else None
        if e is None or e.prim not in prims or self.uses[x] != 1:
            return None
        return None if e in self.absorbed or e in self.fused else e

    def merge(self, e: Eqn) -> None:
        """Fuse the best pattern that ends in `e`. Matches are (score, absorbed, statement)."""
        prim = e.prim
        if prim not in (add, sub, mul, add_n) or e.outs[0].aval.dtype not in _DTYPES:
            return
        if not all([type(i) is Var for i in e.ins]):
            return
        if prim is add_n:
            found = [self._padded(e), self._products(e)]
        elif prim is mul:
            found = [self._silu(e, *e.ins), self._silu(e, *reversed(e.ins))]
        elif prim is sub:
            x, y = e.ins
            found = [self._sum(e, x, y, -1.0)]
        else:
            x, y = e.ins
            found = [self._sum(e, x, y, 1.0), self._sum(e, y, x, 1.0), self._padded(e)]
        best = max([f for f in found if f is not None], key=lambda f: f[0], default=None)
        if best is not None:
            _, parts, self.fused[e] = best
            self.absorbed.update(parts)

    # ---- silu ----

    def _silu(self, e: Eqn, x: Var, y: Var) -> tuple[Any, ...] | None:
        gate = self.sole_producer(y, logistic)
        if gate is None or gate.ins[0] is not x:
            return None
        in_place = {0: "silu({0}, True)"}  # `inplace` of torch.nn.functional.silu
        made = Statement(e, e.outs, [x], "silu({0})", in_place, elementwise=True)
        return 1, [gate], made

    def silu_backward(self, e: Eqn) -> None:
        """Fuse t * s + (t * x) * (s * (1 - s)) with s = logistic(x): the gradient of x * s."""
        if e.prim not in (add, add_n) or len(e.ins) != 2:
            return
        if e.outs[0].aval.dtype not in _DTYPES:
            return
        for a, b in (e.ins, e.ins[::-1]):
            direct, through = self.sole_producer(a, mul), self.sole_producer(b, mul)
            if direct is None or through is None:
                continue
            for t, s in (direct.ins, direct.ins[::-1]):
                gate = self.producer.get(s) if type(s) is Var else None
                if gate is None or gate.prim is not logistic or type(t) is not Var:
                    continue
                parts = self._gate_slope(through, t, s, gate.ins[0])
                if parts is not None:
                    # The pattern read s three times: perhaps the forward silu is its only user now.
                    self.uses[s] -= 3
                    self.absorbed.update([direct, through, *parts])
                    self.fused[e] = Statement(
                        e,
                        e.outs,
                        [t, gate.ins[0]],
                        "silu_backward({0}, {1})",
                        {0: "silu_backward_out({0}, {1}, grad_input={0})"},
                        elementwise=True,
                    )
                    return

    def _gate_slope(self, e: Eqn, t: Var, s: Var, x: Var) -> list[Eqn] | None:
        """The equations below `e` if it is (t * x) * (s * (1 - s))."""
        for p, q in (e.ins, e.ins[::-1]):
            outer, slope = self.sole_producer(p, mul), self.sole_producer(q, mul)
            if outer is None or slope is None or set(outer.ins) != {t, x}:
                continue
            for r, again in (slope.ins, slope.ins[::-1]):
                rest = self.sole_producer(r, sub)
                if again is s and rest is not None and rest.ins[1] is s:
                    if type(rest.ins[0]) in (int, float) and rest.ins[0] == 1:
                        return [outer, slope, rest]
        return None

    # ---- sums ----

    def _sum(self, e: Eqn, base: Var, term: Var, sign: float) -> tuple[Any, ...] | None:
        """base + sign * term, where term is a product or a quotient."""
        if base is term:
            return None
        inner = self.sole_producer(term, dot_general_p) if sign == 1.0 else None
        if inner is not None:
            return self._addmm(e, base, inner)
        scale, parts = sign, []
        scaled = self.sole_producer(term, mul)
        if scaled is not None:
            a, c = scaled.ins
            a, c = (a, c) if type(a) is Var else (c, a)
            if type(c) in (int, float) and type(a) is Var:
                scale, term = sign * c, a
                parts.append(scaled)
        if not math.isfinite(scale):
            return None
        inner = self.sole_producer(term, mul, div, integer_pow_p)
        name, pair = "", ()
        if inner is not None and inner.prim is integer_pow_p and inner.params["y"] == 2:
            name, pair = "addcmul", (inner.ins[0],) * 2
        elif inner is not None and inner.prim is not integer_pow_p:
            name, pair = "addcmul" if inner.prim is mul else "addcdiv", inner.ins
        # torch multiplies by `value` first: with a large or tiny one, an intermediate result could
        # overflow or underflow where the product of the pair alone does not.
        tame = 2**-24 <= abs(scale) <= 1
        if name and tame and all([type(i) is Var for i in pair]):
            value = "" if scale == 1 else f", value={scale!r}"
            return (
                1 + len(parts),
                [*parts, inner],
                Statement(
                    e,
                    e.outs,
                    [base, *pair],
                    f"{name}({{0}}, {{1}}, {{2}}{value})",
                    {0: f"{{0}}.{name}_({{1}}, {{2}}{value})"},
                    broadcasts=True,
                    elementwise=True,
                ),
            )
        if parts:
            return (
                1,
                parts,
                Statement(
                    e,
                    e.outs,
                    [base, term],
                    f"add({{0}}, {{1}}, alpha={scale!r})",
                    {0: f"{{0}}.add_({{1}}, alpha={scale!r})"},
                    broadcasts=True,
                    elementwise=True,
                ),
            )
        return None

    def _addmm(self, e: Eqn, base: Var, dot: Eqn) -> tuple[Any, ...] | None:
        found = matrix_product(dot)
        if found is None or not all(map(has_native_dtype, dot.ins)):
            return None
        shape, target = e.outs[0].aval.shape, found.shape
        back = "" if shape == target else f".view({shape})"
        matrices = f"{found.left}, {found.right}"
        # `addmm` broadcasts a vector itself: then the sum needs no expanded copy of it.
        bias = self._bias(base)
        if bias is not None:
            text = f"addmm({{2}}, {matrices}){back}"
            return 3, [dot], Statement(e, e.outs, [*dot.ins, bias], text, contiguous=True)
        text = f"addmm({{2}}{'' if shape == target else f'.reshape({target})'}, {matrices}){back}"
        flat = "" if shape == target else f".view({target})"
        in_place = {2: f"{{2}}{flat}.addmm_({matrices}){back}"}
        made = Statement(
            e, e.outs, [*dot.ins, base], text, in_place, contiguous=True, row_major_operands=(2,)
        )
        return 3, [dot], made

    def _products(self, e: Eqn) -> tuple[Any, ...] | None:
        """A sum of several terms, some of them matrix products, which accumulate by `addmm_`."""
        dots = [
            (d, matrix_product(d))
            for d in [self.sole_producer(i, dot_general_p) for i in e.ins]
            if d
        ]
        dots = [(d, p) for d, p in dots if p is not None and all(map(has_native_dtype, d.ins))]
        if len(dots) == len(e.ins):
            dots = dots[1:]  # the first one allocates the memory that the others accumulate in
        if not dots:
            return None
        parts = [d for d, _ in dots]
        rest = [i for i in e.ins if self.producer.get(i) not in parts]
        shape, target = e.outs[0].aval.shape, dots[0][1].shape
        # In place, a term that comes twice would have changed by then.
        if len(set(rest)) < len(rest) or any(p.shape != target for _, p in dots):
            return None
        ins, products = list(rest), ""
        for d, p in dots:
            left, right = f"{{{len(ins)}}}", f"{{{len(ins) + 1}}}"
            matrices = f"{p.left.replace('{0}', left)}, {p.right.replace('{1}', right)}"
            products += f".addmm_({matrices})"
            ins += d.ins
        flat, back = ("", "") if shape == target else (f".view({target})", f".view({shape})")

        def text(first: int, head: str, others: range) -> str:
            sums = "".join([f".add_({{{i}}})" for i in others if i != first])
            return f"{head}{sums}{flat}{products}{back}"

        every = range(len(rest))
        in_place = {i: text(i, f"{{{i}}}", every) for i in every}
        if len(rest) > 1:
            # The sum of two arrays that are not row-major may not be either: reshape, not view.
            flat = flat and f".reshape({target})"
            start = text(0, "({0} + {1})", range(2, len(rest)))
        else:
            start = text(0, "{0}.clone(memory_format=row_major)", every)
        made = Statement(
            e, e.outs, ins, start, in_place, contiguous=True, row_major_operands=tuple(every)
        )
        return 3 * len(parts), parts, made

    def _bias(self, base: Var) -> Var | None:
        """The vector that `base` broadcasts along its last axis, if it does so."""
        e = self.producer.get(base)
        if e is None or e.prim is not broadcast_in_dim_p:
            return None
        (x,) = e.ins
        last = (len(e.params["shape"]) - 1,)
        return x if e.params["dims"] == last and x.aval.ndim == 1 else None

    def _padded(self, e: Eqn) -> tuple[Any, ...] | None:
        """A sum with zero-padded terms: each is added to a window of the others' sum, unpadded."""
        parts: list[Eqn] = []
        rest: list[Var] = []
        for i in e.ins:
            pad = self.sole_producer(i, pad_p)
            if pad is not None and _widens_by_zero(pad) and pad not in parts:
                parts.append(pad)
            else:
                rest.append(i)
        if not parts or not rest:
            return None
        # Each term is added to the elements that its padding leaves; the zeros are never made.
        windows = []
        for p in parts:
            sizes, config = p.ins[0].aval.shape, p.params["config"]
            windows.append(tuple([slice(low, low + n) for n, (low, _, _) in zip(sizes, config)]))

        def add_parts(total: torch.Tensor, *terms: torch.Tensor) -> torch.Tensor:
            for window, term in zip(windows, terms):
                total[window].add_(term)
            return total

        f, count = self.names.add(add_parts), len(rest)
        terms = "".join([f", {{{count + i}}}" for i in range(len(parts))])
        more = "".join([f".add_({{{i}}})" for i in range(2, count)])
        head = f"({{0}} + {{1}}){more}" if count > 1 else "{0}.clone()"
        ins = [*rest, *[p.ins[0] for p in parts]]
        in_place = {}
        if len(set(rest)) == count:
            for operand in range(count):
                others = [f".add_({{{i}}})" for i in range(count) if i != operand]
                in_place[operand] = f"{f}({{{operand}}}{''.join(others)}{terms})"
        return len(parts), parts, Statement(e, e.outs, ins, f"{f}({head}{terms})", in_place)


def _widens_by_zero(pad: Eqn) -> bool:
    value = pad.ins[1]
    return (
        type(value) in (int, float)
        and value == 0
        and all([low >= 0 and high >= 0 and not inner for low, high, inner in pad.params["config"]])
    )
