"""A decoder of tokens: Qwen2, Qwen3, Qwen3-MoE, Llama and Mistral as `init` and `forward` over a
pytree of parameters.

RMSNorm before each block, rotary positions, grouped-query attention, a gated feed-forward network
or a mixture of such: which layers have a sliding window, biases, norms of queries and keys, or
experts is what the config says. Parameter paths are Hugging Face's names:
`params["layers"][0]["self_attn"]["q_proj"]["weight"]` is `model.layers.0.self_attn.q_proj.weight`;
the experts of a layer are stacked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, PyTree, checkpoint, dtypes, errors
from genesis_fn.extend import take_rows, typeof
from genesis_fn.lax import dot_product_attention, linear_cross_entropy, rms_norm
from genesis_fn.models.decoder_config import DecoderConfig
from genesis_fn.models.decoder_init import init as init
from genesis_fn.models.decoder_layer import (
    between_blocks,
    every_position,
    layers_of,
    rotary_angles,
    run_layer,
    visible_in_cache,
    visible_within,
    within_segments,
)
from genesis_fn.nn import expert_mlp, linear, load_balancing_loss, plain_weight
from genesis_fn.transforms import assert_

# ---- parameters ----


def head_weight(params: PyTree) -> Array:
    """The weight of the output layer: its own, or the embedding's where they are tied.

    Args:
        params: parameters, from `init` or `io.load_model`.

    Returns:
        An array [vocabulary, hidden].

    >>> config = DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> head_weight(params).shape
    (64, 32)
    """
    return params["lm_head" if "lm_head" in params else "embed_tokens"]["weight"]


# ---- the network ----

# What computes attention and the experts, in place of the library's functions, and the layout
# between blocks or None.
_Functions: TypeAlias = tuple[Callable[..., Array], Callable[..., Array], Any]


def _block(
    p: dict[str, Any],
    x: Array,
    angles: tuple[Array, Array],
    *,
    config: DecoderConfig,
    visible: dict[str, Any],
    own: _Functions,
) -> tuple[Array, tuple[Array, Array] | None]:
    """A layer without a cache."""
    attention, experts, sequence = own
    x, _, routing = run_layer(
        p, x, angles, config, visible, attention=attention, experts=experts, sequence=sequence
    )
    return x, routing


def _trunk(
    params: PyTree,
    tokens: Array,
    config: DecoderConfig,
    positions: ArrayLike | None,
    mask: ArrayLike | None,
    remat: bool,
    counts: ArrayLike | None,
    segment_ids: ArrayLike | None,
    own: _Functions,
) -> tuple[Array, list[tuple[Array, Array]]]:
    """(the activations after the last norm, the routing of each layer with experts)."""
    layers, t = layers_of(params, config), tokens.shape[-1]
    if segment_ids is not None:
        segment_ids = jnp.asarray(segment_ids)
        restarted = within_segments(segment_ids, tokens.shape)
        positions = restarted if positions is None else positions
    places = jnp.arange(t)[None, :]
    if counts is not None:
        start = jnp.zeros(tokens.shape[:1], jnp.int32)
        tokens, places = _without_padding(tokens, start, counts)
    enter, leave = between_blocks(own[2])
    x = leave(take_rows(params["embed_tokens"]["weight"], tokens))
    angles = rotary_angles(places if positions is None else positions, config)
    given = {"mask": mask, "segment_ids": segment_ids}
    given = {name: x for name, x in given.items() if x is not None}
    routings = []
    for p, window in layers:
        visible = {**given, **visible_within(t, window)}
        block = functools.partial(_block, config=config, visible=visible, own=own)
        x, routing = (checkpoint(block) if remat else block)(p, x, angles)
        if routing is not None:
            routings.append(routing)
    return enter(rms_norm(x, params["norm"]["weight"], eps=config.rms_norm_eps)), routings


def hidden(
    params: PyTree,
    tokens: Array,
    config: DecoderConfig,
    *,
    positions: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    remat: bool = False,
    counts: ArrayLike | None = None,
    segment_ids: ArrayLike | None = None,
    attention: Callable[..., Array] = dot_product_attention,
    experts: Callable[..., Array] = expert_mlp,
    sequence: Any = None,
) -> Array:
    """The activations after the last norm, which the output layer multiplies.

    Args:
        params: parameters, from `init` or `io.load_model`.
        tokens: int tokens [B, T].
        config: the hyperparameters.
        positions: rotary positions, integers [B, T] or [1, T]; None means 0 ... T - 1.
        mask: booleans that broadcast to [B, heads, T, T]: True where a query may attend to a key
            that is not after it; None masks nothing.
        remat: recompute each layer in the backward pass instead of keeping its activations.
        counts: how many of the T tokens are real in each row, integers [B]; padding comes behind
            them, may hold anything and has activations that mean nothing. None means all.
        segment_ids: integers [B, T], of rows in which several texts follow each other: a token
            attends to those of its own id only, and rotary positions begin anew with each text.
            None means one text a row.
        attention: what computes attention in place of `lax.dot_product_attention`, of the same
            arguments: `parallel.context_attention` of a mesh, for sequences that are divided.
        experts: what computes the experts in place of `nn.expert_mlp`, of the same arguments:
            `parallel.expert_mlp` of a mesh, for experts that are divided.
        sequence: how activations between blocks are laid out under tensor parallelism:
            `parallel.SequenceParallel`, or None for whole.

    Returns:
        An array [B, T, hidden].

    >>> config = DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> hidden(params, jnp.array([[1, 2, 3]]), config).shape
    (1, 3, 32)
    """
    tokens = _checked("hidden", tokens)
    own = (attention, experts, sequence)
    return _trunk(params, tokens, config, positions, mask, remat, counts, segment_ids, own)[0]


def forward(
    params: PyTree,
    tokens: Array,
    config: DecoderConfig,
    *,
    positions: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    remat: bool = False,
    counts: ArrayLike | None = None,
    segment_ids: ArrayLike | None = None,
    attention: Callable[..., Array] = dot_product_attention,
    experts: Callable[..., Array] = expert_mlp,
    sequence: Any = None,
) -> Array:
    """Logits of the next token at every position.

    Args:
        params: parameters, from `init` or `io.load_model`.
        tokens: int tokens [B, T], or [T] without a batch.
        config: the hyperparameters.
        positions: rotary positions, integers [B, T] or [1, T]; None means 0 ... T - 1.
        mask: booleans that broadcast to [B, heads, T, T]: True where a query may attend to a key
            that is not after it; None masks nothing.
        remat: recompute each layer in the backward pass instead of keeping its activations.
        counts: as in `hidden`; of tokens [T] a scalar.
        segment_ids: as in `hidden`; of tokens [T] integers [T].
        attention, experts, sequence: as in `hidden`.

    Returns:
        An array [B, T, vocabulary], or [T, vocabulary].

    >>> config = DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> forward(params, jnp.array([1, 2, 3]), config).shape
    (3, 64)
    """
    tokens = jnp.asarray(tokens)
    single = tokens.ndim == 1
    if single:
        tokens, counts = tokens[None], None if counts is None else jnp.asarray(counts)[None]
        segment_ids = None if segment_ids is None else jnp.asarray(segment_ids)[None]
    tokens = _checked("forward", tokens)
    own = (attention, experts, sequence)
    x, _ = _trunk(params, tokens, config, positions, mask, remat, counts, segment_ids, own)
    return linear(x[0] if single else x, head_weight(params))


def loss(
    params: PyTree,
    tokens: Array,
    labels: Array,
    config: DecoderConfig,
    *,
    ignore_index: int | None = None,
    z_loss: float = 0.0,
    remat: bool = False,
    mask: ArrayLike | None = None,
    segment_ids: ArrayLike | None = None,
    positions: ArrayLike | None = None,
    attention: Callable[..., Array] = dot_product_attention,
    experts: Callable[..., Array] = expert_mlp,
    sequence: Any = None,
) -> Array:
    """Mean cross-entropy in nats, without keeping the logits.

    With `config.output_router_logits` the load-balancing loss of the experts of all layers together
    is added, times `config.router_aux_loss_coef`; every token counts in it.

    Args:
        params: parameters, from `init` or `io.load_model`.
        tokens: int tokens [B, T].
        labels: int labels [B, T]; the label of a position is the token that follows it.
        config: the hyperparameters.
        ignore_index: label of positions that do not count.
        z_loss: weight of the penalty logsumexp(logits)**2 per position.
        remat: recompute each layer in the backward pass instead of keeping its activations.
        mask, segment_ids, positions, attention, experts, sequence: as in `hidden`.

    Returns:
        A scalar.

    >>> config = DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> tokens = jnp.array([[1, 2, 3, 4]])
    >>> loss(params, tokens[:, :-1], tokens[:, 1:], config).shape
    ()
    """
    options: dict[str, Any] = {"ignore_index": ignore_index, "z_loss": z_loss}
    own = (attention, experts, sequence)
    x, balance = _before_head(params, tokens, config, positions, mask, remat, segment_ids, own)
    mean = linear_cross_entropy(x, plain_weight(head_weight(params)), labels, **options)
    return mean if balance is None else mean + balance


def loss_sum(
    params: PyTree,
    tokens: Array,
    labels: Array,
    config: DecoderConfig,
    *,
    ignore_index: int | None = -100,
    z_loss: float = 0.0,
    remat: bool = False,
    mask: ArrayLike | None = None,
    segment_ids: ArrayLike | None = None,
    positions: ArrayLike | None = None,
    attention: Callable[..., Array] = dot_product_attention,
    experts: Callable[..., Array] = expert_mlp,
    sequence: Any = None,
) -> tuple[Array, Array]:
    """`loss` as a sum and the number of labels that count in it: sums of parts of a batch add up to
    that of the batch, as means do not.

    Args:
        params, tokens, labels, config: as in `loss`.
        ignore_index: label of positions that do not count.
        z_loss, remat, mask, segment_ids, positions, attention, experts, sequence: as in `loss`.

    Returns:
        (a scalar, the load-balancing loss times the count with it; a float32 scalar).

    >>> config = DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> tokens, labels = jnp.array([[1, 2, 3]]), jnp.array([[2, 3, -100]])
    >>> loss_sum(params, tokens, labels, config)[1]
    Array(2., dtype=float32)
    """
    own = (attention, experts, sequence)
    x, balance = _before_head(params, tokens, config, positions, mask, remat, segment_ids, own)
    total, count = cross_entropy_sum(x, head_weight(params), labels, ignore_index, z_loss)
    return total if balance is None else total + balance * count, count


def cross_entropy_sum(
    x: Array, head: ArrayLike, labels: ArrayLike, ignore_index: int | None, z_loss: float
) -> tuple[Array, Array]:
    """(the sum of the cross-entropies of `x` after the last norm, the number of labels that
    count)."""
    labels = jnp.asarray(labels)
    counted = jnp.ones_like(labels, bool) if ignore_index is None else labels != ignore_index
    total = linear_cross_entropy(
        x, plain_weight(head), labels, ignore_index=ignore_index, z_loss=z_loss, reduction="sum"
    )
    return total, jnp.sum(counted, dtype=jnp.float32)


def _before_head(
    params: PyTree,
    tokens: ArrayLike,
    config: DecoderConfig,
    positions: ArrayLike | None,
    mask: ArrayLike | None,
    remat: bool,
    segment_ids: ArrayLike | None,
    own: _Functions,
) -> tuple[Array, Array | None]:
    """(what the output layer multiplies, the weighted load-balancing loss or None)."""
    tokens = _checked("loss", tokens)
    x, routings = _trunk(params, tokens, config, positions, mask, remat, None, segment_ids, own)
    if not config.output_router_logits or not routings:
        return x, None
    probabilities, experts = [jnp.stack(of_layers) for of_layers in zip(*routings)]
    balance = load_balancing_loss(probabilities, experts, config.num_experts)
    return x, config.router_aux_loss_coef * balance


# ---- generation: the cache ----


def init_cache(
    config: DecoderConfig, batch: int, capacity: int, dtype: DTypeLike = jnp.float32
) -> dict[str, Any]:
    """An empty cache of keys and values for decoding.

    Args:
        config: the hyperparameters.
        batch: number of rows, B.
        capacity: number of positions, prompt and continuation together.
        dtype: floating dtype of keys and values.

    Returns:
        {"layers": [{"k", "v"}: [B, capacity, kv heads, head_dim]], "lengths": int32 [B]}, with
        `lengths` the number of positions that are filled.

    Raises:
        DTypeError: `dtype` is not floating.

    >>> init_cache(DecoderConfig(64, 32, 64, 2, 4, 2, 8), 1, 16)["layers"][0]["k"].shape
    (1, 16, 2, 8)
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        raise errors.DTypeError(f"init_cache: keys and values are floats, not {dtype}")
    shape = (batch, capacity, config.num_key_value_heads, config.head_dim)
    return {
        "layers": [
            {"k": jnp.zeros(shape, dtype), "v": jnp.zeros(shape, dtype)}
            for _ in range(config.num_hidden_layers)
        ],
        "lengths": jnp.zeros((batch,), jnp.int32),
    }


