"""The program of a part as backends take it: without types of what varies, and, where one process
computes for all devices of a mesh, batched over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, memoized
from genesis_fn.core.sharding.layout import Layout
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives.shape import reshape, transpose
from genesis_fn.transforms.batching.batch import vmap_flat
from genesis_fn.transforms.batching.collectives import psum_invariant_p, psum_scatter_p, pvary_p
from genesis_fn.transforms.sharding.shard_mapping import Layouts
from genesis_fn.transforms.staging.stage_trace import evaluate, stage_closed


@memoized
def untyped(jaxpr: Jaxpr) -> Jaxpr:
    """The program with avals that say nothing of what varies, and without the casts of it."""
    of: dict[Var, Var] = {}

    def plain(v: Any) -> Any:
        if type(v) is not Var:
            return v
        if v not in of:
            of[v] = Var(v.aval.update(varying=frozenset()))
        return of[v]

    eqns = []
    for e in jaxpr.eqns:
        if e.prim is pvary_p:
            of[e.outs[0]] = plain(e.ins[0])
            continue
        params = {k: _untyped(v) for k, v in e.params.items()}
        ins, outs = list(map(plain, e.ins)), list(map(plain, e.outs))
        eqns.append(e.replace(ins=ins, params=params, outs=outs))
    program = Jaxpr(
        list(map(plain, jaxpr.invars)), eqns, list(map(plain, jaxpr.outs)), jaxpr.labels, jaxpr.name
    )
    program.cache.update({k: v for k, v in jaxpr.cache.items() if type(k) is str})
    return program


def _untyped(value: Any) -> Any:
    if type(value) is Jaxpr:
        return untyped(value)
    if type(value) is Aval:
        return value.update(varying=frozenset())
    if type(value) is tuple and any(type(v) in (Jaxpr, Aval) for v in value):
        return tuple(map(_untyped, value))
    return value


def batched(
    jaxpr: Jaxpr, mesh: Mesh, wholes: Sequence[Aval], in_layouts: Layouts, out_layouts: Layouts
) -> Jaxpr:
    """The program on whole arrays that computes all parts, as a batch along each axis of the
    mesh."""
    names = mesh.axis_names
    used = lambda layout: [n for n in names if any(n in axes for axes in layout)]
    ins, outs = list(map(used, in_layouts)), list(map(used, out_layouts))

    def along(k: int, *xs: Any) -> list[Any]:
        if k == len(names):
            return evaluate(jaxpr, *xs)
        name = names[k]
        return vmap_flat(
            lambda *ys: along(k + 1, *ys),
            mesh.shape[name],
            xs,
            [0 if name in axes else None for axes in ins],
            lambda _: [0 if name in axes else None for axes in outs],
            mesh.axes[name],
        )

    def program(*xs: Any) -> list[Any]:
        split = [_split(x, mesh, at) for x, at in zip(xs, in_layouts, strict=True)]
        return [_joined(y, mesh, at) for y, at in zip(along(0, *split), out_layouts, strict=True)]

    return stage_closed(program, wholes, jaxpr.name)


def _split(x: Any, mesh: Mesh, layout: Layout) -> Any:
    """A whole array as its parts: a leading dimension for each axis that divides it, in the order
    of the mesh."""
    shape: list[int] = []
    position, rest = {}, []
    for n, axes in zip(x.aval.shape, layout):
        for name in axes:
            position[name] = len(shape)
            shape.append(mesh.shape[name])
            n //= mesh.shape[name]
        rest.append(len(shape))
        shape.append(n)
    if not position:
        return x
    front = [position[n] for n in mesh.axis_names if n in position]
    return transpose(reshape(x, tuple(shape)), (*front, *rest))


def _joined(x: Any, mesh: Mesh, layout: Layout) -> Any:
    """The whole array of parts that `_split` gives."""
    front = [n for n in mesh.axis_names if any(n in axes for axes in layout)]
    if not front:
        return x
    order: list[int] = []
    shape, sizes = x.aval.shape, []
    for d, axes in enumerate(layout):
        at = [front.index(n) for n in axes] + [len(front) + d]
        order += at
        size = 1
        for i in at:
            size *= shape[i]
        sizes.append(size)
    return reshape(transpose(x, tuple(order)), tuple(sizes))


_REDUCTIONS = frozenset((psum_invariant_p, psum_scatter_p))


def reduced_early(jaxpr: Jaxpr) -> Jaxpr:
    """The program in an order in which sums over devices, and what leads to them alone, follow the
    values that they are of: the gradients of a layer are reduced while those of the layer before
    are computed, and their terms are dropped. Derivatives put the sums at the end, where the
    parameters' layout is said."""
    uses: dict[Any, int] = {}
    for v in [*jaxpr.outs, *(i for e in jaxpr.eqns for i in e.ins)]:
        if type(v) is Var:
            uses[v] = uses.get(v, 0) + 1
    leading: set[int] = set()
    producer = {o: e for e in jaxpr.eqns for o in e.outs}
    for e in jaxpr.eqns:
        if e.prim not in _REDUCTIONS:
            continue
        leading.add(id(e))
        at = producer.get(e.ins[0])
        while at is not None and _leads(at) and uses[at.outs[0]] == 1:
            leading.add(id(at))
            at = producer.get(next(i for i in at.ins if type(i) is Var))
    place: dict[Var, int] = {}
    order = []
    for n, e in enumerate(jaxpr.eqns):
        made = [place.get(i, -1) for i in e.ins if type(i) is Var]
        at = max(made, default=n) if id(e) in leading else n
        order.append((at, n))
        place.update(dict.fromkeys(e.outs, at))
    eqns = [jaxpr.eqns[n] for _, n in sorted(order)]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _leads(e: Eqn) -> bool:
    """Whether an equation changes one array, without making it larger than float32 makes it."""
    arrays = [i for i in e.ins if type(i) is Var]
    moves = len(arrays) == len(e.outs) == 1 and e.prim.lowering is not None
    return moves and not e.prim.effect and e.outs[0].aval.size <= arrays[0].aval.size
