"""Torch functions of fused functions, by name, where torch is as accurate as the reference.

Each returns a list: the leaves of the reference's results. Where none supports the operands, the
reference program runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from genesis_fn.backends.cpu.lower import computes_fused
from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval

aten = torch.ops.aten
_ROW_KINDS = dtypes.BF16, dtypes.F32, dtypes.F64
_SINGLE = (dtypes.F32,)

# ---- softmax and its relatives ----


@computes_fused("softmax", kinds=_ROW_KINDS, f=torch.softmax)
@computes_fused("log_softmax", kinds=_ROW_KINDS, f=torch.log_softmax)
@computes_fused("logsumexp", kinds=_ROW_KINDS, f=torch.logsumexp)
def _over_rows(x: torch.Tensor, *, f: Callable[..., Any]) -> list[torch.Tensor]:
    return [f(x, -1)]


@computes_fused("softmax_forward", kinds=_ROW_KINDS, f=torch.softmax)
@computes_fused("log_softmax_forward", kinds=_ROW_KINDS, f=torch.log_softmax)
def _over_rows_forward(x: torch.Tensor, *, f: Callable[..., Any]) -> list[torch.Tensor]:
    return [f(x, -1)] * 2


@computes_fused("softmax_backward", kinds=_ROW_KINDS, f=aten._softmax_backward_data)
@computes_fused("log_softmax_backward", kinds=_ROW_KINDS, f=aten._log_softmax_backward_data)
def _over_rows_backward(
    y: Any, ct: Any, *, needs: Any, f: Callable[..., Any]
) -> list[torch.Tensor]:
    return [f(ct, y, y.ndim - 1, y.dtype)]


# ---- norms ----


@computes_fused("rms_norm", kinds=_SINGLE, results=1)
@computes_fused("rms_norm_forward", kinds=_SINGLE)
def _rms_norm_forward(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> list[torch.Tensor]:
    rstd = torch.rsqrt((x * x).mean(-1, keepdim=True).add_(eps))
    return [(x * rstd).mul_(w), x, w, rstd.squeeze(-1)]


@computes_fused("rms_norm_backward", kinds=_SINGLE)
def _rms_norm_backward(
    x: torch.Tensor,
    w: torch.Tensor,
    rstd: torch.Tensor,
    ct: torch.Tensor,
    *,
    eps: float,
    needs: Sequence[bool],
) -> list[torch.Tensor]:
    n = x.shape[-1]
    rstd = rstd.unsqueeze(-1)
    hat = x * rstd
    dw = (ct * hat).reshape(-1, n).sum(0) if needs[1] else torch.zeros_like(w)
    g = ct * w
    dot = (g * hat).sum(-1, keepdim=True).div_(n)
    return [g.addcmul_(hat, dot, value=-1).mul_(rstd), dw]


@computes_fused("layer_norm", kinds=_SINGLE, results=1)
@computes_fused("layer_norm_forward", kinds=_SINGLE)
def _layer_norm_forward(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, *, eps: float
) -> list[torch.Tensor]:
    y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], w, b, eps)
    return [y, x, w, b, mean.squeeze(-1), rstd.squeeze(-1)]


@computes_fused("layer_norm_backward", kinds=_SINGLE)
def _layer_norm_backward(
    x: Any, w: Any, b: Any, mean: Any, rstd: Any, ct: Any, *, eps: float, needs: Sequence[bool]
) -> list[torch.Tensor]:
    dx, dw, db = aten.native_layer_norm_backward(
        ct.contiguous(),
        x,
        x.shape[-1:],
        mean.unsqueeze(-1),
        rstd.unsqueeze(-1),
        w,
        b,
        [True, True, True],
    )
    return [dx, dw, db]


# ---- cross-entropy ----


def _checked(labels: torch.Tensor, classes: int, ignore: int | None) -> torch.Tensor:
    """The labels in int64. Raises IndexOutOfRange for one that is neither a class nor ignored."""
    labels = labels.long()
    bad = (labels < 0) | (labels >= classes)
    if ignore is not None:
        bad &= labels != ignore
    if bad.any():
        index = int(labels[bad].flatten()[0])
        raise errors.IndexOutOfRange(
            f"label {index} is out of range for {classes} classes", None, classes, index
        )
    return labels


_LOGIT_KINDS = dtypes.F32, dtypes.F64


@computes_fused("cross_entropy", kinds=_LOGIT_KINDS, labels=1, results=1)
@computes_fused("cross_entropy_forward", kinds=_LOGIT_KINDS, labels=1)
def _cross_entropy_forward(logits: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    classes = _checked(labels, logits.shape[-1], None)
    lse = torch.logsumexp(logits, -1)
    at_label = logits.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    return [lse - at_label, logits, labels, lse]


@computes_fused("cross_entropy_backward", kinds=_LOGIT_KINDS, labels=1)
def _cross_entropy_backward(
    logits: Any, labels: Any, lse: Any, ct: Any, *, needs: Any
) -> list[torch.Tensor]:
    p = torch.exp_(logits - lse.unsqueeze(-1))
    p.mul_(ct.unsqueeze(-1))
    return [p.scatter_add_(-1, labels.long().unsqueeze(-1), -ct.unsqueeze(-1))]


def _loss_and_slope(
    x: Any,
    weight: Any,
    labels: Any,
    *,
    ignore_index: int | None,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    reduction: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(reduced loss, its gradient by the logits) of a linear layer."""
    classes = weight.shape[0]
    low = label_smoothing / classes
    labels = _checked(labels, classes, ignore_index)
    logits = x @ weight.T
    counts = None if ignore_index is None else labels != ignore_index
    if counts is not None:  # other rows may hold inf or NaN, which no factor of 0 removes
        logits.masked_fill_(~counts.unsqueeze(-1), 0)
    slope = lse = None
    if softcap:
        logits = torch.tanh_(logits.div_(softcap))
        slope = 1 - logits * logits
        logits = logits.mul_(softcap)
    index = labels.clamp(0, classes - 1).unsqueeze(-1)
    # One pass over the logits; the gradient takes one more over its result.
    logs = torch.log_softmax(logits, -1)
    at_label = logs.gather(-1, index).squeeze(-1)
    if label_smoothing:
        at_label = at_label * (1 - label_smoothing) + logs.mean(-1) * label_smoothing
    loss = -at_label
    if z_loss:
        lse = torch.logsumexp(logits, -1)
        loss = loss + z_loss * lse * lse
    row = torch.ones_like(loss)
    if counts is not None:
        row = counts.float()
        loss = loss * row
    if reduction == "mean":
        row = row / row.sum().clamp(min=1)
        value = (loss * row).sum()
    else:
        value = loss.sum()
    grad = logs.exp_()
    if lse is not None:
        grad.mul_((1 + 2 * z_loss * lse).unsqueeze(-1))
    if low:
        grad.sub_(low)
    grad.scatter_add_(-1, index, torch.full_like(index, -(1 - label_smoothing), dtype=x.dtype))
    if slope is not None:
        grad.mul_(slope)
    return value, grad.mul_(row.unsqueeze(-1))