def extend(
    params: PyTree,
    tokens: Array,
    cache: PyTree,
    config: DecoderConfig,
    counts: ArrayLike | None = None,
    *,
    last: bool = False,
) -> tuple[Array, PyTree]:
    """Logits after tokens that follow the cache's, and the cache with them.

    Args:
        params: parameters, from `init` or `io.load_model`.
        tokens: int tokens [B, T] that follow what the cache holds.
        cache: from `init_cache` or an earlier call.
        config: the hyperparameters.
        counts: how many of the T tokens are real in each row, integers [B]; padding comes behind
            them, may hold anything and has logits that mean nothing. None means all.
        last: whether the logits of each row's last real token alone are computed, as is enough
            after a prompt.

    Returns:
        (logits [B, T, vocabulary], or [B, vocabulary] with `last`; the cache with the tokens).

    Raises:
        ShapeError: the cache has fewer than T positions, or `counts` are not [B] integers.
        AssertionFailed: a row has fewer than T positions left, or counts are not from 0 to T, when
            the program runs.

    >>> config = DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> logits, cache = extend(params, jnp.array([[1, 2, 3]]), init_cache(config, 1, 16), config)
    >>> logits.shape, cache["lengths"].tolist()
    ((1, 3, 64), [3])
    """
    tokens = _checked("extend", tokens)
    capacity, t = _check_room("extend", tokens, cache, config, counts)
    assert_(cache["lengths"] <= capacity - t, _TOO_FEW.format("extend", capacity, t))
    return extend_within(params, tokens, cache, config, counts, last=last)


