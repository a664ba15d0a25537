"""Takes arrays out of what a scan carries that its steps write part by part.

Steps that write parts in order, as `out.at[i].set(y)` does, need only those parts at hand that they
read or write: a window, which moves on by one part with each step. A part of the first array
enters it, parts that the next step needs are what the scan carries, and the part that no step needs
again leaves it for a stack. That is how loops collect results, change arrays in place and go on
from what they wrote before (`out[i - 1]`), and what the gradients of `x[i]` are, which add to
zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.compiler.loop_ir import lookups
from genesis_fn.compiler.loop_ir.updates import combine_of
from genesis_fn.compiler.rewrites.row_sums import appended
from genesis_fn.compiler.scans.parts import MOST_STACKED, ScanBody, ScanChanges
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Index
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.elementwise import add, add_n
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.indexing.indexing import dynamic_update_slice_p
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p
from genesis_fn.primitives.shape import (
    concatenate_p,
    copy_p,
    pad_p,
    reshape_p,
    rev_p,
    slice_p,
    transpose_p,
)

_MOST_KEPT = 8  # parts that a step leaves to the next one


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
    with `parts` in their place, or combined with it; and what the step reads of it."""

    array: Var
    e: Eqn | None = None
    parts: Sequence[_Part] = ()
    combine: Primitive | None = None
    reads: Sequence[_Read] = ()


@dataclass(frozen=True, slots=True)
class _Window:
    """Where the parts of an array of `shape` lie that the steps of a scan read and write: `count`
    of them, of `width` each along axis `d`, from `low` on. Stacks have them in the order of the
    scan's stacks, which is that of the array or is `turned`. `slots` says which of a step's parts
    a read or written one is, in the order of the array; those from 1 to `kept` are parts of the
    next step too."""

    d: int
    width: int
    low: int
    count: int
    turned: bool
    shape: tuple[int, ...]
    slots: dict[_Part, tuple[int, ...]]
    kept: int

    @property
    def part(self) -> tuple[int, ...]:
        """The shape of a part, which lacks an axis of width 1."""
        width = () if self.width == 1 else (self.width,)
        return (*self.shape[: self.d], *width, *self.shape[self.d + 1 :])

    @property
    def is_all(self) -> bool:
        """Whether the parts are the whole array."""
        return self.count * self.width == self.shape[self.d]

    def split(self, make: Callable[..., Var], value: Var, count: int) -> list[Var]:
        """The parts that a value consists of."""
        d, shape = self.d, self.shape
        whole = (*shape[:d], count * self.width, *shape[d + 1 :])
        if count == 1:
            same = value.aval.shape == self.part
            return [value if same else make(reshape_p, value, shape=self.part)]
        value = value if value.aval.shape == whole else make(reshape_p, value, shape=whole)
        found = []
        for k in range(count):
            start = tuple([k * self.width if i == d else 0 for i in range(len(shape))])
            limit = (*whole[:d], (k + 1) * self.width, *whole[d + 1 :])
            one = make(slice_p, value, start=start, limit=limit, strides=(1,) * len(shape))
            found.append(make(reshape_p, one, shape=self.part) if self.width == 1 else one)
        return found

    def joined(self, make: Callable[..., Var], stack: Var) -> Var:
        """The part of the array that a stack of parts is."""
        d = self.d
        if self.turned:
            stack = make(rev_p, stack, dimensions=(0,))
        order = (*range(1, d + 1), 0, *range(d + 1, stack.aval.ndim))
        made = make(transpose_p, stack, permutation=order) if d else stack
        shape = (*self.shape[:d], self.count * self.width, *self.shape[d + 1 :])
        return make(reshape_p, made, shape=shape) if made.aval.shape != shape else made

    def apart(self, make: Callable[..., Var], array: Var) -> Var:
        """The stack of the parts of the array."""
        shape, d = self.shape, self.d
        if not self.is_all:
            start = tuple([self.low if i == d else 0 for i in range(len(shape))])
            limit = (*shape[:d], self.low + self.count * self.width, *shape[d + 1 :])
            array = make(slice_p, array, start=start, limit=limit, strides=(1,) * len(shape))
        split = (*shape[:d], self.count, *self.part[d:])
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
    window = _window(body, progression, versions)
    if window is None:
        return False
    # What a window adds to and nothing reads is added to the first array behind the scan.
    adds = not window.kept and all([x.combine is add.prim and not x.reads for x in versions[1:]])
    adds = adds and not versions[0].reads
    if adds and 2 * window.count * window.width < v.aval.shape[window.d]:
        return False  # what is added to a small part of an array would read all of it
    changes.changed = True
    parts = _Parts(body, changes, window, init, adds)
    for version in versions:
        parts.follow(version)
    value = parts.now[0]
    in_order = not window.d and window.width == 1 and not window.turned and not window.kept
    if in_order and window.is_all and not adds and not changes.is_stacked(body, value):
        changes.ys.append((value, result))
        return True
    make = functools.partial(appended, changes.behind, body.e)
    made = window.joined(make, parts.stacked(make))
    if adds:
        if not window.is_all:
            ends = [(0, 0, 0)] * v.aval.ndim
            high = v.aval.shape[window.d] - window.low - window.count * window.width
            ends[window.d] = (window.low, high, 0)
            made = make(pad_p, made, 0, config=tuple(ends))
        make(add.prim, init, made)
    elif not window.is_all:
        starts = [window.low if d == window.d else 0 for d in range(v.aval.ndim)]
        make(dynamic_update_slice_p, init, made, *starts)
    else:
        make(copy_p, made)
    changes.give(result)
    return True


