"""Scatters that add whole rows to zeros, as the gradients of lookups do, become sums by segment.

These compute what they add, where it is elementwise, and share the sort of equal ids. The row of
each update is arithmetic on its index vector, which fuses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.known_values import is_zero
from genesis_fn.compiler.options import enabled
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.indexing.gather_dims import window_sizes
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p
from genesis_fn.primitives.shape import reshape_p, slice_p

_MOST_ROWS = 2**31 - 2  # of a sum by segment


def row_sums(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with sums by segment in the place of scatters that add whole rows to zeros."""
    if not enabled("sums"):
        return jaxpr
    zeros = {e.outs[0] for e in jaxpr.eqns if e.prim is full_p and is_zero(e.params["value"])}
    found = {id(e) for e in jaxpr.eqns if e.prim is scatter_p and _adds_rows(e, zeros)}
    if not found:
        return jaxpr
    eqns: list[Eqn] = []
    numbers: dict[Any, Var] = {}  # of the same rows, so that their sort is shared
    for e in jaxpr.eqns:
        if id(e) not in found:
            eqns.append(e)
            continue
        x, indices, updates = e.ins
        mode, mapped = e.params["mode"], tuple(e.params["dimension_numbers"][2])
        lengths = x.aval.shape[: len(mapped)]
        key = indices, mapped, lengths, mode
        if key not in numbers:
            numbers[key] = _row_numbers(eqns, e, indices, mapped, lengths)
        in_order = e.params["indices_are_sorted"] and len(mapped) == 1
        params = {
            "num_segments": math.prod(lengths),
            "indices_are_sorted": in_order,
            "unique_indices": e.params["unique_indices"],
            "deterministic": e.params["deterministic"],
            "mode": mode if mode in ("fill", "check") else "clip",
        }
        total = appended(eqns, e, segment_sum_p, updates, numbers[key], **params)
        shaped = {"shape": x.aval.shape}
        eqns.append(Eqn(reshape_p, [total], shaped, e.outs, e.where, e.backward, e.numerics))
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _adds_rows(e: Eqn, zeros: set[Var]) -> bool:
    """Whether a scatter adds whole rows to zeros, each at an index vector of its own."""
    x, indices, updates = e.ins
    if e.params["kind"] != "add" or x not in zeros:
        return False
    if type(indices) is not Var or type(updates) is not Var or indices.aval.ndim < 2:
        return False
    kind, shape = x.aval.dtype, x.aval.shape
    if kind == dtypes.BOOL:
        return False
    if dtypes.is_unsigned(indices.aval.dtype) or 0 in (x.aval.size, updates.aval.size):
        return False
    window, inserted, mapped, batching, _ = e.params["dimension_numbers"]
    moving, batch = len(mapped), indices.aval.ndim - 1
    if e.params["mode"] == "check" and moving > 1:  # each of its indices has bounds of its own
        return False
    if batching or tuple(sorted(mapped)) != tuple(range(moving)) or moving == 0:
        return False
    if tuple(inserted) != tuple(range(moving)) or math.prod(shape[:moving]) > _MOST_ROWS:
        return False
    sizes = window_sizes(x.aval, updates.aval, e.params["dimension_numbers"])
    rows = tuple(sizes[moving:]) == shape[moving:]
    return rows and tuple(window) == tuple(range(batch, updates.aval.ndim))


def appended(eqns: list[Eqn], at: Eqn, prim: Primitive, *ins: Any, **params: Any) -> Var:
    """The result of a new equation that stands for `at`."""
    out = Var(prim.abstract(tuple([i.aval if type(i) is Var else i for i in ins]), params))
    eqns.append(Eqn(prim, list(ins), params, (out,), at.where, at.backward, at.numerics))
    return out


def _row_numbers(
    eqns: list[Eqn], e: Eqn, indices: Var, mapped: Sequence[int], lengths: Sequence[int]
) -> Var:
    """The row that each index vector means, -1 where the scatter drops it."""
    make = functools.partial(appended, eqns, e)
    mode, batch = e.params["mode"], indices.aval.shape[:-1]
    kind = dtypes.I64 if indices.aval.dtype.itemsize == 8 else dtypes.I32
    total = inside = None
    for k, d in enumerate(mapped):
        start, limit = (0,) * len(batch) + (k,), (*batch, k + 1)
        at = make(slice_p, indices, start=start, limit=limit, strides=(1,) * len(limit))
        at = make(reshape_p, at, shape=batch)
        if at.aval.dtype != kind:
            at = make(ew.convert_p, at, dtype=kind)
        if mode == "clip":
            at = make(ew.min.prim, make(ew.max.prim, at, 0), lengths[d] - 1)
        elif mode == "fill" and len(mapped) > 1:
            fits = make(
                ew.bitwise_and.prim, make(ew.ge.prim, at, 0), make(ew.lt.prim, at, lengths[d])
            )
            inside = fits if inside is None else make(ew.bitwise_and.prim, inside, fits)
        step = math.prod(lengths[d + 1 :])
        term = make(ew.mul.prim, at, step) if step > 1 else at
        total = term if total is None else make(ew.add.prim, total, term)
    assert total is not None
    return total if inside is None else make(ew.select_p, inside, total, -1)
