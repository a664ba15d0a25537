"""The loss of sequences whose alignment is not known."""

from __future__ import annotations

import operator

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike
from genesis_fn.dtypes import finfo
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import (
    as_array,
    class_labels,
    floats,
    logsumexp_last,
    take_rows,
    typeof,
    wide,
)
from genesis_fn.nn.losses.reductions import Reduction, check_reduction
from genesis_fn.optim import losses

# Stands for log(0): sums of it over all frames are finite, and no other log-probability is as low.
_LOG_ZERO = -1e30


def _lengths(name: str, argument: str, lengths: ArrayLike, batch: int) -> Array:
    x = as_array(lengths)
    if x.shape != (batch,):
        raise ShapeError(
            f"{name}: {argument} {typeof(x)} has to be [{batch}], one for each sequence"
        )
    return class_labels(f"{name}: {argument}", x)


@wide
def ctc_loss(
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    *,
    blank: int = 0,
    zero_infinity: bool = False,
    reduction: Reduction = "mean",
) -> Array:
    """Connectionist temporal classification: the loss of a sequence without its alignment.

        -log p(targets | log_probs), p the sum over all alignments of frames to labels, with blanks
        between equal ones; infinite where there are too few frames for any

    Source: Graves et al., "Connectionist temporal classification", 2006. `optim.losses.ctc_loss`
    is the same for logits [batch, frames, classes] with paddings in place of lengths.

    Args:
        log_probs: floating array [frames, batch, classes], time first as in torch: what
            `log_softmax` gives. The derivative by them is their own; torch's is that by logits,
            which is the same after `log_softmax`.
        targets: integer array [batch, labels] of classes; what is beyond a target's length is not
            read.
        input_lengths: integer array [batch]: frames of each sequence.
        target_lengths: integer array [batch]: labels of each sequence.
        blank: the class of the blank.
        zero_infinity: whether an infinite loss counts as 0, with the derivative 0.
        reduction: "mean" divides each loss by its target's length, or by 1 if that is 0, and
            averages over the batch; "sum", or "none".

    Returns:
        A scalar, or with "none" the loss of each sequence, [batch], in nats.

    Raises:
        DTypeError: `log_probs` are not floating, or another argument is not of integers.
        ShapeError: the shapes are not those above.
        IndexOutOfRange: a target or a length is out of range.
        ArgumentError: `blank` is no class.

    >>> log_probs = nn.log_softmax(jnp.zeros((3, 1, 2)))
    >>> targets, frames, labels = jnp.array([[1]]), jnp.array([3]), jnp.array([1])
    >>> nn.ctc_loss(log_probs, targets, frames, labels).round(4)
    Array(0.2877, dtype=float32)
    """
    name = "ctc_loss"
    check_reduction(name, reduction)
    (log_p,) = floats(name, log_probs)
    labels = class_labels(f"{name}: targets", targets)
    if log_p.ndim != 3 or labels.ndim != 2 or labels.shape[0] != log_p.shape[1]:
        raise ShapeError(
            f"{name}: log_probs are [frames, batch, classes] and targets [batch, labels], got "
            f"{typeof(log_p)} and {typeof(labels)}\n"
            "  jnp.swapaxes(log_probs, 0, 1) puts time first"
        )
    frames, batch, classes = log_p.shape
    if not 0 <= operator.index(blank) < classes:
        raise ArgumentError(f"{name}: blank {blank} is none of {classes} classes")
    frames_of = _lengths(name, "input_lengths", input_lengths, batch)
    labels_of = _lengths(name, "target_lengths", target_lengths, batch)
    # Lengths and classes index tables of theirs, which refuse what is out of range.
    frames_of = take_rows(jnp.arange(frames + 1), frames_of)
    labels_of = take_rows(jnp.arange(labels.shape[1] + 1), labels_of)
    frame_over = jnp.arange(frames) >= frames_of[:, None]
    label_over = jnp.arange(labels.shape[1]) >= labels_of[:, None]
    labels = take_rows(jnp.arange(classes), jnp.where(label_over, 0, labels))
    precise = log_p.astype(jnp.float32) if finfo(log_p.dtype).bits < 32 else log_p
    precise = jnp.swapaxes(jnp.maximum(precise, _LOG_ZERO), 0, 1)
    precise = jnp.where(frame_over[..., None], 0, precise)
    loss = losses.ctc_loss(
        precise,
        frame_over.astype(precise.dtype),
        labels,
        label_over.astype(precise.dtype),
        blank_id=blank,
        log_epsilon=_LOG_ZERO,
    )
    # That has normalized each frame, of which every alignment takes one class.
    loss = loss - jnp.sum(logsumexp_last(precise), axis=1, where=~frame_over)
    impossible = loss > -0.1 * _LOG_ZERO
    loss = jnp.where(impossible, 0 if zero_infinity else jnp.inf, loss)
    if reduction == "sum":
        loss = jnp.sum(loss)
    if reduction == "mean":
        loss = jnp.mean(loss / jnp.maximum(labels_of, 1).astype(loss.dtype))
    return loss.astype(log_p.dtype)
