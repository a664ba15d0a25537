"""Scaled-dot-product attention in the BTNH layout, grouped heads included, as one operation.

Semantics are those of jax.nn.dot_product_attention. The reference holds the probabilities; the CPU
uses torch's flash kernel and the GPU one of its own where the case allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, overload

from genesis_fn.core import dtypes, errors
from genesis_fn.core.primitive import Tracer, typeof
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.lax.fused.softmax import along_last, last, like, logsumexp_last, softmax_last, wide
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general
from genesis_fn.primitives.factories import move_batch
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.primitives.shape import broadcast_in_dim, iota, reshape, transpose
from genesis_fn.transforms.custom.fused_functions import fused

# The logit of a masked key: finite, so that a query without visible keys attends to all keys
# equally; with -inf its softmax would be NaN.
MASKED = -0.7 * dtypes.finfo(dtypes.F32).max

_STATIC = ("scale", "causal", "window", "softcap")
# Which of bias, mask, key lengths, the queries' segments and the keys' own segments there are.
_Has = tuple[bool, bool, bool, bool, bool]


def _visible(
    q: Any, k: Any, causal: bool, window: tuple[Any, ...] | None, shape: tuple[int, ...]
) -> Any:
    """Booleans [batch, kv heads, group, queries, keys] of what position alone allows, or None."""
    t, s = typeof(q).shape[1], typeof(k).shape[1]
    left, right = window if window is not None else (None, None)
    if causal:
        right = 0 if right is None else min(right, 0)
    rows, columns = iota(dtypes.I32, (t, s), 0), iota(dtypes.I32, (t, s), 1)
    seen: Array | None = None
    if right is not None:
        seen = ops.le(columns, ops.add(rows, right) if right else rows)
    if left is not None:
        near = ops.ge(columns, ops.sub(rows, left))
        seen = near if seen is None else ops.bitwise_and(seen, near)
    return None if seen is None else broadcast_in_dim(seen, shape, (3, 4))


def _scores(
    q: Any,
    k: Any,
    bias: Any,
    mask: Any,
    lengths: Any,
    q_segments: Any,
    kv_segments: Any,
    scale: float,
    causal: bool,
    window: Any,
    softcap: float,
) -> tuple[Any, Any, Any]:
    """(masked logits, d capped / d raw or None, visibility) as [batch, kv heads, group, T, S]."""
    b, t, n, h = typeof(q).shape
    kv = typeof(k).shape[2]
    grouped = reshape(q, (b, t, kv, n // kv, h))
    wide_type = dtypes.F32 if typeof(q).dtype.itemsize < 4 else typeof(q).dtype
    raw = dot_general(
        grouped, k, (((4,), (3,)), ((0, 2), (0, 2))), preferred_element_type=wide_type
    )  # [b, kv, t, group, s]
    logits = ops.mul(transpose(raw, (0, 1, 3, 2, 4)), scale)
    slope = None
    if softcap:
        y = ops.tanh(ops.mul(logits, 1.0 / softcap))
        slope, logits = ops.sub(1.0, ops.mul(y, y)), ops.mul(y, softcap)
    shape = typeof(logits).shape
    if bias is not None:
        logits = ops.add(logits, _grouped(like(bias, logits), shape))
    seen = _visible(q, k, causal, window, shape)
    if mask is not None:
        mask = _grouped(mask, shape)
        seen = mask if seen is None else ops.bitwise_and(seen, mask)
    if lengths is not None:
        inside = _below(lengths, shape, 4)
        seen = inside if seen is None else ops.bitwise_and(seen, inside)
    if q_segments is not None:
        kv_segments = q_segments if kv_segments is None else kv_segments
        own = broadcast_in_dim(q_segments, shape, (0, 3))
        alike = ops.eq(own, broadcast_in_dim(kv_segments, shape, (0, 4)))
        seen = alike if seen is None else ops.bitwise_and(seen, alike)
    if seen is not None:
        logits = ops.select(seen, logits, MASKED)
    return logits, slope, seen


def _grouped(x: Any, shape: tuple[int, ...]) -> Array:
    """A [batch, heads, T, S] array, any axis possibly 1, as [batch, kv heads, group, T, S]."""
    n = typeof(x).shape[1]
    split = shape[1:3] if n != 1 else (1, 1)
    x = reshape(x, (typeof(x).shape[0], *split, *typeof(x).shape[2:]))
    return broadcast_in_dim(x, shape, (0, 1, 2, 3, 4))


def _ungrouped(x: Any, shape: tuple[int, ...]) -> Array:
    """The transpose of `_grouped`: sum what was repeated."""
    b, kv, g, t, s = typeof(x).shape
    x = reshape(x, (b, kv * g, t, s))
    repeated = tuple([i for i, (n, m) in enumerate(zip(shape, typeof(x).shape)) if n != m])
    return reshape(reduce_sum(x, repeated), shape)


def _values(p: Any, v: Any, q: Any) -> Array:
    """probabilities @ v as [batch, T, heads, H]."""
    out = dot_general(
        like(p, v), v, (((4,), (1,)), ((0, 1), (0, 2))), preferred_element_type=typeof(p).dtype
    )  # [b, kv, group, t, h]
    b, kv, g, t, h = typeof(out).shape
    return like(reshape(transpose(out, (0, 3, 1, 2, 4)), (b, t, kv * g, h)), q)


def _optional(extras: Sequence[Any], has: _Has) -> tuple[Any, Any, Any, Any, Any]:
    rest = iter(extras)
    return tuple([next(rest) if h else None for h in has])  # type: ignore[return-value]


def _probabilities(logits: Any, lse: Any, masked: bool) -> Any:
    """exp(logits - lse). The keys may be a part of those that `lse` is of, as in ring attention:
    then the rows sum to less than 1, and out and lse are those of all keys."""
    p = ops.exp(ops.sub(logits, along_last(lse, logits)))
    if not masked:
        return p
    # For a query without visible keys lse = MASKED + log(keys) rounds to MASKED, and every
    # probability would be 1. One of -inf is of logits that are all -inf, which give NaN.
    lost = ops.lt(ops.abs(ops.sub(lse, MASKED)), -1e-3 * MASKED)
    return ops.select(along_last(lost, p), 1.0 / typeof(p).shape[-1], p)


# ---- the operation ----


def _fold_batch(size: int, xs: Sequence[Any], dims: Sequence[Any], **static: Any) -> Any:
    """vmap: the new axis joins the batch axis, so the kernel is kept."""

    def fold(x: Any, d: int | None) -> Any:
        x = move_batch(x, d, 0, size)
        n = typeof(x).shape[1]
        return reshape(x, (size * n, *typeof(x).shape[2:]))

    batch = next(
        typeof(x).shape[0 if d else 1] if d is not None else typeof(x).shape[0]
        for x, d in zip(xs, dims)
    )
    if any(static["has"]):
        # A bias or mask of one batch entry is repeated: the folded axis has no broadcast inside.
        xs = list(xs)
        for i in range(3, len(xs)):
            x = move_batch(xs[i], dims[i], 0, size)
            if typeof(x).shape[1] == 1 != batch:
                shape = (size, batch, *typeof(x).shape[2:])
                x = broadcast_in_dim(x, shape, tuple(range(len(shape))))
            xs[i] = x
        dims = [*dims[:3], *[0] * (len(xs) - 3)]
    out = attention(*[fold(x, d) for x, d in zip(xs, dims)], **static)
    return [reshape(out, (size, batch, *typeof(out).shape[1:]))], [0]


def _dims(has: _Has, kept: bool = False) -> str:
    """The dimensions of the operands, or of the same as results, if they are `kept`: batch entries
    and heads may be divided among devices."""
    extras = ("B H t s", "B H t s", "B", "B t", "B s")
    every = ["B t H d", "B s H d", "B s H e", *[x for x, h in zip(extras, has) if h]]
    return ", ".join(["=" * kept + x for x in every])


@fused(
    "attention",
    static=(*_STATIC, "has"),
    precision="low",
    batch=_fold_batch,
    dims=lambda avals, static: f"{_dims(static['has'])} -> B t H e",
)
def attention(
    q: Array,
    k: Array,
    v: Array,
    *extras: Array,
    scale: float,
    causal: bool,
    window: tuple[Any, ...] | None,
    softcap: float,
    has: _Has,
) -> Array:
    """softmax(scale * q k^T + bias, masked) v; `extras` are the bias, the mask, how many keys each
    batch entry has, the segments of queries and those of keys, if others, as `has` says."""
    optional = _optional(extras, has)
    logits, _, _ = _scores(q, k, *optional, scale, causal, window, softcap)
    return _values(softmax_last.reference(logits), v, q)


@fused(
    "attention_forward",
    static=(*_STATIC, "has"),
    dims=lambda avals, static: (
        f"{_dims(static['has'])} -> B t H e, {_dims(static['has'], kept=True)}, B t H e, B H t"
    ),
)
def attention_forward(
    q: Any, k: Any, v: Any, *extras: Any, has: tuple[Any, ...], **static: Any
) -> tuple[Any, ...]:
    """((output,), (operands, output, log-sum-exp [batch, heads, queries]))."""
    optional = _optional(extras, has)
    logits, _, _ = _scores(q, k, *optional, *[static[n] for n in _STATIC])
    lse = logsumexp_last.reference(logits)
    out = _values(softmax_last.reference(logits), v, q)
    b, kv, g, t = typeof(lse).shape
    return (out,), (q, k, v, *extras, out, reshape(lse, (b, kv * g, t)))


@fused(
    "attention_backward",
    static=(*_STATIC, "has"),
    dims=lambda avals, static: (
        f"{_dims(static['has'])}, B t H e, B H t, B t H e -> B t H d, B s H d, B s H e"
        f"{', B H t s' * static['has'][0]}"
    ),
)
def attention_backward(
    residuals: Any, ct: Any, *, has: tuple[Any, ...], needs: Sequence[bool], **static: Any
) -> tuple[Any, ...]:
    """Cotangents of q, k, v and the bias. Where the keys are a part of those that the residuals'
    output and log-sum-exp are of, they are the terms of this part."""
    q, k, v, *extras, out, lse = residuals
    bias, *others = _optional(extras, has)
    logits, slope, seen = _scores(q, k, bias, *others, *[static[n] for n in _STATIC])
    b, kv, g, t, _ = typeof(logits).shape
    h = typeof(v).shape[-1]
    p = _probabilities(logits, reshape(lse, (b, kv, g, t)), seen is not None)
    grad = transpose(reshape(wide(ct), (b, t, kv, g, h)), (0, 2, 3, 1, 4))  # [b, kv, g, t, h]
    dtype = typeof(p).dtype
    dv = dot_general(
        like(p, v),
        like(grad, v),
        (((2, 3), (2, 3)), ((0, 1), (0, 1))),
        preferred_element_type=dtype,
    )  # [b, kv, s, h]
    dp = dot_general(
        like(grad, v), v, (((4,), (3,)), ((0, 1), (0, 2))), preferred_element_type=dtype
    )  # [b, kv, g, t, s]
    o = transpose(reshape(wide(out), (b, t, kv, g, h)), (0, 2, 3, 1, 4))
    delta = reduce_sum(ops.mul(o, grad), last(o))
    ds = ops.mul(p, ops.sub(dp, along_last(delta, p)))
    if seen is not None:
        ds = ops.select(seen, ds, 0.0)
    d_bias = None
    if has[0]:
        d_bias = like(_ungrouped(ds, typeof(bias).shape), bias)
    if slope is not None:
        ds = ops.mul(ds, slope)
    ds = like(ops.mul(ds, static["scale"]), k)
    dq = dot_general(ds, k, (((4,), (1,)), ((0, 1), (0, 2))), preferred_element_type=dtype)
    dq = reshape(transpose(dq, (0, 3, 1, 2, 4)), typeof(q).shape)
    grouped = reshape(q, (b, t, kv, g, typeof(q).shape[-1]))
    dk = dot_general(
        ds, grouped, (((2, 3), (3, 1)), ((0, 1), (0, 2))), preferred_element_type=dtype
    )  # [b, kv, s, h]
    back = [like(dq, q), like(transpose(dk, (0, 2, 1, 3)), k), like(transpose(dv, (0, 2, 1, 3)), v)]
    return tuple(back + ([d_bias] if has[0] else []))


attention.defvjp(attention_forward, attention_backward)


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: Literal[False] = False,
    softcap: float = 0.0,
    segment_ids: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
) -> Array: ...


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: Literal[True],
    softcap: float = 0.0,
    segment_ids: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
) -> tuple[Array, Array]: ...


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    softcap: float = 0.0,
    segment_ids: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
) -> PyTree:
    """softmax(scale * query key^T + bias) value: [B, T, N, H] or [T, N, H], as JAX's function.

    Args:
        query: floating array [B, T, N, H], or [T, N, H] without a batch.
        key, value: arrays [B, S, K, H] with K dividing N: N / K query heads share a key head.
        bias: added to the scaled scores; broadcasts to [B, N, T, S].
        mask: booleans that broadcast to [B, N, T, S]: True where a query may attend to a key.
        scale: factor of the scores; None means 1 / sqrt(H).
        is_causal: whether query t attends to keys 0 ... t only.
        query_seq_lengths, key_value_seq_lengths: how many positions of each row are real, integers
            [B]; None means all.
        local_window_size: the most keys to the left and to the right that a query attends to,
            (left, right), or one number for both; None means all.
        implementation: "xla", "cudnn" or None, with no effect: the device decides.
        return_residual: also return the logarithm of the sum of exponentials.
        softcap: replaces scores by softcap * tanh(scores / softcap); 0 does not.
        segment_ids: integers [B, T] of at most 32 bits, for S = T, or a pair of such: [B, T] of the
            queries and [B, S] of the keys. A query attends to the keys of its own id only, as in
            rows of several texts; the GPU skips what lies outside. None means one segment.

    Returns:
        An array of the shape of `query`; with `return_residual` (it, logarithms [B, T, N], or
        [T, N] without a batch, in float32 or for float64 operands in float64).

    Raises:
        ShapeError: shapes do not fit.
        DTypeError: operands have several dtypes or one that is not floating, `mask` is not
            boolean, or `segment_ids` are no integers of at most 32 bits.
        ValueError: `implementation` is another.

    >>> q = random.normal(random.key(0), (1, 5, 4, 8))
    >>> nn.dot_product_attention(q, q[:, :, :2], q[:, :, :2], is_causal=True).shape
    (1, 5, 4, 8)
    """
    from genesis_fn.core.convert import as_array

    if implementation not in (None, "xla", "cudnn"):
        raise ValueError(
            f"dot_product_attention: implementation {implementation!r} is none of None, 'xla', "
            "'cudnn'; the backend chooses the kernel in any case"
        )
    q, k, v = map(as_array, (query, key, value))
    ndim = typeof(q).ndim
    if ndim == 3:
        q, k, v = [reshape(x, (1, *typeof(x).shape)) for x in (q, k, v)]
    _checked(q, k, v)
    b, t, n, h = typeof(q).shape
    s = typeof(k).shape[1]
    bias = None if bias is None else _four_axes(as_array(bias), (b, n, t, s), "bias")
    mask = None if mask is None else _four_axes(as_array(mask), (b, n, t, s), "mask")
    if mask is not None and typeof(mask).dtype != dtypes.BOOL:
        raise errors.DTypeError(f"attention: the mask must be boolean, got {typeof(mask)}")
    lengths = None
    if key_value_seq_lengths is not None:
        lengths = ops.convert(as_array(key_value_seq_lengths), dtypes.I32)
        if typeof(lengths).shape != (b,):
            raise errors.ShapeError(
                f"attention: key_value_seq_lengths {typeof(lengths)} must be [{b}]"
            )
    segments = () if segment_ids is None else _segments(segment_ids, b, t, s, ndim)
    if query_seq_lengths is not None:
        inside = _below(as_array(query_seq_lengths), (b, 1, t, 1), 2)
        mask = inside if mask is None else _both(mask, inside)
    window = local_window_size
    if isinstance(window, int):
        window = (window, window)
    if isinstance(scale, Tracer):  # kernels take a number
        factor = ops.convert(scale, typeof(q).dtype)
        q, scale = ops.mul(q, broadcast_in_dim(factor, typeof(q).shape, ())), 1.0
    scale = 1.0 / math.sqrt(h) if scale is None else float(scale)
    extras = [x for x in (bias, mask, lengths, *segments) if x is not None]
    given = len(segments)
    has = (bias is not None, mask is not None, lengths is not None, given > 0, given > 1)
    out = attention(
        q,
        k,
        v,
        *extras,
        scale=scale,
        causal=bool(is_causal),
        window=window,
        softcap=float(softcap),
        has=has,
    )
    if query_seq_lengths is not None:
        inside = _below(as_array(query_seq_lengths), (b, t, 1, 1), 1)
        out = ops.select(broadcast_in_dim(inside, typeof(out).shape, (0, 1, 2, 3)), out, 0.0)
    outs = [out]
    if return_residual:
        optional = _optional(extras, has)
        logits, _, _ = _scores(q, k, *optional, scale, bool(is_causal), window, float(softcap))
        totals = logsumexp_last(logits)  # [b, kv, group, t]
        outs.append(transpose(reshape(totals, (b, n, t)), (0, 2, 1)))
    if ndim == 3:
        outs = [reshape(x, typeof(x).shape[1:]) for x in outs]
    return tuple(outs) if return_residual else outs[0]


def _checked(q: Any, k: Any, v: Any) -> None:
    avals = [typeof(x) for x in (q, k, v)]
    shapes = [a.shape for a in avals]
    fits = all(len(s) == 4 for s in shapes) and (
        shapes[0][0] == shapes[1][0] == shapes[2][0]
        and shapes[1][1:3] == shapes[2][1:3]
        and shapes[0][3] == shapes[1][3]
        and shapes[1][2] > 0
        and shapes[0][2] % shapes[1][2] == 0
    )
    if not fits:
        raise errors.ShapeError(
            f"attention: query {avals[0]}, key {avals[1]} and value {avals[2]} do not fit "
            "[B, T, N, H], [B, S, K, H], [B, S, K, H] with K dividing N"
        )
    if len({a.dtype for a in avals}) != 1 or not dtypes.is_float(avals[0].dtype):
        raise errors.DTypeError(f"attention: operands need one float dtype, got {avals}")


def _four_axes(x: Any, shape: tuple[int, ...], what: str) -> Array:
    aval = typeof(x)
    padded = (1,) * (4 - aval.ndim) + aval.shape
    if aval.ndim > 4 or any(m not in (1, n) for m, n in zip(padded, shape)):
        raise errors.ShapeError(f"attention: the {what} {aval} does not broadcast to {list(shape)}")
    return reshape(x, padded)


def _segments(given: Any, b: int, t: int, s: int, ndim: int) -> tuple[Array, ...]:
    """int32 [b, t], of queries and keys alike, or with keys' own [b, s] behind it."""
    from genesis_fn.core.convert import as_array

    both = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if len(both) > 2:
        raise errors.ShapeError(
            "attention: segment_ids are one array, or two of queries and keys in a pair, but "
            f"{len(both)} are given"
        )
    found = []
    for what, ids, length in zip(("queries", "keys"), both, (t, s)):
        ids = as_array(ids)
        aval = typeof(ids)
        if aval.shape != ((b, length) if ndim == 4 else (length,)):
            want = [b, length] if ndim == 4 else [length]
            raise errors.ShapeError(f"attention: segment_ids {aval} of {what} must be {want}")
        if not dtypes.is_integer(aval.dtype) or aval.dtype.itemsize > 4:
            raise errors.DTypeError(
                f"attention: segment_ids {aval} of {what} must be integers of at most 32 bits"
            )
        found.append(reshape(ops.convert(ids, dtypes.I32), (b, length)))
    if len(found) == 1 and t != s:
        raise errors.ShapeError(
            f"attention: segment_ids of {t} queries do not say those of {s} keys; give a pair "
            "(of queries, of keys)"
        )
    return tuple(found)


def _below(lengths: Any, shape: tuple[int, ...], axis: int) -> Array:
    """Booleans of `shape`: position along `axis` is below its batch entry's length."""
    lengths = ops.convert(lengths, dtypes.I32)
    return ops.lt(iota(dtypes.I32, shape, axis), broadcast_in_dim(lengths, shape, (0,)))


def _both(x: Any, y: Any) -> Array:
    shape = tuple([max(m, n) for m, n in zip(typeof(x).shape, typeof(y).shape)])
    every = tuple(range(4))
    return ops.bitwise_and(broadcast_in_dim(x, shape, every), broadcast_in_dim(y, shape, every))
