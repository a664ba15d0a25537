"""What losses ask of their arguments, and labels and masks as they use them."""

from __future__ import annotations

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike
from genesis_fn.errors import ShapeError
from genesis_fn.extend import as_array, typeof

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


def one_hot(labels: ArrayLike, scores: Array, name: str = "") -> Array:
    """Returns ones at the labels along the last axis of `scores`, zeros for what is no class."""
    if name and jnp.shape(labels) != scores.shape[:-1]:
        raise ShapeError(
            f"{name}: scores {typeof(scores)} need labels of shape {scores.shape[:-1]}, one class "
            f"number per row, got {typeof(as_array(labels))}"
        )
    return (as_array(labels)[..., None] == jnp.arange(scores.shape[-1])).astype(scores.dtype)


def masked(logits: Array, where: Array | None) -> Array:
    """Returns the logits with -inf where they are masked out."""
    return logits if where is None else jnp.where(where, logits, -jnp.inf)
