"""Multi-head attention over [batch, T, features], with a cache of keys and values as state."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, dtypes, vmap
from genesis_fn.errors import ArgumentError
from genesis_fn.lax import dot_product_attention, dynamic_update_slice, rms_norm
from genesis_fn.nn.functions import softmax
from genesis_fn.nn.layers.dense import Linear
from genesis_fn.nn.layers.dropout import Dropout
from genesis_fn.nn.layers.rotary import RotaryEmbedding, apply_rotary
from genesis_fn.nn.module import (
    Module,
    call_part,
    check_fields,
    checked_input,
    init_parts,
    layer_error,
    lookup,
    lookup_within,
    shown,
)
from genesis_fn.transforms import assert_


def write_cache(buffer: Array, new: Array, lengths: ArrayLike) -> Array:
    """A cache with new entries behind each row's own length.

    Args:
        buffer: array [B, capacity, ...].
        new: array [B, T, ...], which is cast to the dtype of `buffer`.
        lengths: the positions at which rows of `new` begin, integers [B]; one above capacity - T
            counts as that.

    Returns:
        An array of the shape and dtype of `buffer`.

    >>> nn.write_cache(jnp.zeros((2, 4)), jnp.ones((2, 1)), jnp.array([0, 2]))
    Array([[1., 0., 0., 0.],
           [0., 0., 1., 0.]], dtype=float32)
    """
    zeros = (0,) * (buffer.ndim - 2)
    return vmap(lambda b, n, at: dynamic_update_slice(b, n, (at, *zeros)))(
        buffer, jnp.astype(new, buffer.dtype), lengths
    )


@dataclasses.dataclass(frozen=True)
class MultiHeadAttention(Module):
    """Attention of queries to keys and values, in several heads: self-attention or cross-attention.

        concatenate(softmax(q k^T / sqrt(head_dim)) v for each head) @ o_proj.weight.T

    Source: Vaswani et al., "Attention is all you need", 2017; fewer heads of keys than of queries:
    Ainslie et al., "GQA", 2023.

    Input [batch, T, features], output of the same shape. Parameters: `q_proj`, `k_proj`, `v_proj`
    and `o_proj`, each as of `Linear`; with `qk_norm` also `q_norm` and `k_norm`, as of `RMSNorm`.

    The state is a cache of keys and values, for decoding: `init_state(batch=, capacity=)` makes it
    and a call with `state=` adds the keys of its input, to which the queries attend with all keys
    before them, and returns (output, state). In cross-attention the keys of `context` are added,
    none in a call without it, so that a context is projected once.

    Args:
        features: length of the last axis of input and output.
        heads: number of heads of queries.
        kv_heads: number of heads of keys and values, which divides `heads`; None means `heads`.
        head_dim: elements of a head; None means features // heads.
        context_features: length of the last axis of `context`, which makes it cross-attention; None
            means self-attention.
        causal: whether a query attends only to keys that are not after it.
        window: the most keys before its own that a query attends to, not counting its own; None
            means all.
        rotary: `RotaryEmbedding` of queries and keys; None means none.
        qk_norm: whether heads of queries and keys are normalised by `RMSNorm`, as in Qwen3.
        bias: whether the projections of queries, keys and values have a bias.
        output_bias: whether the output projection has one; None means as `bias`.
        softcap: replaces scores by softcap * tanh(scores / softcap); 0 does not.
        dropout: probability with which a query forgets a key, with `train=True`.
        eps: of `qk_norm`.
        dtype: of the parameters.

    Raises:
        ArgumentError: `kv_heads` does not divide `heads`, `heads` does not divide `features` where
            `head_dim` is None, `rotary` has another `head_dim`, or an option contradicts another.

    >>> layer = nn.MultiHeadAttention(32, 4, kv_heads=2, causal=True, rotary=nn.RotaryEmbedding(8))
    >>> params = layer.init(random.key(0))
    >>> x = random.normal(random.key(1), (2, 5, 32))
    >>> y = layer(params, x)
    >>> state = layer.init_state(batch=2, capacity=16)
    >>> first, state = layer(params, x[:, :3], state=state)
    >>> second, state = layer(params, x[:, 3:], state=state)
    >>> bool(jnp.allclose(jnp.concatenate([first, second], 1), y, atol=1e-5))
    True
    """

    features: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    context_features: int | None = None
    causal: bool = False
    window: int | None = None
    rotary: RotaryEmbedding | None = None
    qk_norm: bool = False
    bias: bool = True
    output_bias: bool | None = None
    softcap: float = 0.0
    dropout: float = 0.0
    eps: float = 1e-6
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)
        heads, kv_heads = self.heads, self.heads if self.kv_heads is None else self.kv_heads
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise ArgumentError(
                f"MultiHeadAttention: kv_heads={kv_heads} has to divide heads={heads}, so that as "
                "many heads of queries share each head of keys"
            )
        if not isinstance(self.rotary, RotaryEmbedding | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"MultiHeadAttention: rotary is {self.rotary!r:.60}, but is a layer\n"
                "  make it: rotary=nn.RotaryEmbedding(head_dim)"
            )
        if self.head_dim is None and self.features % heads:
            raise ArgumentError(
                f"MultiHeadAttention: heads={heads} has to divide features={self.features}; or "
                "give head_dim"
            )
        if self._head_dim < 1:
            raise ArgumentError(
                f"MultiHeadAttention: heads have {self._head_dim} elements, but have at least 1"
            )
        if self.rotary is not None and self.rotary.head_dim != self._head_dim:
            raise ArgumentError(
                f"MultiHeadAttention: heads have {self._head_dim} elements, but rotary is for "
                f"head_dim={self.rotary.head_dim}"
            )
        cross = self.context_features is not None
        if cross and (self.causal or self.window is not None or self.rotary is not None):
            raise ArgumentError(
                "MultiHeadAttention: causal, window and rotary are for self-attention, whose "
                "queries and keys have one row of positions; context_features= makes it "
                "cross-attention"
            )
        Dropout(self.dropout)  # refuses what is no probability

    @property
    def _head_dim(self) -> int:
        return self.features // self.heads if self.head_dim is None else self.head_dim

    @property
    def _kv_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    def _projections(self) -> dict[str, Linear]:
        d, c = self._head_dim, self.context_features
        source = self.features if c is None else c
        out_bias = self.bias if self.output_bias is None else self.output_bias
        return {
            "q_proj": Linear(self.features, self.heads * d, self.bias, self.dtype),
            "k_proj": Linear(source, self._kv_heads * d, self.bias, self.dtype),
            "v_proj": Linear(source, self._kv_heads * d, self.bias, self.dtype),
            "o_proj": Linear(self.heads * d, self.features, out_bias, self.dtype),
        }

    def init(self, key: Key) -> dict[str, Any]:
        params = init_parts(self._projections(), key)
        if self.qk_norm:
            for name in ("q_norm", "k_norm"):
                params[name] = {"weight": jnp.ones((self._head_dim,), self.dtype)}
        return params

    def init_state(
        self,
        batch: int | None = None,
        capacity: int | None = None,
        dtype: DTypeLike | None = None,
        **sizes: Any,
    ) -> dict[str, Array] | None:
        """An empty cache; None without sizes.

        Args:
            batch: number of rows, B.
            capacity: the most positions that a row may have.
            dtype: of keys and values; None means that of the parameters.
            **sizes: other layers' sizes, not read.

        Returns:
            {"k", "v": [B, capacity, kv_heads, head_dim], "lengths": int32 [B]}, with `lengths` the
            number of positions that are filled.
        """
        if batch is None or capacity is None:
            return None
        shape = (batch, capacity, self._kv_heads, self._head_dim)
        kept = self.dtype if dtype is None else dtype
        return {
            "k": jnp.zeros(shape, kept),
            "v": jnp.zeros(shape, kept),
            "lengths": jnp.zeros((batch,), jnp.int32),
        }

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
        context: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        positions: ArrayLike | None = None,
        counts: ArrayLike | None = None,
    ) -> PyTree:
        """Attention of `x` to itself, to what the cache holds, or to `context`.

        Args:
            params: from `init`.
            x: array [B, T, features].
            state: a cache, from `init_state(batch=, capacity=)` or an earlier call.
            key: random key for dropout.
            train: whether dropout is on.
            context: array [B, S, context_features], for cross-attention.
            mask: booleans that broadcast to [B, heads, T, keys]: True where a query may attend to a
                key; keys are the cache's `capacity` where there is a cache.
            bias: array that broadcasts to [B, heads, T, keys], added to the scaled scores.
            positions: of rotary embeddings, integers [B, T] or [T]; None counts from 0, or from
                the cache's lengths.
            counts: how many of the positions of `x`, or of `context`, are real in each row,
                integers [B]; padding comes behind them. None means all.

        Returns:
            An array [B, T, features]; with `state` (it, the cache with the new keys).

        Raises:
            ArgumentError: parameters, input, context or state do not fit, or the cache has too few
                positions.
            AssertionFailed: a row's cache is full, when the program runs.
        """
        x = self._checked(x, context)
        self._check_places(x, positions, counts)
        source = x if self.context_features is None else context
        q = self._heads_of(params, "q_proj", x, self.heads)
        k = v = None
        if source is not None:
            k = self._heads_of(params, "k_proj", source, self._kv_heads)
            v = self._heads_of(params, "v_proj", source, self._kv_heads)
        start = None if state is None else self._lengths(state, x.shape[0])
        if self.rotary is not None and k is not None:
            if positions is None:
                places: Array = jnp.arange(x.shape[1])
                positions = places if start is None else start[:, None] + places
            angles = self.rotary.angles(positions)
            interleaved = self.rotary.interleaved
            q = apply_rotary(q, *angles, interleaved=interleaved)
            k = apply_rotary(k, *angles, interleaved=interleaved)
        visible: dict[str, Any] = {"mask": mask, "bias": bias}
        if start is None:
            if k is None or v is None:
                raise layer_error(self, "", "context= is missing: it is cross-attention")
            self._check_scores(q, k, mask, bias)
            visible |= {"is_causal": self.causal, "key_value_seq_lengths": counts}
            if self.window is not None:
                after = 0 if self.causal else self.window
                visible["local_window_size"] = (self.window, after)
        else:
            state = self._extended(state, start, k, v, counts)
            k, v = jnp.astype(state["k"], q.dtype), jnp.astype(state["v"], q.dtype)
            self._check_scores(q, k, mask, bias)
            visible |= self._visible_of_cache(start, state["lengths"], q, k, mask)
        if train and self.dropout:
            if key is None:
                raise layer_error(self, "", "in training it needs key=, from which dropout draws")
            visible |= {"softcap": self.softcap, "key": key, "rate": self.dropout}
            y = _attend_with_dropout(q, k, v, **visible)
        else:
            y = dot_product_attention(q, k, v, softcap=self.softcap, **visible)
        y = jnp.reshape(y, (*y.shape[:2], self.heads * self._head_dim))
        y = call_part(self, self._projections()["o_proj"], params, "o_proj", y)
        return y if state is None else (y, state)

    def _checked(self, x: ArrayLike, context: ArrayLike | None) -> Array:
        x = checked_input(self, x, self.features, "features")
        if jnp.ndim(x) != 3:
            text = f"the input is {shown(x)}, but has to be [batch, T, {self.features}]"
            raise layer_error(self, "", text)
        if context is None:
            return jnp.asarray(x)
        if self.context_features is None:
            text = "context= is for cross-attention\n  make the layer with context_features="
            raise layer_error(self, "", text)
        shape = jnp.shape(context)
        if len(shape) != 3 or shape[0] != jnp.shape(x)[0] or shape[2] != self.context_features:
            text = (
                f"context is {shown(context)}, but has to be [batch, S, {self.context_features}] "
                f"with the batch of the input, {shown(x)}"
            )
            raise layer_error(self, "", text)
        return jnp.asarray(x)

    def _check_places(
        self, x: Array, positions: ArrayLike | None, counts: ArrayLike | None
    ) -> None:
        """Raise ArgumentError for positions or counts that are not those of the rows of `x`."""
        b, t, _ = x.shape
        if positions is not None:
            if self.rotary is None:
                text = "positions= are those of rotary embeddings, of which it has none"
                raise layer_error(self, "", f"{text}\n  make the layer with rotary=")
            if jnp.shape(positions) not in ((t,), (1, t), (b, t)):
                text = f"positions are {shown(positions)}, but have to be [{b}, {t}] or [{t}]"
                raise layer_error(self, "", f"{text}: those of the input, {shown(x)}")
        if counts is not None:
            found: Array = jnp.asarray(counts)
            if found.shape != (b,) or not dtypes.is_integer(found.dtype):
                text = f"counts are {shown(found)}, but have to be integers [{b}]"
                raise layer_error(self, "", f"{text}: one for each row of the input, {shown(x)}")

    def _lengths(self, state: PyTree, batch: int) -> Array:
        """The lengths of a cache of `batch` rows; raises ArgumentError for what is no cache of
        it."""
        init = "init_state(batch=, capacity=)"
        if not isinstance(state, dict) or not {"k", "v", "lengths"} <= state.keys():
            found = (
                f"has the keys {list(state)}" if isinstance(state, dict) else type(state).__name__
            )
            text = f"state has to be a cache of keys and values, but {found}"
            raise layer_error(self, "", f"{text}\n  layer.{init} makes it")
        capacity = jnp.shape(state["k"])[1:2]
        for name in ("k", "v"):
            if jnp.shape(state[name])[:1] != (batch,):
                text = f"state[{name!r}] is {shown(state[name])}"
                text = f"{text}, but the input has a batch of {batch}\n  layer.{init} makes it"
                raise layer_error(self, "", text)
            shape = (batch, *capacity, self._kv_heads, self._head_dim)
            lookup(self, state, name, shape, init)
        return lookup(self, state, "lengths", (batch,), init)

    def _check_scores(
        self, q: Array, k: Array, mask: ArrayLike | None, bias: ArrayLike | None
    ) -> None:
        """Raise ArgumentError for a mask or a bias that is not one of the scores."""
        scores = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
        for name, given in (("mask", mask), ("bias", bias)):
            if given is None:
                continue
            shape = jnp.shape(given)
            ends = zip(reversed(shape), reversed(scores))
            if len(shape) > 4 or not all([n in (1, m) for n, m in ends]):
                text = f"{name} is {shown(given)}, but has to broadcast to {[*scores]}"
                raise layer_error(self, "", f"{text}: [batch, heads, T, keys]")
        if mask is not None and jnp.result_type(mask) != dtypes.bool_:
            text = f"mask is {shown(mask)}, but is of booleans: True where a query may attend"
            raise layer_error(self, "", f"{text}\n  what is added to scores is bias=")

    def _heads_of(self, params: PyTree, name: str, x: ArrayLike, heads: int) -> Array:
        """A projection split into heads, [B, T, heads, head_dim], and normalised if it is to be."""
        y = call_part(self, self._projections()[name], params, name, x)
        y = jnp.reshape(y, (*y.shape[:2], heads, self._head_dim))
        norm = {"q_proj": "q_norm", "k_proj": "k_norm"}.get(name)
        if not self.qk_norm or norm is None:
            return y
        weight = lookup_within(self, params, [norm, "weight"], (self._head_dim,))
        return rms_norm(y, weight, eps=self.eps)

    def _extended(
        self,
        state: PyTree,
        start: Array,
        k: Array | None,
        v: Array | None,
        counts: ArrayLike | None,
    ) -> dict[str, Array]:
        """The cache with new keys and values behind each row's length."""
        if k is None or v is None:
            return state
        t, capacity = k.shape[1], state["k"].shape[1]
        message = f"of the cache's {capacity} positions fewer than the {t} that follow are left"
        if t > capacity:
            raise layer_error(self, "", message)
        assert_(start <= capacity - t, f"MultiHeadAttention: {message}")
        added = jnp.full(start.shape, t, jnp.int32) if counts is None else counts
        return {
            "k": write_cache(state["k"], k, start),
            "v": write_cache(state["v"], v, start),
            "lengths": start + jnp.astype(added, jnp.int32),
        }

    def _visible_of_cache(
        self, start: Array, lengths: Array, q: Array, k: Array, mask: ArrayLike | None
    ) -> dict[str, Any]:
        """The arguments of attention that say which keys of a cache each query attends to."""
        t, capacity = q.shape[1], k.shape[1]
        if not self.causal and self.window is None:
            return {"key_value_seq_lengths": lengths}
        if self.causal and self.window is None and t == 1:
            return {"key_value_seq_lengths": start + 1}
        # A query attends to keys up to its own position; later ones are empty or padding.
        keys = jnp.arange(capacity)[None, None, None, :]
        places = (start[:, None] + jnp.arange(t))[:, None, :, None]
        filled = jnp.reshape(lengths, (-1, 1, 1, 1))
        seen = keys <= places if self.causal else keys < filled
        if self.window is not None:
            seen = seen & (keys >= places - self.window)
            if not self.causal:
                seen = seen & (keys <= places + self.window)
        return {"mask": seen if mask is None else seen & jnp.asarray(mask)}