def prefill(
    params: PyTree,
    tokens: Array,
    cache: PyTree,
    config: DecoderConfig,
    counts: ArrayLike | None = None,
    *,
    last: bool = False,
) -> tuple[Array, PyTree]:
    """`extend` of an empty cache, with prompts: their tokens attend to one another, and not to all
    positions of the cache.

    Args:
        params: parameters, from `init` or `io.load_model`.
        tokens: int tokens [B, T], the prompts.
        cache: from `init_cache`; its lengths are 0.
        config: the hyperparameters.
        counts: as in `extend`.
        last: as in `extend`.

    Returns:
        (logits [B, T, vocabulary], or [B, vocabulary] with `last`; the cache with the tokens).

    Raises:
        ShapeError: the cache has fewer than T positions, or `counts` are not [B] integers.
        AssertionFailed: the cache is not empty, or counts are not from 0 to T, when the program
            runs.

    >>> config = DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> cache = init_cache(config, 1, 16)
    >>> logits, cache = prefill(params, jnp.array([[1, 2, 3]]), cache, config, last=True)
    >>> logits.shape, cache["lengths"].tolist()
    ((1, 64), [3])
    """
    tokens = _checked("prefill", tokens)
    _check_room("prefill", tokens, cache, config, counts)
    assert_(cache["lengths"] == 0, "prefill: the cache is not empty; extend follows what it holds")
    start = jnp.zeros(tokens.shape[:1], jnp.int32)
    visible = {w: visible_within(tokens.shape[-1], w) for w in dict.fromkeys(config.windows)}
    return _run(params, tokens, cache, config, counts, last, start, visible, empty=True)