@computes_fused("linear_cross_entropy", kinds=_SINGLE, labels=2)
def _linear_cross_entropy(x: Any, weight: Any, labels: Any, **options: Any) -> list[torch.Tensor]:
    return [_loss_and_slope(x, weight, labels, **options)[0]]


@computes_fused("linear_cross_entropy_forward", kinds=_SINGLE, labels=2)
def _linear_cross_entropy_forward(
    x: Any, weight: Any, labels: Any, **options: Any
) -> list[torch.Tensor]:
    value, grad = _loss_and_slope(x, weight, labels, **options)
    return [value, grad @ weight, grad.T @ x]


# ---- attention: torch's flash kernel ----


def _flash_fits(
    avals: Sequence[Aval],
    *,
    causal: bool,
    window: Any,
    softcap: float,
    has: tuple[Any, ...],
    **_: Any,
) -> bool:
    q, k, v = avals[:3]
    return (
        q.dtype in (dtypes.F32, dtypes.F64)
        and window is None
        and not softcap
        and not any(has)
        and q.shape[-1] == v.shape[-1]
        and (not causal or q.shape[1] == k.shape[1])
        and min(q.shape) > 0
        and min(k.shape) > 0
    )


def _heads_first(x: torch.Tensor, repeat: int = 1) -> torch.Tensor:
    """[B, H, T, d] of [B, T, H, d]. torch's kernel reads d as if its elements were neighbours."""
    x = (x if x.stride(-1) == 1 else x.contiguous()).transpose(1, 2)
    return x if repeat == 1 else x.repeat_interleave(repeat, 1)


