"""From a program on whole arrays to the program of one device on its parts of them.

`partition` runs a program on parts: a value is a part, and the layout that says what of the whole
it is. A primitive's rule says which layouts of its operands it computes with, and what that gives;
one without a rule computes on whole operands, on every device. So any program is right on any mesh,
and costs communication where there is no rule. Functions under `shard_map` are parts' programs
already: they are called with their parts.

The sum over the parts of a contracted dimension is put off until its result is used: where the user
divides it over that axis, it is a `psum_scatter` and not a `psum`. That is how gradients of divided
parameters are reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from genesis_fn.core.aval import Aval
from genesis_fn.core.configuration import config
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, jaxprs_in, memoized
from genesis_fn.core.primitive import Primitive, bind, ctx, typeof
from genesis_fn.core.sharding.layout import Layout, part_of, parts
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives.indexing.indexing import dynamic_slice_in_dim
from genesis_fn.transforms.batching.collectives import (
    all_gather_invariant,
    axis_index,
    psum,
    psum_scatter,
)
from genesis_fn.transforms.batching.exchanges import all_to_all
from genesis_fn.transforms.sharding.shard_mapping import Layouts
from genesis_fn.transforms.sharding.varying import on_mesh
from genesis_fn.transforms.staging.stage_trace import stage_closed


@dataclass(slots=True)
class Placed:
    """A whole value `aval` as this device has it: `part` of it, by `layout`; the sum over the axes
    `due` is still to be taken.

    `remade(layout)` makes the value anew, laid out so or nearly so, for less than what moving it
    costs, or is None: a broadcast is made of its operand again. `part` is dead code then.

    `moves` has the value as it was laid out otherwise in the backward pass: where activations are
    recomputed, weights are gathered once for that and the derivative."""

    part: Any
    layout: Layout
    aval: Aval
    due: tuple[Hashable, ...] = ()
    remade: Callable[[Layout], Placed | None] | None = None
    moves: dict[Layout, Placed] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether every device has all of it."""
        return not any(self.layout)


Dues = tuple[tuple[Hashable, ...], ...]  # of each value, the axes over which its sum is due
# `rule(mesh, eqn, operands) -> results`; operands are Placed, or Python scalars.
Rule = Callable[[Mesh, Eqn, list[Any]], list[Placed]]
RULES: dict[Primitive, Rule] = {}
# The rule of primitives that have none of their own, by the type of their `lowering`.
BY_LOWERING: dict[type, Rule] = {}
# Primitives whose rules take operands of which a sum is due.
PUTS_OFF: set[Primitive] = set()
R = TypeVar("R", bound=Rule)


def partitions(*prims: Primitive, puts_off: bool = False) -> Callable[[R], R]:
    """Decorator: the rule of these primitives. With `puts_off` it takes operands of which a sum is
    due."""

    def register(rule: R) -> R:
        RULES.update(dict.fromkeys(prims, rule))
        PUTS_OFF.update(prims if puts_off else ())
        return rule

    return register


@memoized
def partition(
    jaxpr: Jaxpr, mesh: Mesh, in_layouts: Layouts, out_layouts: tuple[Layout | None, ...]
) -> tuple[Jaxpr, Layouts]:
    """(the program of a part, layouts of its results), for operands laid out so. `out_layouts` are
    those that results must have; None for any."""
    program, layouts, _ = unsettled(jaxpr, mesh, in_layouts, out_layouts, True)
    return program, layouts


@memoized
def unsettled(
    jaxpr: Jaxpr,
    mesh: Mesh,
    in_layouts: Layouts,
    out_layouts: tuple[Layout | None, ...],
    settles: bool = False,
    in_dues: Dues | None = None,
) -> tuple[Jaxpr, Layouts, Dues]:
    """`partition`, and over which axes sums of the results are due, for operands of which they are
    due over `in_dues`. Where `settles`, or the layout of a result is given, there are none."""
    made: list[Any] = []
    owing = in_dues or ((),) * len(in_layouts)

    def f(*xs: Any) -> list[Any]:
        given = [
            Placed(x, at, v.aval, due)
            for x, at, v, due in zip(xs, in_layouts, jaxpr.invars, owing, strict=True)
        ]
        outs = run(jaxpr, mesh, given)
        outs = [
            o if at is None and not settles else moved(o, mesh, o.layout if at is None else at)
            for o, at in zip(outs, out_layouts, strict=True)
        ]
        made.append((tuple([o.layout for o in outs]), tuple([o.due for o in outs])))
        return [o.part for o in outs]

    avals = [part_of(v.aval, mesh, at) for v, at in zip(jaxpr.invars, in_layouts, strict=True)]
    with on_mesh(mesh):
        program = stage_closed(f, avals, jaxpr.name)
    return program, *made[-1]


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
                if e.prim not in PUTS_OFF:
                    for x in operands:
                        if type(x) is Placed and x.due:
                            settle(x)
                with config.computing(e.numerics):
                    outs = _rule_of(e)(mesh, e, operands)
            finally:
                ctx.backward = backward
            env.update(zip(e.outs, outs, strict=True))
    finally:
        ctx.line = before
    return [env[o] for o in jaxpr.outs]


