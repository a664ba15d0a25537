"""From a program on whole arrays to the program of one device on its parts of them.

`partition` runs a program on parts: each value is a part and the layout that says what of the whole
it is. A primitive's rule says which layouts of its operands it can compute with, and what that gives;
one without a rule computes on whole operands, on every device. So any program is right on any mesh,
and costs communication where there is no rule. Functions under `shard_map` are parts' programs
already: they are called with their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, jaxprs_in, memoized
from genesis_fn.core.primitive import Primitive, bind, ctx, typeof
from genesis_fn.core.sharding.layout import Layout, part_of, part_shape, parts
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.elementwise import select_p, stop_gradient_p
from genesis_fn.primitives.indexing.indexing import dynamic_slice_in_dim
from genesis_fn.primitives.reductions.reduce import reduce_max_p, reduce_min_p, reduce_sum_p
from genesis_fn.primitives.shape import (
    barrier_p,
    broadcast_in_dim_p,
    reshape_p,
    transpose_p,
)
from genesis_fn.transforms.autodiff.checkpointing import checkpoint_p, name_p
from genesis_fn.transforms.batching.collectives import (
    all_gather_invariant,
    all_to_all,
    axis_index,
    pmax,
    pmin,
    psum,
)
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.custom.custom_call import custom_call_p
from genesis_fn.transforms.custom.fused_functions import fused_p
from genesis_fn.transforms.sharding.constraint import sharding_constraint_p
from genesis_fn.transforms.sharding.meshes import mesh_of
from genesis_fn.transforms.sharding.shard_map import Layouts, shard_map_p
from genesis_fn.transforms.sharding.varying import on_mesh
from genesis_fn.transforms.staging.call import jit_p, region_p, wide_p
from genesis_fn.transforms.staging.stage_trace import evaluate, stage_closed


@dataclass(slots=True)
class Placed:
    """A whole value `aval` as this device has it: `part` of it, by `layout`."""

    part: Any
    layout: Layout
    aval: Aval

    @property
    def is_whole(self) -> bool:
        """Whether every device has all of it."""
        return not any(self.layout)


# `rule(mesh, eqn, operands) -> results`; operands are Placed, or Python scalars.
Rule = Callable[[Mesh, Eqn, list[Any]], list[Placed]]
RULES: dict[Primitive, Rule] = {}
R = TypeVar("R", bound=Rule)


def partitions(*prims: Primitive) -> Callable[[R], R]:
    """Decorator: the rule of these primitives."""

    def register(rule: R) -> R:
        RULES.update(dict.fromkeys(prims, rule))
        return rule

    return register


@memoized
def partition(
    jaxpr: Jaxpr, mesh: Mesh, in_layouts: Layouts, out_layouts: tuple[Layout | None, ...]
) -> tuple[Jaxpr, Layouts]:
    """(the program of a part, layouts of its results), for operands laid out so. `out_layouts` are
    those that results must have; None for any."""
    made: list[Layouts] = []

    def f(*xs: Any) -> list[Any]:
        given = [
            Placed(x, at, v.aval) for x, at, v in zip(xs, in_layouts, jaxpr.invars, strict=True)
        ]
        outs = run(jaxpr, mesh, given)
        outs = [
            o if at is None else moved(o, mesh, at) for o, at in zip(outs, out_layouts, strict=True)
        ]
        made.append(tuple([o.layout for o in outs]))
        return [o.part for o in outs]

    avals = [part_of(v.aval, mesh, at) for v, at in zip(jaxpr.invars, in_layouts, strict=True)]
    with on_mesh(mesh):
        program = stage_closed(f, avals, jaxpr.name)
    return program, made[-1]


def run(jaxpr: Jaxpr, mesh: Mesh, given: Sequence[Placed]) -> list[Placed]:
    """The results of a program, as this device has them, under the current trace."""
    env: dict[Var, Placed] = dict(zip(jaxpr.invars, given, strict=True))
    before = ctx.line
    try:
        for e in jaxpr.eqns:
            ctx.line = e.where
            operands = [env[i] if type(i) is Var else i for i in e.ins]
            backward, ctx.backward = ctx.backward, ctx.backward or e.backward
            try:
                outs = _rule_of(e, operands)(mesh, e, operands)
            finally:
                ctx.backward = backward
            env.update(zip(e.outs, outs, strict=True))
    finally:
        ctx.line = before
    return [env[o] for o in jaxpr.outs]


def _rule_of(e: Eqn, operands: list[Any]) -> Rule:
    found = RULES.get(e.prim)
    if found is not None:
        return found
    placed = [x for x in operands if type(x) is Placed]
    if type(e.prim.lowering) is Elementwise and any(not x.is_whole for x in placed):
        return _elementwise
    return _whole


# ---- layouts ----


def moved(x: Placed, mesh: Mesh, layout: Layout) -> Placed:
    """`x` laid out otherwise: what is divided otherwise is gathered first, then divided."""
    if x.layout == layout:
        return x
    part, now = x.part, list(x.layout)
    for i, (have, want) in enumerate(zip(x.layout, layout)):
        kept = _common(have, want)
        for name in reversed(have[len(kept) :]):
            part, now = _undivided(part, now, layout, i, name, mesh)
    for i, want in enumerate(layout):
        have = now[i]
        extra = want[len(have) :]
        if extra:
            count = parts(mesh, extra)
            size = typeof(part).shape[i] // count
            start = axis_index(extra) * size
            part = dynamic_slice_in_dim(part, start, size, i, allow_negative_indices=False)
            now[i] = want
    return Placed(part, layout, x.aval)


def _common(have: tuple[Hashable, ...], want: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """The axes at the front that both have."""
    n = 0
    while n < min(len(have), len(want)) and have[n] == want[n]:
        n += 1
    return have[:n]


def _undivided(
    part: Any, now: list[Any], wanted: Layout, i: int, name: Hashable, mesh: Mesh
) -> tuple[Any, list[Any]]:
    """Dimension `i` without its last axis: exchanged for a division of the dimension that wants the
    axis next, or gathered."""
    now[i] = now[i][:-1]
    size = mesh.shape[name]
    for j, want in enumerate(wanted):
        next_axis = want[len(now[j]) : len(now[j]) + 1]
        settled = j != i and want[: len(now[j])] == now[j]
        if settled and next_axis == (name,) and typeof(part).shape[j] % size == 0:
            now[j] = (*now[j], name)
            return all_to_all(part, name, j, i, tiled=True), now
    return all_gather_invariant(part, name, axis=i, tiled=True), now


def whole(x: Placed, mesh: Mesh) -> Placed:
    """`x`, all of it on every device."""
    return moved(x, mesh, ((),) * x.aval.ndim)


def _local(x: Any) -> Any:
    return x.part if type(x) is Placed else x


def _placed(part: Any, e: Eqn, layouts: Sequence[Layout]) -> list[Placed]:
    found = part if e.prim.multi else [part]
    return [
        Placed(p, at, o.aval) for p, at, o in zip(found, layouts, e.outs, strict=True)
    ]


# ---- rules ----


def _whole(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """On every device: whole operands, whole results. Programs among the parameters are made
    programs of whole values, whatever they do inside."""
    xs = [_local(whole(x, mesh)) if type(x) is Placed else x for x in operands]
    params = e.params
    if any(True for _ in jaxprs_in(params)):
        params = {k: _on_whole(v, mesh) for k, v in params.items()}
    outs = bind(e.prim, *xs, **params)
    return _placed(outs, e, [((),) * o.aval.ndim for o in e.outs])


def _on_whole(value: Any, mesh: Mesh) -> Any:
    if type(value) is Jaxpr:
        ins = tuple([((),) * v.aval.ndim for v in value.invars])
        outs = tuple([((),) * v.aval.ndim for v in value.outs])
        program = partition(value, mesh, ins, outs)[0]
        program.cache.update({k: v for k, v in value.cache.items() if type(k) is str})
        return program
    if type(value) is tuple and any(type(v) is Jaxpr for v in value):
        return tuple([_on_whole(v, mesh) for v in value])
    return value


def _most_divided(mesh: Mesh, xs: Sequence[Placed]) -> Layout:
    """The layout in which most is divided: its parts are smallest."""
    # Over axes of length 1 too, which divide nothing but are part of the layout.
    return max(
        [x.layout for x in xs],
        key=lambda at: (parts(mesh, [n for axes in at for n in axes]), sum(map(len, at))),
    )


@partitions(select_p, stop_gradient_p, name_p)
def _elementwise(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    shape = e.outs[0].aval.shape
    layout = _most_divided(
        mesh, [x for x in operands if type(x) is Placed and x.aval.shape == shape]
    )
    xs = []
    for x in operands:
        if type(x) is Placed:
            x = moved(x, mesh, layout) if x.aval.shape == shape else whole(x, mesh)
        xs.append(_local(x))
    return _placed(bind(e.prim, *xs, **e.params), e, [layout])


@partitions(barrier_p)
def _each_as_it_is(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    outs = bind(e.prim, *map(_local, operands), **e.params)
    return _placed(outs, e, [x.layout for x in operands])


@partitions(transpose_p)
def _transpose(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    (x,) = operands
    layout = tuple([x.layout[i] for i in e.params["permutation"]])
    return _placed(bind(e.prim, x.part, **e.params), e, [layout])


@partitions(broadcast_in_dim_p)
def _broadcast(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    (x,) = operands
    shape, dims = e.params["shape"], e.params["dims"]
    layout: list[Any] = [()] * len(shape)
    for i, d in enumerate(dims):
        layout[d] = x.layout[i] if x.aval.shape[i] == shape[d] else ()
    kept = tuple([layout[d] for d in dims])
    x = moved(x, mesh, kept)
    part = bind(e.prim, x.part, shape=part_shape(shape, mesh, tuple(layout)), dims=dims)
    return _placed(part, e, [tuple(layout)])


@partitions(reshape_p)
def _reshape(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A dimension stays divided where it is the first of those that it is merged or split into."""
    (x,) = operands
    old, new = x.aval.shape, e.outs[0].aval.shape
    kept: list[Any] = [()] * len(old)
    layout: list[Any] = [()] * len(new)
    for olds, news in _groups(old, new):
        axes = x.layout[olds[0]] if olds else ()
        if axes and news and not new[news[0]] % parts(mesh, axes):
            kept[olds[0]], layout[news[0]] = axes, axes
    x = moved(x, mesh, tuple(kept))
    part = bind(e.prim, x.part, shape=part_shape(new, mesh, tuple(layout)))
    return _placed(part, e, [tuple(layout)])


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The dimensions before and after a reshape, in groups of equal size that follow each other;
    dimensions of length 1 stay out of the front of a group."""
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        olds, news, a, b = [], [], 1, 1
        while i < len(old) and old[i] == 1:
            i += 1
        while j < len(new) and new[j] == 1:
            j += 1
        if i == len(old) or j == len(new):
            break
        olds.append(i)
        news.append(j)
        a, b, i, j = old[i], new[j], i + 1, j + 1
        while a != b:
            if a < b and i < len(old):
                olds.append(i)
                a, i = a * old[i], i + 1
            elif j < len(new):
                news.append(j)
                b, j = b * new[j], j + 1
            else:
                return groups
        groups.append((olds, news))
    return groups


_COMBINED = {reduce_sum_p: psum, reduce_max_p: pmax, reduce_min_p: pmin}


@partitions(*_COMBINED)
def _reduce(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Parts are reduced, then combined over the axes that divide a reduced dimension."""
    (x,), axes = operands, e.params["axes"]
    names = [n for i in axes for n in x.layout[i]]
    layout = tuple([at for i, at in enumerate(x.layout) if i not in axes])
    part = bind(e.prim, x.part, **e.params)
    if names:
        part = _COMBINED[e.prim](part, tuple(names))
    return _placed(part, e, [layout])


