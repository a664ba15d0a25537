"""The pass: attention that is written out becomes the fused functions `attention*`.

A program is searched for products of which an exponential is taken (`region`). If the values around
one are an attention whose kernel can do as well (`scores`), its results are computed by the fused
functions instead, forward and backward, and the scores, which nothing reads any more, are dead
code. Either all of an attention is rewritten or nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from genesis_fn.compiler.attention.axes import AxisTable, LogicalAxis, Run, Split, members
from genesis_fn.compiler.attention.emit import AttentionDims, Emitter
from genesis_fn.compiler.attention.lengths import masks_as_lengths
from genesis_fn.compiler.attention.polynomials import Symbol
from genesis_fn.compiler.attention.region import ScoreRegion
from genesis_fn.compiler.attention.scores import ScoreForm, score_form
from genesis_fn.compiler.attention.values import (
    FLOATS,
    AttentionResult,
    OutputCotangent,
    ProgramIndex,
)
from genesis_fn.compiler.known_values import KnownValues
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.simplify.rewriter import live_equations
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, jaxprs_in
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.shape import broadcast_in_dim_p, reshape_p, transpose_p
from genesis_fn.transforms.custom.fused_functions import fused_p

# Fewer queries or keys are left alone: their scores are as small as their operands.
FEWEST = 32
# Bytes of scores from which on a bias with a gradient is fused: its gradient is as large as they
# are, and a pass of its own. On an H200 0.7 to 2.2 of what is written out takes, forward and
# backward, at 2,048 positions of 16 heads 1.88 ms instead of 1.48; what is gained is the memory.
WORTH_A_BIAS = 1 << 30
_STEPS = 12  # equations between the product and the exponential
_CUTS = 8  # of axes by reshapes
_WALKED = frozenset(
    (
        ew.add.prim, ew.add_n.prim, ew.sub.prim, ew.mul.prim, ew.div.prim, ew.neg.prim,
        ew.select_p, ew.convert_p, transpose_p, reshape_p, broadcast_in_dim_p,
    )
)  # fmt: skip
# How float32 operands may be multiplied for TF32 to be as good.
_TF32 = ("default", "tf32")


def fuse_attention(jaxpr: Jaxpr, keeps: Callable[[Eqn], bool]) -> Jaxpr:
    """`jaxpr`, which is simplified, with its attentions as fused functions; `keeps(equation)` says
    whether a backend has a kernel for a call of one. The programs of loops and branches too."""
    if not enabled("attention"):
        return jaxpr
    eqns = [_inside(e, keeps) for e in jaxpr.eqns]
    if any([new is not old for new, old in zip(eqns, jaxpr.eqns)]):
        jaxpr = Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)
    found, values = jaxpr, KnownValues()
    for product in list(_candidates(jaxpr)):
        found = _without(found, product, values, keeps) or found
    found = masks_as_lengths(found, values, keeps) or found
    return found if found is jaxpr else simplify_jaxpr(found, keeps)


def _inside(e: Eqn, keeps: Callable[[Eqn], bool]) -> Eqn:
    """An equation with the programs that it runs rewritten."""
    if e.prim is fused_p or next(jaxprs_in(e.params), None) is None:
        return e
    params = dict(e.params)
    for name, value in e.params.items():
        if type(value) is Jaxpr:
            params[name] = fuse_attention(value, keeps)
        elif type(value) is tuple and any([type(x) is Jaxpr for x in value]):
            new = [fuse_attention(x, keeps) if type(x) is Jaxpr else x for x in value]
            params[name] = value if all(map(operator.is_, new, value)) else tuple(new)
    same = all([params[name] is value for name, value in e.params.items()])
    return e if same else e.replace(params=params)


def _candidates(jaxpr: Jaxpr) -> Iterator[Var]:
    """Products large enough to matter of which an exponential is taken, in order."""
    exponentials = [e for e in jaxpr.eqns if e.prim is ew.exp.prim]
    if not exponentials:
        return
    producers = {o: e for e in jaxpr.eqns for o in e.outs}
    found: set[Var] = set()
    for e in exponentials:
        todo: list[tuple[Any, int]] = [(e.ins[0], _STEPS)]
        visited: set[Var] = set()
        while todo:
            x, steps = todo.pop()
            made = producers.get(x) if type(x) is Var and x not in visited else None
            if made is None or not steps:
                continue
            visited.add(x)
            if made.prim is dot_general_p and _is_large(made):
                found.add(x)
            elif made.prim in _WALKED:
                todo += [(i, steps - 1) for i in made.ins]
    yield from [o for e in jaxpr.eqns for o in e.outs if o in found]


def _is_large(e: Eqn) -> bool:
    sizes = []
    for x, c, b in zip(e.ins, *e.params["dimension_numbers"]):
        if x.aval.dtype not in FLOATS:
            return False
        used = (*c, *b)
        sizes.append(max([x.aval.shape[d] for d in free_dims(x.aval.ndim, used)], default=1))
    return min(sizes) >= FEWEST


def _without(
    jaxpr: Jaxpr, product: Var, values: KnownValues, keeps: Callable[[Eqn], bool]
) -> Jaxpr | None:
    """The program without these scores, or None."""
    index = ProgramIndex(jaxpr)
    values.producers = index.producers
    if product not in index.position:  # part of an attention that is rewritten already
        return None
    for keys_right in (True, False):
        region = _followed(index, index.position[product], keys_right)
        found = None
        if region is not None and region.results:
            found = _rewritten(region, values, keeps)
        if found is not None:
            return found
    return None


def _followed(index: ProgramIndex, at: int, keys_right: bool) -> ScoreRegion | None:
    table = AxisTable()
    for _ in range(_CUTS):
        try:
            region = ScoreRegion(index, at, keys_right, table)
            region.follow()
            return region
        except Split as split:
            table.cut(split)
    return None


# ---- one attention ----


def _rewritten(
    region: ScoreRegion, values: KnownValues, keeps: Callable[[Eqn], bool]
) -> Jaxpr | None:
    """The program of a region with fused functions, or None if any of it cannot be."""
    if region.value is None:
        return None
    # Keys that are repeated for heads that share them need not be.
    shared = region.batch - members(region.k[1]) - members(region.value[1])
    for repeated in (shared, frozenset[LogicalAxis]()) if shared else (shared,):
        dims = _dims(region, repeated)
        found = None if dims is None else _with_dims(region, dims, values, keeps)
        if found is not None:
            return found
    return None


def _with_dims(
    region: ScoreRegion, dims: AttentionDims, values: KnownValues, keeps: Callable[[Eqn], bool]
) -> Jaxpr | None:
    form = score_form(region, dims.query, dims.key, values)
    dtype = region.operand_dtype()
    if form is None or dtype not in FLOATS or not _as_precise(region, dtype):
        return None
    if not _operands_fit(region, dtype):
        return None
    plain = [r for r in region.results if _is_result(r, form, dims)]
    # The gradient of a bias that is not broadcast is no sum: any value that is it may be read.
    whole = any([members(b.axes) == region.product.depends for b in form.biases])
    for results in (plain, [*plain, *region.full_gradients]) if whole else (plain,):
        found = _with_results(region, form, dims, results, keeps)
        if found is not None:
            return found
    return None


def _is_result(r: AttentionResult, form: ScoreForm, dims: AttentionDims) -> bool:
    """Whether the fused functions compute it: keys' gradients for each head of keys, the biases'
    summed over what these do not depend on."""
    if r.kind in ("dk", "dv"):
        return members(r.axes) == members(tuple(dims.of_key if r.kind == "dk" else dims.of_value))
    depends = frozenset[LogicalAxis]().union(*[members(b.axes) for b in form.biases])
    return r.kind != "dbias" or members(r.axes) <= depends


def _as_precise(region: ScoreRegion, dtype: Any) -> bool:
    """Whether the kernel's products are no less precise than those that are written."""
    for e in region.products:
        if e.numerics.precise:
            return False
        if any([x.aval.dtype == dtypes.F32 for x in e.ins]) and dtype == dtypes.F32:
            settings = (e.params["precision"], e.numerics.matmul_precision)
            if any([s not in _TF32 for s in settings]):
                return False
    return True


