"""Where a program's kernels read and write, against the memory that they are given.

Triton's interpreter runs some programs of every launch without memory: each buffer is a range of
addresses of its own, what is read is zero (or an address, where kernels take their pointers from a
table), and every element that is accessed must lie in one of the launch's own buffers.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import programs  # noqa: F401 (it chooses the interpreting driver)
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.backends.cuda.driver.interpret import _interpreted
from genesis_fn.backends.cuda.lower.steps import BufferTable
from genesis_fn.backends.cuda.run.steps import Copy, SubProgram
from genesis_fn.kernels.plan import BufferArg, Descriptor, Launch, Memset, Scalar

_SHIFT = 40  # a buffer's range of addresses starts at a multiple of 1 << 40


class Accesses:
    """What the programs of one launch touched: faults as text."""

    def __init__(self, sizes: Sequence[int], tables: dict[int, np.ndarray]) -> None:
        self.sizes = np.array([*sizes, 0], np.int64)
        self.tables = tables  # contents of buffers that hold addresses
        self.read_first: set[int] = set()  # buffers that were read, and not written before
        self.written: set[int] = set()
        self.faults: list[str] = []

    def touch(self, pointers: np.ndarray, mask: np.ndarray, size: int, what: str) -> None:
        """Note accesses of `size` bytes each."""
        pointers, mask = np.broadcast_arrays(pointers, mask)
        at = pointers[mask.astype(bool)].astype(np.int64)
        if not at.size:
            return
        number = (at >> _SHIFT) - 1
        touched = set(np.unique(number).tolist()) & set(range(len(self.sizes) - 1))
        if what != "store":
            self.read_first |= touched - self.written
        if what != "load":
            self.written |= touched
        known = (number >= 0) & (number < len(self.sizes) - 1)
        offset = at - ((number + 1) << _SHIFT)
        room = self.sizes[np.where(known, number, len(self.sizes) - 1)]
        bad = ~known | (offset + size > room)
        if bad.any():
            n = int(np.argmax(bad))
            self.faults.append(
                f"{what} of {size} bytes at {int(offset[n])} of buffer {int(number[n])} with "
                f"{int(room[n])} bytes ({int(bad.sum())} of {bad.size} elements)"
            )
        if (at % size).any():
            self.faults.append(f"{what} of {size} bytes at an address that is no multiple of it")

    def read(self, pointers: np.ndarray, mask: np.ndarray, kind: Any) -> np.ndarray:
        """What is there: zeros, or addresses."""
        result = np.zeros(pointers.shape, kind)
        numbers = (pointers.astype(np.int64) >> _SHIFT) - 1
        for number in set(numbers.reshape(-1).tolist()) & self.tables.keys():
            values = self.tables[number]
            here = (numbers == number) & mask.astype(bool)
            index = (pointers.astype(np.int64) - ((number + 1) << _SHIFT)) // 8
            here &= index < len(values)
            result[here] = values[index[here]].astype(kind)
        return result


@contextlib.contextmanager
def _recorded(accesses: Accesses) -> Iterator[None]:
    """Inside, the interpreter's memory operations are notes in `accesses`."""
    handle = triton_interpreter.TensorHandle
    builder = triton_interpreter.InterpreterBuilder
    numpy_of = triton_interpreter._get_np_dtype

    def width(pointers: Any) -> int:
        return max(1, pointers.get_element_ty().primitive_bitwidth // 8)

    def load(self: Any, ptrs: Any, mask: Any, other: Any, *_: Any, **__: Any) -> Any:
        accesses.touch(ptrs.data, mask.data, width(ptrs), "load")
        kind = ptrs.get_element_ty()
        return handle(accesses.read(ptrs.data, mask.data, numpy_of(kind)), kind)

    def store(self: Any, ptrs: Any, value: Any, mask: Any, *_: Any, **__: Any) -> None:
        accesses.touch(ptrs.data, mask.data, width(ptrs), "store")

    def update(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *_: Any) -> Any:
        accesses.touch(ptr.data, mask.data, width(ptr), "atomic")
        return handle(np.zeros_like(val.data), val.dtype.scalar)

    def compare(self: Any, ptr: Any, cmp: Any, *_: Any) -> Any:
        accesses.touch(ptr.data, np.ones(ptr.data.shape, bool), width(ptr), "atomic")
        return handle(cmp.data.copy(), cmp.dtype.scalar)

    def dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        return handle(d.data, d.dtype.scalar)

    new = {
        "create_masked_load": load,
        "create_masked_store": store,
        "create_atomic_rmw": update,
        "create_atomic_cas": compare,
        "create_dot": dot,
    }
    old = {name: getattr(builder, name) for name in new}
    for name, function in new.items():
        setattr(builder, name, function)
    try:
        yield
    finally:
        for name, function in old.items():
            setattr(builder, name, function)


def _pointer(buffer: BufferArg, numbers: Sequence[int], offsets: Sequence[int]) -> Any:
    kind = tl.str_to_ty(f"*{buffer.dtype}", None)
    at = ((numbers[buffer.index] + 1) << _SHIFT) + offsets[buffer.index] + buffer.offset
    return tl.tensor(triton_interpreter.TensorHandle(np.array([at], np.uint64), kind), kind)


def _argument(argument: Any, numbers: Sequence[int], offsets: Sequence[int]) -> Any:
    convert = triton_interpreter._implicit_cvt
    if isinstance(argument, Scalar):
        return convert(argument.value)
    if isinstance(argument, BufferArg):
        return _pointer(argument, numbers, offsets)
    assert isinstance(argument, Descriptor)
    strides = [convert(s) for s in argument.strides]
    strides[-1] = tl.constexpr(1)
    return triton_interpreter.interpreter_semantic.make_tensor_descriptor(
        base=_pointer(argument.buffer, numbers, offsets),
        shape=[convert(s) for s in argument.shape],
        strides=strides,
        block_shape=[tl.constexpr(b) for b in argument.block],
    )


def _ends(n: int, more: Sequence[int] = ()) -> list[int]:
    """The first, the last and some other programs along an axis of n."""
    return sorted({k for k in (0, n // 2, n - 1, *more) if 0 <= k < n})


def _borders(launch: Launch) -> list[int]:
    """The programs at which a kernel that does several steps' work goes on to the next."""
    found = re.findall(r"program_id\(0\) < (\d+)", getattr(launch.kernel, "text", ""))
    return [k for n in found for k in (int(n) - 1, int(n))]


def check_launch(
    launch: Launch, numbers: Sequence[int], offsets: Sequence[int], accesses: Accesses
) -> None:
    """Run some programs of a launch whose buffer i is `offsets[i]` bytes inside buffer
    `numbers[i]` of `accesses`."""
    function = _interpreted(launch.kernel).rewrite()
    builder = triton_interpreter.interpreter_builder
    with _recorded(accesses):
        scope = triton_interpreter._patch_lang(function)
        try:
            arguments = {
                name: _argument(a, numbers, offsets) for name, a in launch.arguments.items()
            }
            grid = (*launch.grid, 1, 1)[:3]
            builder.set_grid_dim(*grid)
            across = [_ends(grid[0], _borders(launch)), _ends(grid[1]), _ends(grid[2])]
            for index in itertools.product(*across):
                builder.set_grid_idx(*index)
                function(**arguments, **launch.constants)
        finally:
            scope.restore()


def generated(launch: Launch) -> bool:
    """Whether a kernel was made for the program it is in."""
    return isinstance(launch.kernel, SourceKernel)


def check(
    items: Sequence[Any],
    table: BufferTable,
    bound: set[int],
    arena: int,
    runs: Callable[[Launch], bool] = generated,
) -> list[str]:
    """What is wrong with the memory of a program without loops: accesses outside of the buffers,
    buffers without a place, temporaries that are read before they are written or that lie where
    others live. `bound` are the buffers that have memory, `arena` the one of temporaries among
    them. Launches that `runs` leaves out are taken to touch all of their buffers."""
    found: list[str] = []
    known: dict[Any, Accesses] = {}
    lives: dict[int, list[int]] = {}
    written: set[int] = set()
    for n, (step, buffers, owned) in enumerate(_flat(items, table)):
        if isinstance(step, Launch):
            accesses, used = _launch_accesses(step, buffers, table, known, runs(step))
            reads = [used[k] for k in sorted(accesses.read_first)]
            # Not every program was run: what was not seen to be read may be written.
            writes = [b for k, b in enumerate(used) if k not in accesses.read_first]
            writes += [used[k] for k in sorted(accesses.written)]
            found += [f"step {n}: {_name(step)} {step.grid}: {x}" for x in accesses.faults[:3]]
            accesses.faults = []
            seen = {table.root(used[k]) for k in accesses.written}
            if not seen <= owned:
                found.append(f"step {n}: {_name(step)} writes {seen - owned} and does not say so")
        elif isinstance(step, Copy):
            reads, writes = [step.source], [step.destination]
            for b, offset in ((reads[0], step.source_offset), (writes[0], step.destination_offset)):
                if offset + step.bytes > table.bytes[b]:
                    found.append(
                        f"step {n}: a copy of {step.bytes} bytes at {offset} of buffer {b}"
                    )
        else:
            reads, writes = [], [buffers[step.buffer][0]]
        for b in (*reads, *writes):
            if table.root(b) not in bound:
                found.append(f"step {n}: buffer {b} has no place")
            if table.root(b) == arena:
                lives.setdefault(_whole(table, b), [n, n])[1] = n
            if _place(table, b) % 16:
                found.append(f"step {n}: buffer {b} begins at {_place(table, b)} of its memory")
        for b in reads:
            if table.root(b) == arena and _whole(table, b) not in written:
                found.append(f"step {n}: temporary {b} is read before it is written")
        written |= {_whole(table, b) for b in writes}
    return found + _overlaps(table, lives)


def _overlaps(table: BufferTable, lives: dict[int, list[int]]) -> list[str]:
    """Pairs of temporaries that share memory and live at the same time."""
    found = []
    spans = sorted([(table.parent[b][1], table.parent[b][1] + table.bytes[b], b) for b in lives])
    for k, (_, end, b) in enumerate(spans):
        for start, _, c in spans[k + 1 :]:
            if start >= end:
                break
            if lives[b][0] <= lives[c][1] and lives[c][0] <= lives[b][1]:
                found.append(
                    f"temporaries {b} and {c} share memory in steps {lives[b]}, {lives[c]}"
                )
    return found


def _launch_accesses(
    step: Launch,
    buffers: Sequence[tuple[int, int]],
    table: BufferTable,
    known: dict[Any, Accesses],
    runs: bool,
) -> tuple[Accesses, list[int]]:
    """(what a launch touches, the buffers that it counts); equal launches are run once."""
    rows = next((table.pointers[b] for b, _ in buffers if b in table.pointers), [])
    used = [*[b for b, _ in buffers], *[b for row in rows for b in row]]
    sizes = [table.bytes[b] for b in used]
    offsets = [offset for _, offset in buffers]
    key = (
        step.kernel,
        step.grid,
        tuple(step.arguments.items()),
        tuple(sizes),
        tuple(offsets),
        tuple(sorted(step.constants.items(), key=str)),
    )
    if key not in known:
        count = len(buffers)
        contents = np.array([(k + 1) << _SHIFT for k in range(count, len(used))], np.int64)
        tables = {k: contents for k, (b, _) in enumerate(buffers) if b in table.pointers}
        accesses = known[key] = Accesses(sizes, tables)
        if runs:
            check_launch(step, list(range(count)), offsets, accesses)
    # A program of the table's first or last row stands for those of the others.
    if rows:
        alike = [{table.bytes[row[k]] for row in rows} for k in range(len(rows[0]))]
        if any([len(x) > 1 for x in alike]):
            known[key].faults.append(f"tensors of other sizes in one table: {alike}")
        first, width = len(buffers), len(rows[0])
        for group in (known[key].read_first, known[key].written):
            columns = {(k - first) % width for k in group if k >= first}
            group |= {first + r * width + c for r in range(len(rows)) for c in columns}
    return known[key], used


def _name(step: Launch) -> str:
    return str(getattr(step.kernel, "__name__", getattr(step.kernel, "name", step.kernel)))


def _whole(table: BufferTable, b: int) -> int:
    """The temporary that `b` is, or is part of."""
    while b in table.parent and table.parent[b][0] in table.parent:
        b = table.parent[b][0]
    return b


def _place(table: BufferTable, b: int) -> int:
    """Where buffer `b` begins in its root."""
    offset = 0
    while b in table.parent:
        b, more = table.parent[b]
        offset += more
    return offset


def _flat(items: Sequence[Any], table: BufferTable) -> Iterator[tuple[Any, Any, set[int]]]:
    """Every launch, copy and clear with the buffers (number, offset) that it numbers and the roots
    that its item says it writes."""
    for item in items:
        owned = {table.root(b) for b in (*item.writes, *item.scratch)}
        for step in item.steps:
            if not isinstance(step, SubProgram):
                yield step, [(b, 0) for b in range(len(table.bytes))], owned
                continue
            for inner in step.steps:
                assert isinstance(inner, (Launch, Memset)), inner
                if not isinstance(inner, Launch) or 0 not in inner.grid:
                    yield inner, step.buffers, owned
