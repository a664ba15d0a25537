"""Sums and extremes over windows, by their primitives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn.core.primitive import bind
from genesis_fn.primitives.reductions import reduce_window

PRIMITIVE = {
    "sum": reduce_window.reduce_window_sum_p,
    "max": reduce_window.reduce_window_max_p,
    "min": reduce_window.reduce_window_min_p,
}


def pool(kind: str) -> Callable[..., Any]:
    """The sum, maximum or minimum over every window; arguments as in `window_of`."""
    return lambda x, *args, **options: bind(
        PRIMITIVE[kind], x, window=reduce_window.window_of(x, *args, **options)
    )
