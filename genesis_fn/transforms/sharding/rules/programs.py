"""Operations that run programs, and `shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.layout import parts
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.transforms.autodiff.checkpointing import checkpoint_p
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.custom_call import custom_call_p
from genesis_fn.transforms.sharding.constraint import sharding_constraint_p
from genesis_fn.transforms.sharding.meshes import mesh_of
from genesis_fn.transforms.sharding.partitioner import (
    Dues,
    Placed,
    local,
    moved,
    partition,
    partitions,
    placed,
    run,
    settle,
    unsettled,
    whole,
)
from genesis_fn.transforms.sharding.rules.elementwise import on_the_first
from genesis_fn.transforms.sharding.shard_mapping import Layouts, shard_map_p
from genesis_fn.transforms.staging.call import jit_p, region_p, wide_p
from genesis_fn.transforms.staging.stage_trace import evaluate


@partitions(sharding_constraint_p, puts_off=True)
def _constraint(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    sharding = e.params["sharding"]
    return [moved(operands[0], mesh, sharding.over(operands[0].aval.ndim))]


@partitions(shard_map_p)
def _parts_program(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    p = e.params
    if len(p["manual"]) < len(mesh.axis_names):
        return _partly(mesh, e, operands)
    xs = [moved(x, mesh, at).part for x, at in zip(operands, p["in_layouts"], strict=True)]
    outs = evaluate(p["jaxpr"], *xs)
    return placed(outs, e, p["out_layouts"])


def _partly(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A function that computes over some axes itself is partitioned over the others. Its parts are
    whole in that, and may be divided further."""
    p = e.params
    own, inner = frozenset(p["manual"]), p["jaxpr"]
    given = []
    for x, at, v in zip(operands, p["in_layouts"], inner.invars, strict=True):
        rest = tuple([tuple([n for n in axes if n not in own]) for axes in x.layout])
        rest = tuple(
            [axes if n % parts(mesh, axes) == 0 else () for n, axes in zip(v.aval.shape, rest)]
        )
        both = tuple([(*a, *b) for a, b in zip(at, rest)])
        given.append(Placed(moved(x, mesh, both).part, rest, v.aval))
    outs = run(inner, mesh, given)
    for o in outs:
        if o.due:
            settle(o)
    layouts = [
        tuple([(*a, *b) for a, b in zip(at, o.layout)])
        for at, o in zip(p["out_layouts"], outs, strict=True)
    ]
    return placed([o.part for o in outs], e, layouts)


