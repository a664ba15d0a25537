"""Losses, one value per example, with optax's names and conventions.

Reduce them with `.mean()` or `.sum()`. `where` masks elements along the reduced axes. Under `amp`
each runs in float32 as a whole (`wide`).
"""

from genesis_fn.optim.losses.arguments import Axis as Axis
from genesis_fn.optim.losses.classification import (
    poly_loss_cross_entropy as poly_loss_cross_entropy,
    safe_softmax_cross_entropy as safe_softmax_cross_entropy,
    sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy,
    sigmoid_focal_loss as sigmoid_focal_loss,
    smooth_labels as smooth_labels,
    softmax_cross_entropy as softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels,
)
from genesis_fn.optim.losses.divergences import (
    convex_kl_divergence as convex_kl_divergence,
    generalized_kl_divergence as generalized_kl_divergence,
    kl_divergence as kl_divergence,
    kl_divergence_with_log_targets as kl_divergence_with_log_targets,
)
from genesis_fn.optim.losses.fenchel_young import make_fenchel_young_loss as make_fenchel_young_loss
from genesis_fn.optim.losses.margins import (
    hinge_loss as hinge_loss,
    multiclass_hinge_loss as multiclass_hinge_loss,
    multiclass_perceptron_loss as multiclass_perceptron_loss,
    multiclass_sparsemax_loss as multiclass_sparsemax_loss,
    perceptron_loss as perceptron_loss,
    sparsemax_loss as sparsemax_loss,
)
from genesis_fn.optim.losses.ranking import ranking_softmax_loss as ranking_softmax_loss
from genesis_fn.optim.losses.regression import (
    cosine_distance as cosine_distance,
    cosine_similarity as cosine_similarity,
    huber_loss as huber_loss,
    l2_loss as l2_loss,
    log_cosh as log_cosh,
    squared_error as squared_error,
)
from genesis_fn.optim.losses.segmentation import (
    binary_dice_loss as binary_dice_loss,
    dice_loss as dice_loss,
    multiclass_generalized_dice_loss as multiclass_generalized_dice_loss,
)
from genesis_fn.optim.losses.self_supervised import (
    ntxent as ntxent,
    triplet_margin_loss as triplet_margin_loss,
)
from genesis_fn.optim.losses.sequences import (
    ctc_loss as ctc_loss,
    ctc_loss_with_forward_probs as ctc_loss_with_forward_probs,
)
