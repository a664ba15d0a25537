"""Logarithms of probabilities near 0 and 1 that several distributions share."""

from __future__ import annotations

import genesis_fn.numpy as np
from genesis_fn.core.types.annotations import Array
from genesis_fn.nn import log1mexp


def log1mexp_of_exp(t: Array) -> Array:
    """log(1 - exp(-exp(t))).

    For t below -20 it is t - exp(t) / 2 to the last digit; exp(t) would become 0 there.
    """
    small = t < -20.0
    return np.where(small, t - 0.5 * np.exp(t), log1mexp(np.exp(np.where(small, 0.0, t))))


def log_part(part: Array, rest: Array) -> Array:
    """log(part) of probabilities that sum to 1, by the smaller of them."""
    most = part > 0.5
    small = np.log(np.where(most, 1.0, part))
    return np.where(most, np.log1p(-np.where(most, rest, 0.0)), small)
