"""What reduced losses share: masks, checks of shapes, and the reduction itself."""

from __future__ import annotations

from typing import Literal

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike
from genesis_fn.errors import ArgumentError, DTypeError, ShapeError
from genesis_fn.extend import as_array, check_same_shape, floats, typeof
from genesis_fn.nn.module import wide_dtype

Reduction = Literal["mean", "sum", "none"]


def reduced(
    name: str, loss: Array, reduction: str, where: Array | None = None, weight: Array | None = None
) -> Array:
    """Reduces what counts of `loss`. A mean divides by the number of its elements that count, or by
    the sum of their `weight`, which `loss` has been multiplied by."""
    check_reduction(name, reduction)
    if where is not None:
        loss = jnp.where(where, loss, 0)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return jnp.sum(loss)
    if weight is None:
        return jnp.mean(loss, where=where)
    # Sums of more rows than float16 counts to.
    total, mass = wide_sum(loss), wide_sum(weight if where is None else jnp.where(where, weight, 0))
    return (total / mass).astype(loss.dtype)


def wide_sum(x: Array) -> Array:
    """Returns the sum, in float32 or wider."""
    return jnp.sum(x, dtype=wide_dtype(x.dtype))


def check_reduction(name: str, reduction: str, known: tuple[str, ...] = ()) -> None:
    """Raises ArgumentError for a reduction that the loss `name` does not have."""
    names = ("mean", "sum", "none", *known)
    if reduction not in names:
        listed = ", ".join(f'"{n}"' for n in names[:-1])
        raise ArgumentError(f'{name}: reduction is {listed} or "{names[-1]}", not {reduction!r}')


def mask_of(name: str, where: ArrayLike | None, shape: tuple[int, ...]) -> Array | None:
    """Returns the mask in the shape of the unreduced loss. Raises DTypeError where it is not
    boolean, and ShapeError where it does not broadcast to that shape."""
    if where is None:
        return None
    where = as_array(where)
    if where.dtype != jnp.bool_:
        raise DTypeError(
            f"{name}: where= is a boolean mask of what counts, got {where.aval}\n"
            "  compare it, as in where=mask > 0"
        )
    check_fits(name, shape, where=where)
    return jnp.broadcast_to(where, shape)


def check_fits(name: str, shape: tuple[int, ...], **arguments: Array) -> None:
    """Raises ShapeError naming an argument that does not broadcast to `shape`."""
    for argument, x in arguments.items():
        try:
            fits = np.broadcast_shapes(shape, x.shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise ShapeError(
                f"{name}: {argument} {typeof(x)} does not broadcast to {list(shape)}, the shape of "
                "the loss before its reduction"
            )


def hidden(x: Array, where: Array | None, fill: float = 0.0) -> Array:
    """Returns `x` with `fill` where it does not count: no NaN from there reaches a derivative."""
    return x if where is None else jnp.where(where, x, fill)


def hidden_rows(x: Array, where: Array | None) -> Array:
    """`hidden` of the rows along the last axis, which `where` does not have."""
    return hidden(x, None if where is None else where[..., None])


def pairs(
    name: str, predictions: ArrayLike, targets: ArrayLike, where: ArrayLike | None
) -> tuple[Array, Array, Array | None]:
    """Returns (predictions, targets, mask) of an elementwise loss, zeros where they do not count.
    Raises ShapeError where predictions and targets differ in shape."""
    (x,) = floats(name, predictions)
    y = as_array(targets)
    check_same_shape(name, predictions=x, targets=y)
    mask = mask_of(name, where, x.shape)
    return hidden(x, mask), hidden(y, mask), mask


def hinge(x: Array) -> Array:
    """Returns max(x, 0) with torch's derivative at 0, which is 1 (and not half of it)."""
    return jnp.where(x >= 0, x, 0)
