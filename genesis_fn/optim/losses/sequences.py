"""Losses of sequences without an alignment: connectionist temporal classification."""

from __future__ import annotations

import operator

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, PyTree
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import as_array, class_labels, floats, log_softmax_last, take_rows, wide
from genesis_fn.lax import scan
from genesis_fn.optim.losses.arguments import hot
from genesis_fn.optim.tree_map_updates import I32, wide_dtype


@wide
def ctc_loss_with_forward_probs(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: float = -1e5,
) -> tuple[Array, Array, Array]:
    """`ctc_loss`, with the forward variables of its dynamic program.

        L_t(n) = p_t(label n) (L_{t-1}(n) + B_{t-1}(n - 1) + d L_{t-1}(n - 1)),
        B_t(n) = p_t(blank) (B_{t-1}(n) + L_{t-1}(n)),  B_0(0) = 1, all other B_0 and L_0 are 0,
        d = 1 where the labels n - 1 and n differ, else 0,
        loss = -log(B_T(N) + L_T(N)) of T frames and N labels

    B_t(n) is the probability of having emitted n labels and then a blank, L_t(n) that of having
    just emitted label n = 1, 2, ...; their logarithms are computed.
    Source: Graves et al., "Connectionist temporal classification", 2006, section 4.1.

    Args:
        logits: floating array [B, T, K] of class scores, blank included; -inf excludes a class.
        logit_paddings: array [B, T]: 1.0 at padded frames, which are at the end, else 0.0.
        labels: integer array [B, N] of classes.
        label_paddings: array [B, N]: 1.0 at padded labels, which are at the end, else 0.0.
        blank_id: the class of the blank, in [0, K).
        log_epsilon: finite stand-in for log(0), as of an excluded class: labels without any
            alignment have a loss as high as that.

    Returns:
        (loss [B], log B [T, B, N + 1], log L [T, B, N]); the last frame of the first array holds
        log(B_T + L_T). All are float32 for 16-bit logits, as in optax.

    Raises:
        DTypeError: `logits` are not floating, or `labels` not integers.
        ShapeError: the shapes are not those above.
        IndexOutOfRange: a label that is not padded is no class.
        ArgumentError: `blank_id` is no class.

    >>> logits, labels = jnp.zeros((1, 3, 2)), jnp.array([[1]])
    >>> loss, blanks, emitted = optim.losses.ctc_loss_with_forward_probs(
    ...     logits, jnp.zeros((1, 3)), labels, jnp.zeros((1, 1))
    ... )
    >>> loss.round(4), blanks.shape, emitted.shape
    (Array([0.2877], dtype=float32), (3, 1, 2), (3, 1, 1))
    """
    (logits,) = floats("ctc_loss", logits)
    labels = as_array(labels)
    label_paddings, logit_paddings = as_array(label_paddings), as_array(logit_paddings)
    if logits.ndim != 3 or labels.ndim != 2 or labels.shape[0] != logits.shape[0]:
        raise ShapeError(
            f"ctc_loss: logits [B, T, K] and labels [B, N], got {logits.aval}, {labels.aval}"
        )
    if label_paddings.shape != labels.shape or logit_paddings.shape != logits.shape[:2]:
        raise ShapeError(
            f"ctc_loss: paddings {logit_paddings.aval} and {label_paddings.aval} do not fit "
            f"{logits.aval} and {labels.aval}"
        )
    labels, classes = class_labels("ctc_loss: labels", labels), logits.shape[2]
    if not 0 <= operator.index(blank_id) < classes:
        raise ArgumentError(f"ctc_loss: blank_id {blank_id} is none of {classes} classes")
    batch, n = labels.shape
    dtype = wide_dtype(logits.dtype)
    # What is padded may hold anything: NaN, or a label that is no class.
    frame_over, label_over = logit_paddings > 0, label_paddings > 0
    known = take_rows(jnp.arange(classes), jnp.where(label_over, 0, labels))
    labels = jnp.where(label_over, labels, known)
    log_p = log_softmax_last(jnp.where(frame_over[..., None], 0, logits.astype(dtype)))
    # The product with `is_label` multiplies excluded classes by 0.
    log_p = jnp.where(log_p == -jnp.inf, log_epsilon, log_p)
    of_blank = jnp.transpose(log_p[:, :, blank_id : blank_id + 1], (1, 0, 2))
    is_label = hot(labels, log_p).astype(dtype)
    of_label = jnp.transpose(jnp.einsum("btk,bnk->btn", log_p, is_label), (1, 0, 2))
    same = (labels[:, :-1] == labels[:, 1:]).astype(dtype)
    repeat = jnp.concatenate([same, jnp.zeros((batch, 1), dtype)], axis=1)
    never = jnp.full((batch, n), log_epsilon, dtype=dtype)
    start = jnp.concatenate([jnp.zeros((batch, 1), dtype), never], axis=1)

    def add_arrivals(blank: Array, arriving: Array) -> Array:
        return jnp.concatenate([blank[:, :1], jnp.logaddexp(blank[:, 1:], arriving)], axis=-1)

    def step(carry: tuple[Array, ...], x: tuple[Array, ...]) -> tuple[PyTree, PyTree]:
        blank, label = carry
        p_label, p_blank, over = x
        # A label equal to the one before needs a blank between.
        reached = add_arrivals(blank, label + log_epsilon * repeat)
        next_label = jnp.logaddexp(reached[:, :-1] + p_label, label + p_label)
        next_blank = add_arrivals(reached + p_blank, label + p_blank + log_epsilon * (1.0 - repeat))
        over = over[:, None]
        kept = (jnp.where(over, blank, next_blank), jnp.where(over, label, next_label))
        return kept, kept

    frames = (of_label, of_blank, jnp.transpose(frame_over, (1, 0)))
    (blank, label), (blanks, emitted) = scan(step, (start, never), frames)
    final = add_arrivals(blank, label)
    lengths = n - jnp.sum(label_paddings, axis=1).astype(I32)
    ends = (lengths[:, None] == jnp.arange(n + 1)).astype(dtype)
    loss = -jnp.sum(final * ends, axis=1)
    return loss, jnp.concatenate([blanks[:-1], final[None]], axis=0), emitted


