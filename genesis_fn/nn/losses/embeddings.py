"""Losses that compare vectors, or scores, with each other."""

from __future__ import annotations

import math

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, dtypes
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import as_array, canonical_axis, check_same_shape, floats, typeof, wide
from genesis_fn.nn.losses.classification import cross_entropy
from genesis_fn.nn.losses.reductions import (
    Reduction,
    check_reduction,
    hidden,
    hidden_rows,
    hinge,
    mask_of,
    reduced,
)
from genesis_fn.nn.module import wide_dtype
from genesis_fn.optim import losses


def _vectors(
    name: str, axis: int, where: ArrayLike | None, **vectors: ArrayLike
) -> tuple[list[Array], Array | None, dtypes.DType]:
    """Returns (arrays of one shape with the features last, mask of their vectors, dtype of the
    loss). The arrays are float32 or wider: squares of 16-bit features would overflow."""
    arrays = dict(zip(vectors, floats(name, *vectors.values())))
    (first, x), *others = arrays.items()
    if not x.ndim:
        raise ShapeError(f"{name}: {first} {typeof(x)} has no axis of features")
    for other, y in others:
        check_same_shape(name, **{first: x, other: y})
    dtype = jnp.result_type(*arrays.values())
    axis = canonical_axis(axis, x.ndim, name)
    last = [jnp.moveaxis(x, axis, -1).astype(wide_dtype(dtype)) for x in arrays.values()]
    mask = mask_of(name, where, last[0].shape[:-1])
    return [hidden_rows(x, mask) for x in last], mask, dtype