@computes_fused("attention", fits=_flash_fits, opaque=True, results=1)
@computes_fused("attention_forward", fits=_flash_fits, opaque=True)
def _attention_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool, **_: Any
) -> list[torch.Tensor]:
    repeat = q.shape[2] // k.shape[2]
    heads, keys = _heads_first(q), _heads_first(k, repeat)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        heads, keys, _heads_first(v, repeat), 0.0, causal, scale=scale
    )
    if get_proxy_mode() is not None or not lse.all():  # a graph has no branch
        out, lse = _without_lost_rows(heads, keys, out, lse)
    return [out.transpose(1, 2), q, k, v, out.transpose(1, 2), lse]


def _without_lost_rows(
    q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's results with NaN in rows whose scores are all NaN or -inf.

    torch's kernel treats such a row as fully masked and returns zeros with a log-sum of exactly 0.
    Other rows can have that log-sum too: the score of the first key, which every row attends to,
    tells them apart.
    """
    first = (q * k[:, :, :1]).sum(-1)
    lost = (lse == 0) & ~(first > -math.inf) & (first != math.inf)
    return out.masked_fill(lost[..., None], math.nan), lse.masked_fill(lost, math.nan)


@computes_fused("attention_backward", fits=_flash_fits, opaque=True)
def _attention_backward(
    q: Any, k: Any, v: Any, out: Any, lse: Any, ct: Any, *, scale: float, causal: bool, **_: Any
) -> list[torch.Tensor]:
    kv = k.shape[2]
    repeat = q.shape[2] // kv

    def summed(g: torch.Tensor) -> torch.Tensor:
        if repeat > 1:
            b, _, s, h = g.shape
            g = g.reshape(b, kv, repeat, s, h).sum(2)
        return g.transpose(1, 2)

    dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        _heads_first(ct),
        _heads_first(q),
        _heads_first(k, repeat),
        _heads_first(v, repeat),
        _heads_first(out),
        lse,
        0.0,
        causal,
        scale=scale,
    )
    return [dq.transpose(1, 2), summed(dk), summed(dv)]


# ---- special functions ----


# Opaque: the reference loops until convergence, and TorchInductor compiles no such loop.
@computes_fused("igamma", kinds=_SINGLE, opaque=True, f=torch.special.gammainc)
@computes_fused("igammac", kinds=_SINGLE, opaque=True, f=torch.special.gammaincc)
def _incomplete_gamma(
    a: torch.Tensor, x: torch.Tensor, *, f: Callable[..., Any]
) -> list[torch.Tensor]:
    # In float64 torch's form is good to nine digits only; the reference to eleven.
    y = f(a, x)
    bad = (a < 0) | (x < 0) | ((a == 0) & (x == 0)) | (a != a) | (x != x)
    return [torch.where(bad, torch.nan, y)]


@computes_fused("bessel_i0e", f=torch.special.i0e)
@computes_fused("bessel_i1e", f=torch.special.i1e)
def _elementwise(x: torch.Tensor, *, f: Callable[..., Any]) -> list[torch.Tensor]:
    return [f(x)]


_FAR = 1e8  # from here on two terms of the expansion in 1 / q are enough


@computes_fused("zeta")
def _zeta(x: torch.Tensor, q: torch.Tensor) -> list[torch.Tensor]:
    y = torch.special.zeta(x, q)
    far = (x > 1) & (q > _FAR)
    y = torch.where(far, (1 / (x - 1) + 0.5 / q) * q ** (1 - x), y)
    return [torch.where(y.isnan() & (x > 1) & (q > 1), 0.0, y)]  # q^-x is 0