_TOO_FEW = "{}: of the cache's {} positions fewer than the {} that follow are left"


def _check_room(
    caller: str, tokens: Array, cache: PyTree, config: DecoderConfig, counts: ArrayLike | None
) -> tuple[int, int]:
    """(positions of the cache, T). Raises ShapeError where the cache is of other rows or of another
    config, or has fewer positions."""
    rows, t = tokens.shape
    shapes = {x.shape for layer in cache["layers"] for x in layer.values()}
    capacity = next(iter(shapes))[1]
    wanted = (rows, capacity, config.num_key_value_heads, config.head_dim)
    if shapes != {wanted} or len(cache["layers"]) != config.num_hidden_layers:
        raise errors.ShapeError(
            f"{caller}: tokens {typeof(tokens)} and the config need a cache of "
            f"{config.num_hidden_layers} layers with keys of shape [{rows}, capacity, {wanted[2]}, "
            f"{wanted[3]}], but it has {len(cache['layers'])} with {sorted(map(list, shapes))}\n"
            f"  init_cache(config, {rows}, capacity) makes it"
        )
    if t > capacity:
        raise errors.ShapeError(_TOO_FEW.format(caller, capacity, t))
    if counts is not None:
        real = jnp.asarray(counts)
        assert_((real >= 0) & (real <= t), f"{caller}: counts must lie in 0 to {t}")
    return capacity, t


