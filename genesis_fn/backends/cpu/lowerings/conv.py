"""The CPU lowering of convolutions: one torch call, chosen by what the convolution looks like.

* no input dilation: torch's forward convolution;
* input dilation (the gradient of a strided input): torch's transposed convolution;
* a kernel larger than the output (the gradient of a kernel): torch's weight gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.lowerings.contraction import compute_dtype, from_compute, to_compute
from genesis_fn.backends.cpu.storage import TORCH_DTYPE
from genesis_fn.core.types.annotations import Scalar
from genesis_fn.primitives.conv import conv_p

_Pads = Sequence[tuple[int, int]]

_FORWARD = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@lowers(conv_p, fresh=True)
def _conv(avals: Sequence[Any], **params: Any) -> Callable[..., Any]:
    x, w = avals
    result = conv_p.abstract((x, w), params)
    lhs, rhs, out = params["dimension_numbers"]
    window_strides, padding = params["window_strides"], params["padding"]
    lhs_dilation, rhs_dilation = params["lhs_dilation"], params["rhs_dilation"]
    stored = TORCH_DTYPE[result.dtype]
    if result.size == 0 or x.size == 0 or w.size == 0:
        return lambda a, b: torch.zeros(result.shape, dtype=torch.float32).to(stored)
    x_shape, w_shape = [x.shape[i] for i in lhs], [w.shape[i] for i in rhs]
    y_shape = [result.shape[i] for i in out]
    flat = x.ndim == 2  # no spatial dimension: torch wants one
    if flat:
        x_shape, w_shape, y_shape = [*x_shape, 1], [*w_shape, 1], [*y_shape, 1]
        window_strides = lhs_dilation = rhs_dilation = (1,)
        padding = ((0, 0),)
    target = compute_dtype((x.dtype, w.dtype), result.dtype, math.prod(w_shape[1:]))
    wide = TORCH_DTYPE[result.dtype] if target is None else target
    run = _choose(
        x_shape,
        w_shape,
        y_shape,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        params["feature_group_count"],
        params["batch_group_count"],
        wide,
    )
    load_x, load_w = to_compute(x.dtype, wide), to_compute(w.dtype, wide)
    store = from_compute(wide, result.dtype)
    back = sorted(range(result.ndim), key=out.__getitem__)

    def convolve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = load_x(a).permute(lhs), load_w(b).permute(rhs)
        if flat:
            return store(run(a.unsqueeze(-1), b.unsqueeze(-1)).squeeze(-1).permute(back))
        return store(run(a, b).permute(back))

    return convolve


def _choose(
    x: list[Any],
    w: list[Any],
    y: list[Any],
    s: tuple[Any, ...],
    pads: tuple[Any, ...],
    a: tuple[Any, ...],
    b: tuple[Any, ...],
    groups: int,
    batch_groups: int,
    kind: torch.dtype,
) -> Callable[..., Any]:
    """A function of x [N, C, ...] and w [O, I, ...]: strides s, dilations a (of x) and b (of w)."""
    n = len(s)
    if not kind.is_floating_point and not kind.is_complex:
        return _by_windows(y, s, pads, a, b, groups, batch_groups)
    if any(d > 1 for d in a):
        return _transposed(x, w, y, s, pads, a, b, groups, batch_groups)
    if groups == 1 and math.prod(w[2:]) > math.prod(y[2:]) and not kind.is_complex:
        return _weight_gradient(x, w, y, s, pads, b, batch_groups)
    same, explicit = _symmetric(x[2:], w[2:], y[2:], s, pads, b)
    convolve, g = _FORWARD[n], max(groups, batch_groups)

    def run(v: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        v = _grouped(v, batch_groups)
        if explicit is not None:
            v = padded(v, explicit)
        return convolve(v, k, None, s, same, b, g)

    return run


def _grouped(x: torch.Tensor, batch_groups: int) -> torch.Tensor:
    """[G N, C, ...] as [N, G C, ...]: groups of the batch become groups of features."""
    if batch_groups == 1:
        return x
    x = x.reshape(batch_groups, -1, *x.shape[1:])
    return x.transpose(0, 1).flatten(1, 2)


def padded(x: torch.Tensor, pads: _Pads, fill: Scalar = 0) -> torch.Tensor:
    """`x` with (low, high) elements `fill` at the ends of each of its last axes; fewer than none
    cut as many, which may be more than an axis has where its other end grows."""
    cuts = [(max(-low, 0), max(-high, 0)) for low, high in pads]
    ends = [max(v, 0) for pair in reversed(pads) for v in pair]  # as torch lists them
    if any(ends):
        # Not torch's `pad`: its value passes through a double, which is no exact int64.
        x = torch.constant_pad_nd(x, ends, fill)
    return x[(..., *[slice(low, n - high) for (low, high), n in zip(cuts, x.shape[-len(pads) :])])]


def _symmetric(
    x: Sequence[int],
    w: Sequence[int],
    y: Sequence[int],
    s: tuple[Any, ...],
    pads: tuple[Any, ...],
    b: tuple[Any, ...],
) -> tuple[tuple[int, ...], _Pads | None]:
    """(padding for torch's argument, padding to apply before or None): equal low and high padding
    serves wherever it gives the same number of outputs."""
    lows = [low for low, _ in pads]
    if min(lows) >= 0 and all(
        (n + 2 * p - d * (k - 1) - 1) // t + 1 == m for n, k, m, t, p, d in zip(x, w, y, s, lows, b)
    ):
        return tuple(lows), None
    return (0,) * len(s), pads


def _transposed(
    x: list[Any],
    w: list[Any],
    y: list[Any],
    s: tuple[Any, ...],
    pads: tuple[Any, ...],
    a: tuple[Any, ...],
    b: tuple[Any, ...],
    groups: int,
    batch_groups: int,
) -> Callable[..., Any]:
    g = max(groups, batch_groups)
    convolve = _TRANSPOSED[len(s)]
    spatial = tuple(range(2, len(w)))
    # torch's full result has b (k - 1) more on each side than a convolution without padding.
    crop = [(low - d * (k - 1), high - d * (k - 1)) for (low, high), d, k in zip(pads, b, w[2:])]
    p = [max(0, -low) if low == high else 0 for low, high in crop]
    rest = [(low + q, high + q) for (low, high), q in zip(crop, p)]
    explicit = rest if any(v for pair in rest for v in pair) else None
    steps = (slice(None), slice(None), *[slice(None, None, t) for t in s])

    def run(v: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        k = k.flip(spatial).reshape(g, k.shape[0] // g, *k.shape[1:]).transpose(1, 2).flatten(0, 1)
        out = convolve(_grouped(v, batch_groups), k, None, a, p, 0, g, b)
        if explicit is not None:
            out = padded(out, explicit)
        return out[steps]

    return run


def _weight_gradient(
    x: list[Any],
    w: list[Any],
    y: list[Any],
    s: tuple[Any, ...],
    pads: tuple[Any, ...],
    b: tuple[Any, ...],
    batch_groups: int,
) -> Callable[..., Any]:
    # Features are the batch of a convolution with stride b and dilation s, whose kernel gradient
    # this convolution is.
    shape = [y[1], y[0], *y[2:]]
    p = [low for low, _ in pads]
    explicit: _Pads | None = None
    if min(p) < 0 or any(
        (n + 2 * q - t * (m - 1) - 1) // d + 1 != k
        for n, k, m, t, q, d in zip(x[2:], w[2:], y[2:], s, p, b)
    ):
        # Cut what no window reaches, so that the number of windows is exact.
        used = [t * (m - 1) + d * (k - 1) + 1 for t, m, d, k in zip(s, y[2:], b, w[2:])]
        explicit = [(low, u - n - low) for (low, _), u, n in zip(pads, used, x[2:])]
        p = [0] * len(s)
    strided = None
    if math.prod(y[2:]) == 1 and any(d > 1 for d in b):
        # One tap reads every b-th element. oneDNN writes beyond its scratch memory for it, with
        # wrong gradients or a crash, where channels are last and few (its issue 6035, on AVX2).
        explicit = explicit or [(q, q) for q in p]
        strided = (..., *[slice(None, None, d) for d in b])
        p, b = [0] * len(s), (1,) * len(s)
    zeros, mask = [0] * len(s), [False, True, False]

    def run(v: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        v = v.transpose(0, 1)
        if explicit is not None:
            v = padded(v, explicit)
        if strided is not None:
            v = v[strided]
        weight = torch.empty(shape, dtype=v.dtype)
        return torch.ops.aten.convolution_backward(
            k.transpose(0, 1), v, weight, None, b, p, s, False, zeros, batch_groups, mask
        )[1].transpose(0, 1)

    return run


def _by_windows(
    y: list[Any],
    s: tuple[Any, ...],
    pads: tuple[Any, ...],
    a: tuple[Any, ...],
    b: tuple[Any, ...],
    groups: int,
    batch_groups: int,
) -> Callable[..., Any]:
    """Integers too wide for a float: windows gathered by strides, then one integer product."""
    g = max(groups, batch_groups)

    def run(v: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        v = _grouped(v, batch_groups)
        for i, d in enumerate(a):
            if d > 1:
                v = spread(v, i + 2, d)
        v = padded(v, pads)
        window = k.shape[2:]
        strides = v.stride()
        steps = [t * d for t, d in zip(strides[2:], b)]
        moves = [t * d for t, d in zip(strides[2:], s)]
        views = v.as_strided(
            (*v.shape[:2], *window, *y[2:]), (*strides[:2], *steps, *moves)
        ).reshape(v.shape[0], g, -1, math.prod(y[2:]))
        kernel = k.reshape(g, k.shape[0] // g, -1)
        return torch.matmul(kernel, views).reshape(y)

    return run


def spread(x: torch.Tensor, axis: int, d: int, fill: Scalar = 0) -> torch.Tensor:
    """x with d - 1 elements `fill` between neighbours along `axis`."""
    shape = list(x.shape)
    shape[axis] = (shape[axis] - 1) * d + 1
    out = torch.full(shape, fill, dtype=x.dtype)
    out[(slice(None),) * axis + (slice(None, None, d),)] = x
    return out
