"""shard_map: run a function once on every device of a mesh, on that device's parts of the arrays.

The function is staged on avals of parts. The equation holds its program, and how each operand and
result is laid out; to everything around it is an operation on whole arrays. Its rules transform the
program of a part and keep the layouts: a residual that differs between devices becomes a whole
array with one entry for each device along a new first dimension.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from genesis_fn.core import errors, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.diagnostics.traceback import boundary
from genesis_fn.core.jaxpr import Jaxpr, memoized
from genesis_fn.core.primitive import Primitive, bind, ctx, is_linear, typeof
from genesis_fn.core.sharding.layout import (
    Layout,
    PartitionSpec,
    check_shape,
    entries,
    part_of,
    parts,
    spec_of,
)
from genesis_fn.core.sharding.mesh import Mesh, current
from genesis_fn.primitives.factories import filled, varying_as
from genesis_fn.primitives.shape import expand_dims, squeeze
from genesis_fn.transforms.autodiff.linearize import jvp_jaxpr, linearize_jaxpr
from genesis_fn.transforms.autodiff.transpose import transpose_jaxpr
from genesis_fn.transforms.batching.batch import at_front, batch_jaxpr
from genesis_fn.transforms.batching.collectives import assume_invariant_p
from genesis_fn.transforms.keys.key_uses import Uses, user_call, uses
from genesis_fn.transforms.sharding.varying import on_mesh
from genesis_fn.transforms.staging.api_util import FlatFunction, flatten_arrays, labels_of, name_of
from genesis_fn.transforms.staging.dependency import dependent
from genesis_fn.transforms.staging.stage_trace import evaluate, stage, stage_closed

P = ParamSpec("P")
R = TypeVar("R")

Layouts = tuple[Layout, ...]
Names = tuple[Hashable, ...]  # the axes that a function computes over itself


def whole_of(part: Aval, mesh: Mesh, layout: Layout) -> Aval:
    """The aval of the array whose parts have this aval."""
    shape = tuple([n * parts(mesh, axes) for n, axes in zip(part.shape, layout, strict=True)])
    return part.update(shape, varying=frozenset())


def _shape(
    *avals: Aval, jaxpr: Jaxpr, mesh: Mesh, manual: Names, in_layouts: Layouts, out_layouts: Layouts
) -> list[Aval]:
    return [whole_of(a, mesh, at) for a, at in zip(jaxpr.out_avals, out_layouts, strict=True)]


def _stacked(kind: Aval) -> Layout:
    """The layout of values that differ along the axes of `kind.varying`, one entry for each."""
    return (tuple(sorted(kind.varying, key=str)), *((),) * kind.ndim)


@memoized
def _forward(jaxpr: Jaxpr, mesh: Mesh, manual: Names, nonzero: tuple[bool, ...]) -> tuple[Any, ...]:
    """(program that returns residuals stacked, tangent program that takes them so, which outputs
    have a tangent, layouts of the residuals)."""
    count = len(jaxpr.outs)
    with on_mesh(mesh, manual):
        forward, tangent, nonzero_outs, _ = linearize_jaxpr(jaxpr, nonzero, (False,) * count)
        kinds = forward.out_avals[count:]

        def stacking(*xs: Any) -> list[Any]:
            outs = evaluate(forward, *xs)
            return [*outs[:count], *[expand_dims(r, (0,)) for r in outs[count:]]]

        def taking(*xs: Any) -> list[Any]:
            saved = [squeeze(x, 0) for x in xs[: len(kinds)]]
            return evaluate(tangent, *saved, *xs[len(kinds) :])

        given = [k.update((1, *k.shape)) for k in kinds] + tangent.in_avals[len(kinds) :]
        return (
            stage_closed(stacking, forward.in_avals, jaxpr.name),
            stage_closed(taking, given, jaxpr.name),
            nonzero_outs,
            tuple(map(_stacked, kinds)),
        )


def _chosen(xs: Sequence[Any], flags: Sequence[bool]) -> tuple[Any, ...]:
    return tuple([x for x, f in zip(xs, flags, strict=True) if f])


def _linearize(
    nonzero: Sequence[bool],
    *xs: Any,
    jaxpr: Jaxpr,
    mesh: Mesh,
    manual: Names,
    in_layouts: Layouts,
    out_layouts: Layouts,
) -> Any:
    mask, count = tuple(nonzero), len(jaxpr.outs)
    forward, tangent, nonzero_outs, saved = _forward(jaxpr, mesh, manual, mask)
    outs = bind(
        shard_map_p,
        *xs,
        jaxpr=forward,
        mesh=mesh,
        manual=manual,
        in_layouts=in_layouts,
        out_layouts=(*out_layouts, *saved),
    )
    primals, residuals = outs[:count], outs[count:]

    def apply(*ts: Any) -> list[Any]:
        dense = [t for t in ts if t is not None]
        back = bind(
            shard_map_p,
            *residuals,
            *dense,
            jaxpr=tangent,
            mesh=mesh,
            manual=manual,
            in_layouts=(*saved, *_chosen(in_layouts, mask)),
            out_layouts=_chosen(out_layouts, nonzero_outs),
        )
        return filled(nonzero_outs, back)

    return primals, apply


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    mesh: Mesh,
    manual: Names,
    in_layouts: Layouts,
    out_layouts: Layouts,
) -> Any:
    mask, count = tuple([t is not None for t in tangents]), len(jaxpr.outs)
    with on_mesh(mesh, manual):
        program, nonzero_outs = jvp_jaxpr(jaxpr, mask, (False,) * count)
    outs = bind(
        shard_map_p,
        *primals,
        *[t for t in tangents if t is not None],
        jaxpr=program,
        mesh=mesh,
        manual=manual,
        in_layouts=(*in_layouts, *_chosen(in_layouts, mask)),
        out_layouts=(*out_layouts, *_chosen(out_layouts, nonzero_outs)),
    )
    return outs[:count], filled(nonzero_outs, outs[count:])


def _transpose(
    cts: Sequence[Any],
    *operands: Any,
    jaxpr: Jaxpr,
    mesh: Mesh,
    manual: Names,
    in_layouts: Layouts,
    out_layouts: Layouts,
) -> list[Any]:
    linear = tuple([is_linear(x) for x in operands])
    nonzero = tuple([ct is not None for ct in cts])
    with on_mesh(mesh, manual):
        program = transpose_jaxpr(jaxpr, linear, nonzero)
    known = [not flag for flag in linear]
    back = bind(
        shard_map_p,
        *[x for x in operands if not is_linear(x)],
        *[ct for ct in cts if ct is not None],
        jaxpr=program,
        mesh=mesh,
        manual=manual,
        in_layouts=(*_chosen(in_layouts, known), *_chosen(out_layouts, nonzero)),
        out_layouts=_chosen(in_layouts, linear),
    )
    return filled(linear, back)


def _batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    mesh: Mesh,
    manual: Names,
    in_layouts: Layouts,
    out_layouts: Layouts,
    axis_name: Hashable = None,
) -> Any:
    batched = tuple([d is not None for d in dims])
    with on_mesh(mesh, manual):
        program, out_batched = batch_jaxpr(
            jaxpr, size, batched, (False,) * len(jaxpr.outs), axis_name
        )
    widened = lambda layouts, flags: tuple(
        [((), *at) if f else at for at, f in zip(layouts, flags, strict=True)]
    )
    outs = bind(
        shard_map_p,
        *at_front(size, xs, dims),
        jaxpr=program,
        mesh=mesh,
        manual=manual,
        in_layouts=widened(in_layouts, batched),
        out_layouts=widened(out_layouts, out_batched),
    )
    return outs, [0 if b else None for b in out_batched]


shard_map_p = Primitive(
    "shard_map",
    _shape,
    multi=True,
    linearize=_linearize,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
)
shard_map_p.depends = lambda ins, *, jaxpr, **_: dependent(jaxpr, ins)


def _key_uses(
    *, jaxpr: Jaxpr, mesh: Mesh, manual: Names, in_layouts: Layouts, out_layouts: Layouts
) -> Uses:
    """What one device does with its keys, all do with theirs."""
    found = uses(jaxpr)
    used = [
        None if part is None else np.tile(part, [parts(mesh, axes) for axes in at])
        for part, at in zip(found.used, in_layouts)
    ]
    same = [(o, i) for o, i in found.same if out_layouts[o] == in_layouts[i]]
    return Uses(tuple(used), tuple(same))


shard_map_p.key_uses = _key_uses


# ---- what users call ----


def shard_map(
    f: Callable[P, R] | None = None,
    /,
    *,
    mesh: Mesh | None = None,
    in_specs: Any = ...,
    out_specs: Any = ...,
    axis_names: Any = None,
    check_vma: bool = True,
) -> Callable[..., Any]:
    """Run a function on every device of a mesh, on that device's parts of its arguments.

    Within the function arrays are parts, and collectives (`lax.psum` and its relatives) compute
    over the named axes of the mesh. The type of a value says along which axes it may differ between
    devices, `f32[8]{V:data}`; an output whose spec leaves out such an axis is an error, since a
    reduction was forgotten. The gradient of an argument that devices share is summed over them.

    Args:
        f: function of pytrees of arrays; None to get a decorator with these options.
        mesh: the devices; None for the current mesh (`with mesh:`, `set_mesh`).
        in_specs: a PartitionSpec for each leaf of the arguments: a pytree of them that is a prefix
            of the tuple of arguments. It says which dimensions are divided among which axes.
        out_specs: the same for the output: how the parts make up whole arrays.
        axis_names: the axes that `f` computes over, which specs and collectives refer to; None for
            all. Over the others `f` is a program on whole arrays, partitioned as outside.
        check_vma: whether outputs are checked to be equal along the axes that their specs leave
            out. Without it, the value of the first device counts.

    Returns:
        A function of whole arrays, or a decorator that makes one.

    Raises:
        MeshError: there is no mesh.
        ShardingError: a spec does not fit: an axis that the mesh does not have, a dimension that it
            does not divide, an output that differs where it must not.

    >>> mesh = gf.make_mesh((1,), ("data",))
    >>> @gf.shard_map(mesh=mesh, in_specs=gf.P("data"), out_specs=gf.P())
    ... def total(x):
    ...     return gf.lax.psum(x.sum(), "data")
    >>> total(jnp.arange(4.0))
    Array(6., dtype=float32)
    """
    options = {
        "mesh": mesh,
        "in_specs": in_specs,
        "out_specs": out_specs,
        "axis_names": axis_names,
        "check_vma": check_vma,
    }
    if f is None:
        return functools.partial(shard_map, **options)
    if not callable(f):
        raise TypeError(f"shard_map takes a function, got {f!r}")
    for name in ("in_specs", "out_specs"):
        if options[name] is ...:
            raise TypeError(
                f"shard_map of {name_of(f)} needs {name}=: a PartitionSpec for each array, "
                f"gf.P() for one that is whole on every device\n  at {where().describe()}"
            )

    @boundary(f)
    def sharded(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise TypeError(
                f"shard_map of {name_of(f)}: arguments are given by position, got "
                f"{', '.join(kwargs)} by name\n  at {where().describe()}"
            )
        over = mesh if mesh is not None else current.mesh
        if over is None:
            raise errors.MeshError(
                f"shard_map of {name_of(f)}: there is no mesh\n  at {where().describe()}\n"
                "  pass mesh=, or make one current: with mesh:"
            )
        if ctx.match is not None:
            raise errors.MeshError(
                f"shard_map of {name_of(f)} within shard_map\n  at {where().describe()}\n"
                "  one shard_map over a mesh with all axes does the work of both"
            )
        return _Call(f, over, in_specs, out_specs, axis_names, check_vma).run(args)

    return sharded


class _Call:
    """One call of a function that `shard_map` wraps."""

    def __init__(
        self,
        f: Callable[..., Any],
        mesh: Mesh,
        in_specs: Any,
        out_specs: Any,
        axis_names: Any,
        checked: bool,
    ) -> None:
        self.f, self.mesh, self.checked = f, mesh, checked
        self.in_specs, self.out_specs = in_specs, out_specs
        self.names = tuple([n for n in mesh.axis_names if not axis_names or n in axis_names])
        unknown = [n for n in axis_names or () if n not in mesh.axis_names]
        if unknown:
            raise errors.ShardingError(
                f"shard_map of {name_of(f)}: axis_names has {unknown[0]!r}, but the mesh has "
                f"{', '.join(map(repr, mesh.axis_names))}"
            )
        self.out_layouts: Layouts = ()

    def run(self, args: tuple[Any, ...]) -> Any:
        """The outputs, as whole arrays."""
        labels = functools.partial(labels_of, self.f, args)
        leaves, in_tree, weak = flatten_arrays(args, f"an argument of {name_of(self.f)}: ", labels)
        layouts = self._layouts(self.in_specs, args, leaves, labels(), "in_specs")
        avals = [part_of(typeof(x), self.mesh, at) for x, at in zip(leaves, layouts, strict=True)]
        flat = FlatFunction(self.f, in_tree)
        with on_mesh(self.mesh, self.names, self.checked):
            jaxpr, captured = stage(
                lambda *xs: self._part(flat, xs),
                avals,
                name=name_of(self.f),
                labels=labels(),
                weak=weak,
            )
        whole = tuple([((),) * typeof(x).ndim for x in captured])
        outs = user_call(
            shard_map_p,
            *captured,
            *leaves,
            jaxpr=jaxpr,
            mesh=self.mesh,
            manual=self.names,
            in_layouts=(*whole, *layouts),
            out_layouts=self.out_layouts,
        )
        return flat.called(outs)

    def _part(self, flat: FlatFunction, xs: Sequence[Any]) -> list[Any]:
        """The outputs of one device, varying over the axes of their layouts."""
        if not self.checked:
            everywhere = frozenset(self.names)
            xs = [varying_as(x, typeof(x).update(varying=everywhere)) for x in xs]
        outs = flat(*xs)
        skeleton = tree.unflatten(flat.out_tree, outs)
        names = [f"the output{p}" for p in tree.paths(skeleton)]
        self.out_layouts = self._layouts(self.out_specs, skeleton, None, names, "out_specs")
        return [
            self._output(x, at, name, flat)
            for x, at, name in zip(outs, self.out_layouts, names, strict=True)
        ]

    def _output(self, x: Any, layout: Layout, name: str, flat: FlatFunction) -> Any:
        if len(layout) != typeof(x).ndim:
            raise errors.ShardingError(
                f"shard_map of {name_of(self.f)}: {name}, {typeof(x)}, has {typeof(x).ndim} "
                f"dimensions, but its spec {spec_of(layout)} is for {len(layout)} at least"
            )
        divided = {n for axes in layout for n in axes}
        extra = sorted(typeof(x).varying - divided, key=str)
        if extra and self.checked:
            origin = x.origin() if hasattr(x, "origin") else "an array"
            listed = ", ".join(map(repr, extra))
            raise errors.ShardingError(
                f"shard_map of {name_of(self.f)}: {name}, {typeof(x)}, may differ between the "
                f"devices along {listed}, but its spec {spec_of(layout)} says that it is equal "
                f"there\n  at {origin}\n  reduce it (lax.psum, pmean, pmax over {listed}), or "
                "divide a dimension of the output among the axis"
            )
        for n in extra:
            x = bind(assume_invariant_p, x, axis_name=self.mesh.axes[n])
        return varying_as(x, typeof(x).update(varying=frozenset(divided)))

    def _layouts(
        self, specs: Any, values: Any, leaves: Sequence[Any] | None, names: Sequence[str], what: str
    ) -> Layouts:
        """The layout of each leaf; without `leaves`, as long as its spec is or its value needs."""
        as_spec = lambda s: PartitionSpec() if s is None else s
        filled_in = tree.map(as_spec, specs, is_leaf=lambda s: s is None)
        try:
            flat: list[Any] = tree.broadcast_prefix(filled_in, values)
        except errors.TreeError as error:
            raise errors.TreeError(f"shard_map of {name_of(self.f)}: {what}: {error}") from None
        shapes = [typeof(x).shape for x in (tree.leaves(values) if leaves is None else leaves)]
        result = []
        for spec, shape, name in zip(flat, shapes, names, strict=True):
            if type(spec) is not PartitionSpec:
                raise TypeError(
                    f"shard_map of {name_of(self.f)}: {what} has {spec!r} for {name}; it takes "
                    f"PartitionSpecs, as gf.P('data')\n  at {where().describe()}"
                )
            layout = entries(spec)
            self._check_names(layout, spec, what)
            if leaves is not None:
                check_shape(shape, self.mesh, layout, name)
            while len(layout) > len(shape) and not layout[-1]:
                layout = layout[:-1]
            result.append((*layout, *((),) * (len(shape) - len(layout))))
        return tuple(result)

    def _check_names(self, layout: Layout, spec: PartitionSpec, what: str) -> None:
        used = [n for axes in layout for n in axes]
        for n in used:
            if n not in self.names:
                raise errors.ShardingError(
                    f"shard_map of {name_of(self.f)}: {what} has {spec}, but the axes are "
                    f"{', '.join(map(repr, self.names))}"
                )
            if used.count(n) > 1:
                raise errors.ShardingError(
                    f"shard_map of {name_of(self.f)}: {what} has {spec}, which names {n!r} twice: "
                    "an axis divides one dimension"
                )
