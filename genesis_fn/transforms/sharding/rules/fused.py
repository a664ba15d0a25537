"""Fused functions: divided along the dimensions that their `dims` name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import typeof
from genesis_fn.core.sharding.layout import Layout, parts
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.primitives.shape import broadcast_in_dim
from genesis_fn.transforms.batching.collectives import psum
from genesis_fn.transforms.custom.fused_functions import FUSED, Fused, fused_p
from genesis_fn.transforms.sharding.partitioner import Placed, local, moved, partitions, settle
from genesis_fn.transforms.sharding.rules.letters import Axes, Divided, divisions, layout_of
from genesis_fn.transforms.sharding.rules.programs import as_program

Letter = tuple[str, int]  # a dimension by its letter; leading ones are numbered


@partitions(fused_p, puts_off=True)
def _fused(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    op, static = e.params["op"], dict(e.params["static"])
    if any(op is FUSED.get(n) for n in _OF_MEANS) and any(not x.is_whole for x in operands[:3]):
        return _mean_of_rows(mesh, e, operands)
    if op.dims is None:
        return as_program(mesh, e, operands)
    text = op.dims if isinstance(op.dims, str) else op.dims([x.aval for x in operands], static)
    of_operands, of_results = [side.split(",") for side in text.split("->")]
    if not of_results[0].strip() and not e.outs:
        of_results = []
    for x, said in zip(operands, of_operands, strict=True):
        if x.due and "~" not in said:
            settle(x)
    if all(x.is_whole and not x.due for x in operands):
        return as_program(mesh, e, operands)
    ins = _letters(of_operands, [x.aval for x in operands])
    outs = _letters(of_results, [o.aval for o in e.outs])
    divided = divisions(mesh, operands, ins)
    wanted = [layout_of(x.aval.shape, at, divided) for x, at in zip(operands, ins)]
    xs = [x if x.layout == at and x.due else moved(x, mesh, at) for x, at in zip(operands, wanted)]
    layouts = [layout_of(o.aval.shape, at, divided) for o, at in zip(e.outs, outs)]
    put_off = tuple([n for x in xs for n in x.due])
    dues = [
        () if "=" in said else (*put_off, *_due(o.aval.shape, at, divided))
        for said, o, at in zip(of_results, e.outs, outs)
    ]
    results = _called(e, xs, layouts, dues)
    return _with_kept(results, of_results, operands, of_operands)


def _with_kept(
    results: list[Placed],
    of_results: Sequence[str],
    operands: Sequence[Placed],
    of_operands: Sequence[str],
) -> list[Placed]:
    """The results, of which those that are operands as they are stay laid out as those were: what
    is saved of a gathered weight for the backward pass is a part."""
    rest = list(zip(operands, of_operands))
    for i, said in enumerate(of_results):
        if "=" not in said:
            continue
        name = said.replace("=", "").split()
        found = [x for x, at in rest if at.split() == name and x.aval == results[i].aval]
        if found:
            results[i] = found[0]
            rest = [(x, at) for x, at in rest if x is not found[0]]
    return results


def _called(
    e: Eqn,
    xs: Sequence[Placed],
    layouts: Sequence[Layout],
    dues: Sequence[Axes],
    of_parts: Axes = (),
    **changes: Any,
) -> list[Placed]:
    """The function of parts; where axes are given, by its `of_parts` over these."""
    op: Fused[..., Any] = e.params["op"]
    operands, static = [local(x) for x in xs], dict(e.params["static"]) | changes
    if of_parts:
        assert op.of_parts is not None, op
        outs = op.of_parts(of_parts, *operands, **static)
    else:
        given = tuple(sorted(static.items()))
        outs, _ = op.bind(operands, e.params["jaxpr"].cache["in_tree"], given)
    return [
        Placed(y, at, o.aval, due)
        for y, at, o, due in zip(outs, layouts, e.outs, dues, strict=True)
    ]


def _letters(texts: Sequence[str], avals: Sequence[Any]) -> list[list[Letter | None]]:
    """The letter of each dimension of each array that may be divided."""
    result = []
    for text, a in zip(texts, avals, strict=True):
        names = text.replace("=", " ").replace("~", " ").split()
        leading = a.ndim - len([n for n in names if n != "..."])
        found: list[Letter | None] = []
        for n in names:
            one = [(n, 0)] if n.isupper() else [None]
            found += [("...", i) for i in range(leading)] if n == "..." else one
        result.append(found)
    return result


def _due(shape: Sequence[int], letters: Sequence[Letter | None], divided: Divided) -> Axes:
    """The axes over which a result is a sum: of the letters that it lacks, or has with length 1."""
    kept = {at for n, at in zip(shape, letters) if n > 1}
    return tuple([n for at, axes in divided.items() if at not in kept for n in axes])


# ---- the mean of the cross-entropies of rows ----

_OF_MEANS = ("linear_cross_entropy", "linear_cross_entropy_forward")


def _mean_of_rows(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Each device takes the sum over its rows; the mean divides by the rows of all that count.

    Axes that divide the classes and not the rows leave each device its classes, where there are
    more of these than rows, and the gradient of the rows is a sum over them. Otherwise they divide
    the rows further, as do axes that divide nothing: the weight is gathered, every device has as
    many rows to do, and none does them twice."""
    for x in operands:
        if x.due:
            settle(x)
    x, weight, labels = operands
    given = x.layout
    static = dict(e.params["static"])
    rows = max(x.layout[0], labels.layout[0], key=lambda a: parts(mesh, a) if a else 0)
    classes = tuple([n for n in weight.layout[0] if n not in rows])
    if x.aval.shape[0] // parts(mesh, rows) > weight.aval.shape[0]:
        classes = ()
    idle = [n for n in mesh.axes if not any(n in typeof(y.part).varying for y in operands)]
    for n in (n for axes in (*weight.layout, *x.layout[1:], idle) for n in axes):
        taken = n in rows or n in classes
        if not taken and x.aval.shape[0] % parts(mesh, (*rows, n)) == 0:
            rows = (*rows, n)
    x, labels = moved(x, mesh, (rows, ())), moved(labels, mesh, (rows,))
    weight = moved(weight, mesh, (classes, ()))
    layouts: list[Layout] = [(), (rows, ()), (classes, ())]
    dues = [rows, classes, rows]
    count = len(e.outs)
    xs = [x, weight, labels]
    outs = _called(e, xs, layouts[:count], dues[:count], of_parts=classes, reduction="sum")
    if not classes:
        # What follows is computed by the classes' axes otherwise.
        outs[1:2] = [moved(dx, mesh, given) for dx in outs[1:2]]
    if static["reduction"] == "sum":
        return outs
    ignored = static["ignore_index"]
    share: Any = 1.0 / max(x.aval.shape[0], 1)
    if ignored is not None:
        kind = e.outs[0].aval.dtype
        counted = ops.convert(ops.ne(labels.part, ignored), kind)
        share = ops.div(1.0, ops.max(psum(reduce_sum(counted, (0,)), rows), 1.0))
    for o in outs:
        o.part = _times(o.part, share)
    return outs


def _times(x: Any, share: Any) -> Any:
    if isinstance(share, float):
        return ops.mul(x, share)
    share = ops.convert(share, typeof(x).dtype)
    return ops.mul(x, broadcast_in_dim(share, typeof(x).shape, ()))
