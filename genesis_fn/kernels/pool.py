"""Window reductions (maximum, minimum, sum, average pooling) and their gradients, without atomics.

Arrays are seen as [outer, three spatial axes, inner]: channels-first layouts put the channels in
`outer`, channels-last ones in `inner`. A gradient is gathered: each input element looks at the
windows that cover it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.kernels.language import cast, up
from genesis_fn.kernels.launch import Buf, Plan
from genesis_fn.kernels.planning import (
    FLOATING,
    INT32_MAX,
    ITEMSIZE,
    UNSIGNED,
    PlanBuilder,
    cdiv,
)

OPERATIONS = ("max", "min", "add")
BLOCK = 512
Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """The `operation` of each window of [outer, *spatial, inner], unused spatial axes of size 1.

    `average` divides sums by the window's size ("all") or by how many elements it has inside the
    array ("valid"). Padding is (before, after) of each axis and counts as the operation's identity.
    """

    outer: int
    spatial: Triple
    inner: int
    window: Triple
    dtype: str
    operation: str = "max"
    strides: Triple = (1, 1, 1)
    padding: tuple[tuple[int, int], ...] = ((0, 0), (0, 0), (0, 0))
    dilation: Triple = (1, 1, 1)
    base_dilation: Triple = (1, 1, 1)
    average: str | None = None

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise ValueError(f"a window's operation is one of {OPERATIONS}, not {self.operation!r}")
        if self.average not in (None, "all", "valid"):
            raise ValueError(f"average is None, 'all' or 'valid', not {self.average!r}")
        if self.average and (self.operation != "add" or self.dtype not in FLOATING):
            raise ValueError("only sums of floats can be averaged")
        if self.average == "valid" and self.base_dilation != (1, 1, 1):
            raise ValueError("the valid elements of a dilated array cannot be averaged")

    @property
    def out_spatial(self) -> Triple:
        """Windows along each axis."""
        return tuple(
            max(0, ((n - 1) * bd + 1 + lo + hi - (k - 1) * d - 1) // s + 1) if n else 0
            for n, bd, (lo, hi), k, d, s in zip(
                self.spatial,
                self.base_dilation,
                self.padding,
                self.window,
                self.dilation,
                self.strides,
                strict=True,
            )
        )

    @property
    def accumulator(self) -> str:
        """The type that elements are combined in."""
        if self.dtype in FLOATING:
            return "fp64" if self.dtype == "fp64" else "fp32"
        return self.dtype if ITEMSIZE[self.dtype] >= 4 else "i32"

    @property
    def identity(self) -> int | float:
        """What padding counts as."""
        if self.dtype in FLOATING:
            return {"max": float("-inf"), "min": float("inf"), "add": 0.0}[self.operation]
        bits = 8 * ITEMSIZE[self.dtype]
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        if self.dtype in UNSIGNED:
            low, high = 0, 1 if self.dtype == "i1" else (1 << bits) - 1
        return {"max": low, "min": high, "add": 0}[self.operation]

    @property
    def constants(self) -> dict[str, object]:
        """What every kernel of this module needs to know."""
        return {
            "INNER": self.inner,
            "SPATIAL": self.spatial,
            "OUT": self.out_spatial,
            "WINDOW": self.window,
            "STRIDES": self.strides,
            "PADDING": tuple(low for low, _ in self.padding),
            "DILATION": self.dilation,
            "BASE_DILATION": self.base_dilation,
            "OPERATION": self.operation,
            "AVERAGE": self.average,
            "BLOCK": BLOCK,
        }


@triton.jit
def coordinates(place, SIZES: tl.constexpr, INNER: tl.constexpr):
    """(outer, first, second, third, inner) of flat positions in [outer, *SIZES, INNER]."""
    inner = place % INNER
    rest = place // INNER
    third = rest % SIZES[2]
    rest = rest // SIZES[2]
    second = rest % SIZES[1]
    rest = rest // SIZES[1]
    return rest // SIZES[0], rest % SIZES[0], second, third, inner


@triton.jit
def taps(tap, WINDOW: tl.constexpr):
    """The position inside the window along each axis of tap number `tap`."""
    return tap // (WINDOW[1] * WINDOW[2]), (tap // WINDOW[2]) % WINDOW[1], tap % WINDOW[2]


@triton.jit
def covered(p, t, SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
            DILATION: tl.constexpr, BASE: tl.constexpr):  # fmt: skip
    """(array index that tap `t` of window `p` sees, whether there is one)."""
    q = p * STRIDE + t * DILATION - PADDING
    i = q // BASE
    return i, (q >= 0) & (i < SIZE) & (i * BASE == q)


@triton.jit
def covering(i, t, COUNT: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
             DILATION: tl.constexpr, BASE: tl.constexpr):  # fmt: skip
    """(window whose tap `t` sees array index `i`, whether there is one)."""
    q = i * BASE + PADDING - t * DILATION
    p = q // STRIDE
    return p, (q >= 0) & (p < COUNT) & (p * STRIDE == q)


@triton.jit
def valid_taps(p, SIZE: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr,
               PADDING: tl.constexpr, DILATION: tl.constexpr):  # fmt: skip
    """How many taps of window `p` fall inside the array, along one axis."""
    start = p * STRIDE - PADDING
    before = tl.maximum(-start, 0)
    first = (before + DILATION - 1) // DILATION
    room = tl.maximum(SIZE - start, 0)
    end = tl.minimum((room + DILATION - 1) // DILATION, WINDOW)
    return tl.maximum(end - first, 0)


@triton.jit
def window_size(
    p0, p1, p2, SPATIAL: tl.constexpr, WINDOW: tl.constexpr, STRIDES: tl.constexpr,
    PADDING: tl.constexpr, DILATION: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """What the sums of windows are divided by."""
    if AVERAGE == "all":
        return p0 * 0 + WINDOW[0] * WINDOW[1] * WINDOW[2]
    else:
        n = valid_taps(p0, SPATIAL[0], WINDOW[0], STRIDES[0], PADDING[0], DILATION[0])
        n *= valid_taps(p1, SPATIAL[1], WINDOW[1], STRIDES[1], PADDING[1], DILATION[1])
        n *= valid_taps(p2, SPATIAL[2], WINDOW[2], STRIDES[2], PADDING[2], DILATION[2])
        return tl.maximum(n, 1)


@triton.jit
def window_kernel(
    x, y, chosen, like,
    SIZE: tl.constexpr, IDENTITY: tl.constexpr, SAVE: tl.constexpr, WRITE: tl.constexpr,
    WIDE: tl.constexpr, INNER: tl.constexpr, SPATIAL: tl.constexpr, OUT: tl.constexpr,
    WINDOW: tl.constexpr, STRIDES: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr,
    BASE_DILATION: tl.constexpr, OPERATION: tl.constexpr, AVERAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Each output's reduction over its window, and the tap that won if SAVE."""
    # `like` lends its element type, the accumulator's, and nothing else.
    ACC: tl.constexpr = like.dtype.element_ty
    place = tl.program_id(0)
    place = (place.to(tl.int64) if WIDE else place) * BLOCK + tl.arange(0, BLOCK)
    exists = place < SIZE
    outer, p0, p1, p2, inner = coordinates(place, OUT, INNER)
    best = tl.full((BLOCK,), IDENTITY, ACC)
    which = tl.zeros((BLOCK,), tl.int32)
    seen = tl.zeros((BLOCK,), tl.int1)
    for tap in range(WINDOW[0] * WINDOW[1] * WINDOW[2]):
        t0, t1, t2 = taps(tap, WINDOW)
        i0, ok0 = covered(p0, t0, SPATIAL[0], STRIDES[0], PADDING[0], DILATION[0], BASE_DILATION[0])
        i1, ok1 = covered(p1, t1, SPATIAL[1], STRIDES[1], PADDING[1], DILATION[1], BASE_DILATION[1])
        i2, ok2 = covered(p2, t2, SPATIAL[2], STRIDES[2], PADDING[2], DILATION[2], BASE_DILATION[2])
        ok = exists & ok0 & ok1 & ok2
        at = (((outer * SPATIAL[0] + i0) * SPATIAL[1] + i1) * SPATIAL[2] + i2) * INNER + inner
        v = up(tl.load(x + at, ok, other=0)).to(ACC)
        if OPERATION == "add":
            best += tl.where(ok, v, tl.zeros_like(v))
        else:
            # The first of equals wins, and the first NaN wins over everything.
            better = (v > best) if OPERATION == "max" else (v < best)
            better = better | ((v != v) & (best == best)) | (seen == 0)
            which = tl.where(ok & better, tap, which)
            best = tl.where(ok & better, v, best)
            seen = seen | ok
    if AVERAGE is not None:
        n = window_size(p0, p1, p2, SPATIAL, WINDOW, STRIDES, PADDING, DILATION, AVERAGE)
        best = best / n.to(ACC)
    if WRITE:
        tl.store(y + place, cast(best, y.dtype.element_ty), exists)
    if SAVE:
        tl.store(chosen + place, tl.where(seen, which, -1), exists)


