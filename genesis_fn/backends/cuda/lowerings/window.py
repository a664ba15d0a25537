"""Window reductions, and gather and scatter at their extremes: one lane for each result.

A lane visits the elements of its window in row-major order, so sums have one order and of equal
extremes the first one is kept. `window_put` visits the windows that contain its element, instead of
scattering.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.backends.cuda.codegen.kernel_text import add_elements, coordinates, offset
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.backends.cuda.lowerings.shape import add_fill
from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import DType, extreme_over_nothing
from genesis_fn.kernels.language.expressions import literal, loaded, register, stored
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, dense
from genesis_fn.primitives.reductions.reduce_window import (
    Window,
    reduce_window_max_p,
    reduce_window_min_p,
    reduce_window_sum_p,
    window_offset_p,
    window_put_p,
    window_take_p,
)


def _source_lines(
    window: Window, shape: Sequence[int], index: Sequence[str], taps: Sequence[str]
) -> list[str]:
    """`at` and `real`: where the window at `index` has element `taps`, and whether it has one."""
    lines, names, conditions = [], [], ["inside"]
    facts = zip(shape, window.strides, window.padding, window.base_dilation, window.window_dilation)
    for d, (n, s, (low, _), a, b) in enumerate(facts):
        q = f"({index[d]}) * {s} + ({taps[d]}) * {b} - {low}"
        lines.append(f"q{d} = i * 0 + {q}")
        if a > 1:
            conditions += [f"(q{d} >= 0)", f"(q{d} % {a} == 0)", f"(q{d} // {a} < {n})"]
            names.append(f"(q{d} // {a})")
        else:
            conditions += [f"(q{d} >= 0)", f"(q{d} < {n})"]
            names.append(f"q{d}")
    lines.append("real = " + " & ".join(conditions))
    lines.append(f"at = i * 0 + {offset(names, dense(shape))}")
    return lines


def _wide(*sizes: int) -> bool:
    return max(sizes) > INT32_MAX


def _accumulator(kind: DType) -> str:
    if kind == dtypes.BOOL:
        return "tl.int32"
    return register(kind)


def _loop(window: Window, lines: Sequence[str]) -> list[str]:
    """`lines` for each element `j` of a window."""
    taps, _ = coordinates("j", window.lengths, "t")
    body = [*taps, *lines]
    return [f"for j in range({math.prod(window.lengths)}):", *[f"    {line}" for line in body]]


def _tap_names(window: Window) -> list[str]:
    return coordinates("j", window.lengths, "t")[1]


@lowers(reduce_window_sum_p, operation="sum")
@lowers(reduce_window_max_p, operation="max")
@lowers(reduce_window_min_p, operation="min")
def _reduce_window(call: Call, operation: str) -> Lowered:
    window, x = call.params["window"], call.operands[0]
    kind = x.dtype
    identity = 0 if operation == "sum" else extreme_over_nothing(kind, operation == "max")
    builder = PlanBuilder(1, 1)
    if 0 in (call.out.size, x.size):
        add_fill(builder, call.write(), call.out.size, identity, kind)
        return builder.build()
    acc = _accumulator(kind)
    start = literal(identity, dtypes.I32 if kind == dtypes.BOOL else kind)
    combine = {"sum": "total + v", "max": "maximum(total, v)", "min": "minimum(total, v)"}[
        operation
    ]
    lines, index = coordinates("i", call.out.shape, "c")
    load = loaded("tl.load(x + at, real)", kind)
    lines += [
        f"total = tl.zeros((BLOCK,), {acc}) + {start}",
        *_loop(
            window,
            [
                *_source_lines(window, x.shape, index, _tap_names(window)),
                f"v = tl.where(real, ({load}).to({acc}), {start})",
                f"total = {combine}",
            ],
        ),
        f"tl.store(y + i, {_back('total', kind)}, inside)",
    ]
    add_elements(
        builder,
        f"window_{operation}",
        {"x": call.read(0), "y": call.write()},
        call.out.size,
        lines,
        wide=_wide(x.size),
    )
    return builder.build()


def _back(text: str, kind: DType) -> str:
    return f"({text} != 0)" if kind == dtypes.BOOL else stored(text, kind)


@lowers(window_offset_p)
def _window_offset(call: Call) -> Lowered:
    window, x = call.params["window"], call.operands[0]
    greatest, kind = call.params["greatest"], x.dtype
    builder = PlanBuilder(1, 1)
    if 0 in (call.out.size, x.size):
        add_fill(builder, call.write(), call.out.size, 0, dtypes.I32)
        return builder.build()
    acc = _accumulator(kind)
    start = literal(
        extreme_over_nothing(kind, greatest), dtypes.I32 if kind == dtypes.BOOL else kind
    )
    better = f"(v {'>' if greatest else '<'} best) | (found == 0)"
    if dtypes.is_float(kind):
        # The first NaN wins, and nothing after it.
        better = f"(best == best) & ({better} | (v != v))"
    # Padding equals the least value, but takes no part: a derivative would be lost there.
    better = f"real & ({better})"
    load = loaded("tl.load(x + at, real)", kind)
    lines, index = coordinates("i", call.out.shape, "c")
    lines += [
        f"best = tl.zeros((BLOCK,), {acc}) + {start}",
        "where = tl.zeros((BLOCK,), tl.int32)",
        "found = tl.zeros((BLOCK,), tl.int32)",
        *_loop(
            window,
            [
                *_source_lines(window, x.shape, index, _tap_names(window)),
                f"v = tl.where(real, ({load}).to({acc}), {start})",
                f"better = {better}",
                "best = tl.where(better, v, best)",
                "where = tl.where(better, j, where)",
                "found = tl.where(real, 1, found)",
            ],
        ),
        "tl.store(y + i, where, inside)",
    ]
    add_elements(
        builder,
        "window_offset",
        {"x": call.read(0), "y": call.write()},
        call.out.size,
        lines,
        wide=_wide(x.size),
    )
    return builder.build()


@lowers(window_take_p)
def _window_take(call: Call) -> Lowered:
    window, x = call.params["window"], call.operands[0]
    builder = PlanBuilder(2, 1)
    if 0 in (call.out.size, x.size):
        add_fill(builder, call.write(), call.out.size, _zero(x.dtype), x.dtype)
        return builder.build()
    lines, index = coordinates("i", call.out.shape, "c")
    taps, names = coordinates("j", window.lengths, "t")
    lines += [
        "j = tl.load(chosen + i, inside, other=0)",
        *taps,
        *_source_lines(window, x.shape, index, names),
        "tl.store(y + i, tl.load(x + at, real, other=0), inside)",
    ]
    add_elements(
        builder,
        "window_take",
        {"x": call.read(0, True), "chosen": call.read(1), "y": call.write(0, True)},
        call.out.size,
        lines,
        wide=_wide(x.size),
    )
    return builder.build()


def _zero(kind: DType) -> Any:
    return 0.0 if dtypes.is_float(kind) else 0


@lowers(window_put_p)
def _window_put(call: Call) -> Lowered:
    window, u = call.params["window"], call.operands[0]
    kind = u.dtype
    builder = PlanBuilder(2, 1)
    if 0 in (call.out.size, u.size):
        add_fill(builder, call.write(), call.out.size, _zero(kind), kind)
        return builder.build()
    acc = register(kind)
    lines, index = coordinates("i", call.out.shape, "c")
    steps, conditions, names = [], ["inside"], []
    taps = _tap_names(window)
    facts = zip(
        u.shape, window.strides, window.padding, window.base_dilation, window.window_dilation
    )
    for d, (m, s, (low, _), a, b) in enumerate(facts):
        steps.append(f"q{d} = i * 0 + ({index[d]}) * {a} + {low} - ({taps[d]}) * {b}")
        conditions.append(f"(q{d} >= 0)")
        if s > 1:
            conditions += [f"(q{d} % {s} == 0)", f"(q{d} // {s} < {m})"]
            names.append(f"(q{d} // {s})")
        else:
            conditions.append(f"(q{d} < {m})")
            names.append(f"q{d}")
    load = loaded("tl.load(u + at, real)", kind)
    zero = f"tl.zeros((BLOCK,), {acc})"
    lines += [
        f"total = {zero}",
        *_loop(
            window,
            [
                *steps,
                "real = " + " & ".join(conditions),
                f"at = i * 0 + {offset(names, dense(u.shape))}",
                "mine = real & (tl.load(chosen + at, real, other=-1) == j)",
                f"total = tl.where(mine, total + {load}, total)",
            ],
        ),
        f"tl.store(y + i, {stored('total', kind)}, inside)",
    ]
    add_elements(
        builder,
        "window_put",
        {"u": call.read(0), "chosen": call.read(1), "y": call.write()},
        call.out.size,
        lines,
        wide=_wide(u.size, call.out.size),
    )
    return builder.build()
