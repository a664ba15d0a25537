"""Context parallelism: attention of sequences that are divided among devices.

Ring attention (Liu et al. 2023): each device keeps its queries, and keys and values travel around
the ring of devices. A device attends to those that visit it and merges the results by their
log-sum-exps; in the backward pass the gradients of keys and values travel along with them. No
device ever holds more than its part of the sequence and one visitor. All-to-all ("Ulysses", Jacobs
et al. 2023): each device has the whole sequence for some of the heads.

Under a causal mask the devices that hold the first tokens would have little to do. In the zigzag
layout the sequence is cut into 2n chunks, and device i of n has chunks i and 2n - 1 - i. Of any
visitor it then attends to exactly half: with both chunks to the earlier one of the visitor's, or
with the later one to both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, TypeAlias

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, P, dtypes, errors, lax, shard_map
from genesis_fn.extend import fused, where
from genesis_fn.lax import dot_product_attention
from genesis_fn.lax.fused.attention import MASKED, attention_backward, attention_forward
from genesis_fn.sharding import Mesh

Layout: TypeAlias = Literal["contiguous", "zigzag"]
Window: TypeAlias = tuple[int | None, int | None] | None

# The log-sum-exp by which no key has a probability: exp(logits - _FAR) is 0.
_FAR = 1e30

# ---- the order of the sequence ----


def to_zigzag(x: ArrayLike, parts: int, axis: int = 1) -> Array:
    """Tokens, labels or positions in the order in which devices have equal work under a causal
    mask: device i of n has chunks i and 2n - 1 - i of the sequence.

    Args:
        x: array whose dimension `axis` is the sequence, a multiple of 2 * `parts`.
        parts: the number of devices that the sequence is divided among.
        axis: the dimension.

    Returns:
        An array of the shape of `x`.

    Raises:
        ShapeError: the dimension cannot be divided so.

    >>> parallel.to_zigzag(jnp.arange(8)[None], 2)
    Array([[0, 1, 6, 7, 2, 3, 4, 5]], dtype=int32)
    """
    return _reordered(x, _zigzag_order(parts), axis, "to_zigzag")


def from_zigzag(x: ArrayLike, parts: int, axis: int = 1) -> Array:
    """The inverse of `to_zigzag`: the sequence in its own order.

    Args:
        x: array whose dimension `axis` is the sequence in zigzag order.
        parts: the number of devices that the sequence is divided among.
        axis: the dimension.

    Returns:
        An array of the shape of `x`.

    Raises:
        ShapeError: the dimension cannot be divided so.

    >>> parallel.from_zigzag(jnp.array([[0, 1, 6, 7, 2, 3, 4, 5]]), 2)
    Array([[0, 1, 2, 3, 4, 5, 6, 7]], dtype=int32)
    """
    order = _zigzag_order(parts)
    back = [order.index(i) for i in range(len(order))]
    return _reordered(x, back, axis, "from_zigzag")


def _zigzag_order(parts: int) -> list[int]:
    return [c for i in range(parts) for c in (i, 2 * parts - 1 - i)]


def _reordered(x: ArrayLike, order: Sequence[int], axis: int, what: str) -> Array:
    """The chunks of a dimension in another order."""
    x = jnp.asarray(x)
    if not -x.ndim <= axis < x.ndim or x.shape[axis] % len(order):
        raise errors.ShapeError(
            f"{what}: dimension {axis} of {list(x.shape)} must be a multiple of 2 * parts, "
            f"{len(order)}\n  at {where().describe()}"
        )
    return jnp.concatenate([jnp.split(x, len(order), axis)[c] for c in order], axis)


# ---- what a device computes with each visitor ----


@dataclasses.dataclass(frozen=True)
class _Span:
    """Positions of a part: `size` of them from `start` on, which devices may have at other
    places."""

    start: Any
    size: int

    def taken(self, x: Array, axis: int = 1) -> Array:
        if isinstance(self.start, int):
            return lax.slice_in_dim(x, self.start, self.start + self.size, axis=axis)
        return lax.dynamic_slice_in_dim(x, self.start, self.size, axis)

    def spread(self, x: Array, length: int, fill: float = 0.0, axis: int = 1) -> Array:
        """`x` at its positions of a part, `fill` at the others."""
        if isinstance(self.start, int):
            around = [(0, 0, 0)] * x.ndim
            around[axis] = (self.start, length - self.start - self.size, 0)
            return x if length == self.size else lax.pad(x, fill, around)
        shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        return lax.dynamic_update_slice_in_dim(jnp.full(shape, fill, x.dtype), x, self.start, axis)


@dataclasses.dataclass(frozen=True)
class _Visit:
    """Attention of queries of this device to keys of the device `hops` before it. Where `counts` is
    false the keys count for nothing: the sequence has no such part."""

    hops: int
    queries: _Span
    keys: _Span
    causal: bool = False
    window: Window = None
    counts: Array | None = None

    def operands(self, q: Array, keys: _Keys) -> tuple[Array, ...]:
        k, v = self.keys.taken(keys.k), self.keys.taken(keys.v)
        if keys.own_segments is None or keys.segments is None:
            return self.queries.taken(q), k, v
        own, theirs = self.queries.taken(keys.own_segments), self.keys.taken(keys.segments)
        return self.queries.taken(q), k, v, own, theirs


@dataclasses.dataclass(frozen=True)
class _Keys:
    """Keys and values that travel, with their segments; the queries' segments stay."""

    k: Array
    v: Array
    segments: Array | None
    own_segments: Array | None

    @classmethod
    def at_home(cls, k: Array, v: Array, segments: Sequence[Array]) -> _Keys:
        own = segments[0] if segments else None
        return cls(k, v, own, own)

    def after(self, ring: _Ring, hops: int) -> _Keys:
        segments = None if self.segments is None else ring.sent(self.segments, hops)
        return _Keys(ring.sent(self.k, hops), ring.sent(self.v, hops), segments, self.own_segments)