def ctc_loss(
    logits: ArrayLike,
    logit_paddings: ArrayLike,
    labels: ArrayLike,
    label_paddings: ArrayLike,
    *,
    blank_id: int = 0,
    log_epsilon: float = -1e5,
) -> Array:
    """Connectionist temporal classification: the loss of a sequence without its alignment.

        -log p(labels | logits), p the sum over all alignments of T frames to N labels, with blanks
        between equal ones

    Source: Graves et al., "Connectionist temporal classification", 2006.

    Args:
        logits: floating array [B, T, K] of class scores, blank included; -inf excludes a class.
        logit_paddings: array [B, T]: 1.0 at padded frames, which are at the end, else 0.0.
        labels: integer array [B, N] of classes.
        label_paddings: array [B, N]: 1.0 at padded labels, which are at the end, else 0.0.
        blank_id: the class of the blank, in [0, K).
        log_epsilon: finite stand-in for log(0), as of an excluded class: labels without any
            alignment have a loss as high as that.

    Returns:
        The loss of each sequence, [B], in nats; float32 for 16-bit logits, as in optax.

    Raises:
        DTypeError: `logits` are not floating, or `labels` not integers.
        ShapeError: the shapes are not those above.
        IndexOutOfRange: a label that is not padded is no class.
        ArgumentError: `blank_id` is no class.

    >>> logits, labels = jnp.zeros((1, 3, 2)), jnp.array([[1]])
    >>> optim.losses.ctc_loss(logits, jnp.zeros((1, 3)), labels, jnp.zeros((1, 1))).round(4)
    Array([0.2877], dtype=float32)
    """
    return ctc_loss_with_forward_probs(
        logits, logit_paddings, labels, label_paddings, blank_id=blank_id, log_epsilon=log_epsilon
    )[0]
