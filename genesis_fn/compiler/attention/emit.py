"""The equations that compute an attention's results by the fused functions `attention*`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.compiler.attention.axes import AxisMap, LogicalAxis, Run, members
from genesis_fn.compiler.attention.masks import Band, Condition
from genesis_fn.compiler.attention.region import ScoreRegion
from genesis_fn.compiler.attention.scores import LOWEST_BIAS, ScoreForm
from genesis_fn.compiler.attention.values import AttentionResult, OutputCotangent
from genesis_fn.core import dtypes, tree
from genesis_fn.core.jaxpr import Atom, Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.reductions.reduce import reduce_max_p, reduce_or_p, reduce_sum_p
from genesis_fn.primitives.shape import (
    broadcast_in_dim_p,
    concatenate_p,
    iota_p,
    reshape_p,
    slice_p,
    transpose_p,
)
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.custom.fused_functions import FUSED, fused_p

Dims = Sequence[Run]


@dataclass(frozen=True, slots=True)
class AttentionDims:
    """The logical axes of [batch, time, heads, head dimension]: heads of queries are `heads`, those
    of keys, and then `group`, which share them."""

    outer: Run
    heads: Run
    group: Run
    query: Run
    key: Run
    inner: Run
    feature: Run

    @property
    def of_query(self) -> Dims:
        """Of queries."""
        return (self.outer, self.query, (*self.heads, *self.group), self.inner)

    @property
    def of_key(self) -> Dims:
        """Of keys."""
        return (self.outer, self.key, self.heads, self.inner)

    @property
    def of_value(self) -> Dims:
        """Of values."""
        return (self.outer, self.key, self.heads, self.feature)

    @property
    def of_output(self) -> Dims:
        """Of the output and its cotangent."""
        return (self.outer, self.query, (*self.heads, *self.group), self.feature)

    @property
    def of_scores(self) -> Dims:
        """[batch, heads, queries, keys], of masks and biases."""
        return (self.outer, (*self.heads, *self.group), self.query, self.key)


class Emitter:
    """Writes the equations of one attention, at the place of the equation given to `begin`. With
    `folded` its masks are a part of its bias; with `corrected` the gradient of keys has what
    queries add that see no key."""

    def __init__(
        self,
        region: ScoreRegion,
        form: ScoreForm,
        dims: AttentionDims,
        folded: bool,
        corrected: bool,
    ) -> None:
        self.region, self.form, self.dims = region, form, dims
        self.folded, self.corrected = folded, corrected
        self.eqns: list[Eqn] = []
        self.dtype = region.operand_dtype()
        self.at: Eqn
        self.residuals: list[Var] = []
        self.results: list[Var] = []
        self.bias_axes: frozenset[LogicalAxis] = frozenset()
        self.lost: Var | None = None
        self.out: Var
        self.queries: Var  # before those that see no key, `hidden`, are zero
        self.hidden: Var
        band = Band(None, None) if folded else form.band
        right = band.right
        causal = right == 0
        window = None if band.left is None and causal else (band.left, right)
        self.static: dict[str, Any] = {
            "scale": form.scale,
            "causal": causal,
            "window": None if window == (None, None) else window,
            "softcap": 0.0,
            "has": (bool(form.biases), bool(form.conditions) and not folded, False, False, False),
        }

    def begin(self, at: Eqn) -> None:
        """The equations that follow take the line and the pass of `at`."""
        self.at = at

    def take(self) -> list[Eqn]:
        """The equations since the last call."""
        found, self.eqns = self.eqns, []
        return found

    # ---- equations ----

    def make(self, prim: Primitive, ins: Sequence[Atom], **params: Any) -> Var:
        """The result of a new equation."""
        avals = tuple([i.aval if type(i) is Var else i for i in ins])
        out = Var(prim.abstract(avals, params))
        self.add(prim, ins, params, [out])
        return out

    def add(
        self, prim: Primitive, ins: Sequence[Atom], params: dict[str, Any], outs: list[Var]
    ) -> None:
        """Append an equation."""
        numerics = self.region.products[0].numerics
        self.eqns.append(Eqn(prim, ins, params, outs, self.at.where, self.at.backward, numerics))

    def reshape(self, x: Var, shape: Sequence[int]) -> Var:
        """`x` in a shape."""
        shape = tuple(shape)
        return x if x.aval.shape == shape else self.make(reshape_p, [x], shape=shape)

    def transpose(self, x: Var, order: Sequence[int]) -> Var:
        """`x` with its dimensions in an order."""
        order = tuple(order)
        straight = order == tuple(range(len(order)))
        return x if straight else self.make(transpose_p, [x], permutation=order)

    def moved(
        self, x: Var, before: Sequence[LogicalAxis], after: Sequence[LogicalAxis], axes: AxisMap
    ) -> Var:
        """`x`, of the logical axes `before`, in the order `after`. What stays together within one
        of `axes`, those of the program's array, is moved as one: the transpose then is one of that
        array, and the simplifier joins it with the program's own."""
        run_of = {a: n for n, r in enumerate(axes) for a in r}
        blocks: list[list[LogicalAxis]] = []
        for n, a in enumerate(before):
            last = before[n - 1] if n else None
            together = last is not None and run_of[last] == run_of[a]
            if together and after.index(a) == after.index(before[n - 1]) + 1:
                blocks[-1].append(a)
            else:
                blocks.append([a])
        order = sorted(range(len(blocks)), key=lambda n: after.index(blocks[n][0]))
        x = self.reshape(x, [math.prod([a.size for a in b]) for b in blocks])
        return self.transpose(x, order)

    def cast(self, x: Var, dtype: Any) -> Var:
        """`x` in a dtype."""
        return x if x.aval.dtype == dtype else self.make(ew.convert_p, [x], dtype=dtype)

    def scale(self, x: Var, factor: float) -> Var:
        return x if factor == 1.0 else self.make(ew.mul.prim, [x, factor])

    def arranged(self, x: Var, axes: AxisMap, dims: Dims, whole: bool = False) -> Var:
        """`x` as an array of `dims`. One that it does not depend on has length 1, unless all of it
        is wanted, one that it depends on in part is repeated."""
        flat = [a for r in axes for a in r]
        wanted = [a for d in dims for a in d if a in flat]
        x = self.moved(x, flat, wanted, axes)
        full: list[LogicalAxis] = []
        for d in dims:
            if whole or set(d) & set(wanted):
                full += d
        if full != wanted:
            shape = tuple([a.size for a in full])
            kept_dims = tuple([full.index(a) for a in wanted])
            x = self.reshape(x, [a.size for a in wanted])
            x = self.make(broadcast_in_dim_p, [x], shape=shape, dims=kept_dims)
        kept = set(full)
        return self.reshape(x, [math.prod([a.size for a in d if a in kept]) for d in dims])

    def rearranged(self, x: Var, dims: Dims, result: AttentionResult) -> Var:
        """An array of `dims` as a result's array."""
        flat = [a for d in dims for a in d]
        wanted = [a for r in result.axes for a in r]
        x = self.moved(x, flat, wanted, result.axes)
        return self.cast(self.reshape(x, result.var.aval.shape), result.var.aval.dtype)

    def call(self, name: str, args: tuple[Any, ...], **static: Any) -> list[Var]:
        """The results of a fused function."""
        op = FUSED[name]
        leaves, structure = tree.flatten(args)
        given = tuple(sorted({**self.static, **static}.items()))
        program = op.program(tuple([x.aval for x in leaves]), structure, given)
        outs = [Var(a) for a in program.out_avals]
        self.add(fused_p, leaves, {"op": op, "static": given, "jaxpr": program}, outs)
        return outs

    # ---- the attention ----

    def forward(self, with_backward: bool) -> bool:
        """Compute the output, and for a backward pass the log-sum-exp. False if the operands are
        not of the dimensions that they should be."""
        dims, region = self.dims, self.region
        assert region.value_operand is not None and region.value is not None
        operands = []
        for (x, axes), base, d in (
            (region.query_operand, region.q, dims.of_query),
            (region.key_operand, region.k, dims.of_key),
            (region.value_operand, region.value, dims.of_value),
        ):
            if x.aval.dtype.itemsize > self.dtype.itemsize:
                x, axes = base  # before a cast that the kernel does not need
            if members(axes) != members(tuple(d)):
                x, axes = base  # before it is repeated for the heads that share it
            if members(axes) != members(tuple(d)):
                return False
            operands.append(self.cast(self.arranged(x, axes, d), self.dtype))
        extras = []
        mask = self.conjunction(self.form.conditions) if self.form.conditions else None
        if self.form.biases:
            bias = self.bias()
            if self.folded:
                bias, mask = self.masked(bias, mask), None
            if self.form.careful:
                bias, hidden = self.carefully(bias, mask)
                self.queries, self.hidden = operands[0], hidden
                zero = self.repeated(hidden, self.queries.aval.shape)
                operands[0] = self.make(ew.select_p, [zero, 0.0, self.queries])
            extras.append(bias)
        elif self.form.may_be_lost and self.form.fill == -math.inf:
            assert mask is not None
            seen = mask if not self.has_band else self.both(mask, self.in_band())
            self.lost = self.by_row(
                self.make(ew.bitwise_not.prim, [self.over_keys(reduce_or_p, seen)])
            )
        if mask is not None:
            extras.append(mask)
        args = (*operands, *extras)
        if with_backward:
            self.out, *_, lse = self.call("attention_forward", args)
            self.residuals = [*args, self.out, lse]
        else:
            (self.out,) = self.call("attention", args)
        self.out = self.without_lost(self.out)
        return True

    def masked(self, bias: Var, mask: Var | None) -> Var:
        """The bias with the value of hidden scores where the mask and the band hide them.

        Next to a value so low a score is nothing. So a bias that is a mask itself, as low, shares
        the softmax of a query that sees no key with what the others hide, as written.
        """
        assert self.form.low is not None
        seen = [x for x in (mask, self.in_band() if self.has_band else None) if x is not None]
        together = seen[0] if len(seen) == 1 else self.both(*seen)
        shape = tuple([max(m, n) for m, n in zip(bias.aval.shape, together.aval.shape)])
        given = [self.repeated(together, shape), self.repeated(bias, shape), self.form.low]
        return self.make(ew.select_p, given)

    def carefully(self, bias: Var, mask: Var | None) -> tuple[Var, Var]:
        """(the bias, queries [batch, time, heads, 1] of whose scores it leaves nothing) of a bias
        that may hide all keys of a query.

        Where it is low for all of them its maximum is subtracted, which changes no softmax. If it
        is so low that a score is lost in it, then the softmax as written is that of the bias, which
        queries of zeros have. An infinite one gives NaN.
        """
        form, visible = self.form, bias
        hides = mask if mask is not None and form.fill == -math.inf else None
        if self.has_band and not self.folded:
            hides = self.in_band() if hides is None else self.both(hides, self.in_band())
        if hides is not None:
            shape = tuple([max(m, n) for m, n in zip(bias.aval.shape, hides.aval.shape)])
            bias = self.repeated(bias, shape)
            visible = self.make(ew.select_p, [self.repeated(hides, shape), bias, -math.inf])
        highest = self.over_keys(reduce_max_p, visible)
        low = self.make(ew.lt.prim, [highest, LOWEST_BIAS])
        infinite = self.make(ew.eq.prim, [highest, -math.inf])
        finite = self.make(ew.bitwise_not.prim, [infinite])
        shift = self.make(
            ew.select_p, [self.make(ew.bitwise_and.prim, [low, finite]), highest, 0.0]
        )
        self.lost = self.by_row(infinite)
        if bias.aval.shape[3] > 1:
            self.bias_axes |= set(self.dims.key)
        for n, d in enumerate(self.dims.of_scores):
            if bias.aval.shape[n] > 1:
                self.bias_axes |= set(d)
        shift = self.repeated(shift, bias.aval.shape)
        absorbed = self.make(ew.le.prim, [highest, form.absorbs])
        return self.make(ew.sub.prim, [bias, shift]), self.by_row(absorbed)

    @property
    def has_band(self) -> bool:
        """Whether what is seen depends on positions."""
        return self.form.band != Band(None, None)

    def over_keys(self, prim: Primitive, x: Var) -> Var:
        """A reduction [batch, heads, queries, 1] of an array that broadcasts to the scores."""
        shape = x.aval.shape
        if shape[3] > 1:
            x = self.make(prim, [x], axes=(3,))
        return self.reshape(x, (*shape[:3], 1))

    def by_row(self, x: Var) -> Var:
        """[batch, heads, queries, 1] as [batch, queries, heads, 1]."""
        return self.transpose(x, (0, 2, 1, 3))

    def output(self, result: AttentionResult) -> Var:
        """The output as a result's array."""
        return self.rearranged(self.scale(self.out, result.factor), self.dims.of_output, result)

    def backward(self, cotangent: OutputCotangent, replaced: dict[Var, Var]) -> None:
        """Compute the cotangents of operands and bias."""
        given = replaced.get(cotangent.var, cotangent.var)
        x = self.arranged(given, cotangent.axes, self.dims.of_output)
        x = self.without_lost(self.cast(x, self.dtype))
        needs = (True,) * (3 + bool(self.form.biases))
        self.results = self.call("attention_backward", (tuple(self.residuals), x), needs=needs)
        if self.corrected:
            dq, dk, *others = self.results
            self.results = [dq, self.with_hidden(dk, x), *others]

    def with_hidden(self, keys: Var, x: Var) -> Var:
        """The gradient of keys with what queries add that see no key, in whose place are zeros.

        As written, their numbers have no part in the softmax but in this gradient. Heads twice as
        long have both: zeros for the scores, whose keys are as long as before, and the numbers for
        a second half of the gradient. Few programs ever have such queries: it is a branch.
        """
        wide = self.make(ew.convert_p, [self.hidden], dtype=dtypes.I32)
        index = self.make(reduce_max_p, [wide], axes=tuple(range(wide.aval.ndim)))
        operands = [keys, self.queries, *self.residuals, x]
        outer, self.eqns = self.eqns, []
        inside = [Var(v.aval) for v in operands]
        _, queries, zeroed, k, *others, ct = inside
        half = k.aval.shape[3]
        kind = {"shape": k.aval.shape, "dtype": k.aval.dtype}
        zero = self.make(full_p, [], value=0.0, **kind)
        q, k = [
            self.make(concatenate_p, pair, dimension=3) for pair in ([zeroed, queries], [k, zero])
        ]
        needs = (True,) * (3 + bool(self.form.biases))
        found = self.call("attention_backward", ((q, k, *others), ct), needs=needs)[1]
        ends = {"start": (0, 0, 0, half), "limit": found.aval.shape, "strides": (1, 1, 1, 1)}
        own = self.make(slice_p, [found], **ends)
        branch = Jaxpr(inside, self.take(), [own])
        self.eqns = outer
        kept = [Var(v.aval) for v in operands]
        out = Var(keys.aval)
        branches = (Jaxpr(kept, [], kept[:1]), branch)
        self.add(cond_p, [index, *operands], {"branches": branches}, [out])
        return out

    def cotangent(self, result: AttentionResult, given: float) -> Var | None:
        """A cotangent as a result's array; `given` is what the output's was multiplied by."""
        dims, factor = self.dims, result.factor / given
        if result.kind == "dv":
            return self.rearranged(self.scale(self.results[2], factor), dims.of_value, result)
        if result.kind in ("dq", "dk"):
            # The kernel's are of the operands: they have the scale.
            k = result.kind == "dk"
            x = self.scale(self.results[k], factor / self.form.scale)
            return self.rearranged(x, dims.of_key if k else dims.of_query, result)
        kept = [tuple([a for a in d if a in self.bias_axes]) for d in dims.of_scores]
        wanted = members(result.axes)
        flat = [a for d in kept for a in d]
        x = self.reshape(self.results[3], [a.size for a in flat])
        gone = tuple([n for n, a in enumerate(flat) if a not in wanted])
        if gone:
            x = self.make(reduce_sum_p, [x], axes=gone)
        left = [tuple([a for a in d if a in wanted]) for d in kept]
        if members(tuple(left)) != wanted:
            return None
        return self.rearranged(self.scale(x, factor), left, result)

    # ---- mask and bias ----

    def bias(self) -> Var:
        """The sum of the biases, in the dtype of the widest one."""
        terms = self.form.biases
        depends = frozenset[LogicalAxis]().union(*[members(t.axes) for t in terms])
        dims = [d if set(d) & depends else () for d in self.dims.of_scores]
        self.bias_axes = frozenset([a for d in dims for a in d])
        wide = terms[0].var.aval.dtype if len(terms) == 1 else dtypes.F32
        if self.form.careful:
            wide = dtypes.F32
        total: Var | None = None
        for t in terms:
            x = self.cast(self.arranged(t.var, t.axes, dims, whole=True), wide)
            x = self.scale(x, t.factor)
            total = x if total is None else self.make(ew.add.prim, [total, x])
        assert total is not None
        return total

    def conjunction(self, conditions: Sequence[Condition]) -> Var:
        """Where all conditions hold, as an array that broadcasts to the scores."""
        depends = frozenset[LogicalAxis]().union(*[members(c.axes) for c in conditions])
        dims = [d if set(d) & depends else () for d in self.dims.of_scores]
        found: Var | None = None
        for c in conditions:
            x = self.arranged(c.var, c.axes, dims, whole=True)
            x = self.make(ew.bitwise_not.prim, [x]) if c.negated else x
            found = x if found is None else self.make(ew.bitwise_and.prim, [found, x])
        assert found is not None
        return found

    def in_band(self) -> Var:
        """Booleans [1, 1, queries, keys] of the band."""
        size = [math.prod([a.size for a in r]) for r in (self.dims.query, self.dims.key)]
        shape = (1, 1, *size)
        rows, columns = [
            self.make(iota_p, [], dtype=dtypes.I32, shape=shape, dimension=d) for d in (2, 3)
        ]
        apart = self.make(ew.sub.prim, [columns, rows])
        band = self.form.band
        found: list[Var] = []
        if band.right is not None:
            found.append(self.make(ew.le.prim, [apart, band.right]))
        if band.left is not None:
            found.append(self.make(ew.ge.prim, [apart, -band.left]))
        return found[0] if len(found) == 1 else self.make(ew.bitwise_and.prim, found)

    def both(self, x: Var, y: Var) -> Var:
        """x and y, each repeated to the shape of both."""
        shape = tuple([max(m, n) for m, n in zip(x.aval.shape, y.aval.shape)])
        return self.make(ew.bitwise_and.prim, [self.repeated(x, shape), self.repeated(y, shape)])

    def repeated(self, x: Var, shape: tuple[int, ...]) -> Var:
        """`x` broadcast to a shape of as many dimensions."""
        if x.aval.shape == shape:
            return x
        return self.make(broadcast_in_dim_p, [x], shape=shape, dims=tuple(range(len(shape))))

    def without_lost(self, x: Var) -> Var:
        """An array of the output's shape, NaN in lost rows."""
        if self.lost is None:
            return x
        lost = self.repeated(self.lost, x.aval.shape)
        return self.make(ew.select_p, [lost, math.nan, x])