def _operands_fit(region: ScoreRegion, dtype: Any) -> bool:
    """Whether queries and keys can be given in the dtype that probabilities and values are
    multiplied in, without loss."""
    for (var, _), (base, _) in ((region.query_operand, region.q), (region.key_operand, region.k)):
        if var.aval.dtype == dtype or dtype == dtypes.F32:
            continue
        if base.aval.dtype != dtype:
            return False
    return True


def _dims(region: ScoreRegion, repeated: frozenset[LogicalAxis]) -> AttentionDims | None:
    """Which logical axes are batch entries, heads and positions; along those that are `repeated`,
    heads share keys."""
    queries = [r for r in region.query_runs if r]
    keys = tuple([a for r in region.key_runs for a in r])
    if not queries or not keys:
        return None
    if len(queries) == len([r for r in region.key_runs if r]):
        rows, group = queries, []
    else:
        # Heads that share keys are free axes of the queries, beside that of positions.
        used = _used_by_masks(region)
        chosen = [r for r in queries if set(r) & used] or [max(queries, key=_length)]
        if len(chosen) != 1:
            return None
        rows, group = chosen, [r for r in queries if r is not chosen[0]]
    query = tuple([a for r in rows for a in r])
    inner = tuple([a for r in region.inner for a in r])
    if not inner or not region.feature or min(map(_length, (query, keys))) < FEWEST:
        return None
    batch = [r for r in region.batch_runs if r]
    if repeated:
        batch = [(a,) for r in batch for a in r]
    # What lies behind the queries in memory are heads; nothing is moved then.
    order = [a for r in region.q[1] for a in r]
    if not set(query) <= set(order):
        return None
    last = max([order.index(a) for a in query])
    heads = len([r for r in batch if min([order.index(a) for a in r]) > last])
    partial = [members(axes) & region.batch for axes in _partial_axes(region)]
    for count in (heads, *range(len(batch) + 1)):
        outer = members(tuple(batch[: len(batch) - count]))
        inside = members((*batch[len(batch) - count :], *group))
        whole = lambda d, part: not d & part or d & part == part
        if all([whole(d, outer) and whole(d, inside & region.batch) for d in partial]):
            heads = count
            break
    split = len(batch) - heads
    flat = lambda runs: tuple([a for r in runs for a in r])
    outer, inside = flat(batch[:split]), flat(batch[split:])
    group = tuple(
        [a for a in (*outer, *inside, *flat(group)) if a in repeated or a in region.query]
    )
    outer, inside = [tuple([a for a in run if a not in repeated]) for run in (outer, inside)]
    return AttentionDims(outer, inside, group, query, keys, inner, region.feature)


