"""Dice losses: the overlap of segmented regions."""

from __future__ import annotations

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import as_array, check_same_shape, floats, softmax_last, typeof, wide
from genesis_fn.lax import logistic
from genesis_fn.optim.annotations import Number
from genesis_fn.optim.losses.arguments import Axis
from genesis_fn.optim.tree_map_updates import wide_dtype


@wide
def dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    class_weights: ArrayLike | None = None,
    smooth: Number = 1.0,
    alpha: Number = 0.5,
    beta: Number = 0.5,
    apply_softmax: bool = True,
    reduction: str = "mean",
    ignore_background: bool = False,
    axis: Axis = None,
) -> Array:
    """Dice loss of segmentations: one minus the overlap of predicted and true regions, by class.

        1 - (I + smooth) / (I + alpha (P - I) + beta (T - I) + smooth), with I, P, T the sums over
        pixels of predictions * targets, of predictions and of targets

    Sources: Milletari et al., "V-Net", 2016; alpha != beta: Salehi et al., "Tversky loss function
    for image segmentation", 2017.

    Args:
        predictions: floating array [batch, ..., classes] of logits; one class, or no axis of
            classes where `targets` has one of 1, is binary.
        targets: array of its shape: one-hot classes, or 0 and 1; an axis of 1 class may lack.
        class_weights: array [classes] that multiplies the losses of the classes; None: ones.
        smooth: added to both sides of the fraction, so that empty regions have a loss.
        alpha, beta: weights of what is predicted falsely, and of what is missed.
        apply_softmax: whether predictions are logits (of a sigmoid, if binary) or probabilities.
            (That these sum to 1 is not checked, as optax does, which cannot be traced.)
        reduction: "mean" or "sum" over the classes, or "none".
        ignore_background: leaves out the first of several classes.
        axis: axes of the pixels; None: all but the first and the last.

    Returns:
        The loss of each example, [batch]; with "none" of each class, [batch, classes].

    Raises:
        DTypeError: `predictions` are not floating.
        ShapeError: the shapes are not those above.
        ArgumentError: `reduction` is another.

    >>> logits, targets = jnp.array([[[9.0, -9.0], [9.0, -9.0]]]), jnp.array([[[1, 0], [0, 1]]])
    >>> optim.losses.dice_loss(logits, targets, reduction="none").round(4)
    Array([[0.2   , 0.3333]], dtype=float32)
    """
    name = "dice_loss"
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f'{name}: reduction is "mean", "sum" or "none", not {reduction!r}')
    (p,) = floats(name, predictions)
    t = as_array(targets)
    if abs(p.ndim - t.ndim) == 1:
        p, t = (p[..., None], t) if p.ndim < t.ndim else (p, t[..., None])
    check_same_shape(name, predictions=p, targets=t)
    if not p.ndim:
        raise ShapeError(f"{name}: predictions {typeof(p)} have no axis of classes")
    classes, dtype = p.shape[-1], p.dtype
    p = p.astype(wide_dtype(dtype))  # float16 counts few pixels
    if apply_softmax:
        p = logistic(p) if classes == 1 else softmax_last(p)
    pixels = tuple(range(1, p.ndim - 1)) if axis is None else axis
    both, predicted, true = (jnp.sum(x, axis=pixels) for x in (p * t, p, t))
    union = both + alpha * (predicted - both) + beta * (true - both)
    loss = 1.0 - (both + smooth) / (union + smooth)
    if class_weights is not None:
        weights = as_array(class_weights)
        if weights.shape != (classes,):
            raise ShapeError(f"{name}: class_weights {typeof(weights)} have to be [{classes}]")
        loss = loss * weights
    if ignore_background and classes > 1:
        loss = loss[..., 1:]
    if reduction != "none":
        loss = jnp.mean(loss, axis=-1) if reduction == "mean" else jnp.sum(loss, axis=-1)
    return loss.astype(dtype)


def binary_dice_loss(
    predictions: ArrayLike, targets: ArrayLike, *, smooth: Number = 1.0, apply_sigmoid: bool = True
) -> Array:
    """`dice_loss` of one region.

        1 - (I + smooth) / ((P + T) / 2 + smooth), with I, P, T as there

    Args:
        predictions: floating array [batch, ...] or [batch, ..., 1] of logits.
        targets: array of its shape, of 0 and 1.
        smooth: added to both sides of the fraction, so that empty regions have a loss.
        apply_sigmoid: whether predictions are logits or probabilities.

    Returns:
        The loss of each example, [batch].

    Raises:
        DTypeError: `predictions` are not floating.
        ShapeError: the shapes are not those above.

    >>> logits, targets = jnp.array([[9.0, 9.0, -9.0, -9.0]]), jnp.array([[1, 0, 1, 0]])
    >>> optim.losses.binary_dice_loss(logits, targets).round(4)
    Array([0.3333], dtype=float32)
    """
    p, t = as_array(predictions), as_array(targets)
    if p.ndim == t.ndim and p.shape[-1:] != (1,):
        p, t = p[..., None], t[..., None]
    return dice_loss(p, t, smooth=smooth, apply_softmax=apply_sigmoid)


@wide
def multiclass_generalized_dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    smooth: Number = 1.0,
    apply_softmax: bool = True,
    ignore_background: bool = False,
) -> Array:
    """Mean `dice_loss` of classes that weigh by the inverse square of how often they occur.

        mean of w dice_loss, w = 1 / (count**2 + 1e-7), scaled to a mean of 1 over the classes

    Source: Sudre et al., "Generalised Dice overlap as a deep learning loss function for highly
    unbalanced segmentations", 2017.

    Args:
        predictions: floating array [batch, ..., classes] of logits.
        targets: array of its shape: one-hot classes.
        smooth: added to both sides of the fraction, so that empty regions have a loss.
        apply_softmax: whether predictions are logits or probabilities.
        ignore_background: leaves out the first of several classes.

    Returns:
        The mean over examples and classes, a scalar.

    Raises:
        DTypeError: `predictions` are not floating.
        ShapeError: the shapes differ.

    >>> logits, targets = jnp.array([[[9.0, -9.0], [9.0, -9.0]]]), jnp.array([[[1, 0], [0, 1]]])
    >>> optim.losses.multiclass_generalized_dice_loss(logits, targets).round(4)
    Array(0.2667, dtype=float32)
    """
    (p,) = floats("multiclass_generalized_dice_loss", predictions)
    t = as_array(targets).astype(wide_dtype(p.dtype))
    check_same_shape("multiclass_generalized_dice_loss", predictions=p, targets=t)
    counts = jnp.sum(t, axis=tuple(range(t.ndim - 1)))
    weights = 1.0 / (counts**2 + 1e-7)
    losses = dice_loss(
        p,
        t,
        class_weights=weights / jnp.mean(weights),
        smooth=smooth,
        apply_softmax=apply_softmax,
        reduction="none",
        ignore_background=ignore_background,
    )
    return jnp.mean(losses)