def _rule_of(e: Eqn) -> Rule:
    return RULES.get(e.prim) or BY_LOWERING.get(type(e.prim.lowering)) or on_every_device


# ---- layouts ----


def settle(x: Placed) -> None:
    """Take the sum that is due, for this use and all that follow."""
    x.part, x.due, x.remade = psum(x.part, x.due), (), None


def moved(x: Placed, mesh: Mesh, layout: Layout) -> Placed:
    """`x` laid out otherwise: what is divided otherwise is gathered first, then divided. A sum that
    is due is taken, once, of the part alone that is wanted first."""
    given = x
    if x.remade is not None and x.layout != layout:
        x = x.remade(layout) or x
    if x.due:
        x = _summed(x, mesh, layout)
        given.part, given.layout, given.due, given.remade = x.part, x.layout, (), None
    if x.layout == layout:
        return x
    if ctx.backward:
        if layout not in x.moves:
            x.moves[layout] = _laid_out(x, mesh, layout)
        return x.moves[layout]
    return _laid_out(x, mesh, layout)


def divided_further(x: Placed, mesh: Mesh, layout: Layout) -> Placed | None:
    """`x` in a layout that divides it further, and due over the axes that this does not divide;
    None where the layout is another. No other axis is asked for anything."""
    if x.layout == layout:
        return x
    if any(want[: len(have)] != have for have, want in zip(x.layout, layout)):
        return None
    names = {n for axes in layout for n in axes}
    scattered = replace(x, due=tuple([n for n in x.due if n in names]), remade=None)
    own = _laid_out(_summed(scattered, mesh, layout), mesh, layout)
    return replace(own, due=tuple([n for n in x.due if n not in names]))


def _laid_out(x: Placed, mesh: Mesh, layout: Layout) -> Placed:
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


def _summed(x: Placed, mesh: Mesh, wanted: Layout) -> Placed:
    part, now = x.part, list(x.layout)
    whole_sums = []
    for name in x.due:
        for i, want in enumerate(wanted):
            kept = now[i] == want[: len(now[i])]
            fits = typeof(part).shape[i] % mesh.shape[name] == 0
            if kept and want[len(now[i]) : len(now[i]) + 1] == (name,) and fits:
                part = psum_scatter(part, name, scatter_dimension=i, tiled=True)
                now[i] = (*now[i], name)
                break
        else:
            whole_sums.append(name)
    if whole_sums:
        part = psum(part, tuple(whole_sums))
    return Placed(part, tuple(now), x.aval)


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


def local(x: Any) -> Any:
    """What operations on parts take for an operand: its part, or the Python number that it is."""
    return x.part if type(x) is Placed else x


def placed(
    part: Any,
    e: Eqn,
    layouts: Sequence[Layout],
    due: tuple[Hashable, ...] = (),
    remade: Callable[[Layout], Placed | None] | None = None,
) -> list[Placed]:
    """The results of an equation, of what its operation gave of parts."""
    found = part if e.prim.multi else [part]
    return [
        Placed(p, at, o.aval, due, remade) for p, at, o in zip(found, layouts, e.outs, strict=True)
    ]


# ---- for rules ----


def on_every_device(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """On every device: whole operands, whole results. Programs among the parameters are made
    programs of whole values, whatever they do inside."""
    xs = [local(whole(x, mesh)) if type(x) is Placed else x for x in operands]
    params = e.params
    if any(True for _ in jaxprs_in(params)):
        params = {k: _of_whole(v, mesh) for k, v in params.items()}
    outs = bind(e.prim, *xs, **params)
    return placed(outs, e, [((),) * o.aval.ndim for o in e.outs])


def _of_whole(value: Any, mesh: Mesh) -> Any:
    if type(value) is Jaxpr:
        ins = tuple([((),) * v.aval.ndim for v in value.invars])
        outs = tuple([((),) * v.aval.ndim for v in value.outs])
        program = partition(value, mesh, ins, outs)[0]
        program.cache.update({k: v for k, v in value.cache.items() if type(k) is str})
        return program
    if type(value) is tuple and any(type(v) is Jaxpr for v in value):
        return tuple([_of_whole(v, mesh) for v in value])
    return value


def most_divided(mesh: Mesh, xs: Sequence[Placed]) -> Layout:
    """The layout in which most is divided: that of the operand whose parts are smallest, divided
    further where others are. What can be made anew for any layout comes last."""

    # Over axes of length 1 too, which divide nothing but are part of the layout.
    def rank(x: Placed) -> tuple[bool, int, int]:
        names = [n for axes in x.layout for n in axes]
        return x.remade is None, parts(mesh, names), len(names)

    first, *rest = sorted(xs, key=rank, reverse=True)
    layout = list(first.layout)
    for x in rest:
        for i, axes in enumerate(x.layout):
            if not layout[i] and not {n for at in layout for n in at} & set(axes):
                layout[i] = axes
    return tuple(layout)
