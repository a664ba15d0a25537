"""Losses made from convex functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, vmap
from genesis_fn.extend import as_array, inexact_value
from genesis_fn.optim.losses.arguments import check_broadcast, weighed


def make_fenchel_young_loss(max_fun: Callable[..., Array]) -> Callable[..., Array]:
    """Makes the Fenchel-Young loss of a convex function, whose gradient is its regularized argmax.

        max_fun(scores) - <targets, scores> along the last axis

    Source: Blondel et al., "Learning with Fenchel-Young losses", 2020.

    Args:
        max_fun: function of a vector of scores that gives a scalar, as logsumexp.

    Returns:
        The function (scores [..., n], targets [..., n], *args, **kwargs) -> losses [...], which
        hands `args` and `kwargs` to `max_fun`. A target of 0 excludes a score of -inf.

    >>> loss = optim.losses.make_fenchel_young_loss(nn.logsumexp)
    >>> loss(jnp.array([2.0, 0.0]), jnp.array([1.0, 0.0])).round(4)
    Array(0.1269, dtype=float32)
    """

    def fenchel_young_loss(
        scores: ArrayLike, targets: ArrayLike, *args: Any, **kwargs: Any
    ) -> Array:
        scores, targets = inexact_value(as_array(scores)), as_array(targets)
        check_broadcast("fenchel_young_loss", scores=scores, targets=targets)

        def one(s: Array) -> Array:
            return max_fun(s, *args, **kwargs)

        batched = functools.reduce(lambda f, _: vmap(f), range(scores.ndim - 1), one)
        return batched(scores) - jnp.sum(weighed(targets, scores), axis=-1)

    return fenchel_young_loss