def _attend_with_dropout(
    q: Array,
    k: Array,
    v: Array,
    *,
    key: Key,
    rate: float,
    softcap: float,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    is_causal: bool = False,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: tuple[int, int] | None = None,
) -> Array:
    """`dot_product_attention` with dropout of its probabilities, which the kernels do not have."""
    b, t, n, d = q.shape
    s, kv = k.shape[1], k.shape[2]
    grouped = jnp.reshape(q, (b, t, kv, n // kv, d))
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k) / math.sqrt(d)
    scores = jnp.astype(jnp.reshape(scores, (b, n, t, s)), jnp.promote_types(q.dtype, jnp.float32))
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    seen = jnp.ones((1, 1, t, s), bool) if mask is None else jnp.asarray(mask)
    apart = jnp.arange(s) - jnp.arange(t)[:, None]
    if is_causal:
        seen = seen & (apart <= 0)
    if local_window_size is not None:
        seen = seen & (apart >= -local_window_size[0]) & (apart <= local_window_size[1])
    if key_value_seq_lengths is not None:
        ends = jnp.reshape(jnp.asarray(key_value_seq_lengths), (b, 1, 1, 1))
        seen = seen & (jnp.arange(s) < ends)
    # Finite, so that a query without keys gives no NaN, as in dot_product_attention.
    lowest = float(jnp.finfo(jnp.float32).min) * 0.7
    p = softmax(jnp.where(seen, scores, lowest), -1)
    p = Dropout(rate)({}, p, key=key, train=True)
    grouped_p = jnp.reshape(jnp.astype(p, v.dtype), (b, kv, n // kv, t, s))
    return jnp.reshape(jnp.einsum("bkgts,bskd->btkgd", grouped_p, v), (b, t, n, d))
