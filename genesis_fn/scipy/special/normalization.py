"""Softmax and the logarithm of a sum of exponentials."""

from __future__ import annotations

from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.nn import functions as rows


def softmax(x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """exp(x) / sum(exp(x)) over `axis`, all axes by default."""
    return rows.softmax(x, axis)


def log_softmax(x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """x - logsumexp(x) over `axis`, all axes by default."""
    return rows.log_softmax(x, axis)
