"""Losses with the names and conventions of `torch.nn.functional`, reduced to a scalar by default.

`optim.losses` has optax's, one value per example, and most of the arithmetic. Here `reduction` is
"mean", "sum" or "none", and `where` masks what does not count: such elements may hold anything,
NaN too, and have the derivative 0. A mean over nothing is NaN, as in torch and NumPy, with the
derivative 0. Predictions and targets are of one shape: broadcasting would make pairs of them.
Under `amp` each runs in float32 as a whole (`wide`).
"""

from genesis_fn.nn.losses.alignment import ctc_loss as ctc_loss
from genesis_fn.nn.losses.classification import (
    binary_cross_entropy as binary_cross_entropy,
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
    cross_entropy as cross_entropy,
    kl_div as kl_div,
    nll_loss as nll_loss,
)
from genesis_fn.nn.losses.embeddings import (
    cosine_embedding_loss as cosine_embedding_loss,
    info_nce as info_nce,
    margin_ranking_loss as margin_ranking_loss,
    triplet_margin_loss as triplet_margin_loss,
)
from genesis_fn.nn.losses.regression import (
    gaussian_nll_loss as gaussian_nll_loss,
    huber_loss as huber_loss,
    l1_loss as l1_loss,
    mse_loss as mse_loss,
    poisson_nll_loss as poisson_nll_loss,
    smooth_l1_loss as smooth_l1_loss,
)