@wide
def cosine_embedding_loss(
    first: ArrayLike,
    second: ArrayLike,
    targets: ArrayLike,
    *,
    margin: float = 0.0,
    axis: int = -1,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Pulls pairs of vectors together where the target is 1, and apart where it is -1.

        1 - cos(first, second) where the target is 1, max(0, cos(first, second) - margin) where -1

    The cosine of a vector of zeros is 0.

    Args:
        first, second: floating arrays [..., features].
        targets: array [...] of 1 and -1; a pair with another target has the loss 0.
        margin: cosine that costs nothing for a target of -1, in [-1, 1].
        axis: axis of the features.
        where: boolean array that broadcasts to [...]: pairs that count; None: all.
        reduction: "mean" over the pairs that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each pair, [...].

    Raises:
        DTypeError: `first` or `second` is not floating.
        ShapeError: the shapes are not those above.

    >>> x, y = jnp.array([[1.0, 0.0], [1.0, 0.0]]), jnp.array([[1.0, 1.0], [1.0, 1.0]])
    >>> nn.cosine_embedding_loss(x, y, jnp.array([1, -1]), reduction="none").round(4)
    Array([0.2929, 0.7071], dtype=float32)
    """
    name = "cosine_embedding_loss"
    (x, y), mask, dtype = _vectors(name, axis, where, first=first, second=second)
    targets = as_array(targets)
    if targets.shape != x.shape[:-1]:
        raise ShapeError(
            f"{name}: vectors {typeof(x)}, features last, need targets of shape "
            f"{list(x.shape[:-1])}, one per pair, got {typeof(targets)}"
        )
    cosine = losses.cosine_similarity(x, y, epsilon=1e-12)
    apart = jnp.where(targets == -1, hinge(cosine - margin), 0)
    loss = jnp.where(targets == 1, 1 - cosine, apart)
    return reduced(name, loss, reduction, mask).astype(dtype)


def _norm(x: Array, p: float) -> Array:
    """Returns the p-norm of vectors along the last axis, with the derivative 0 at 0."""
    if p == math.inf:
        return jnp.max(jnp.abs(x), axis=-1)
    total = jnp.sum(jnp.abs(x) ** p, axis=-1)
    some = total > 0
    return jnp.where(some, jnp.where(some, total, 1) ** (1 / p), 0)


@wide
def triplet_margin_loss(
    anchors: ArrayLike,
    positives: ArrayLike,
    negatives: ArrayLike,
    *,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    axis: int = -1,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Triplet loss: anchors are to be nearer to positives than to negatives, by a margin.

        max(0, d(anchors, positives) - d(anchors, negatives) + margin),
        d(x, y) = (sum |x - y + eps|**p)**(1 / p)

    Sources: Schroff et al., "FaceNet: a unified embedding for face recognition", 2015; `swap`:
    Balntas et al., "Learning local feature descriptors with triplets", 2016.

    Args:
        anchors, positives, negatives: floating arrays [..., features] of one shape.
        margin: least difference of the distances that costs nothing, in their unit.
        p: degree of the distance, > 0; `math.inf` is the largest difference.
        eps: added to each difference.
        swap: takes d(positives, negatives) for d(anchors, negatives) where it is less.
        axis: axis of the features.
        where: boolean array that broadcasts to [...]: triplets that count; None: all.
        reduction: "mean" over the triplets that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each triplet, [...].

    Raises:
        DTypeError: an argument is not floating.
        ShapeError: the shapes differ.
        ArgumentError: `p` is not positive.

    >>> a, p, n = jnp.array([[0.0, 0.0]]), jnp.array([[0.0, 1.0]]), jnp.array([[1.5, 0.0]])
    >>> nn.triplet_margin_loss(a, p, n).round(4)
    Array(0.5, dtype=float32)
    """
    name = "triplet_margin_loss"
    if not p > 0:
        raise ArgumentError(f"{name}: p has to be positive, got {p}")
    (a, near, far), mask, dtype = _vectors(
        name, axis, where, anchors=anchors, positives=positives, negatives=negatives
    )
    apart = _norm(a - far + eps, p)
    if swap:
        apart = jnp.minimum(apart, _norm(near - far + eps, p))
    loss = hinge(_norm(a - near + eps, p) - apart + margin)
    return reduced(name, loss, reduction, mask).astype(dtype)


@wide
def margin_ranking_loss(
    first: ArrayLike,
    second: ArrayLike,
    targets: ArrayLike,
    *,
    margin: float = 0.0,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Ranking loss of pairs of scores: the first is to be higher where the target is 1, the second
    where it is -1.

        max(0, -targets (first - second) + margin)

    Args:
        first, second: floating arrays [...] of scores.
        targets: array [...] of 1 and -1.
        margin: least difference of the scores that costs nothing, in their unit.
        where: boolean array that broadcasts to [...]: pairs that count; None: all.
        reduction: "mean" over the pairs that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each pair, [...].

    Raises:
        DTypeError: `first` or `second` is not floating.
        ShapeError: the shapes differ.

    >>> x, y = jnp.array([0.5, 2.0]), jnp.array([1.0, 0.0])
    >>> nn.margin_ranking_loss(x, y, jnp.array([1, 1]), reduction="none")
    Array([0.5, 0. ], dtype=float32)
    """
    name = "margin_ranking_loss"
    x, y = floats(name, first, second)
    check_same_shape(name, first=x, second=y)
    targets = as_array(targets)
    check_same_shape(name, first=x, targets=targets)
    mask = mask_of(name, where, x.shape)
    x, y = hidden(x, mask), hidden(y, mask)
    return reduced(name, hinge(targets * (y - x) + margin), reduction, mask)


def _unit(x: Array) -> Array:
    """Returns vectors of length 1; zeros stay zeros."""
    return x / jnp.sqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))


@wide
def info_nce(
    queries: ArrayLike,
    keys: ArrayLike,
    negatives: ArrayLike | None = None,
    *,
    temperature: float | Array = 0.1,
    symmetric: bool = False,
    normalize: bool = True,
    where: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """Contrastive loss: cross-entropy of finding the key of a query among other keys.

        -log(exp(s(q, k) / temperature) / sum over keys k' of exp(s(q, k') / temperature)),
        s the cosine, k' the query's own key and the negatives, or the keys of all queries

    Sources: van den Oord et al., "Representation learning with contrastive predictive coding",
    2018; symmetric: Radford et al., "Learning transferable visual models from natural language
    supervision" (CLIP), 2021.

    Args:
        queries, keys: floating arrays [batch, features]; keys[i] belongs to queries[i].
        negatives: floating array [count, features] of keys that belong to no query, or
            [batch, count, features] for negatives of each query; None: the keys of the others.
        temperature: positive divisor of the similarities, a number or a scalar array.
        symmetric: averages with the loss of finding the query of a key, as CLIP does.
        normalize: whether similarities are cosines; False takes the products of the vectors.
        where: boolean array [batch]: examples that count; the others are no negatives either.
            None: all.
        reduction: "mean" over the examples that count, "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each query, [batch], in nats.

    Raises:
        DTypeError: an argument is not floating.
        ShapeError: the shapes are not those above.
        ArgumentError: `symmetric` comes with `negatives`, or `temperature` is not positive.

    >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> nn.info_nce(x, x, temperature=0.5).round(4)
    Array(0.1269, dtype=float32)
    """
    name = "info_nce"
    check_reduction(name, reduction)
    if isinstance(temperature, (int, float)) and not temperature > 0:
        raise ArgumentError(f"{name}: temperature has to be positive, got {temperature}")
    if symmetric and negatives is not None:
        raise ArgumentError(
            f"{name}: symmetric=True compares the batch with itself, and has no use for negatives"
        )
    (q, k), mask, dtype = _vectors(name, -1, where, queries=queries, keys=keys)
    if q.ndim != 2:
        raise ShapeError(f"{name}: queries are [batch, features], got {typeof(q)}")
    unit = _unit if normalize else (lambda x: x)
    q, k = unit(q), unit(k)
    if negatives is not None:
        others = _negatives(name, negatives, q, mask)
        dtype = jnp.result_type(dtype, others)
        others = unit(others.astype(wide_dtype(dtype)))
        rest = q @ others.T if others.ndim == 2 else jnp.einsum("bf,bnf->bn", q, others)
        own = jnp.sum(q * k, axis=-1, keepdims=True)
        scores = jnp.concatenate([own, rest], axis=-1) / temperature
        first = jnp.zeros(scores.shape[:1], jnp.int32)
        loss = cross_entropy(scores, first, where=mask, reduction=reduction)
        return loss.astype(jnp.result_type(dtype, temperature))
    scores = q @ k.T / temperature
    if mask is not None:
        scores = jnp.where(mask[:, None] == mask, scores, -jnp.inf)
    own_key = jnp.arange(scores.shape[0])
    loss = cross_entropy(scores, own_key, where=mask, reduction="none")
    if symmetric:
        loss = 0.5 * (loss + cross_entropy(scores.T, own_key, where=mask, reduction="none"))
    return reduced(name, loss, reduction, mask).astype(jnp.result_type(dtype, temperature))


def _negatives(name: str, negatives: ArrayLike, queries: Array, mask: Array | None) -> Array:
    """Returns negatives [count, features], or [batch, count, features] with zeros for queries that
    do not count. Raises ShapeError where they are neither."""
    (others,) = floats(name, negatives)
    lead, features = others.shape[:-2], others.shape[-1:]
    fits = others.ndim in (2, 3) and lead in ((), queries.shape[:1])
    if not fits or features != queries.shape[-1:]:
        raise ShapeError(
            f"{name}: negatives {typeof(others)} do not fit queries {typeof(queries)}\n"
            "  they are [count, features], or [batch, count, features]"
        )
    return others if not lead or mask is None else hidden(others, mask[:, None, None])
