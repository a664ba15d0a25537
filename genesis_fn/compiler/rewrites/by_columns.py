"""Reductions over split axes, as of the groups of channels that group norms have.

Of images [N, H, W, C] in G groups a norm reduces [N, H * W, G, C / G] over pixels and over the
channels of a group: pieces of C / G neighbours, far apart. A program that took one group would read
16 or 32 bytes of each row, so such reductions go in two stages:

* over pixels, with all channels kept: neighbours in memory are neighbours in a tile. The pixels are
  cut into parts, enough of them to fill the GPU;
* over the parts and the channels of a group, a small array.

Reductions over images as well, as those of a scale's gradient, take the same first stage where they
read what others do: one kernel makes the parts of all of them, and reads memory once. The order of
summation depends on the shape and the GPU only.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

from genesis_fn.compiler.fusion.value_graph import kind_of
from genesis_fn.compiler.loop_ir.domains import iteration_domain
from genesis_fn.compiler.loop_ir.kernel import is_reduction, reduced_axes
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Reduce
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.elementwise import convert_p
from genesis_fn.primitives.shape import reshape_p

_LARGE = 8 << 20  # bytes that are worth a second launch
_SHORT = 256  # bytes of a piece that is as good as a whole row
_LEAST_COLUMNS = 128  # bytes of a row
_LEAST_PIXELS = 64  # that a first stage, and each of its parts, reduces
_TILE = 64  # columns of a tile
_PROGRAMS = 4  # of a first stage, for each processor


class _Form(NamedTuple):
    """A reduction in canonical axes, (size, stage that reduces it: 0 for none), and in its first
    stage: `images` whose `pixels` are reduced, each of `columns`."""

    axes: tuple[tuple[int, int], ...]
    images: int
    pixels: int
    columns: int

    def shares(self, other: _Form) -> bool:
        """Whether one kernel can be the first stage of both."""
        return self[1:] == other[1:]


def reductions_by_columns(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """`jaxpr` with reductions over split axes in two stages, and with them those that read the same
    and share the first."""
    found = [e for e in jaxpr.eqns if _is_candidate(e)] if enabled("by_columns") else []
    forms = [(e, form) for e in found if (form := _form(e)) is not None]
    if not forms:
        return jaxpr
    sources = _sources(jaxpr, {e.ins[0].aval.size for e in found})

    def related(a: Eqn, b: Eqn) -> bool:
        return a.backward == b.backward and not sources[a.ins[0]].isdisjoint(sources[b.ins[0]])

    chosen = {id(e): (e, form) for e, form in forms if _is_split(e)}
    for e in found:
        for other, form in forms:
            over_images = _over_images(e, form)
            if over_images is not None and related(e, other):
                chosen[id(e)] = e, over_images
                break
    for e, form in forms:
        if any([form.shares(other) and related(e, o) for o, other in [*chosen.values()]]):
            chosen[id(e)] = e, form
    eqns = []
    for e in jaxpr.eqns:
        eqns += _in_stages(e, chosen[id(e)][1], target) if id(e) in chosen else [e]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _is_candidate(e: Eqn) -> bool:
    if not is_reduction(e) or type(e.ins[0]) is not Var or "axes" not in e.params:
        return False
    how, x = e.prim.lowering, e.ins[0].aval
    assert type(how) is Reduce
    return not how.position and x.size * dtypes.widened(x.dtype).itemsize >= _LARGE


def _canonical(e: Eqn) -> tuple[tuple[int, bool], ...]:
    return iteration_domain(e.ins[0].aval.shape, reduced_axes(e)).axes


def _is_split(e: Eqn) -> bool:
    """Whether a reduction reduces pieces of rows."""
    return _canonical(e)[-1][1]


def _form(e: Eqn) -> _Form | None:
    """The stages of a reduction over pixels, of pieces of rows or of whole ones; None of others."""
    axes = _canonical(e)
    itemsize = dtypes.widened(e.ins[0].aval.dtype).itemsize
    *outer, (width, inner) = axes
    if inner:
        if len(axes) < 3 or width * itemsize >= _SHORT:
            return None
        columns = outer.pop()[0] * width
    elif [red for _, red in axes] == [False, True, False]:
        columns = width
        outer = list(axes[:2])
    else:
        return None
    pixels = math.prod([n for n, red in outer if red])
    if columns * itemsize < _LEAST_COLUMNS or pixels < _LEAST_PIXELS:
        return None
    stages = [(n, int(red)) for n, red in axes]
    if inner:
        stages[-1] = width, 2
    return _Form(tuple(stages), math.prod([n for n, red in outer if not red]), pixels, columns)


def _over_images(e: Eqn, form: _Form) -> _Form | None:
    """The form of a reduction of all rows that shares the first stage of `form`; None if it is
    another reduction."""
    if _canonical(e) != ((form.images * form.pixels, True), (form.columns, False)):
        return None
    axes = (form.images, 2), (form.pixels, 1), (form.columns, 0)
    return form._replace(axes=axes)


def _sources(jaxpr: Jaxpr, sizes: Collection[int]) -> dict[Var, frozenset[Var]]:
    """What each value of one of these sizes is computed from, element for element: values of its
    size that are in memory, whatever kernels compute."""
    found: dict[Var, frozenset[Var]] = {v: frozenset((v,)) for v in jaxpr.invars}
    for e in jaxpr.eqns:
        for o in e.outs:
            found[o] = frozenset((o,))
            if o.aval.size in sizes and (kind_of(e) == "map" or e.prim is reshape_p):
                same = [i for i in e.ins if type(i) is Var and i.aval.size == o.aval.size]
                found[o] = frozenset().union(*[found[i] for i in same]) or found[o]
    return found


def _in_stages(e: Eqn, form: _Form, target: Target) -> list[Eqn]:
    """The equations of a reduction in two stages."""
    axes = list(form.axes)
    first = next(n for n, (_, stage) in enumerate(axes) if stage == 1)
    parts = _parts(axes[first][0], form, target)
    axes[first : first + 1] = [(parts, 2), (axes[first][0] // parts, 1)]
    eqns: list[Eqn] = []

    def add(x: Var, prim: Primitive, **params: Any) -> Var:
        o = Var(prim.abstract((x.aval,), params))
        eqns.append(e.replace(prim=prim, ins=[x], params=params, outs=[o]))
        return o

    x, (out,) = e.ins[0], e.outs
    if x.aval.dtype in dtypes.NARROW:
        # The first stage's results are not rounded.
        x = add(x, convert_p, dtype=dtypes.F32)
    x = add(x, reshape_p, shape=tuple([n for n, _ in axes]))
    for stage in (1, 2):
        along = tuple([n for n, (_, s) in enumerate(axes) if s == stage])
        x = add(x, e.prim, **{**e.params, "axes": along})
        axes = [axis for axis in axes if axis[1] != stage]
    if x.aval.dtype != out.aval.dtype:
        x = add(x, convert_p, dtype=out.aval.dtype)
    eqns.append(e.replace(prim=reshape_p, ins=[x], params={"shape": out.aval.shape}))
    return eqns


def _parts(pixels: int, form: _Form, target: Target) -> int:
    """Into how many parts the outermost reduced axis, of so many pixels, is cut."""
    tiles = form.images * -(-form.columns // _TILE)
    most = min(_PROGRAMS * target.processors // tiles, form.pixels // _LEAST_PIXELS)
    return max([n for n in range(1, most + 1) if pixels % n == 0], default=1)