@partitions(jit_p, region_p, wide_p, puts_off=True)
def _call(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    return run(e.params["jaxpr"], mesh, operands)


@partitions(custom_call_p, puts_off=True)
def _custom(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Its program is partitioned; backends take a call of one on whole operands as it is."""
    return as_program(mesh, e, operands)


def as_program(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A call of the program `jaxpr`: as it is of whole operands, else what it consists of."""
    whole_ones = all(x.is_whole and not x.due for x in operands)
    if whole_ones and mesh_of(e.params["jaxpr"]) is None:
        outs = bind(e.prim, *map(local, operands), **e.params)
        return placed(outs, e, [((),) * o.aval.ndim for o in e.outs])
    return run(e.params["jaxpr"], mesh, operands)


@partitions(checkpoint_p)
def _checkpoint(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    ins = tuple([x.layout for x in operands])
    program, layouts, dues = unsettled(e.params["jaxpr"], mesh, ins, (None,) * len(e.outs))
    outs = bind(e.prim, *map(local, operands), **{**e.params, "jaxpr": program})
    return [
        Placed(y, at, o.aval, due)
        for y, at, o, due in zip(outs, layouts, e.outs, dues, strict=True)
    ]


@partitions(scan_p, puts_off=True)
def _scan(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Slices of xs have the layout of xs without its first dimension, which every device steps
    through. The sum of a carry that is only added to is due when the loop ends."""
    p = e.params
    a, b = p["consts"], p["consts"] + p["carry"]
    xs = [x if i < b else moved(x, mesh, ((), *x.layout[1:])) for i, x in enumerate(operands)]
    for x in xs:
        if x.due:
            settle(x)
    own, steps = [x.layout for x in xs[:a]], [x.layout[1:] for x in xs[b:]]
    none: Dues = ((),) * p["carry"]
    free = (None,) * len(e.outs)

    def body(carry: Layouts, dues: Dues, outs: Any) -> tuple[Jaxpr, Layouts, Dues]:
        owing = (*[()] * a, *dues, *[()] * len(steps))
        return unsettled(p["jaxpr"], mesh, (*own, *carry, *steps), outs, False, owing)

    carry = _carried(lambda at: body(at, none, free)[:2], tuple([x.layout for x in xs[a:b]]))
    axes = {n for at in (*own, *carry, *steps) for names in at for n in names}
    kinds = [v.aval for v in p["jaxpr"].invars[a:b]]
    dues = _only_added_to(lambda d: body(carry, d, free)[1:], carry, kinds, axes)
    wanted = tuple([None if due else at for at, due in zip(carry, dues)])
    program, layouts, found = body(carry, dues, (*wanted, *free[len(carry) :]))
    xs[a:b] = [moved(x, mesh, at) for x, at in zip(xs[a:b], carry)]
    parts_of = list(map(local, xs))
    parts_of[a:b] = [on_the_first(x, due) for x, due in zip(parts_of[a:b], dues)]
    outs = bind(e.prim, *parts_of, **{**p, "jaxpr": program})
    stacked = [at if i < len(carry) else ((), *at) for i, at in enumerate(layouts)]
    return [
        Placed(y, at, o.aval, due)
        for y, at, o, due in zip(outs, stacked, e.outs, found, strict=True)
    ]


def _only_added_to(
    body: Callable[[Dues], tuple[Layouts, Dues]],
    carry: Layouts,
    kinds: Sequence[Aval],
    axes: set[Hashable],
) -> Dues:
    """Of each carry, the axes over which its sum may be due from step to step: those, but what
    divides it, if a step to which it is due gives it due, since it only adds to it."""
    wide = [dtypes.is_inexact(k.dtype) and k.dtype.itemsize >= 4 for k in kinds]
    divides = [{n for names in at for n in names} for at in carry]
    dues = tuple(
        [tuple(sorted(axes - d, key=str)) if w else () for d, w in zip(divides, wide, strict=True)]
    )
    while any(dues):
        layouts, after = body(dues)
        kept = tuple(
            [
                due if set(due) == set(then) and at == now else ()
                for due, then, at, now in zip(dues, after, carry, layouts)
            ]
        )
        if kept == dues:
            break
        dues = kept
    return dues


def _carried(body: Callable[[Layouts], tuple[Jaxpr, Layouts]], carry: Layouts) -> Layouts:
    """The layouts that a carry keeps: those that it begins with, but what is whole first, as zeros
    are, and divided after a step, is divided from the start."""
    while True:
        after = body(carry)[1]
        grown = tuple([at if any(at) else new for at, new in zip(carry, after)])
        if grown == carry:
            return carry
        carry = grown


@partitions(while_p)
def _while(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Every device takes as many steps."""
    p = e.params
    a, b = p["cond_consts"], p["cond_consts"] + p["body_consts"]
    layouts = tuple([x.layout for x in operands])
    test, own, carry = layouts[:a], layouts[a:b], layouts[b:]
    any_layout = (None,) * len(e.outs)
    carry = _carried(lambda c: unsettled(p["body"], mesh, (*own, *c), any_layout)[:2], carry)
    body = partition(p["body"], mesh, (*own, *carry), carry)[0]
    cond = partition(p["cond"], mesh, (*test, *carry), ((),))[0]
    xs = [*operands[:b], *[moved(x, mesh, at) for x, at in zip(operands[b:], carry)]]
    outs = bind(e.prim, *map(local, xs), **{**p, "cond": cond, "body": body})
    return placed(outs, e, carry)


@partitions(cond_p, puts_off=True)
def _cond(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Every device takes the same branch; a result is divided as it is in the first branch that
    divides it. A sum that is due stays so if it is due in every branch."""
    branches = e.params["branches"]
    returned = {i for b in branches for i in _returned(b)}
    for i, x in enumerate(operands):
        if x.due and i - 1 not in returned:
            settle(x)
    index, *xs = [whole(operands[0], mesh), *operands[1:]]
    ins, owing = tuple([x.layout for x in xs]), tuple([x.due for x in xs])
    found = [unsettled(b, mesh, ins, (None,) * len(e.outs), False, owing)[1:] for b in branches]
    each = list(zip(*[layouts for layouts, _ in found]))
    layouts = tuple([next((at for at in choices if any(at)), choices[0]) for choices in each])
    alike = [len({*map(frozenset, dues)}) == 1 for dues in zip(*[dues for _, dues in found])]
    wanted = tuple(
        [
            None if same and len({*choices}) == 1 else at
            for same, choices, at in zip(alike, each, layouts)
        ]
    )
    made = [unsettled(b, mesh, ins, wanted, False, owing) for b in branches]
    outs = bind(e.prim, index.part, *map(local, xs), branches=tuple([m[0] for m in made]))
    return [
        Placed(y, at, o.aval, due)
        for y, at, o, due in zip(outs, layouts, e.outs, made[0][2], strict=True)
    ]


def _returned(branch: Jaxpr) -> list[int]:
    """The operands that a branch returns as they are."""
    return [i for i, v in enumerate(branch.invars) if v in branch.outs]