def _length(run: Run) -> int:
    return math.prod([a.size for a in run])


def _used_by_masks(region: ScoreRegion) -> set[LogicalAxis]:
    return {a for axes in _partial_axes(region) for r in axes for a in r} & region.query


def _partial_axes(region: ScoreRegion) -> list[Any]:
    """The axes of all masks and biases."""
    found: list[Any] = [c.axes for c in region.conditions()]
    todo = [region.scores or {}]
    while todo:
        for m in todo.pop():
            for s, _ in m:
                if s.kind == "masked":
                    todo.append(dict(s.key[1]))
                elif s.kind == "outside":
                    found.append(s.key[1])
    return found


def _with_results(
    region: ScoreRegion,
    form: ScoreForm,
    dims: AttentionDims,
    results: Sequence[AttentionResult],
    keeps: Callable[[Eqn], bool],
) -> Jaxpr | None:
    """The program in which `results` come from fused functions, if that leaves no scores."""
    jaxpr = region.index.jaxpr
    if form.may_be_lost and not all([_gated_as_kernel(r, form) for r in results]):
        return None
    only_forward = all([r.kind == "output" for r in results])
    learned = _is_learned(form, results)
    folded = form.learned_only and only_forward and form.low is not None
    if form.learned_only and not (folded or learned):
        return None
    scores: Var = region.product.key
    if any([r.kind == "dbias" for r in results]) and scores.aval.nbytes < WORTH_A_BIAS:
        return None
    outputs = [r for r in results if r.kind == "output"]
    backward: dict[Symbol, list[AttentionResult]] = {}
    for r in results:
        if r.kind != "output":
            backward.setdefault(r.of, []).append(r)
    corrected = form.careful and not learned
    emitter = Emitter(region, form, dims, folded, corrected)
    inserted: dict[int, list[Eqn]] = {}
    replaced: dict[Var, Var] = {}
    at = min([r.at for r in results])
    if any([region.index.position.get(v, -1) >= at for v in _operands(region, form)]):
        return None
    emitter.begin(jaxpr.eqns[at])
    if not emitter.forward(bool(backward)):
        return None
    for r in outputs:
        replaced[r.var] = emitter.output(r)
    inserted[at] = emitter.take()
    for of, group in backward.items():
        at_of = min([r.at for r in group])
        cotangent = _cotangent_before(region, of, at_of, dims, replaced)
        if cotangent is None:
            return None
        emitter.begin(jaxpr.eqns[at_of])
        emitter.backward(cotangent, replaced)
        for r in group:
            found = emitter.cotangent(r, cotangent.factor)
            if found is None:
                return None
            replaced[r.var] = found
        inserted.setdefault(at_of, []).extend(emitter.take())
    if not all([_are_kept(new, keeps) for new in inserted.values()]):
        return None
    eqns: list[Eqn] = []
    for n, e in enumerate(jaxpr.eqns):
        # Before the equation whose result they replace: their operands are there already.
        eqns += inserted.get(n, [])
        ins = [replaced.get(i, i) if type(i) is Var else i for i in e.ins]
        eqns.append(e if ins == list(e.ins) else e.replace(ins=ins))
    outs = [replaced.get(o, o) for o in jaxpr.outs]
    eqns = live_equations(eqns, outs)
    scores = jaxpr.eqns[region.at].outs[0]
    if any([scores in e.outs for e in eqns]):
        return None
    return Jaxpr(jaxpr.invars, eqns, outs, jaxpr.labels, jaxpr.name)