def _checked(caller: str, tokens: ArrayLike) -> Array:
    """Tokens as an array. Raises ShapeError or DTypeError where they are no integers [B, T]."""
    found: Array = jnp.asarray(tokens)
    aval = typeof(found)
    if aval.ndim != 2 or 0 in aval.shape:
        raise errors.ShapeError(
            f"{caller}: tokens {aval} must be [batch, length], of at least one token"
        )
    if not dtypes.is_integer(aval.dtype):
        raise errors.DTypeError(f"{caller}: tokens {aval} must be integers")
    return found


def extend_within(
    params: PyTree,
    tokens: Array,
    cache: PyTree,
    config: DecoderConfig,
    counts: ArrayLike | None = None,
    *,
    last: bool = False,
) -> tuple[Array, PyTree]:
    """`extend` for a caller who knows that the cache has room: nothing is checked.

    Args:
        params: parameters, from `init` or `io.load_model`.
        tokens: int tokens [B, T] that follow what the cache holds: the prompt in a prefill, one
            token in a decoding step.
        cache: from `init_cache` or an earlier call.
        config: the hyperparameters.
        counts: how many of the T tokens are real in each row, integers [B]; padding comes behind
            them, may hold anything and has logits that mean nothing. None means all.
        last: whether the logits of each row's last real token alone are computed, as is enough
            after a prompt.

    Returns:
        (logits [B, T, vocabulary], or [B, vocabulary] with `last`; the cache with the tokens).

    >>> config = DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> cache = init_cache(config, 1, 16)
    >>> logits, cache = extend_within(params, jnp.array([[1, 2, 3]]), cache, config)
    >>> logits.shape
    (1, 3, 64)
    """
    lengths, capacity = cache["lengths"], cache["layers"][0]["k"].shape[1]
    places = lengths[:, None] + jnp.arange(tokens.shape[1])[None, :]
    kinds = dict.fromkeys(config.windows)  # in order, so that every process traces one program
    visible = {w: visible_in_cache(places, lengths, capacity, w) for w in kinds}
    return _run(params, tokens, cache, config, counts, last, lengths, visible)


