"""How layers take windows over spatial axes: lengths, steps and padding for each axis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from genesis_fn.errors import ArgumentError
from genesis_fn.nn.module import Module, is_count

Pairs = tuple[tuple[int, int], ...]


def window_lengths(
    layer: Module | str, field: str, value: Any, axes: int | None, least: int = 0
) -> tuple[int, ...]:
    """The length of a window along each spatial axis; one integer serves where their number is
    known. Raises ArgumentError for another number of axes than `axes`, or than 1 to 3."""
    name = layer if isinstance(layer, str) else type(layer).__name__
    if axes is not None and is_count(value):
        value = (value,) * axes
    lengths = value if isinstance(value, (tuple, list)) else ()
    fits = 1 <= len(lengths) <= 3 if axes is None else len(lengths) == axes
    if not fits or not all([is_count(k) and k >= least for k in lengths]):
        wanted, remedy = "a length for each of 1 to 3 spatial axes", f"{field}=(3, 3) for images"
        if axes is not None:
            wanted = f"a length, or one for each of its {axes} spatial axes"
            remedy = f"{field}={(3,) * axes}"
        text = f"{name}: {field} is {value!r:.60}, but is {wanted}"
        raise ArgumentError(f"{text}\n  give a tuple: {remedy}")
    return tuple(map(operator.index, lengths))


def per_axis(
    layer: Module | str, field: str, value: Any, n: int, window: str, least: int = 1
) -> tuple[int, ...]:
    """One number for each of the `n` axes of the field `window`, of a number or of as many."""
    numbers = (value,) * n if is_count(value) else value
    if (
        not isinstance(numbers, (tuple, list))
        or len(numbers) != n
        or not all([is_count(k) and k >= least for k in numbers])
    ):
        name = layer if isinstance(layer, str) else type(layer).__name__
        number = "positive number" if least else "number, not negative"
        raise ArgumentError(
            f"{name}: {field} is {value!r:.60}, but is a {number}, or one for each of the {n} "
            f"axes of {window}"
        )
    return tuple(map(operator.index, numbers))


def padding_pairs(
    layer: Module | str, value: Any, n: int, window: str, names: Sequence[str]
) -> str | Pairs:
    """Padding as one of `names`, or as a (low, high) pair for each of `n` axes."""
    pairs: Any = value
    if isinstance(value, str) and value.upper() in names:
        return value.upper()
    if is_count(pairs):
        return ((operator.index(pairs), operator.index(pairs)),) * n
    try:
        pairs = tuple([(operator.index(low), operator.index(high)) for low, high in pairs])
    except (TypeError, ValueError):
        pairs = ()
    if len(pairs) != n:
        name = layer if isinstance(layer, str) else type(layer).__name__
        raise ArgumentError(
            f"{name}: padding is {value!r:.60}, but is a name ({', '.join(names)}), a number, or "
            f"a (low, high) pair for each of the {n} axes of {window}"
        )
    return pairs