def _are_kept(eqns: Sequence[Eqn], keeps: Callable[[Eqn], bool]) -> bool:
    """Whether a backend has kernels for all calls of fused functions, those in branches too."""
    if not all([keeps(e) for e in eqns if e.prim is fused_p]):
        return False
    branches = [j for e in eqns if e.prim is not fused_p for j in jaxprs_in(e.params)]
    return all([_are_kept(j.eqns, keeps) for j in branches])


def _operands(region: ScoreRegion, form: ScoreForm) -> list[Var]:
    """What the fused function reads."""
    assert region.value_operand is not None
    found = [x for x, _ in (region.query_operand, region.key_operand, region.value_operand)]
    return [*found, *[b.var for b in form.biases], *[c.var for c in form.conditions]]


def _is_learned(form: ScoreForm, results: Sequence[AttentionResult]) -> bool:
    """Whether the bias of unknown values is a parameter, as one with a gradient is: none is as low
    as a mask."""
    unknown = [b for b in form.biases if not b.moderate]
    wanted = [members(r.axes) for r in results if r.kind == "dbias"]
    return len(unknown) == 1 and members(unknown[0].axes) in wanted


def _gated_as_kernel(r: AttentionResult, form: ScoreForm) -> bool:
    """Whether a result is as the kernel's in rows that see no key: probabilities are not set to
    zero there, the gradient of their scores is."""
    if r.kind in ("output", "dv"):
        return not r.gates
    return form.selected & frozenset(form.conditions) <= r.gates


def _cotangent_before(
    region: ScoreRegion, of: Symbol, at: int, dims: AttentionDims, replaced: dict[Var, Var]
) -> OutputCotangent | None:
    """A variable that has the cotangent, computed before equation `at`: if possible in the dtype of
    the operands."""
    dtype = region.operand_dtype()
    wanted = members(tuple(dims.of_output))
    found = [
        c for c in region.cotangents.get(of, [])
        if region.index.position.get(c.var, -1) < at and members(c.axes) == wanted
    ]  # fmt: skip
    return min(found, key=lambda c: c.var.aval.dtype != dtype, default=None)
