"""What a device's part of a program knows of the other parts: the axes of the mesh, and along which
of them a value may differ between devices (`Aval.varying`).

An operation takes operands that vary over the same axes: `match` casts those that vary over fewer
(`pvary`). The transpose of that cast is a sum over the axis, so that the gradient of a value that
all devices share is the sum of what each contributes, wherever it is used.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.errors import ShardingError
from genesis_fn.core.jaxpr import Jaxpr, e_jaxprs
from genesis_fn.core.primitive import SCALARS, NamedAxis, Primitive, ctx, typeof
from genesis_fn.core.sharding.mesh import Mesh, MeshAxis
from genesis_fn.primitives.factories import varying_as
from genesis_fn.transforms.batching.collectives import pvary_p


class on_mesh:
    """`with on_mesh(mesh, names):` the program of one device is being made: collectives refer to
    the axes, and values are typed by what they vary over. Unless `checked`, the results of
    reductions are typed as if they varied."""

    __slots__ = ("axes", "before")

    def __init__(
        self, mesh: Mesh, names: Sequence[Hashable] | None = None, checked: bool = True
    ) -> None:
        self.axes = tuple(
            [
                NamedAxis(n, axis.size, axis, checked)
                for n, axis in mesh.axes.items()
                if names is None or n in names
            ]
        )

    def __enter__(self) -> None:
        self.before = ctx.axes, ctx.match
        ctx.axes, ctx.match = self.axes, match

    def __exit__(self, *exc: Any) -> None:
        ctx.axes, ctx.match = self.before


def match(prim: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Sequence[Any] | None:
    """The operands of an operation, varying over the same axes; over those that a program takes
    them to vary over; and over the axis of a collective. None for a cast that changes nothing."""
    if prim.takes is not None:
        kinds = prim.takes(**params)
        if kinds is None:
            return args
        return [
            x if k is None or not k.varying or type(x) in SCALARS else varying_as(x, k)
            for x, k in zip(args, kinds, strict=True)
        ]
    if prim.collective:
        axis = params["axis_name"]
        if not args or type(axis) is not MeshAxis:
            return args
        kind = typeof(args[0])
        if prim is pvary_p:
            return None if axis.name in kind.varying else args
        return (varying_as(args[0], kind.update(varying=kind.varying | {axis.name})),)
    return matched(args)


def matched(xs: Sequence[Any]) -> Any:
    """Values that vary over the same axes."""
    kinds = {typeof(x).varying for x in xs if type(x) not in SCALARS}
    if len(kinds) <= 1:
        return xs
    union = frozenset().union(*kinds)
    return [x if type(x) in SCALARS else varying_as(x, typeof(x).update(varying=union)) for x in xs]


def check_in_step(predicate: Aval, programs: Sequence[Jaxpr], what: str) -> None:
    """Raise ShardingError if programs that devices run or not, as a predicate says that differs
    between them, communicate along the axes over which it does: they would wait for ever. Where
    types are not checked, they do not say so."""
    differs = predicate.varying - {a.name for a in ctx.axes if not a.checked}
    if not differs:
        return
    for axis, line in _communication(programs):
        if axis.name in differs:
            raise ShardingError(
                f"{what}: devices along {axis.name!r} may decide differently ({predicate}), and "
                f"would then wait for each other in a collective over {axis.name!r} for ever\n"
                f"  at {line.describe() if line else 'an unknown line'}\n"
                f"  decide alike (lax.pmax of the predicate over {axis.name!r}), or communicate "
                "outside"
            )


def _communication(programs: Sequence[Jaxpr]) -> Iterator[tuple[MeshAxis, Any]]:
    for program in programs:
        for e in program.eqns:
            axis = e.params.get("axis_name") if e.prim.collective else None
            if type(axis) is MeshAxis and e.prim.lowering is None and e.ins:
                yield axis, e.where
            yield from _communication(list(e_jaxprs(e)))
