"""CPU lowerings of gather, scatter, table rows and dynamic slices, without loops over elements.

A `WindowLayout` chooses one of four forms by shapes alone:

* "slice": one window: slicing;
* "axis": one indexed axis with windows of length 1: `index_select`, `index_add_`, ...;
* "along": one indexed axis and batching axes: `torch.gather`, `scatter_add_`, ...;
* "rows": any other: the indexed axes moved to the front, flattened, and a linear index into them.

A form computes on a tensor whose axes are *groups* of labels; a label is a batch dimension of the
indices or a dimension of the window. The result of a gather, and the updates of a scatter, have the
same labels in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.storage import (
    NARROW_FLOATS,
    SIGNED_STORAGE,
    TORCH_DTYPE,
    moved,
    scalar,
)
from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import Primitive
from genesis_fn.core.types.annotations import Scalar
from genesis_fn.primitives.indexing.gather import gather_p, take_rows_p
from genesis_fn.primitives.indexing.gather_dims import Numbers, window_sizes
from genesis_fn.primitives.indexing.indexing import dynamic_slice_p, dynamic_update_slice_p
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p

# ---- indices ----


def as_int64(kind: DType) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that widens an index tensor of dtype `kind`."""
    if kind == dtypes.U64:
        # What does not fit is larger than any axis.
        return lambda i: torch.where(i < 0, torch.iinfo(torch.int64).max, i)
    if kind in SIGNED_STORAGE:
        mask = (1 << (8 * kind.itemsize)) - 1
        return lambda i: i.to(torch.int64) & mask
    return lambda i: i.to(torch.int64)


def inside(starts: torch.Tensor, bounds: Sequence[int]) -> torch.Tensor | None:
    """Which index vectors [..., K] lie in [0, bounds]; None where all do."""
    if not starts.numel():
        return None
    if len(bounds) == 1:
        low, high = torch.aminmax(starts)
        if low >= 0 and high <= bounds[0]:
            return None
        return ((starts >= 0) & (starts <= bounds[0])).squeeze(-1)
    valid = ((starts >= 0) & (starts <= torch.tensor(bounds))).all(-1)
    return None if valid.all() else valid


def clipped(starts: torch.Tensor, bounds: Sequence[int]) -> torch.Tensor:
    """Index vectors [..., K] moved into [0, bounds]."""
    if len(bounds) == 1:
        return starts.clamp(0, bounds[0])
    return torch.minimum(starts.clamp_min(0), torch.tensor(bounds, dtype=torch.int64))


Starts = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]


