"""What losses ask of their arguments, and labels and masks as they use them."""

from __future__ import annotations

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, dtypes
from genesis_fn.errors import ShapeError
from genesis_fn.extend import as_array, class_labels, take_rows, typeof

Axis = int | tuple[int, ...] | None


def check_broadcast(name: str, **arguments: ArrayLike | None) -> None:
    """Raises ShapeError naming the arguments where their shapes do not broadcast."""
    shapes = {k: jnp.shape(x) for k, x in arguments.items() if x is not None}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        avals = ", ".join(f"{k} {typeof(as_array(arguments[k]))}" for k in shapes)
        first, *others = shapes
        raise ShapeError(
            f"{name}: the shapes of {avals} do not fit together\n"
            f"  give {' and '.join(others)} the shape of {first}, or one that broadcasts to it"
        ) from None


def hot(labels: Array, scores: Array) -> Array:
    """Returns which class is the label, along the last axis of `scores`; none for other numbers."""
    return labels[..., None] == jnp.arange(scores.shape[-1])


def hot_rows(name: str, labels: ArrayLike, scores: Array) -> Array:
    """Returns `hot` of a label for each row of `scores`. Raises DTypeError, ShapeError, or, when
    the program runs, IndexOutOfRange where they are not."""
    classes = class_labels(name, labels)
    if classes.shape != scores.shape[:-1]:
        raise ShapeError(
            f"{name}: scores {typeof(scores)} need labels of shape {scores.shape[:-1]}, one class "
            f"number per row, got {typeof(classes)}"
        )
    return hot(take_rows(jnp.arange(scores.shape[-1]), classes), scores)


def weighed(weights: Array, x: Array) -> Array:
    """Returns weights * x, where 0 * inf is 0. The derivative by a weight of 0 is the largest float
    for inf."""
    top = float(dtypes.finfo(x.dtype).max)
    return weights * jnp.where(weights == 0, jnp.minimum(jnp.maximum(x, -top), top), x)


def masked(logits: Array, where: Array | None) -> Array:
    """Returns the logits with -inf where they are masked out."""
    return logits if where is None else jnp.where(where, logits, -jnp.inf)