def _window(
    body: ScanBody, progression: Callable[[Any], Progression | None], versions: Sequence[_Version]
) -> _Window | None:
    """Where the parts lie that all steps write and read; None if they do not move on by one part
    with each step, or are too many to be carried."""
    parts = [p for x in versions for p in (*x.parts, *[read.part for read in x.reads])]
    found = [progression(p.start) for p in parts]
    numbers = [at for at in found if at is not None]
    if len(numbers) < len(parts) or any([at.step != numbers[0].step for at in numbers]):
        return None
    d, kind = parts[0].d, versions[0].array.aval.dtype
    step = numbers[0].step if body.length > 1 else min([p.width for p in parts])
    width = abs(step)
    if not step or any([p.d != d or p.width % width or p.value.aval.dtype != kind for p in parts]):
        return None
    # By where they are in the first row of the stacks, along the way that the steps take.
    ahead = step < 0 if body.e.params["reverse"] else step > 0
    begins = [[at.first + k for k in range(0, p.width, width)] for at, p in zip(numbers, parts)]
    every = [n for of_part in begins for n in of_part]
    first = min(every) if ahead else max(every)
    away = [[abs(n - first) for n in of_part] for of_part in begins]
    kept = max(map(max, away)) // width
    if kept > _MOST_KEPT or any([n % width for of_part in away for n in of_part]):
        return None
    shape, count = versions[0].array.aval.shape, body.length + kept
    ends = [n + step * (body.length - 1) for n in every] + every
    low = min(ends)
    if low < 0 or low + count * width > shape[d]:
        return None
    if versions[0].array.aval.nbytes // shape[d] * width * count > MOST_STACKED:
        return None
    slots = {p: tuple([n // width for n in of_part]) for p, of_part in zip(parts, away)}
    return _Window(d, width, low, count, step < 0, shape, slots, kept)


class _Parts:
    """The parts that a step has at hand, `now`, while its equations write and read them: those give
    way to others of parts alone. With `adds`, what is added to a part alone is followed."""

    def __init__(
        self, body: ScanBody, changes: ScanChanges, window: _Window, init: Var, adds: bool
    ) -> None:
        self._body, self._changes, self._window, self._init = body, changes, window, init
        self._adds, self._reverse = adds, body.e.params["reverse"]
        kind = init.aval.update(window.part)
        self._carried = [Var(kind) for _ in range(window.kept)]
        self.now: dict[int, Var] = dict(enumerate(self._carried))
        self._make_ahead = functools.partial(appended, changes.ahead, body.e)
        self._first_stack: Var | None = None

    def _first(self, begin: int, count: int) -> Var:
        """Some parts of the first array, in the order of stacks."""
        if self._first_stack is None:
            self._first_stack = self._window.apart(self._make_ahead, self._init)
        shape = self._first_stack.aval.shape
        if count == shape[0]:
            return self._first_stack
        start, limit = (begin, *[0] * (len(shape) - 1)), (begin + count, *shape[1:])
        where = {"start": start, "limit": limit, "strides": (1,) * len(shape)}
        return self._make_ahead(slice_p, self._first_stack, **where)

    def _at_hand(self, slot: int) -> Var:
        """What a part is now; the last one enters where it is asked for."""
        if slot not in self.now:
            rows = self._first(0 if self._reverse else self._window.kept, self._body.length)
            self.now[slot] = Var(rows.aval.update(rows.aval.shape[1:]))
            self._changes.xs.append((rows, self.now[slot]))
        return self.now[slot]

    def follow(self, version: _Version) -> None:
        """Write the parts of a version of the array, and read what a step reads of it."""
        window, instead = self._window, self._changes.instead
        if version.e is not None:
            eqns: list[Eqn] = []
            make = functools.partial(appended, eqns, version.e)
            for part in version.parts:
                slots = window.slots[part]
                for slot, value in zip(slots, window.split(make, part.value, len(slots))):
                    if version.combine is not None and not (self._adds and slot not in self.now):
                        value = make(version.combine, self._at_hand(slot), value)
                    self.now[slot] = value
            instead[version.e] = eqns
        for read in version.reads:
            now = [self._at_hand(slot) for slot in window.slots[read.part]]
            instead[read.e] = _as_read(window, read, now)

    def stacked(self, make: Callable[..., Var]) -> Var:
        """The stack of all parts as the scan leaves them: of each step the first one, and those
        that are left of the last step, which the scan carries."""
        kept, length = self._window.kept, self._body.length
        left = []
        for k, v in enumerate(self._carried):
            row = self._first(length - 1 + kept - k if self._reverse else k, 1)
            row = self._make_ahead(reshape_p, row, shape=v.aval.shape)
            result = Var(v.aval)
            self._changes.carry.append((row, v, self._at_hand(k + 1), result))
            left.append(make(reshape_p, result, shape=(1, *v.aval.shape)))
        stack = self._changes.stacked(self._body, self._at_hand(0))
        whole = [*left[::-1], stack] if self._reverse else [stack, *left]
        return make(concatenate_p, *whole, dimension=0) if left else stack


def _as_read(window: _Window, read: _Read, parts: Sequence[Var]) -> list[Eqn]:
    """Equations that give parts, which follow each other in the array, as they were read."""
    eqns: list[Eqn] = []
    make = functools.partial(appended, eqns, read.e)
    d, now = window.d, parts[0]
    if len(parts) > 1:
        shape = (*window.shape[:d], window.width, *window.shape[d + 1 :])
        now = make(concatenate_p, *[make(reshape_p, x, shape=shape) for x in parts], dimension=d)
    axes = [i for i in range(len(window.shape)) if i != d or read.part.width != 1]
    order = [axes.index(i) for i in read.axes]
    order += [k for k in range(len(axes)) if k not in order]
    if order != sorted(order):
        now = make(transpose_p, now, permutation=tuple(order))
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
        if len(before) != 1 or not added:
            return None
        return _Version(out, e, added, add.prim), before[0]
    if e.prim is dynamic_update_slice_p:
        part = _updated(e)
        return None if part is None else (_Version(out, e, [part]), e.ins[0])
    if e.prim is scatter_p:
        part = _scattered(e)
        combine = combine_of(e.params["kind"])
        return None if part is None else (_Version(out, e, [part], combine), e.ins[0])
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