def starts_for(prim: Primitive, avals: Sequence[Aval], params: dict[str, Any]) -> Starts:
    """A function: indices -> (starts of windows, moved inside the operand; which were inside, None
    for all). In mode "check" it raises IndexOutOfRange instead."""
    assert prim.visits is not None
    operand, windows = prim.visits(*avals, **params)
    mode, rows = params["mode"], "dimension_numbers" not in params
    widen = as_int64(avals[1].dtype)
    bounds = [operand.shape[d] - size for d, size in windows]

    def run(indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        starts = widen(indices.unsqueeze(-1) if rows else indices)
        if not bounds:
            return starts, None
        if mode in ("clip", "promise_in_bounds"):
            return clipped(starts, bounds), None
        valid = inside(starts, bounds)
        if valid is None:
            return starts, None
        if mode == "check":
            raise first_outside(operand, starts, windows)
        return clipped(starts, bounds), valid

    return run


def first_outside(
    operand: Aval, starts: torch.Tensor, windows: Sequence[tuple[int, int]]
) -> errors.IndexOutOfRange:
    """The error for the first index vector out of range."""
    for k, (d, size) in enumerate(windows):
        column = starts[..., k]
        bad = column[(column < 0) | (column > operand.shape[d] - size)]
        if bad.numel():
            return errors.IndexOutOfRange.at(int(bad[0]), d, operand, size)
    raise AssertionError("no index is out of range")


# ---- the plan ----


class WindowLayout:
    """How windows of given avals and dimension numbers lie in memory."""

    def __init__(
        self, operand: Aval, indices: Aval, numbers: Numbers, sizes: Sequence[int]
    ) -> None:
        window, collapsed, mapped, batching, index_batching = numbers
        self.shape, self.sizes = operand.shape, tuple(sizes)
        self.batch = indices.shape[:-1]
        self.count = math.prod(self.batch)
        nb, dims = len(self.batch), range(operand.ndim)

        # An axis on which a window has one possible position needs no index.
        self.along = {
            d: b for d, b in zip(batching, index_batching) if operand.shape[d] > 1
        }  # operand axis: batch dimension that runs along it
        self.column = {
            d: k for k, d in enumerate(mapped) if operand.shape[d] > sizes[d]
        }  # operand axis: component of the index vector
        self.indexed = [d for d in dims if d in self.along or d in self.column]
        self.whole = [d for d in dims if d not in self.along and d not in self.column]
        self.partial = [d for d in self.whole if sizes[d] < operand.shape[d]]

        # Labels: i for batch dimension i, nb + d for the window along operand axis d.
        self.lengths = [*self.batch, *sizes]
        kept = iter([nb + d for d in dims if d not in collapsed and d not in batching])
        rest = iter(range(nb))
        rank = nb + len(window)
        self.order = [next(kept) if i in window else next(rest) for i in range(rank)]
        self.result = tuple([self.lengths[label] for label in self.order])
        self.window = nb  # the label of the window along axis 0

    def form(self) -> str:
        """The form that suits: "slice", "axis", "along" or "rows"."""
        lone = len(self.column) == 1 and self.sizes[next(iter(self.column))] == 1
        if self.count == 1:
            return "slice"
        if lone and not self.along:
            return "axis"
        if lone and not self.rows_in_place():
            return "along"
        return "rows"

    def rows_in_place(self) -> bool:
        """Whether the indexed axes come first and rows behind them are worth copying whole."""
        leading = self.indexed == list(range(len(self.indexed)))
        return leading and math.prod([self.sizes[d] for d in self.whole]) > 1

    def groups(self, form: str) -> list[list[int]]:
        """The labels along each axis of the tensor that the form computes on."""
        nb, w = len(self.batch), self.window
        every = list(range(nb))
        if form == "slice":
            axes = [[w + d] for d in range(len(self.shape))]
            return [every + axes[0], *axes[1:]] if axes else [every]
        if form == "axis":
            (axis,) = self.column
            return [[*every, w + d] if d == axis else [w + d] for d in range(len(self.shape))]
        if form == "along":
            (axis,) = self.column
            taken = set(self.along.values())
            free = [b for b in every if b not in taken]
            batch = {d: [b] for d, b in self.along.items()} | {axis: free}
            return [[*batch.get(d, []), w + d] for d in range(len(self.shape))]
        return [every, [w + d for d in self.indexed], *[[w + d] for d in self.whole]]

    def to_result(self, form: str) -> Callable[[torch.Tensor], torch.Tensor]:
        """From the form's axes to the result of a gather."""
        labels = [label for group in self.groups(form) for label in group]
        lengths = [self.lengths[label] for label in labels]
        # Labels that the result does not have are of length 1: they go last and are reshaped away.
        order = [*self.order, *[label for label in labels if label not in self.order]]
        permutation = [labels.index(label) for label in order]
        result = self.result
        if permutation == list(range(len(labels))):
            return lambda x: x.reshape(result)
        return lambda x: x.reshape(lengths).permute(permutation).reshape(result)

    def from_updates(self, form: str) -> Callable[[torch.Tensor], torch.Tensor]:
        """From the updates of a scatter to the form's axes."""
        groups = self.groups(form)
        present = [label for group in groups for label in group if label in self.order]
        permutation = [self.order.index(label) for label in present]
        axes = [math.prod([self.lengths[label] for label in group]) for group in groups]
        return lambda u: u.permute(permutation).reshape(axes)

    def narrowed(self, x: torch.Tensor) -> torch.Tensor:
        """`x` cut to the window along axes that are neither indexed nor taken in full."""
        for d in self.partial:
            x = x.narrow(d, 0, self.sizes[d])
        return x

    def sliced(self, x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """The one window, a view."""
        x = self.narrowed(x)
        vector = starts.reshape(-1).tolist()
        for d, k in self.column.items():
            x = x.narrow(d, vector[k], self.sizes[d])
        return x

    def lane_index(self, starts: torch.Tensor) -> torch.Tensor:
        """The index of form "along": window starts, along every axis of the window."""
        (axis,) = self.column
        taken = list(self.along.values())
        free = [b for b in range(len(self.batch)) if b not in taken]
        lanes = sorted(self.along)
        index = starts[..., self.column[axis]].permute([*[self.along[d] for d in lanes], *free])
        index = index.reshape([*[self.shape[d] for d in lanes], -1])
        index = index.movedim(-1, sum([d < axis for d in lanes]))
        full = [
            self.shape[d]
            if d in self.along
            else index.shape[sum([e < axis for e in lanes])]
            if d == axis
            else self.sizes[d]
            for d in range(len(self.shape))
        ]
        ones = [n if d in self.along or d == axis else 1 for d, n in enumerate(full)]
        return index.reshape(ones).expand(full)

    def positions(self, starts: torch.Tensor) -> list[torch.Tensor]:
        """Per indexed axis, the positions that the windows visit: they broadcast to the batch
        dimensions followed by the window's indexed axes."""
        nb, ni = len(self.batch), len(self.indexed)
        found = []
        for j, d in enumerate(self.indexed):
            if d in self.along:
                shape = [1] * (nb + ni)
                shape[self.along[d]] = -1
                found.append(torch.arange(self.shape[d]).view(shape))
                continue
            at = starts[..., self.column[d]].reshape([*self.batch, *[1] * ni])
            if self.sizes[d] != 1:
                shape = [1] * ni
                shape[j] = -1
                at = at + torch.arange(self.sizes[d]).view(shape)
            found.append(at)
        return found

    def row_index(self, starts: torch.Tensor) -> torch.Tensor:
        """The linear index [batch, window] of form "rows" into the flattened indexed axes."""
        total = torch.zeros((), dtype=torch.int64)
        stride = 1
        for d, at in zip(reversed(self.indexed), reversed(self.positions(starts))):
            total = total + (at * stride if stride != 1 else at)
            stride *= self.shape[d]
        inner = [self.sizes[d] for d in self.indexed]
        return total.expand([*self.batch, *inner]).reshape(self.count, math.prod(inner))


# ---- gather ----


def fill_tensor(value: Scalar | None, kind: DType) -> torch.Tensor:
    """What an out-of-bounds gather reads: `value`, or if None the default for the dtype."""
    if value is not None:
        return scalar(value, kind)
    if dtypes.is_inexact(kind):
        return scalar(math.nan, kind)
    if kind == dtypes.BOOL:
        return scalar(True, kind)
    info = dtypes.iinfo(kind)
    return scalar(int(info.max if dtypes.is_unsigned(kind) else info.min), kind)


@lowers(gather_p)
def _gather(avals: Sequence[Aval], **params: Any) -> Callable[..., Any]:
    (operand, indices), mode = avals, params["mode"]
    plan = WindowLayout(operand, indices, params["dimension_numbers"], params["slice_sizes"])
    starts_of = starts_for(gather_p, avals, params)
    empty = 0 in plan.result
    form = plan.form()
    finish = plan.to_result(form)
    read = moved(operand.dtype, _READ[form](plan))
    mask_shape = [plan.lengths[i] if i < plan.window else 1 for i in plan.order]
    fill = fill_tensor(params["fill_value"], operand.dtype) if mode == "fill" else None

    if mode == "check" and form in ("axis", "along") and not empty and len(plan.column) == 1:
        if indices.shape[-1] == 1 and indices.dtype not in SIGNED_STORAGE:

            def run_checked(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
                # torch checks indices itself; find the one to report only when it raises.
                try:
                    return finish(read(x, indices.to(torch.int64)))
                except (IndexError, RuntimeError):
                    starts_of(indices)
                    raise

            return run_checked

    def run(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        starts, valid = starts_of(indices)
        if empty:
            return x.new_empty(plan.result)
        out = finish(read(x, starts))
        if valid is None:
            return out
        assert fill is not None  # other modes have no window outside
        return torch.where(valid.reshape(mask_shape), out, fill)

    return run


def _read_slice(plan: WindowLayout) -> Callable[..., Any]:
    return plan.sliced


def _read_axis(plan: WindowLayout) -> Callable[..., Any]:
    ((axis, k),) = plan.column.items()
    return lambda x, starts: plan.narrowed(x).index_select(axis, starts[..., k].reshape(-1))


def _read_along(plan: WindowLayout) -> Callable[..., Any]:
    (axis,) = plan.column
    return lambda x, starts: plan.narrowed(x).gather(axis, plan.lane_index(starts))


def _read_rows(plan: WindowLayout) -> Callable[..., Any]:
    order = [*plan.indexed, *plan.whole]
    rest = [plan.sizes[d] for d in plan.whole]
    length = math.prod([plan.shape[d] for d in plan.indexed])
    visited = [*plan.batch, *[plan.sizes[d] for d in plan.indexed]]

    def run(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        x = plan.narrowed(x).permute(order)
        if x.is_contiguous() or not plan.indexed:
            return x.reshape([length, *rest]).index_select(0, plan.row_index(starts).reshape(-1))
        return x[tuple([at.expand(visited) for at in plan.positions(starts)])]

    return run


_READ = {"slice": _read_slice, "axis": _read_axis, "along": _read_along, "rows": _read_rows}


# ---- scatter ----


@lowers(scatter_p)
def _scatter(avals: Sequence[Aval], **params: Any) -> Callable[..., Any]:
    operand, indices, updates = avals
    numbers = params["dimension_numbers"]
    plan = WindowLayout(operand, indices, numbers, window_sizes(operand, updates, numbers))
    starts_of = starts_for(scatter_p, avals, params)
    op, encode, decode = arithmetic(params["kind"], operand.dtype, params["unique_indices"])
    form = plan.form()
    arrange, write = plan.from_updates(form), _WRITE[form](plan, op)
    arrange_rows, write_rows = plan.from_updates("rows"), _WRITE["rows"](plan, op)
    nothing = not updates.size or not operand.size

    def run(x: torch.Tensor, indices: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        starts, valid = starts_of(indices)
        y = encode(x)
        if y is x or y.data_ptr() == x.data_ptr():
            y = y.clone(memory_format=torch.contiguous_format)
        elif not y.is_contiguous():
            y = y.contiguous()
        if nothing:
            return decode(y)
        if valid is None:
            return decode(write(y, starts, arrange(encode(u)), None))
        keep = valid.reshape(-1).nonzero().squeeze(1)
        return decode(write_rows(y, starts, arrange_rows(encode(u)), keep))

    return run


def _write_slice(plan: WindowLayout, op: str) -> Callable[..., Any]:
    def run(y: torch.Tensor, starts: torch.Tensor, u: torch.Tensor, keep: None) -> torch.Tensor:
        target = plan.sliced(y, starts)
        u = u.reshape(target.shape)
        if op in ("set", "copy"):
            target.copy_(u)
        elif op == "sum":
            target += u
        elif op == "prod":
            target *= u
        else:
            target.copy_((torch.minimum if op == "amin" else torch.maximum)(target, u))
        return y

    return run


def _write_axis(plan: WindowLayout, op: str) -> Callable[..., Any]:
    ((axis, k),) = plan.column.items()

    def run(y: torch.Tensor, starts: torch.Tensor, u: torch.Tensor, keep: None) -> torch.Tensor:
        combine_rows(op, plan.narrowed(y), axis, starts[..., k].reshape(-1), u)
        return y

    return run


def _write_along(plan: WindowLayout, op: str) -> Callable[..., Any]:
    (axis,) = plan.column

    def run(y: torch.Tensor, starts: torch.Tensor, u: torch.Tensor, keep: None) -> torch.Tensor:
        combine_lanes(op, plan.narrowed(y), axis, plan.lane_index(starts), u)
        return y

    return run


def _write_rows(plan: WindowLayout, op: str) -> Callable[..., Any]:
    order = [*plan.indexed, *plan.whole]
    back = sorted(range(len(order)), key=order.__getitem__)
    moved = [plan.shape[d] for d in order]
    rest = moved[len(plan.indexed) :]
    cut = [(i + 1, plan.sizes[d]) for i, d in enumerate(plan.whole) if d in plan.partial]

    def run(
        y: torch.Tensor, starts: torch.Tensor, u: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        y = y.permute(order).contiguous()
        index = plan.row_index(starts)
        if keep is not None:
            index, u = index[keep], u[keep]
        target = y.view([-1 if 0 not in rest else math.prod(moved[: len(plan.indexed)]), *rest])
        for d, n in cut:
            target = target.narrow(d, 0, n)
        combine_rows(op, target, 0, index.reshape(-1), u.reshape([-1, *u.shape[2:]]))
        return y.permute(back)

    return run


_WRITE = {"slice": _write_slice, "axis": _write_axis, "along": _write_along, "rows": _write_rows}


def combine_rows(
    op: str, target: torch.Tensor, axis: int, index: torch.Tensor, u: torch.Tensor
) -> None:
    """Combine slices of `u` along `axis` into `target`, in the order of `index`."""
    if op == "copy":
        target.index_copy_(axis, index, u)
    elif op == "sum":
        target.index_add_(axis, index, u)
    else:
        shape = [1] * target.ndim
        shape[axis] = -1
        combine_lanes(op, target, axis, index.view(shape).expand_as(u), u)


def combine_lanes(
    op: str, target: torch.Tensor, axis: int, index: torch.Tensor, u: torch.Tensor
) -> None:
    """Combine the elements of `u` into `target` along `axis`, in place and in the order of `index`,
    which has the shape of `u`."""
    if op in ("set", "copy"):
        # Unlike index_copy_, this keeps the last of repeated indices with any number of threads.
        target.scatter_(axis, index, u)
    elif op == "sum":
        target.scatter_add_(axis, index, u)
    else:
        target.scatter_reduce_(axis, index, u, op, include_self=True)


Change = Callable[[torch.Tensor], torch.Tensor]


def arithmetic(kind: str, dtype: DType, unique: bool) -> tuple[str, Change, Change]:
    """(operation, encode, decode): scatter `kind` as set, copy, sum, prod, amin or amax on other
    storage; copy is a set of indices that do not repeat.

    Booleans are bytes; unsigned integers in signed storage are compared with their top bit
    flipped; fp8, and sums and products of 16-bit floats, are computed in float32.
    """
    same: Change = lambda x: x
    op = {"set": "set", "add": "sum", "mul": "prod", "min": "amin", "max": "amax"}[kind]
    op = "copy" if op == "set" and unique else op
    stored = TORCH_DTYPE[dtype]
    if dtype == dtypes.BOOL:
        op = {"sum": "amax", "prod": "amin"}.get(op, op)
        return op, lambda x: x.view(torch.uint8), lambda x: x.view(torch.bool)
    if dtype in NARROW_FLOATS and kind == "set":
        return op, lambda x: x.view(torch.uint8), lambda x: x.view(stored)
    half = dtype in (dtypes.F16, dtypes.BF16) and op in ("sum", "prod") and not unique
    if half or dtype in NARROW_FLOATS:
        return op, lambda x: x.float(), lambda x: x.to(stored)
    if dtype in SIGNED_STORAGE and op in ("amin", "amax"):
        top = torch.iinfo(stored).min
        return op, lambda x: x ^ top, lambda x: x ^ top
    return op, same, same


# ---- rows of a table ----


@lowers(take_rows_p, fresh=True)
def _take_rows(avals: Sequence[Aval], **params: Any) -> Callable[..., Any]:
    (table, indices), mode = avals, params["mode"]
    shape = (*indices.shape, *table.shape[1:])
    starts_of = starts_for(take_rows_p, avals, params)
    fill = fill_tensor(params["fill_value"], table.dtype) if mode == "fill" else None
    mask_shape = (*indices.shape, *[1] * (table.ndim - 1))
    select = moved(table.dtype, lambda x, i: x.index_select(0, i).view(shape))
    direct = mode == "check" and indices.dtype in (dtypes.I32, dtypes.I64)

    def run(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        starts, valid = starts_of(indices)
        out = select(x, starts.reshape(-1))
        if valid is None:
            return out
        assert fill is not None  # other modes have no row outside
        return torch.where(valid.reshape(mask_shape), out, fill)

    def run_checked(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        # index_select checks indices itself; find the one to report only when it raises.
        try:
            return select(x, indices.reshape(-1))
        except IndexError:
            starts_of(indices)
            raise

    if math.prod(shape) == 0:

        def run_empty(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
            starts_of(indices)
            return x.new_empty(shape)

        return run_empty
    return run_checked if direct else run


@lowers(segment_sum_p, fresh=True)
def _segment_sum(avals: Sequence[Aval], **params: Any) -> Callable[..., Any]:
    (data, ids), num_segments = avals, params["num_segments"]
    rest = data.shape[ids.ndim :]
    result = data.update((num_segments, *rest))
    op, encode, decode = arithmetic("add", data.dtype, False)
    starts_of = starts_for(segment_sum_p, avals, params)
    width = math.prod(rest)

    def run(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        starts, valid = starts_of(ids)
        x = encode(x).reshape(starts.numel(), width)
        out = x.new_zeros(num_segments, width)
        index = starts.reshape(-1)
        if valid is not None:
            keep = valid.reshape(-1).nonzero().squeeze(1)
            index, x = index[keep], x[keep]
        if index.numel() and width and num_segments:
            # An expanded index: torch sorts one column of it and adds segment by segment.
            index = index.unsqueeze(1).expand(index.numel(), width)
            if op == "sum":
                out.scatter_add_(0, index, x)
            else:
                out.scatter_reduce_(0, index, x, op, include_self=True)
        return decode(out.reshape(result.shape))

    return run


# ---- slices at positions that are values ----


def window_of(
    operand: Aval, starts: Sequence[Any], sizes: Sequence[int]
) -> Callable[[torch.Tensor, Sequence[Any]], torch.Tensor]:
    """A function: (tensor, starts) -> the view of it that the window is."""
    widen = [
        as_int64(s.dtype) if type(s) is Aval and s.dtype in SIGNED_STORAGE else None for s in starts
    ]
    cuts = [
        (d, n - size, size, widen[d])
        for d, (n, size) in enumerate(zip(operand.shape, sizes))
        if n != size
    ]

    def run(x: torch.Tensor, at: Sequence[Any]) -> torch.Tensor:
        for d, bound, size, wide in cuts:
            s = int(at[d] if wide is None else wide(at[d]))
            s = s + bound + size if s < 0 else s
            x = x.narrow(d, min(max(s, 0), bound), size)
        return x

    return run


@lowers(dynamic_slice_p)
def _dynamic_slice(avals: Sequence[Any], *, slice_sizes: tuple[int, ...]) -> Callable[..., Any]:
    window = window_of(avals[0], avals[1:], slice_sizes)
    return lambda x, *starts: window(x, starts)


@lowers(dynamic_update_slice_p, fresh=True)
def _dynamic_update_slice(avals: Sequence[Any]) -> Callable[..., Any]:
    window = window_of(avals[0], avals[2:], avals[1].shape)

    def run(x: torch.Tensor, u: torch.Tensor, *starts: Any) -> torch.Tensor:
        y = x.clone(memory_format=torch.contiguous_format)
        window(y, starts).copy_(u)
        return y

    return run
