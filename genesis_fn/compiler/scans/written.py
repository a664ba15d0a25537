"""Takes arrays out of what a scan carries that its steps write part by part.

Where each step writes one part, and none writes or reads the part of another one, the array is the
stack of those parts, and what a step reads of it a slice of its first value. That is how loops
collect results, with `out.at[i].set(y)`, and change arrays in place, and what the gradients of
`x[i]` are, which add to zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.compiler.loop_ir import lookups
from genesis_fn.compiler.rewrites.row_sums import appended
from genesis_fn.compiler.scans.parts import MOST_STACKED, ScanBody, ScanChanges
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Index
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.primitives.elementwise import add, add_n
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.indexing.indexing import dynamic_update_slice_p
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p
from genesis_fn.primitives.shape import copy_p, pad_p, reshape_p, rev_p, slice_p, transpose_p


@dataclass(frozen=True, slots=True)
class Progression:
    """The numbers first, first + step, ..., one for each row of a scan's stacks."""

    first: int
    step: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an array along its axis `d`, `width` elements from `start` on, is `value`."""

    value: Var
    start: Any
    d: int
    width: int


@dataclass(frozen=True, slots=True)
class _Read:
    """An equation that reads a `part`; `axes` are its axes longer than 1, as those of the array."""

    e: Eqn
    part: _Part
    axes: tuple[int, ...]


@dataclass(slots=True)
class _Version:
    """What a carry is within a step: `array`, which equation `e` has made of the version before
    with `parts` in their place, or added to it; and what the step reads of it."""

    array: Var
    e: Eqn | None = None
    parts: Sequence[_Part] = ()
    adds: bool = False
    reads: Sequence[_Read] = ()


@dataclass(frozen=True, slots=True)
class _Whole:
    """All parts of an array of `shape`: of `width` each, `count` elements along axis `d` from `low`
    on, the last part first if `turned`."""

    d: int
    width: int
    low: int
    count: int
    turned: bool
    shape: tuple[int, ...]

    @property
    def part(self) -> tuple[int, ...]:
        """The shape of a part, which lacks an axis of width 1."""
        width = () if self.width == 1 else (self.width,)
        return (*self.shape[: self.d], *width, *self.shape[self.d + 1 :])

    def joined(self, make: Callable[..., Var], stack: Var) -> Var:
        """The part of the array that a stack of parts is."""
        d = self.d
        if self.turned:
            stack = make(rev_p, stack, dimensions=(0,))
        order = (*range(1, d + 1), 0, *range(d + 1, stack.aval.ndim))
        made = make(transpose_p, stack, permutation=order) if d else stack
        shape = (*self.shape[:d], self.count, *self.shape[d + 1 :])
        return make(reshape_p, made, shape=shape) if made.aval.shape != shape else made

    def apart(self, make: Callable[..., Var], array: Var) -> Var:
        """The stack of the parts of the array."""
        shape, d = self.shape, self.d
        if self.count < shape[d]:
            start = tuple([self.low if i == d else 0 for i in range(len(shape))])
            limit = (*shape[:d], self.low + self.count, *shape[d + 1 :])
            array = make(slice_p, array, start=start, limit=limit, strides=(1,) * len(shape))
        split = (*shape[:d], self.count // self.width, *self.part[d:])
        made = make(reshape_p, array, shape=split) if split != array.aval.shape else array
        order = (d, *range(d), *range(d + 1, made.aval.ndim))
        made = make(transpose_p, made, permutation=order) if d else made
        return make(rev_p, made, dimensions=(0,)) if self.turned else made


def written(
    body: ScanBody,
    changes: ScanChanges,
    progression: Callable[[Any], Progression | None],
    carry: tuple[Any, Var, Any, Var],
) -> bool:
    """Take a carry, (first value, body's input, body's output, result), out of a scan if its steps
    write it part by part. `progression` gives the numbers that an integer of the body is."""
    init, v, out, result = carry
    versions = _versions(body, v, out) if type(init) is Var else None
    if versions is None:
        return False
    only_added = all([x.adds for x in versions[1:]]) and not any([x.reads for x in versions])
    whole = _whole(body, progression, versions)
    if whole is None or (only_added and 2 * whole.count < v.aval.shape[whole.d]):
        return False  # what is added to a small part of an array would read all of it
    changes.changed = True
    value = _value_of_part(body, changes, whole, init, versions, only_added)
    all_of_it = whole.count == v.aval.shape[whole.d]
    in_order = whole.d == 0 and whole.width == 1 and not whole.turned
    if in_order and all_of_it and not only_added and not changes.is_stacked(body, value):
        changes.ys.append((value, result))
        return True
    make = functools.partial(appended, changes.behind, body.e)
    made = whole.joined(make, changes.stacked(body, value))
    if only_added:
        if not all_of_it:
            ends = [(0, 0, 0)] * v.aval.ndim
            ends[whole.d] = (whole.low, v.aval.shape[whole.d] - whole.low - whole.count, 0)
            made = make(pad_p, made, 0, config=tuple(ends))
        make(add.prim, init, made)
    elif not all_of_it:
        starts = [whole.low if d == whole.d else 0 for d in range(v.aval.ndim)]
        make(dynamic_update_slice_p, init, made, *starts)
    else:
        make(copy_p, made)
    changes.give(result)
    return True


def _whole(
    body: ScanBody, progression: Callable[[Any], Progression | None], versions: Sequence[_Version]
) -> _Whole | None:
    """Where the parts lie that all steps write and read; None if two steps have one in common."""
    parts = [p for x in versions for p in (*x.parts, *[read.part for read in x.reads])]
    d, width, at = parts[0].d, parts[0].width, progression(parts[0].start)
    if at is None or any([(p.d, p.width) != (d, width) for p in parts]):
        return None
    kind = versions[0].array.aval.dtype
    if any([p.value.aval.dtype != kind or progression(p.start) != at for p in parts]):
        return None
    if body.length > 1 and abs(at.step) != width:
        return None
    shape, count = versions[0].array.aval.shape, body.length * width
    low = min(at.first, at.first + at.step * (body.length - 1))
    if low < 0 or low + count > shape[d]:
        return None
    if versions[0].array.aval.nbytes // shape[d] * count > MOST_STACKED:
        return None
    return _Whole(d, width, low, count, at.step < 0, shape)


def _value_of_part(
    body: ScanBody,
    changes: ScanChanges,
    whole: _Whole,
    init: Var,
    versions: Sequence[_Version],
    only_added: bool,
) -> Var:
    """What a step's part is in the last version, or what is added to it. Equations that write and
    read parts give way to others of that part alone."""
    now: Var | None = None
    for x in versions:
        eqns: list[Eqn] = []
        make = functools.partial(appended, eqns, x.e or body.e)
        for k, part in enumerate(x.parts):
            value = part.value
            if value.aval.shape != whole.part:
                value = make(reshape_p, value, shape=whole.part)
            if now is None and x.adds and not only_added:
                now = _first(body, changes, whole, init)
            now = make(add.prim, now, value) if now is not None and (x.adds or k) else value
        if x.e is not None:
            changes.instead[x.e] = eqns
        for read in x.reads:
            now = _first(body, changes, whole, init) if now is None else now
            changes.instead[read.e] = _as_read(whole, read, now)
    assert now is not None
    return now


def _first(body: ScanBody, changes: ScanChanges, whole: _Whole, init: Var) -> Var:
    """A step's part of a carry's first value."""
    stack = whole.apart(functools.partial(appended, changes.ahead, body.e), init)
    row = Var(stack.aval.update(stack.aval.shape[1:]))
    changes.xs.append((stack, row))
    return row


def _as_read(whole: _Whole, read: _Read, now: Var) -> list[Eqn]:
    """Equations that give the part `now` as it was read."""
    eqns: list[Eqn] = []
    axes = [i for i in range(len(whole.shape)) if i != whole.d or whole.width != 1]
    order = [axes.index(i) for i in read.axes]
    order += [k for k in range(len(axes)) if k not in order]
    if order != sorted(order):
        now = appended(eqns, read.e, transpose_p, now, permutation=tuple(order))
    shaped = {"shape": read.part.value.aval.shape}
    eqns.append(read.e.replace(prim=reshape_p, ins=[now], params=shaped))
    return eqns


# ---- versions ----


def _versions(body: ScanBody, v: Var, out: Any) -> list[_Version] | None:
    """What a carry is in a step from its begin, `v`, to its end, `out`; None if it is written
    nowhere, or anything else is done with it than to write and read parts."""
    found: list[_Version] = []
    while out is not v:
        made = _written_version(body, out)
        if made is None:
            return None
        version, out = made
        found.append(version)
    found.append(_Version(v))
    found.reverse()
    if len(found) < 2:
        return None
    for x in found:
        reads = _reads(body, x.array)
        if reads is None or body.uses.get(x.array) != 1 + len(reads):
            return None
        x.reads = reads
    return found


def _written_version(body: ScanBody, out: Any) -> tuple[_Version, Any] | None:
    """(a version that an equation of the body writes a part of, the version before)."""
    e = body.produced(out)
    if e is None:
        return None
    if e.prim in (add.prim, add_n.prim):
        parts = [_added_to_zeros(body, i) for i in e.ins]
        before = [i for i, part in zip(e.ins, parts) if part is None]
        added = [part for part in parts if part is not None]
        return (_Version(out, e, added, True), before[0]) if len(before) == 1 and added else None
    if e.prim is dynamic_update_slice_p:
        part = _updated(e)
        return None if part is None else (_Version(out, e, [part]), e.ins[0])
    if e.prim is scatter_p and e.params["kind"] in ("set", "add"):
        part = _scattered(e)
        adds = e.params["kind"] == "add"
        return None if part is None else (_Version(out, e, [part], adds), e.ins[0])
    return None


def _added_to_zeros(body: ScanBody, v: Any) -> _Part | None:
    """The part that a value is, beside zeros, which nothing but a sum reads."""
    e = body.produced(v)
    if e is None or body.uses.get(v) != 1:
        return None
    if e.prim is segment_sum_p:
        data, ids = e.ins
        if type(data) is not Var or type(ids) is not Var or ids.aval.size != 1:
            return None
        return _Part(data, ids, 0, 1)
    zeros = body.produced(e.ins[0]) if e.ins else None
    if zeros is None or zeros.prim is not full_p or zeros.params["value"] != 0:
        return None
    if e.prim is dynamic_update_slice_p:
        return _updated(e)
    return _scattered(e) if e.prim is scatter_p and e.params["kind"] == "add" else None


def _scattered(e: Eqn) -> _Part | None:
    """The part of its first operand that a scatter updates, at one place along one axis."""
    x, indices, updates = e.ins
    window, inserted, mapped, batching, _ = e.params["dimension_numbers"]
    if type(indices) is not Var or type(updates) is not Var or indices.aval.shape != (1,):
        return None
    if len(mapped) != 1 or batching or len(window) != updates.aval.ndim:
        return None
    (d,), shape = mapped, updates.aval.shape
    rest = (*x.aval.shape[:d], *x.aval.shape[d + 1 :])
    if tuple(inserted) == (d,) and shape == rest:
        return _Part(updates, indices, d, 1)
    if inserted or (*shape[:d], *shape[d + 1 :]) != rest:
        return None
    return _Part(updates, indices, d, shape[d])


def _updated(e: Eqn) -> _Part | None:
    """The part of an array that an update replaces, along the one axis where it is not all."""
    x, update, *starts = e.ins
    if type(update) is not Var:
        return None
    shape = update.aval.shape
    short = [d for d, n in enumerate(shape) if n != x.aval.shape[d]]
    if len(short) != 1:
        return None
    (d,) = short
    return _Part(update, starts[d], d, shape[d])


_WRITES = (scatter_p, dynamic_update_slice_p, add.prim, add_n.prim)


def _reads(body: ScanBody, array: Var) -> list[_Read] | None:
    """The lookups in a version of a carry, also in a transposed one; None if one is of more than a
    part, or anything else reads it."""
    found = []
    for e in body.readers.get(array, ()):
        if e.prim in _WRITES:
            continue
        view, table = None, array
        if e.prim is transpose_p and body.uses.get(e.outs[0]) == 1:
            view, table = e, e.outs[0]
            e = body.readers.get(table, [e])[0]
        read = _read(e, view) if lookups.is_lookup(e) and e.ins[0] is table else None
        if read is None:
            return None
        found.append(read)
    return found


def _read(e: Eqn, view: Eqn | None) -> _Read | None:
    """What a lookup reads of its first operand, at one place along one axis, or of what that is a
    view of."""
    x, (out,) = e.ins[0], e.outs
    at = tuple([ix.var(f"a{i}", n) if n != 1 else ix.ZERO for i, n in enumerate(out.aval.shape)])
    window = lookups.window_of(e, at)
    if len(window.starts) != 1 or type(x) is not Var:
        return None
    (start,) = window.starts
    if type(start.value) is Var and start.value.aval.size != 1:
        return None
    d, width = start.d, x.aval.shape[start.d] + 1 - start.count
    if out.aval.size * x.aval.shape[d] != x.aval.size * width:
        return None
    index: Index = window.index
    if view is not None:
        order = view.params["permutation"]
        index = tuple([index[order.index(i)] for i in range(len(order))])
        d = order[d]
    # Axis by axis whole, but for that one.
    axes = []
    for here in at:
        if here.names:
            same = [i for i, other in enumerate(index) if other == here]
            if len(same) != 1:
                return None
            axes += same
    return _Read(e, _Part(out, start.value, d, width), tuple(axes))