def _run(
    params: PyTree,
    tokens: Array,
    cache: PyTree,
    config: DecoderConfig,
    counts: ArrayLike | None,
    last: bool,
    start: Array,
    visible: dict[int | None, dict[str, Any]],
    empty: bool = False,
) -> tuple[Array, PyTree]:
    """(logits after tokens from position `start` [B] on, the cache with them); `visible` holds the
    arguments of attention by window."""
    own, (b, t) = layers_of(params, config), tokens.shape
    if counts is None:
        added, positions = jnp.full((b,), t, jnp.int32), start[:, None] + jnp.arange(t)[None, :]
    else:
        tokens, positions = _without_padding(tokens, start, counts)
        added = jnp.astype(counts, jnp.int32)
    x = take_rows(params["embed_tokens"]["weight"], tokens)
    angles = rotary_angles(positions, config)

    def last_of(x: Array) -> Array:
        if counts is None:
            return x[:, -1:]
        # Clipped, so that a row without real tokens has logits that mean nothing, and no error.
        return jnp.take_along_axis(x, (added - 1)[:, None, None], axis=1, mode="clip")

    layers, at = [], None if empty else start
    for n, ((p, window), kept) in enumerate(zip(own, cache["layers"], strict=True), 1):
        # The last layer computes keys and values of all positions, and of the others no more.
        pick = last_of if last and n == config.num_hidden_layers else every_position
        x, new, _ = run_layer(p, x, angles, config, visible[window], kept, at, pick)
        layers.append(new)
    x = rms_norm(x, params["norm"]["weight"], eps=config.rms_norm_eps)
    logits = linear(x, head_weight(params))
    return logits[:, 0] if last else logits, {"layers": layers, "lengths": start + added}


def _without_padding(tokens: Array, start: Array, counts: ArrayLike) -> tuple[Array, Array]:
    """Tokens [B, T] and their positions, counted from `start`, without what padding would do: it
    becomes token 0, which has an embedding, and makes no sequence longer."""
    b, t = tokens.shape
    aval = typeof(jnp.asarray(counts))
    if aval.shape != (b,) or not dtypes.is_integer(aval.dtype):
        raise errors.ShapeError(f"counts {aval} must be [{b}] integers")
    counts = jnp.astype(counts, jnp.int32)[:, None]
    places = jnp.arange(t)[None, :]
    tokens = jnp.where(places < counts, tokens, 0)
    return tokens, start[:, None] + jnp.minimum(places, counts - 1)


def decode_step(
    params: PyTree, token: Array, cache: PyTree, config: DecoderConfig
) -> tuple[Array, PyTree]:
    """Logits after one more token per row, and the cache with it.

    Args:
        params: parameters, from `init` or `io.load_model`.
        token: int tokens [B].
        cache: from `init_cache` or an earlier call.
        config: the hyperparameters.

    Returns:
        (logits [B, vocabulary], the cache with the tokens).

    Raises:
        AssertionFailed: a row's cache is full, when the program runs.

    >>> config = DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = init(random.key(0), config)
    >>> logits, cache = decode_step(params, jnp.array([1]), init_cache(config, 1, 16), config)
    >>> logits.shape
    (1, 64)
    """
    logits, cache = extend(params, jnp.asarray(token)[:, None], cache, config)
    return logits[:, 0], cache