@dataclasses.dataclass(frozen=True)
class _Ring:
    """What is static of ring attention along an axis."""

    axis: Hashable
    causal: bool
    window: Window
    scale: float
    softcap: float
    zigzag: bool

    def sent(self, x: Array, hops: int) -> Array:
        """What the device `hops` before has."""
        if not hops:
            return x
        n = lax.axis_size(self.axis)
        return lax.ppermute(x, self.axis, [(i, (i + hops) % n) for i in range(n)])

    def static(self, visit: _Visit, operands: Sequence[Array]) -> dict[str, Any]:
        """The static parameters of the fused functions."""
        segments = len(operands) > 3
        return {
            "scale": self.scale,
            "causal": visit.causal,
            "window": visit.window,
            "softcap": self.softcap,
            "has": (False, False, False, segments, segments),
        }

    def visits(self, length: int) -> list[_Visit]:
        """The visits of a device, in the order of the ring."""
        n, me, whole = lax.axis_size(self.axis), lax.axis_index(self.axis), _Span(0, length)
        first = _Visit(0, whole, whole, self.causal, self.window)
        if self.zigzag:
            pairs = [_zigzag_visits(hops, length // 2, me) for hops in range(1, n)]
            return [first, *[v for pair in pairs for v in pair]]
        if not self.causal and self.window is None:
            return [first, *[_Visit(hops, whole, whole) for hops in range(1, n)]]
        left, right = self.window or (None, None)
        right = 0 if self.causal else right
        before = [_visit_before(hops, length, left, me >= hops) for hops in range(1, n)]
        behind = [_visit_behind(hops, length, right, me < n - hops) for hops in range(1, n)]
        return [first, *[v for v in (*before, *behind) if v is not None]]


def _zigzag_visits(hops: int, half: int, me: Array) -> list[_Visit]:
    """The later chunk attends to the visitor's earlier one in any case; beyond that the earlier
    one does, if the visitor comes from a device before, else the later one to the later one."""
    start = (me < hops).astype(jnp.int32) * half
    either = _Span(start, half)
    return [_Visit(hops, _Span(half, half), _Span(0, half)), _Visit(hops, either, either)]


def _visit_before(hops: int, length: int, left: int | None, counts: Array) -> _Visit | None:
    """Of keys that stand before the queries by `hops` parts, those at most `left` before one."""
    whole = _Span(0, length)
    if left is None or left - hops * length >= length - 1:
        return _Visit(hops, whole, whole, counts=counts)
    ahead = left - hops * length  # how far the window reaches where both parts begin together
    if ahead >= 0:
        return _Visit(hops, whole, whole, window=(ahead, None), counts=counts)
    size = length + ahead
    if size <= 0:
        return None
    return _Visit(hops, _Span(0, size), _Span(-ahead, size), window=(0, None), counts=counts)


def _visit_behind(hops: int, length: int, right: int | None, counts: Array) -> _Visit | None:
    """Of keys that stand behind the queries by `hops` parts, those at most `right` behind one."""
    mirrored = _visit_before(hops, length, right, counts)
    if mirrored is None:
        return None
    window = None if mirrored.window is None else (None, mirrored.window[0])
    return _Visit(-hops, mirrored.keys, mirrored.queries, window=window, counts=counts)


# ---- the ring ----


def _travel(ring: _Ring, q: Array, keys: _Keys, step: Callable[[_Visit, _Keys], None]) -> None:
    """Call `step` for each visit, with the visitor's keys."""
    visits = ring.visits(q.shape[1])
    for i, visit in enumerate(visits):
        # The next visitor is sent for before this one is attended to: both go on at a time.
        ahead = visits[i + 1].hops - visit.hops if i + 1 < len(visits) else 0
        coming = keys.after(ring, ahead)
        step(visit, keys)
        keys = coming


def _attended(
    ring: _Ring, q: Array, k: Array, v: Array, segments: Sequence[Array]
) -> tuple[Array, Array]:
    """(output, log-sum-exp [batch, heads, positions]) of all keys."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    merged: tuple[Array, Array] | None = None

    def step(visit: _Visit, keys: _Keys) -> None:
        nonlocal merged
        operands = visit.operands(q, keys)
        (out,), (*_, lse) = attention_forward(*operands, **ring.static(visit, operands))
        if visit.counts is not None:
            lse = jnp.where(visit.counts, lse, MASKED)
        out = visit.queries.spread(out.astype(wide), q.shape[1])
        lse = visit.queries.spread(lse, q.shape[1], MASKED, axis=2)
        merged = (out, lse) if merged is None else _merged(merged, (out, lse))

    _travel(ring, q, _Keys.at_home(k, v, segments), step)
    assert merged is not None
    out, lse = merged
    return out.astype(q.dtype), lse


def _merged(one: tuple[Array, Array], two: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two outputs of the same queries, of different keys, as one of all of them."""
    (out, lse), (other, other_lse) = one, two
    total = jnp.logaddexp(lse, other_lse)
    share = lambda x: jnp.swapaxes(jnp.exp(x - total), 1, 2)[..., None]
    return out * share(lse) + other * share(other_lse), total


_PARTS = "B t H d, B s H d, B s H e"


def _dims(results: str) -> Callable[..., str]:
    """Batch entries and heads may be divided among other devices."""

    def dims(avals: Sequence[Any], static: dict[str, Any]) -> str:
        segments = ", B t" if any(not dtypes.is_float(a.dtype) for a in avals) else ""
        return f"{results}".replace("@", _PARTS + segments)

    return dims


@fused("ring_attention", static=("ring",), precision="low", dims=_dims("@ -> B t H e"))
def _ring_attention(q: Array, k: Array, v: Array, *segments: Array, ring: _Ring) -> Array:
    return _attended(ring, q, k, v, segments)[0]


@fused("ring_attention_forward", static=("ring",), dims=_dims("@ -> B t H e, @, B t H e, B H t"))
def _ring_forward(
    q: Array, k: Array, v: Array, *segments: Array, ring: _Ring
) -> tuple[Any, tuple[Any, ...]]:
    out, lse = _attended(ring, q, k, v, segments)
    return (out,), (q, k, v, *segments, out, lse)


@fused(
    "ring_attention_backward",
    static=("ring",),
    dims=_dims("@, B t H e, B H t, B t H e -> B t H d, B s H d, B s H e"),
)
def _ring_backward(
    residuals: tuple[Any, ...], ct: Array, *, ring: _Ring, needs: Sequence[bool]
) -> tuple[Array, ...]:
    q, k, v, *segments, out, lse = residuals
    wide = jnp.promote_types(q.dtype, jnp.float32)
    sums = [jnp.zeros(x.shape, wide) for x in (q, k, v)]
    at = 0  # how many hops from home the gradients of k and v are

    def step(visit: _Visit, keys: _Keys) -> None:
        nonlocal at
        sums[1:] = [ring.sent(x, visit.hops - at) for x in sums[1:]]
        at = visit.hops
        operands = visit.operands(q, keys)
        total = lse if visit.counts is None else jnp.where(visit.counts, lse, _FAR)
        saved = (*operands, visit.queries.taken(out), visit.queries.taken(total, axis=2))
        static = {"needs": (True, True, True), **ring.static(visit, operands)}
        grads = attention_backward.apply((saved, visit.queries.taken(ct)), static)
        for i, (span, grad) in enumerate(zip((visit.queries, visit.keys, visit.keys), grads)):
            sums[i] = sums[i] + span.spread(grad.astype(wide), q.shape[1])

    _travel(ring, q, _Keys.at_home(k, v, segments), step)
    sums[1:] = [ring.sent(x, -at) for x in sums[1:]]
    return tuple([s.astype(x.dtype) for s, x in zip(sums, (q, k, v))])


_ring_attention.defvjp(_ring_forward, _ring_backward)


def ring_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    axis: Hashable,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    local_window_size: int | tuple[int | None, int | None] | None = None,
    segment_ids: ArrayLike | None = None,
    layout: Layout = "contiguous",
) -> Array:
    """`lax.dot_product_attention` within `shard_map`, of a sequence whose parts the devices along
    an axis hold.

    Keys and values travel from device to device, and so do their gradients in the backward pass:
    a device holds one part besides its own. With a window they travel as far as it reaches.

    Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
    Context", 2023; the zigzag layout from Brandon et al., "Striped Attention", 2023, and its
    followers.

    Args:
        query: floating array [B, T, N, H], this device's T positions.
        key, value: arrays [B, T, K, H] of the same positions, with K dividing N.
        axis: the axis of the mesh along which the sequence is divided.
        is_causal: whether a query attends to keys up to its own position only.
        scale: factor of the scores; None means 1 / sqrt(H).
        softcap: replaces scores by softcap * tanh(scores / softcap); 0 does not.
        local_window_size: the most keys to the left and to the right that a query attends to,
            (left, right), or one number for both; None means all.
        segment_ids: integers [B, T]: a query attends to keys of its own id only. None means one
            segment.
        layout: "contiguous" if device i has the i-th part of the sequence, "zigzag" if it has
            chunks i and 2n - 1 - i (`to_zigzag`), by which devices have equal work under a causal
            mask.

    Returns:
        An array of the shape of `query`.

    Raises:
        ShapeError: shapes do not fit, or T is odd in the zigzag layout.
        ArgumentError: a window in the zigzag layout, a negative one, or no such layout.

    >>> mesh = gf.make_mesh((1,), ("context",))
    >>> attend = lambda q: parallel.ring_attention(q, q, q, axis="context", is_causal=True)
    >>> along = gf.P(None, "context")
    >>> q = random.normal(random.key(0), (1, 6, 4, 8))
    >>> gf.shard_map(attend, mesh=mesh, in_specs=along, out_specs=along)(q).shape
    (1, 6, 4, 8)
    """
    q, k, v = map(jnp.asarray, (query, key, value))
    _check("ring_attention", q, k, v, segment_ids)
    window = _window("ring_attention", local_window_size)
    zigzag = _is_zigzag("ring_attention", layout, window)
    if zigzag and q.shape[1] % 2:
        raise errors.ShapeError(
            f"ring_attention: each device has {q.shape[1]} positions, but two chunks of equal "
            f"length in the zigzag layout\n  at {where().describe()}"
        )
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    # Without a mask by position the order does not matter.
    ring = _Ring(axis, bool(is_causal), window, factor, float(softcap), zigzag and bool(is_causal))
    segments = () if segment_ids is None else (jnp.asarray(segment_ids).astype(jnp.int32),)
    return _ring_attention(q, k, v, *segments, ring=ring)


# ---- heads instead of positions ----


def _exchanged_attention(
    q: Array,
    k: Array,
    v: Array,
    segment_ids: ArrayLike | None,
    axis: Hashable,
    zigzag: bool,
    options: dict[str, Any],
) -> Array:
    """Attention to the whole sequence, by each device for some of the heads."""
    n = lax.axis_size(axis)
    heads, shared = q.shape[2], k.shape[2]
    if heads % n or (shared % n and n % shared):
        raise errors.ShapeError(
            f"context_attention: {n} devices along {axis!r} cannot divide {heads} heads of queries "
            f"and {shared} of keys\n  at {where().describe()}\n  method='ring' divides positions"
        )
    if shared % n:  # several devices share a head of keys
        k, v = [jnp.repeat(x, n // shared, 2) for x in (k, v)]
    ordered = (lambda x: from_zigzag(x, n)) if zigzag else (lambda x: x)
    # Every device's positions of this device's heads, in place of this device's of all heads.
    q, k, v = [ordered(lax.all_to_all(x, axis, 2, 1, tiled=True)) for x in (q, k, v)]
    if segment_ids is not None:
        segment_ids = ordered(lax.all_gather(segment_ids, axis, axis=1, tiled=True))
    out = dot_product_attention(q, k, v, segment_ids=segment_ids, **options)
    return lax.all_to_all(to_zigzag(out, n) if zigzag else out, axis, 1, 2, tiled=True)


# ---- whole arrays ----


def context_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    mesh: Mesh,
    axis: Hashable,
    method: Literal["ring", "all_to_all"] = "ring",
    layout: Layout = "contiguous",
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    local_window_size: int | tuple[int | None, int | None] | None = None,
    segment_ids: ArrayLike | None = None,
) -> Array:
    """`lax.dot_product_attention` of whole arrays, computed by devices that each have a part of the
    sequence.

        attention = functools.partial(context_attention, mesh=mesh, axis="context")
        models.qwen.loss(params, tokens, labels, config, attention=attention)

    Over the other axes of the mesh the computation is partitioned as outside: batches by "data",
    say, and heads by "model".

    Source: Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023
    (`ring`); Jacobs et al., "DeepSpeed Ulysses", 2023 (`all_to_all`).

    Args:
        query: floating array [B, T, N, H]; the devices along the axis divide T.
        key, value: arrays [B, T, K, H] with K dividing N.
        mesh: the devices.
        axis: the axis of the mesh along which the sequence is divided.
        method: "ring", or "all_to_all", which exchanges positions for heads: less communication,
            for no more devices than there are heads.
        layout: "zigzag" if the sequence is in the order of `to_zigzag`, by which devices have equal
            work in a ring under a causal mask; positions are to be given in that order as well.
        is_causal, scale, softcap, local_window_size: as in `lax.dot_product_attention`.
        segment_ids: integers [B, T]: a query attends to keys of its own id only.

    Returns:
        An array of the shape of `query`.

    Raises:
        ShapeError: shapes do not fit, or devices cannot divide the heads.
        ShardingError: the axis does not divide T.
        ArgumentError: a window in a ring in the zigzag layout, or no such method or layout.

    >>> mesh = gf.make_mesh((1,), ("context",))
    >>> q = random.normal(random.key(0), (1, 6, 4, 8))
    >>> parallel.context_attention(q, q, q, mesh=mesh, axis="context", is_causal=True).shape
    (1, 6, 4, 8)
    """
    q, k, v = map(jnp.asarray, (query, key, value))
    _check("context_attention", q, k, v, segment_ids)
    window = _window("context_attention", local_window_size)
    if method not in ("ring", "all_to_all"):
        raise errors.ArgumentError(
            f"context_attention: method is {method!r}, but is 'ring' or 'all_to_all'"
        )
    zigzag = _is_zigzag("context_attention", layout, window if method == "ring" else None)
    options: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "softcap": softcap}
    options["local_window_size"] = window

    def of_parts(q: Array, k: Array, v: Array, segments: Array | None) -> Array:
        if method == "all_to_all":
            return _exchanged_attention(q, k, v, segments, axis, zigzag, options)
        return ring_attention(q, k, v, axis=axis, segment_ids=segments, layout=layout, **options)

    spec = P(None, axis)
    divided = shard_map(of_parts, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={axis})
    return divided(q, k, v, _integers(segment_ids))


# ---- arguments ----


def _check(what: str, q: Array, k: Array, v: Array, segments: ArrayLike | None) -> None:
    """Raise ShapeError where the operands are not of the same positions."""
    shapes = [list(x.shape) for x in (q, k, v)]
    b, t, n, _ = q.shape if q.ndim == 4 else (0, 0, 0, 0)
    alike = all(len(s) == 4 and s[:2] == [b, t] for s in shapes) and shapes[1] == shapes[2]
    if not alike or shapes[0][3] != shapes[1][3] or n % max(shapes[1][2], 1):
        raise errors.ShapeError(
            f"{what}: query {shapes[0]}, key {shapes[1]} and value {shapes[2]} do not fit "
            f"[B, T, N, H], [B, T, K, H], [B, T, K, H] with K dividing N\n"
            f"  at {where().describe()}"
        )
    if segments is None:
        return
    ids = jnp.asarray(segments)
    if ids.shape != (b, t) or not dtypes.is_integer(ids.dtype) or ids.dtype.itemsize > 4:
        raise errors.ShapeError(
            f"{what}: segment_ids are {ids.dtype}{list(ids.shape)}, but have to be integers of at "
            f"most 32 bits {[b, t]}\n  at {where().describe()}"
        )


def _integers(segments: ArrayLike | None) -> Array | None:
    return None if segments is None else jnp.asarray(segments).astype(jnp.int32)


def _window(what: str, given: int | tuple[int | None, int | None] | None) -> Window:
    window = (given, given) if isinstance(given, int) else given
    if window is not None and any(w is not None and w < 0 for w in window):
        raise errors.ArgumentError(f"{what}: local_window_size is {given}, but is not negative")
    return None if window in (None, (None, None)) else window


def _is_zigzag(what: str, layout: str, window: Window) -> bool:
    if layout not in ("contiguous", "zigzag"):
        raise errors.ArgumentError(f"{what}: layout is {layout!r}, but is 'contiguous' or 'zigzag'")
    if layout == "zigzag" and window is not None:
        raise errors.ArgumentError(
            f"{what}: local_window_size={window} in the zigzag layout, in which windows are no "
            "bands\n  in the contiguous layout devices have equal work with a window"
        )
    return layout == "zigzag"