@triton.jit
def window_gradient_kernel(
    dy, chosen, dx, like,
    SIZE: tl.constexpr, WIDE: tl.constexpr, INNER: tl.constexpr, SPATIAL: tl.constexpr,
    OUT: tl.constexpr, WINDOW: tl.constexpr, STRIDES: tl.constexpr, PADDING: tl.constexpr,
    DILATION: tl.constexpr, BASE_DILATION: tl.constexpr, OPERATION: tl.constexpr,
    AVERAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx: each input gathers from the windows that cover it, so nothing is written twice."""
    ACC: tl.constexpr = like.dtype.element_ty
    place = tl.program_id(0)
    place = (place.to(tl.int64) if WIDE else place) * BLOCK + tl.arange(0, BLOCK)
    exists = place < SIZE
    outer, i0, i1, i2, inner = coordinates(place, SPATIAL, INNER)
    total = tl.zeros((BLOCK,), ACC)
    for tap in range(WINDOW[0] * WINDOW[1] * WINDOW[2]):
        t0, t1, t2 = taps(tap, WINDOW)
        p0, ok0 = covering(i0, t0, OUT[0], STRIDES[0], PADDING[0], DILATION[0], BASE_DILATION[0])
        p1, ok1 = covering(i1, t1, OUT[1], STRIDES[1], PADDING[1], DILATION[1], BASE_DILATION[1])
        p2, ok2 = covering(i2, t2, OUT[2], STRIDES[2], PADDING[2], DILATION[2], BASE_DILATION[2])
        ok = exists & ok0 & ok1 & ok2
        at = (((outer * OUT[0] + p0) * OUT[1] + p1) * OUT[2] + p2) * INNER + inner
        if OPERATION != "add":
            ok = ok & (tl.load(chosen + at, ok, other=-1) == tap)
        g = up(tl.load(dy + at, ok, other=0)).to(ACC)
        if AVERAGE is not None:
            n = window_size(p0, p1, p2, SPATIAL, WINDOW, STRIDES, PADDING, DILATION, AVERAGE)
            g = tl.where(ok, g / n.to(ACC), tl.zeros_like(g))
        total += g
    tl.store(dx + place, cast(total, dx.dtype.element_ty), exists)


def _add_windows(
    builder: PlanBuilder, spec: Window, x: Buf, y: Buf | None, chosen: Buf | None
) -> None:
    size = spec.outer * math.prod(spec.out_spatial) * spec.inner
    extent = max(size, spec.outer * math.prod(spec.spatial) * spec.inner) + BLOCK
    like = builder.workspace(1, spec.accumulator)
    builder.launch(
        window_kernel,
        (cdiv(size, BLOCK),),
        {"x": x, "y": y or x, "chosen": chosen or x, "like": like},
        spec.constants
        | {
            "SIZE": size,
            "IDENTITY": spec.identity,
            "SAVE": chosen is not None,
            "WRITE": y is not None,
            "WIDE": extent > INT32_MAX,
        },
    )


def _stored(dtype: str) -> str:
    return "u8" if dtype == "i1" else dtype


def plan_window(spec: Window, *, save: bool = False) -> Plan:
    """x -> y[, chosen]: each window's reduction and, if `save`, the tap that "max" or "min" took.

    chosen is i32, -1 for a window that lies wholly in the padding.
    """
    if save and spec.operation == "add":
        raise ValueError("a sum takes every tap: there is nothing to save")
    builder = PlanBuilder(1, 1 + save)
    x, y = Buf(0, _stored(spec.dtype)), Buf(1, _stored(spec.dtype))
    _add_windows(builder, spec, x, y, Buf(2, "i32") if save else None)
    return builder.build()


def plan_window_gradient(spec: Window, *, saved: bool = True) -> Plan:
    """dy -> dx for sums; dy, chosen -> dx for "max" and "min", or dy, x -> dx if not `saved`.

    The gradient of a maximum goes to the first element that attains it.
    """
    total = spec.operation == "add"
    builder = PlanBuilder(1 if total else 2, 1)
    dy, dx = Buf(0, spec.dtype), Buf(1 if total else 2, spec.dtype)
    chosen = dy if total else Buf(1, "i32")
    if not total and not saved:
        windows = spec.outer * math.prod(spec.out_spatial) * spec.inner
        chosen = builder.workspace(windows, "i32")
        _add_windows(builder, spec, Buf(1, spec.dtype), None, chosen)
    size = spec.outer * math.prod(spec.spatial) * spec.inner
    extent = max(size, spec.outer * math.prod(spec.out_spatial) * spec.inner) + BLOCK
    like = builder.workspace(1, spec.accumulator)
    builder.launch(
        window_gradient_kernel,
        (cdiv(size, BLOCK),),
        {"dy": dy, "chosen": chosen, "dx": dx, "like": like},
        spec.constants | {"SIZE": size, "WIDE": extent > INT32_MAX},
    )
    return builder.build()