@partitions(dot_general_p)
def _dot(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Batch and contracted dimensions must be divided alike in both operands; sums over the parts
    of a contracted dimension are added up."""
    x, y = operands
    (xc, yc), (xb, yb) = e.params["dimension_numbers"]
    x_layout, y_layout = list(x.layout), list(y.layout)
    for i, j in (*zip(xb, yb), *zip(xc, yc)):
        # The operand whose dimension is divided by more decides; the other one is divided so too.
        axes = max(x_layout[i], y_layout[j], key=lambda a: parts(mesh, a) if a else 0)
        taken = {n for k, at in enumerate(y_layout) if k != j for n in at}
        taken |= {n for k, at in enumerate(x_layout) if k != i for n in at}
        x_layout[i] = y_layout[j] = () if taken & set(axes) else axes
    x_free = [i for i in range(x.aval.ndim) if i not in (*xc, *xb)]
    y_free = [i for i in range(y.aval.ndim) if i not in (*yc, *yb)]
    used = {n for i in x_free for n in x_layout[i]}
    for j in y_free:  # an axis divides one dimension of the result
        if used & set(y_layout[j]):
            y_layout[j] = ()
    x, y = moved(x, mesh, tuple(x_layout)), moved(y, mesh, tuple(y_layout))
    part = bind(e.prim, x.part, y.part, **e.params)
    names = tuple([n for i in xc for n in x_layout[i]])
    if names:
        part = psum(part, names)
    layout = [x_layout[i] for i in (*xb, *x_free)] + [y_layout[j] for j in y_free]
    return _placed(part, e, [tuple(layout)])


@partitions(sharding_constraint_p)
def _constraint(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    sharding = e.params["sharding"]
    return [moved(operands[0], mesh, sharding.over(operands[0].aval.ndim))]


@partitions(shard_map_p)
def _parts_program(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    p = e.params
    xs = [moved(x, mesh, at).part for x, at in zip(operands, p["in_layouts"], strict=True)]
    line = ctx.line
    outs = evaluate(p["jaxpr"], *xs)
    ctx.line = line
    return _placed(outs, e, p["out_layouts"])


@partitions(jit_p, region_p, wide_p)
def _call(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    return run(e.params["jaxpr"], mesh, operands)


@partitions(custom_call_p, fused_p)
def _custom(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Of whole operands the function is called as it is; else its program is partitioned."""
    if all(x.is_whole for x in operands) and mesh_of(e.params["jaxpr"]) is None:
        return _placed(
            bind(e.prim, *map(_local, operands), **e.params),
            e,
            [((),) * o.aval.ndim for o in e.outs],
        )
    return run(e.params["jaxpr"], mesh, operands)


@partitions(checkpoint_p)
def _checkpoint(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    ins = tuple([x.layout for x in operands])
    program, layouts = partition(e.params["jaxpr"], mesh, ins, (None,) * len(e.outs))
    outs = bind(e.prim, *map(_local, operands), **{**e.params, "jaxpr": program})
    return _placed(outs, e, layouts)


@partitions(scan_p)
def _scan(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """The carry keeps the layout that it begins with; slices of xs have that of xs without its
    first dimension, which every device steps through."""
    p = e.params
    steps = p["consts"] + p["carry"]
    xs = [
        x if i < steps else moved(x, mesh, ((), *x.layout[1:])) for i, x in enumerate(operands)
    ]
    ins = tuple([x.layout if i < steps else x.layout[1:] for i, x in enumerate(xs)])
    kept = ins[p["consts"] : steps]
    wanted = (*kept, *(None,) * (len(e.outs) - len(kept)))
    program, layouts = partition(p["jaxpr"], mesh, ins, wanted)
    outs = bind(e.prim, *map(_local, xs), **{**p, "jaxpr": program})
    stacked = [at if i < len(kept) else ((), *at) for i, at in enumerate(layouts)]
    return _placed(outs, e, stacked)


@partitions(cond_p)
def _cond(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Every device takes the same branch; the first branch decides how results are laid out."""
    index, *xs = [whole(operands[0], mesh), *operands[1:]]
    ins, branches = tuple([x.layout for x in xs]), e.params["branches"]
    _, layouts = partition(branches[0], mesh, ins, (None,) * len(e.outs))
    programs = tuple([partition(b, mesh, ins, layouts)[0] for b in branches])
    outs = bind(e.prim, index.part, *map(_local, xs), branches=programs)
    return _placed(outs, e, layouts)
